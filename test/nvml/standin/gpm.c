#include "gpm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "counter.h"

/* The GPU as a whole has the number behind those of its instances. */
enum { MOST_INSTANCES = 16, WHOLE_GPU = MOST_INSTANCES, ENTITIES };

/* A counter for each metric: its value, added up over time in seconds. That of a metric that the scenario does not give
 * stands still. */
struct counters {
    double sums[NVML_GPM_METRIC_MAX];
    bool given[NVML_GPM_METRIC_MAX];
};

/* What the counters of a GPU or an instance had reached when the scenario began to hold; NULL: nothing. */
static struct counters *settled[MAX_GPUS][ENTITIES];
static struct nvmlGpmSample_st *samples; /* all that are allocated */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards both, and the samples themselves */

struct nvmlGpmSample_st {
    struct nvmlGpmSample_st *next;
    bool taken;
    int gpu, entity;
    double at; /* Unix time in seconds */
    struct counters counters;
};

/* Adds what a scenario says of an entity over a time. The newest line about a metric holds. */
static void count_on(const struct scenario *s, int gpu, int entity, double from, double to, struct counters *c)
{
    memset(c->given, 0, sizeof c->given);
    bool decided[NVML_GPM_METRIC_MAX] = {false};
    for (size_t i = s->metrics.count; i-- > 0;) {
        const struct metric *m = &s->metrics.items[i];
        if (!(m->gpus & (gpu_set)1 << gpu) || (m->scope.kind == ONE_SCOPE && (int)m->scope.number != entity))
            continue;
        for (unsigned int id = m->first; id <= m->last; id++) {
            double sum;
            if (decided[id])
                continue;
            decided[id] = true;
            c->given[id] = curve_sum(s, &m->curve, from, to, &sum);
            c->sums[id] += sum;
        }
    }
}

/* Tells whether an instance is in both scenarios the same one: with a slice at least that goes on. */
static bool goes_on(const struct scenario *old, const struct scenario *fresh, int gpu, int entity)
{
    for (int i = 0; i < MAX_SLICES; i++) {
        for (int j = 0; j < MAX_SLICES; j++) {
            const struct slice *before = &old->gpus[gpu].slices[i], *after = &fresh->gpus[gpu].slices[j];
            if ((int)before->gi == entity && same_life(before, after))
                return true;
        }
    }
    return entity == WHOLE_GPU;
}

