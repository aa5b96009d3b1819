#include "gpm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "counter.h"

/* The number of the whole GPU follows the ids of its instances. */
enum { MAX_INSTANCES = 16, WHOLE_GPU = MAX_INSTANCES, ENTITIES };

/* The counter of a metric is the integral of its value over time in seconds. A metric without a value does not change its counter. */
struct counters {
    double sums[NVML_GPM_METRIC_MAX];
    bool given[NVML_GPM_METRIC_MAX];
};

/* The counters of a GPU or instance at the begin of the scenario; NULL: zero. */
static struct counters *base_counters[MAX_GPUS][ENTITIES];
static struct nvmlGpmSample_st *samples; /* the allocated samples */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards both variables and the samples */

struct nvmlGpmSample_st {
    struct nvmlGpmSample_st *next;
    bool taken;
    int gpu, entity;
    double at; /* Unix time in seconds */
    struct counters counters;
};

/* Advances an entity's counters between two times. The newest line of a metric counts. */
static void advance(const struct scenario *s, int gpu, int entity, double from, double to, struct counters *c)
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

/* Reports whether an instance is the same in both scenarios: at least one MIG device is the same. */
static bool same_instance(const struct scenario *old, const struct scenario *fresh, int gpu, int entity)
{
    for (int i = 0; i < MAX_MIG_DEVICES; i++) {
        for (int j = 0; j < MAX_MIG_DEVICES; j++) {
            const struct mig_device *before = &old->gpus[gpu].mig_devices[i], *after = &fresh->gpus[gpu].mig_devices[j];
            if ((int)before->gi == entity && same_mig_device(before, after))
                return true;
        }
    }
    return entity == WHOLE_GPU;
}

/* Entities without samples have no counters. */
void gpm_advance(const struct scenario *old, const struct scenario *fresh)
{
    pthread_mutex_lock(&lock);
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
        for (int entity = 0; entity < ENTITIES; entity++) {
            struct counters *c = base_counters[gpu][entity];
            if (!c)
                continue;
            if (same_instance(old, fresh, gpu, entity))
                advance(old, gpu, entity, old->since, fresh->since, c);
            else
                memset(c, 0, sizeof *c);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Returns an allocated sample, or NULL for an invalid handle. */
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
    REQUIRE(gpmSample);
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
    REQUIRE(found);
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
    struct counters **base = &base_counters[call->gpu][entity];
    if (s && !*base)
        *base = calloc(1, sizeof **base);
    if (s && *base) {
        s->counters = **base;
        advance(call->scenario, call->gpu, entity, call->scenario->since, call->now, &s->counters);
        s->taken = true;
        s->gpu = call->gpu;
        s->entity = entity;
        s->at = call->now;
    }
    bool full = s && !*base;
    pthread_mutex_unlock(&lock);
    REQUIRE(s);
    return full ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

/* A sample of a MIG device is a sample of its GPU instance. */
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t gpmSample)
{
    ANY_CALL(device);
    REQUIRE(!mig || mig->gi < MAX_INSTANCES);
    return take_sample(&call, mig ? (int)mig->gi : WHOLE_GPU, gpmSample);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpuInstanceId, nvmlGpmSample_t gpmSample)
{
    DEVICE_CALL(device);
    bool there = false;
    for (int i = 0; i < MAX_MIG_DEVICES && is_partitioned(&call, call.gpu); i++)
        there |= gpu->mig_devices[i].present && gpu->mig_devices[i].gi == gpuInstanceId;
    REQUIRE(there && gpuInstanceId < MAX_INSTANCES);
    return take_sample(&call, (int)gpuInstanceId, gpmSample);
}

/* -- the metrics -- */

/* A metric is the increase of its counter per second between the samples. */
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
    REQUIRE(from && to && from->taken && to->taken);
    REQUIRE(from->gpu == to->gpu && from->entity == to->entity && to->at > from->at);
    for (unsigned int i = 0; i < get->numMetrics; i++) {
        nvmlGpmMetric_t *m = &get->metrics[i];
        const struct rule *fail = scenario_rule(call->scenario, FAIL_METRIC, (int)m->metricId, call->gpu);
        m->nvmlReturn = fail ? fail->ret : compute(from, to, m);
    }
    return NVML_SUCCESS;
}

/* Returns the GPU of a sample. */
static int gpu_of_sample(nvmlGpmSample_t handle)
{
    pthread_mutex_lock(&lock);
    const struct nvmlGpmSample_st *s = find(handle);
    int gpu = s && s->taken ? s->gpu : NO_GPU;
    pthread_mutex_unlock(&lock);
    return gpu;
}

/* Counts as a call on the GPU of the samples, although it only computes. */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metricsGet)
{
    CALL(metricsGet ? gpu_of_sample(metricsGet->sample2) : NO_GPU);
    REQUIRE(metricsGet && metricsGet->numMetrics <= NVML_GPM_METRIC_MAX);
    if (metricsGet->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    pthread_mutex_lock(&lock);
    nvmlReturn_t ret = compute_all(&call, metricsGet);
    pthread_mutex_unlock(&lock);
    return ret;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *gpmSupport)
{
    ANY_CALL(device);
    REQUIRE(gpmSupport);
    if (gpmSupport->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    READ(supported, gpm);
    gpmSupport->isSupportedDevice = (unsigned int)supported;
    return NVML_SUCCESS;
}
