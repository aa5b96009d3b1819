/* Processes on a GPU. The three versions of a function fill different structs. */

#include "call.h"

static void put_v1(void *out, unsigned int at, const nvmlProcessInfo_t *p)
{
    ((nvmlProcessInfo_v1_t *)out)[at] = (nvmlProcessInfo_v1_t){p->pid, p->usedGpuMemory};
}

/* Fills out[0..*size) with put, and sets *size to the number of processes, also if they do not fit. */
static nvmlReturn_t get_processes(const struct call *call, const struct mig_device *mig, unsigned int kind,
                                  unsigned int *size, void *out,
                                  void (*put)(void *out, unsigned int at, const nvmlProcessInfo_t *))
{
    REQUIRE(size && (out || *size == 0));
    unsigned int count = 0;
    for (size_t i = 0; i < call->scenario->processes.count; i++) {
        const struct process *p = &call->scenario->processes.items[i];
        if (!(p->gpus & (gpu_set)1 << call->gpu) || !(p->kinds & kind))
            continue;
        if (mig && (p->gi != mig->gi || p->ci != mig->ci))
            continue;
        int64_t bytes = NVML_VALUE_NOT_AVAILABLE;
        curve_at(call->scenario, &p->bytes, call->now, &bytes);
        if (count < *size)
            (call->scenario->short_processes ? put_v1 : put)(out, count, &(nvmlProcessInfo_t){p->pid, (unsigned long long)bytes, p->gi, p->ci});
        count++;
    }
    bool fits = count <= *size;
    *size = count;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static void put_v2(void *out, unsigned int at, const nvmlProcessInfo_t *p)
{
    ((nvmlProcessInfo_v2_t *)out)[at] = *p;
}

#define PROCESSES(function, type, kind, put) \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *infoCount, type *infos) \
    { \
        ANY_CALL(device); \
        return get_processes(&call, mig, kind, infoCount, infos, put); \
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

/* -- utilization -- */

/* The driver samples six times a second. A sample is the mean of the latest full period. */
enum { SAMPLES_PER_SECOND = 6 };

/* Returns the rounded mean of the period that ends at a time; 0 for an absent curve. */
static unsigned int mean_percent(const struct call *call, const struct curve *c, double end)
{
    double sum;
    curve_sum(call->scenario, c, end - 1.0 / SAMPLES_PER_SECOND, end, &sum);
    return (unsigned int)(sum * SAMPLES_PER_SECOND + 0.5);
}

/* The header: a sample of each process with "some non-zero utilization during the last sample period". */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                             unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
    DEVICE_CALL(device);
    REQUIRE(processSamplesCount);
    if (is_partitioned(&call, call.gpu)) /* specified by the header */
        return NVML_ERROR_NOT_SUPPORTED;
    double end = (double)(int64_t)(call.now * SAMPLES_PER_SECOND) / SAMPLES_PER_SECOND;
    unsigned long long stamp = (unsigned long long)(end * 1e6);
    unsigned int count = 0, room = utilization ? *processSamplesCount : 0;
    for (size_t i = 0; i < call.scenario->processes.count && stamp > lastSeenTimeStamp; i++) {
        const struct process *p = &call.scenario->processes.items[i];
        nvmlProcessUtilizationSample_t sample = {p->pid, stamp, mean_percent(&call, &p->sm, end), mean_percent(&call, &p->memory, end),
                                                 mean_percent(&call, &p->encoder, end), mean_percent(&call, &p->decoder, end)};
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
