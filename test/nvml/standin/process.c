/* The processes on a GPU. Three generations of one function differ in the struct that they fill. */

#include "call.h"


/* Fills out[0..*size) by put, and tells how many there are where they do not fit. */
static nvmlReturn_t give_processes(const struct call *call, const struct slice *slice, unsigned int *size, void *out,
                                   void (*put)(void *out, unsigned int at, const nvmlProcessInfo_t *))
{
    NEEDS(size && (out || *size == 0));
    unsigned int count = 0;
    for (size_t i = 0; i < call->scenario->processes.count; i++) {
        const struct process *p = &call->scenario->processes.items[i];
        if (!(p->gpus & (gpu_set)1 << call->gpu))
            continue;
        if (slice && (p->info.gpuInstanceId != slice->gi || p->info.computeInstanceId != slice->ci))
            continue;
        if (count < *size)
            put(out, count, &p->info);
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

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
                                                  nvmlProcessInfo_v1_t *infos)
{
    ANY_CALL(device);
    return give_processes(&call, slice, infoCount, infos, put_v1);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
                                                     nvmlProcessInfo_v2_t *infos)
{
    ANY_CALL(device);
    return give_processes(&call, slice, infoCount, infos, put_v2);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                     nvmlProcessInfo_t *infos)
{
    ANY_CALL(device);
    return give_processes(&call, slice, infoCount, infos, put_v2);
}
