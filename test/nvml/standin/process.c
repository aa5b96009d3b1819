/* The processes on a GPU. Three generations of one function differ in the struct that they fill. */

#include "call.h"

/* Fills out[0..*size) by put, and tells how many there are where they do not fit. */
static nvmlReturn_t give_processes(const struct call *call, const struct slice *slice, unsigned int kind,
                                   unsigned int *size, void *out,
                                   void (*put)(void *out, unsigned int at, const nvmlProcessInfo_t *))
{
    NEEDS(size && (out || *size == 0));
    unsigned int count = 0;
    for (size_t i = 0; i < call->scenario->processes.count; i++) {
        const struct process *p = &call->scenario->processes.items[i];
        if (!(p->gpus & (gpu_set)1 << call->gpu) || !(p->kinds & kind))
            continue;
        if (slice && (p->gi != slice->gi || p->ci != slice->ci))
            continue;
        int64_t bytes = NVML_VALUE_NOT_AVAILABLE;
        curve_at(call->scenario, &p->bytes, call->now, &bytes);
        if (count < *size)
            put(out, count, &(nvmlProcessInfo_t){p->pid, (unsigned long long)bytes, p->gi, p->ci});
        count++;
    }
    bool fits = count <= *size;
    *size = count;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static void put_v1(void *out, unsigned int at, const nvmlProcessInfo_t *p)
{
    ((nvmlProcessInfo_v1_t *)out)[at] = (nvmlProcessInfo_v1_t){p->pid, p->usedGpuMemory};
}

static void put_v2(void *out, unsigned int at, const nvmlProcessInfo_t *p)
{
    ((nvmlProcessInfo_v2_t *)out)[at] = *p;
}

#define PROCESSES(function, type, kind, put) \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *infoCount, type *infos) \
    { \
        ANY_CALL(device); \
        return give_processes(&call, slice, kind, infoCount, infos, put); \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, COMPUTE, put_v1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, COMPUTE, put_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, COMPUTE, put_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, GRAPHICS, put_v1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, GRAPHICS, put_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, GRAPHICS, put_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, MPS, put_v1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, MPS, put_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, MPS, put_v2)

/* -- what they use -- */

/* The driver samples six times a second. A sample is of the period that ended last. */
enum { SAMPLES_PER_SECOND = 6 };

/* How much of the period that ends at a time was used, rounded; 0 where it is not said. */
static unsigned int share(const struct call *call, const struct curve *c, double end)
{
    double sum;
    curve_sum(call->scenario, c, end - 1.0 / SAMPLES_PER_SECOND, end, &sum);
    return (unsigned int)(sum * SAMPLES_PER_SECOND + 0.5);
}

/* The header: one of each process that had "some non-zero utilization during the last sample period". */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                             unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
    DEVICE_CALL(device);
    NEEDS(processSamplesCount);
    if (is_partitioned(&call, call.gpu)) /* the header says so */
        return NVML_ERROR_NOT_SUPPORTED;
    double end = (double)(int64_t)(call.now * SAMPLES_PER_SECOND) / SAMPLES_PER_SECOND;
    unsigned long long stamp = (unsigned long long)(end * 1e6);
    unsigned int count = 0, room = utilization ? *processSamplesCount : 0;
    for (size_t i = 0; i < call.scenario->processes.count && stamp > lastSeenTimeStamp; i++) {
        const struct process *p = &call.scenario->processes.items[i];
        nvmlProcessUtilizationSample_t sample = {p->pid, stamp, share(&call, &p->sm, end), share(&call, &p->memory, end),
                                                 share(&call, &p->encoder, end), share(&call, &p->decoder, end)};
        if (!(p->gpus & (gpu_set)1 << call.gpu) || !(sample.smUtil | sample.memUtil | sample.encUtil | sample.decUtil))
            continue;
        if (count < room)
            utilization[count] = sample;
        count++;
    }
    *processSamplesCount = count;
    if (count == 0)
        return NVML_ERROR_NOT_FOUND;
    return count <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
