#include "event.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "call.h"

/* An event set has the registered types and the last delivered serial of each GPU. `changes` is a descriptor of scenario_changes;
 * it is kept with the set, because closing a descriptor takes milliseconds. */
static struct nvmlEventSet_st {
    bool used;
    int changes;
    struct {
        unsigned long long types;
        unsigned long long delivered;
    } gpus[MAX_GPUS];
} sets[64];

enum { SET_COUNT = sizeof sets / sizeof *sets };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards sets */

static void release_locked(struct nvmlEventSet_st *set)
{
    if (set->used && set->changes >= 0)
        close(set->changes);
    memset(set, 0, sizeof *set);
}

void event_sets_free(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SET_COUNT; i++)
        release_locked(&sets[i]);
    pthread_mutex_unlock(&lock);
}

/* Reports whether a handle is that of a used set. */
static bool usable(nvmlEventSet_t set)
{
    for (int i = 0; i < SET_COUNT; i++) {
        if (set.handle == &sets[i])
            return sets[i].used;
    }
    return false;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    CALL(NO_GPU);
    REQUIRE(set);
    nvmlReturn_t ret = NVML_ERROR_INSUFFICIENT_RESOURCES;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SET_COUNT && ret != NVML_SUCCESS; i++) {
        if (sets[i].used)
            continue;
        sets[i] = (struct nvmlEventSet_st){.used = true, .changes = scenario_changes()};
        set->handle = &sets[i];
        ret = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return ret;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    CALL(NO_GPU);
    pthread_mutex_lock(&lock);
    bool was_usable = usable(set);
    if (was_usable)
        release_locked(set.handle);
    pthread_mutex_unlock(&lock);
    return was_usable ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *eventTypes)
{
    DEVICE_CALL(device);
    REQUIRE(eventTypes);
    READ(supported, event_types);
    *eventTypes = (unsigned long long)supported;
    return NVML_SUCCESS;
}

static unsigned long long newest_serial(const struct scenario *s)
{
    unsigned long long newest = 0;
    for (size_t i = 0; i < s->events.count; i++) {
        if (s->events.items[i].last > newest)
            newest = s->events.items[i].last;
    }
    return newest;
}

/* As the header specifies, an unsupported type makes the registration fail, and earlier events are not delivered. */
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes, nvmlEventSet_t set)
{
    DEVICE_CALL(device);
    READ(supported, event_types);
    int64_t rejected;
    if (eventTypes & ~(unsigned long long)supported ||
        (read_value(&call, value_event_types_refused, &rejected) && eventTypes & (unsigned long long)rejected))
        return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    bool was_usable = usable(set);
    if (was_usable) {
        if (!set.handle->gpus[call.gpu].types)
            set.handle->gpus[call.gpu].delivered = newest_serial(call.scenario);
        set.handle->gpus[call.gpu].types |= eventTypes;
    }
    pthread_mutex_unlock(&lock);
    return was_usable ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* Returns the oldest registered event that was not delivered, or NULL. */
static const struct event *oldest_pending(const struct scenario *s, const struct nvmlEventSet_st *set)
{
    const struct event *oldest = NULL;
    for (size_t i = 0; i < s->events.count; i++) {
        const struct event *e = &s->events.items[i];
        bool pending = set->gpus[e->gpu].types & e->type && e->last > set->gpus[e->gpu].delivered;
        if (pending && (!oldest || e->serial < oldest->serial))
            oldest = e;
    }
    return oldest;
}

static bool watches_lost_gpu(const struct scenario *s, const struct nvmlEventSet_st *set)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        if (set->gpus[i].types && s->gpus[i].lost)
            return true;
    }
    return false;
}

/* Returns the next event, or TIMEOUT without an event. Pending events come first; then a lost GPU makes each wait fail. */
static nvmlReturn_t next_event(const struct call *call, nvmlEventSet_t set, const struct event **out, int *changes)
{
    nvmlReturn_t ret = NVML_ERROR_TIMEOUT;
    pthread_mutex_lock(&lock);
    *changes = usable(set) ? set.handle->changes : -1;
    if (!usable(set)) {
        ret = NVML_ERROR_INVALID_ARGUMENT;
    } else if ((*out = oldest_pending(call->scenario, set.handle))) {
        unsigned long long *delivered = &set.handle->gpus[(*out)->gpu].delivered;
        *delivered = *delivered < (*out)->serial ? (*out)->serial : *delivered + 1;
        ret = NVML_SUCCESS;
    } else if (watches_lost_gpu(call->scenario, set.handle)) {
        ret = NVML_ERROR_GPU_IS_LOST;
    }
    pthread_mutex_unlock(&lock);
    return ret;
}

/* A wait has the driver's lock only during a check. It sleeps until the scenario changes, as a real driver sleeps until an
 * interrupt. */
static nvmlReturn_t wait_for_event(struct call *call, nvmlEventSet_t set, unsigned int timeout_ms, const struct event **out)
{
    double deadline = unix_seconds() + timeout_ms / 1e3;
    int changes;
    for (;;) {
        nvmlReturn_t ret = next_event(call, set, out, &changes);
        double left = deadline - unix_seconds();
        if (ret != NVML_ERROR_TIMEOUT || left <= 0)
            return ret;
        call_wait(call, changes, left);
    }
}

static void fill(nvmlEventData_t *data, const struct event *e)
{
    data->device = handle_of((int)e->gpu);
    data->eventType = e->type;
    data->eventData = e->data;
}

/* The first version lacks instances: both fields keep the caller's values. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    CALL(NO_GPU);
    REQUIRE(data);
    const struct event *e;
    nvmlReturn_t ret = wait_for_event(&call, set, timeoutms, &e);
    if (ret == NVML_SUCCESS)
        fill(data, e);
    return ret;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    CALL(NO_GPU);
    REQUIRE(data);
    const struct event *e;
    nvmlReturn_t ret = wait_for_event(&call, set, timeoutms, &e);
    if (ret == NVML_SUCCESS) {
        fill(data, e);
        data->gpuInstanceId = e->gpu_instance;
        data->computeInstanceId = e->compute_instance;
    }
    return ret;
}
