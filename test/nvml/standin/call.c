#include "call.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "counter.h"
#include "names.h"

/* Interval at which a hung call checks the scenario. */
enum { POLL_INTERVAL_MS = 10 };

/* Targets of GPU handles. mig.c has the handles of MIG devices. */
static struct nvmlDevice_st {
    char unused;
} handles[MAX_GPUS];

static atomic_int starts;

/* The lock of a real driver for most of its work, used with "lock driver" in the scenario. */
static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;

int gpu_of(nvmlDevice_t device)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        if (device.handle == &handles[i])
            return i;
    }
    return gpu_of_mig_device(device);
}

nvmlDevice_t handle_of(int gpu)
{
    return (nvmlDevice_t){&handles[gpu]};
}

void library_start(void)
{
    atomic_fetch_add(&starts, 1);
}

void library_end(void)
{
    atomic_fetch_sub(&starts, 1);
}

bool library_started(void)
{
    return atomic_load(&starts) > 0;
}

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) != 0) {
    }
}

static struct timespec in_ms(long ms)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += ms * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

static void refresh(struct call *c)
{
    if (c->scenario)
        scenario_release(c->scenario);
    c->scenario = scenario_now();
}

/* Takes the driver's lock, unless "lock driver" is removed from the scenario. */
static void lock_driver(struct call *c)
{
    while (c->scenario->driver_lock && !c->has_driver_lock) {
        struct timespec until = in_ms(POLL_INTERVAL_MS);
        if (pthread_mutex_timedlock(&driver, &until) == 0)
            c->has_driver_lock = true;
        else
            refresh(c);
    }
}

static void unlock_driver(struct call *c)
{
    if (c->has_driver_lock)
        pthread_mutex_unlock(&driver);
    c->has_driver_lock = false;
}

static const struct rule *rule_for(const struct call *c, enum action action)
{
    return scenario_rule(c->scenario, action, c->function, c->gpu);
}

static void apply_delays(struct call *c)
{
    const struct rule *slow = rule_for(c, SLOW);
    if (slow)
        sleep_ms(slow->delay_ms);
    while (rule_for(c, HANG)) {
        sleep_ms(POLL_INTERVAL_MS);
        refresh(c);
    }
}

static void reject(struct call *c, nvmlReturn_t ret)
{
    c->rejected = true;
    c->ret = ret;
}

/* Rejects a call on a missing or lost GPU. */
static void reject_missing_gpu(struct call *c)
{
    if (c->gpu == NO_GPU)
        return;
    if ((unsigned int)c->gpu >= c->scenario->gpu_count)
        reject(c, NVML_ERROR_INVALID_ARGUMENT);
    else if (c->scenario->gpus[c->gpu].lost)
        reject(c, NVML_ERROR_GPU_IS_LOST);
}

/* Only these functions work before the library is started. */
static bool starts_library(int function)
{
    return function == FUNCTION_nvmlInit || function == FUNCTION_nvmlInit_v2 || function == FUNCTION_nvmlInitWithFlags;
}

static void start_call(struct call *c, bool valid_handle)
{
    if (!library_started() && !starts_library(c->function)) {
        reject(c, NVML_ERROR_UNINITIALIZED);
        return;
    }
    refresh(c);
    if (!c->scenario) {
        reject(c, NVML_ERROR_DRIVER_NOT_LOADED);
        return;
    }
    lock_driver(c);
    apply_delays(c);
    const struct rule *fail = rule_for(c, FAIL);
    if (fail)
        reject(c, fail->ret);
    else if (!valid_handle)
        reject(c, NVML_ERROR_INVALID_ARGUMENT);
    else
        reject_missing_gpu(c);
    c->now = unix_seconds();
}

struct call call_begin(const char *function, int gpu)
{
    struct call c = {.function = find_function(function), .gpu = gpu == NOT_A_HANDLE ? NO_GPU : gpu};
    counter_begin(c.function, c.gpu);
    c.began = unix_seconds();
    start_call(&c, gpu != NOT_A_HANDLE);
    return c;
}

void call_end(struct call *c)
{
    unlock_driver(c);
    if (c->scenario)
        scenario_release(c->scenario);
    counter_end(c->gpu);
}

void call_wait(struct call *c, int changes, double seconds)
{
    unlock_driver(c);
    scenario_wait(changes, seconds);
    refresh(c);
    lock_driver(c);
}

/* The energy counter starts at the GPU's last reset. */
bool read_value(const struct call *c, enum value value, int64_t *out)
{
    const struct gpu *gpu = &c->scenario->gpus[c->gpu];
    const struct curve *curve = &gpu->values[value];
    int64_t before;
    if (!curve_at(c->scenario, curve, c->now, out))
        return false;
    if (value == value_energy && gpu->reset > 0 && c->now >= gpu->reset && curve_at(c->scenario, curve, gpu->reset, &before))
        *out -= before;
    return true;
}

bool read_result(const struct call *c, unsigned int part, int64_t *out)
{
    if (c->gpu == NO_GPU)
        return false;
    for (size_t i = c->scenario->results.count; i-- > 0;) {
        const struct result *r = &c->scenario->results.items[i];
        if (r->function == c->function && r->gpus & (gpu_set)1 << c->gpu && (r->scope.kind == ANY_SCOPE || r->scope.number == part))
            return curve_at(c->scenario, &r->curve, c->now, out);
    }
    return false;
}

nvmlReturn_t copy_text(const char *text, char *out, unsigned int size)
{
    REQUIRE(out);
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}
