#include "event.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "call.h"

/* An event set remembers for each GPU which types of event it wants and up to which serial it has been told. changes is a descriptor of
 * scenario_changes; it lives as long as the set, since closing one takes milliseconds. */
static struct nvmlEventSet_st {
    bool used;
    int changes;
    struct {
        unsigned long long types;
        unsigned long long told;
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

/* Tells whether a handle is that of a set which is in use. */
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
    NEEDS(set);
    nvmlReturn_t answer = NVML_ERROR_INSUFFICIENT_RESOURCES;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SET_COUNT && answer != NVML_SUCCESS; i++) {
        if (sets[i].used)
            continue;
        sets[i] = (struct nvmlEventSet_st){.used = true, .changes = scenario_changes()};
        set->handle = &sets[i];
        answer = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return answer;
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
    NEEDS(eventTypes);
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

/* One type too many and none is registered; and what happened before is not recorded: the header says both. */
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes, nvmlEventSet_t set)
{
    DEVICE_CALL(device);
    READ(supported, event_types);
    int64_t refused;
    if (eventTypes & ~(unsigned long long)supported ||
        (read_value(&call, value_event_types_refused, &refused) && eventTypes & (unsigned long long)refused))
        return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    bool was_usable = usable(set);
    if (was_usable) {
        if (!set.handle->gpus[call.gpu].types)
            set.handle->gpus[call.gpu].told = newest_serial(call.scenario);
        set.handle->gpus[call.gpu].types |= eventTypes;
    }
    pthread_mutex_unlock(&lock);
    return was_usable ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* The oldest event that the set wants and has not been told of; NULL when there is none. */
static const struct event *oldest_untold(const struct scenario *s, const struct nvmlEventSet_st *set)
{
    const struct event *oldest = NULL;
    for (size_t i = 0; i < s->events.count; i++) {
        const struct event *e = &s->events.items[i];
        bool wanted = set->gpus[e->gpu].types & e->type && e->last > set->gpus[e->gpu].told;
        if (wanted && (!oldest || e->serial < oldest->serial))
            oldest = e;
    }
    return oldest;
}

static bool watches_a_lost_gpu(const struct scenario *s, const struct nvmlEventSet_st *set)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        if (set->gpus[i].types && s->gpus[i].lost)
            return true;
    }
    return false;
}

/* Gives the next event, and TIMEOUT when there is none. What is waiting comes first; after that one lost GPU spoils
 * every wait. */
static nvmlReturn_t next_event(const struct call *call, nvmlEventSet_t set, const struct event **out, int *changes)
{
    nvmlReturn_t answer = NVML_ERROR_TIMEOUT;
    pthread_mutex_lock(&lock);
    *changes = usable(set) ? set.handle->changes : -1;
    if (!usable(set)) {
        answer = NVML_ERROR_INVALID_ARGUMENT;
    } else if ((*out = oldest_untold(call->scenario, set.handle))) {
        unsigned long long *told = &set.handle->gpus[(*out)->gpu].told;
        *told = *told < (*out)->serial ? (*out)->serial : *told + 1;
        answer = NVML_SUCCESS;
    } else if (watches_a_lost_gpu(call->scenario, set.handle)) {
        answer = NVML_ERROR_GPU_IS_LOST;
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

/* A wait holds the driver's lock only while it looks. It sleeps until the scenario changes, as a real driver sleeps until an
 * interrupt. */
static nvmlReturn_t wait_for_event(struct call *call, nvmlEventSet_t set, unsigned int timeout_ms, const struct event **out)
{
    double deadline = unix_seconds() + timeout_ms / 1e3;
    int changes;
    for (;;) {
        nvmlReturn_t answer = next_event(call, set, out, &changes);
        double left = deadline - unix_seconds();
        if (answer != NVML_ERROR_TIMEOUT || left <= 0)
            return answer;
        call_wait(call, changes, left);
    }
}

static void fill(nvmlEventData_t *data, const struct event *e)
{
    data->device = handle_of((int)e->gpu);
    data->eventType = e->type;
    data->eventData = e->data;
}

/* The first version knows no instances: it leaves those two fields as the caller had them. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    CALL(NO_GPU);
    NEEDS(data);
    const struct event *e;
    nvmlReturn_t answer = wait_for_event(&call, set, timeoutms, &e);
    if (answer == NVML_SUCCESS)
        fill(data, e);
    return answer;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    CALL(NO_GPU);
    NEEDS(data);
    const struct event *e;
    nvmlReturn_t answer = wait_for_event(&call, set, timeoutms, &e);
    if (answer == NVML_SUCCESS) {
        fill(data, e);
        data->gpuInstanceId = e->gpu_instance;
        data->computeInstanceId = e->compute_instance;
    }
    return answer;
}