/* Nothing is settled for what nobody has sampled yet. */
void gpm_settle(const struct scenario *old, const struct scenario *fresh)
{
    pthread_mutex_lock(&lock);
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
        for (int entity = 0; entity < ENTITIES; entity++) {
            struct counters *c = settled[gpu][entity];
            if (!c)
                continue;
            if (goes_on(old, fresh, gpu, entity))
                count_on(old, gpu, entity, old->since, fresh->since, c);
            else
                memset(c, 0, sizeof *c);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* A sample that is allocated; NULL for a handle that is none. */
static struct nvmlGpmSample_st *find(nvmlGpmSample_t handle)
{
    struct nvmlGpmSample_st *s = samples;
    while (s && s != handle.handle)
        s = s->next;
    return s;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *gpmSample)
{
    CALL(NO_GPU);
    NEEDS(gpmSample);
    struct nvmlGpmSample_st *s = calloc(1, sizeof *s);
    if (!s)
        return NVML_ERROR_MEMORY;
    pthread_mutex_lock(&lock);
    s->next = samples;
    samples = s;
    pthread_mutex_unlock(&lock);
    counter_samples(1);
    gpmSample->handle = s;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t gpmSample)
{
    CALL(NO_GPU);
    pthread_mutex_lock(&lock);
    struct nvmlGpmSample_st *found = find(gpmSample), **at = &samples;
    while (found && *at != found)
        at = &(*at)->next;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&lock);
    NEEDS(found);
    free(found);
    counter_samples(-1);
    return NVML_SUCCESS;
}

static nvmlReturn_t take_sample(const struct call *call, int entity, nvmlGpmSample_t handle)
{
    int64_t supported;
    if (!read_value(call, value_gpm, &supported) || supported == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    struct nvmlGpmSample_st *s = find(handle);
    struct counters **reached = &settled[call->gpu][entity];
    if (s && !*reached)
        *reached = calloc(1, sizeof **reached);
    if (s && *reached) {
        s->counters = **reached;
        count_on(call->scenario, call->gpu, entity, call->scenario->since, call->now, &s->counters);
        s->taken = true;
        s->gpu = call->gpu;
        s->entity = entity;
        s->at = call->now;
    }
    bool full = s && !*reached;
    pthread_mutex_unlock(&lock);
    NEEDS(s);
    return full ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

/* Of a slice it is a sample of its GPU instance. */
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t gpmSample)
{
    ANY_CALL(device);
    NEEDS(!slice || slice->gi < MOST_INSTANCES);
    return take_sample(&call, slice ? (int)slice->gi : WHOLE_GPU, gpmSample);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpuInstanceId, nvmlGpmSample_t gpmSample)
{
    DEVICE_CALL(device);
    bool there = false;
    for (int i = 0; i < MAX_SLICES && is_partitioned(&call, call.gpu); i++)
        there |= gpu->slices[i].present && gpu->slices[i].gi == gpuInstanceId;
    NEEDS(there && gpuInstanceId < MOST_INSTANCES);
    return take_sample(&call, (int)gpuInstanceId, gpmSample);
}

/* -- the metrics -- */

/* A metric is what its counter ran on by, over the time between the samples: its mean. */
static nvmlReturn_t compute(const struct nvmlGpmSample_st *from, const struct nvmlGpmSample_st *to, nvmlGpmMetric_t *m)
{
    m->metricInfo = (nvmlGpmMetricMetricInfo_t){NULL, NULL, NULL};
    if (m->metricId == 0 || m->metricId >= NVML_GPM_METRIC_MAX)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!to->counters.given[m->metricId])
        return NVML_ERROR_NOT_SUPPORTED;
    m->value = (to->counters.sums[m->metricId] - from->counters.sums[m->metricId]) / (to->at - from->at);
    return NVML_SUCCESS;
}

static nvmlReturn_t compute_all(const struct call *call, nvmlGpmMetricsGet_t *get)
{
    const struct nvmlGpmSample_st *from = find(get->sample1), *to = find(get->sample2);
    NEEDS(from && to && from->taken && to->taken);
    NEEDS(from->gpu == to->gpu && from->entity == to->entity && to->at > from->at);
    for (unsigned int i = 0; i < get->numMetrics; i++) {
        nvmlGpmMetric_t *m = &get->metrics[i];
        const struct rule *fail = scenario_rule(call->scenario, FAIL_METRIC, (int)m->metricId, call->gpu);
        m->nvmlReturn = fail ? fail->answer : compute(from, to, m);
    }
    return NVML_SUCCESS;
}

/* The GPU that a sample is of. */
static int gpu_of_sample(nvmlGpmSample_t handle)
{
    pthread_mutex_lock(&lock);
    const struct nvmlGpmSample_st *s = find(handle);
    int gpu = s && s->taken ? s->gpu : NO_GPU;
    pthread_mutex_unlock(&lock);
    return gpu;
}

/* It counts as a call on the GPU of the samples, though it computes and asks nobody. */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metricsGet)
{
    CALL(metricsGet ? gpu_of_sample(metricsGet->sample2) : NO_GPU);
    NEEDS(metricsGet && metricsGet->numMetrics <= NVML_GPM_METRIC_MAX);
    if (metricsGet->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = compute_all(&call, metricsGet);
    pthread_mutex_unlock(&lock);
    return answer;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *gpmSupport)
{
    ANY_CALL(device);
    NEEDS(gpmSupport);
    if (gpmSupport->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    READ(supported, gpm);
    gpmSupport->isSupportedDevice = (unsigned int)supported;
    return NVML_SUCCESS;
}
