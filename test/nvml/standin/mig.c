/* MIG: the slices of a GPU, and their handles. */

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "call.h"

/* A handle of a slice points at a slot, which remembers of which life of which slice it is: the same index, GI and CI may
 * be those of another slice later. */
static struct nvmlDevice_st {
    struct slice life; /* not present: the slot was never used */
} slots[MAX_GPUS][64];

enum { SLOT_COUNT = sizeof slots[0] / sizeof *slots[0] };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards slots */

bool is_partitioned(const struct call *call, int gpu)
{
    int64_t mode;
    return curve_at(call->scenario, &call->scenario->gpus[gpu].values[value_mig_mode], call->now, &mode) && mode == 1;
}

int gpu_of_slice(nvmlDevice_t device)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        for (int j = 0; j < SLOT_COUNT; j++) {
            if (device.handle == &slots[i][j])
                return i;
        }
    }
    return NOT_A_HANDLE;
}

bool is_slice(nvmlDevice_t device)
{
    return gpu_of_slice(device) != NOT_A_HANDLE;
}

bool same_life(const struct slice *a, const struct slice *b)
{
    return a->present && b->present && a->gi == b->gi && a->ci == b->ci && strcmp(a->uuid, b->uuid) == 0 &&
           strcmp(a->profile, b->profile) == 0;
}

/* The slice of the GPU that is the same as an earlier one; NULL when it is gone. */
static const struct slice *still_there(const struct call *call, int gpu, const struct slice *life)
{
    for (int i = 0; i < MAX_SLICES && is_partitioned(call, gpu); i++) {
        const struct slice *slice = &call->scenario->gpus[gpu].slices[i];
        if (same_life(slice, life))
            return slice;
    }
    return NULL;
}

const struct slice *slice_of(const struct call *call, nvmlDevice_t device)
{
    int gpu = gpu_of_slice(device);
    if (gpu == NOT_A_HANDLE)
        return NULL;
    pthread_mutex_lock(&lock);
    struct slice life = device.handle->life;
    pthread_mutex_unlock(&lock);
    return still_there(call, gpu, &life);
}

/* The slot that a slice has, or gets: one that was never used, or, where handles are reused or nothing else is left, one
 * whose slice is gone. */
static struct nvmlDevice_st *slot_for(const struct call *call, int gpu, const struct slice *slice)
{
    struct nvmlDevice_st *unused = NULL, *stale = NULL;
    for (int i = SLOT_COUNT; i-- > 0;) {
        struct nvmlDevice_st *slot = &slots[gpu][i];
        if (same_life(&slot->life, slice))
            return slot;
        if (!slot->life.present)
            unused = slot;
        else if (!still_there(call, gpu, &slot->life))
            stale = slot;
    }
    return stale && (call->scenario->reuse_handles || !unused) ? stale : unused;
}

nvmlDevice_t handle_of_slice(const struct call *call, int gpu, int index)
{
    const struct slice *slice = &call->scenario->gpus[gpu].slices[index];
    pthread_mutex_lock(&lock);
    struct nvmlDevice_st *slot = slot_for(call, gpu, slice);
    slot->life = *slice;
    pthread_mutex_unlock(&lock);
    return (nvmlDevice_t){slot};
}

void slice_uuid(const struct gpu *gpu, const struct slice *slice, char *out, size_t size)
{
    if (strcmp(slice->uuid, "old") == 0)
        snprintf(out, size, "MIG-%.80s/%u/%u", gpu->texts[text_uuid], slice->gi, slice->ci);
    else if (slice->uuid[0])
        snprintf(out, size, "%s", slice->uuid);
    else /* of the very form, and the same for the same place: NVIDIA's say no more */
        snprintf(out, size, "MIG-%.8s-%04u-5%03u-8000-%.12s", gpu->texts[text_uuid] + strlen("GPU-"), slice->gi, slice->ci,
                 gpu->texts[text_uuid] + strlen("GPU-00000000-0000-0000-0000-"));
}

/* -- what a GPU says -- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    DEVICE_CALL(device);
    NEEDS(currentMode && pendingMode);
    READ(mode, mig_mode);
    *currentMode = *pendingMode = (unsigned int)mode;
    return NVML_SUCCESS;
}

/* The most that there can be, and not how many there are. */
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    DEVICE_CALL(device);
    NEEDS(count);
    *count = is_partitioned(&call, call.gpu) ? MAX_SLICES : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
    DEVICE_CALL(device);
    NEEDS(migDevice);
    if (!is_partitioned(&call, call.gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    NEEDS(index < MAX_SLICES);
    if (!gpu->slices[index].present)
        return NVML_ERROR_NOT_FOUND;
    *migDevice = handle_of_slice(&call, call.gpu, (int)index);
    return NVML_SUCCESS;
}

/* -- what a slice says -- */

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
    ANY_CALL(device);
    NEEDS(isMigDevice);
    *isMigDevice = slice != NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device)
{
    SLICE_CALL(migDevice);
    NEEDS(device);
    *device = handle_of(call.gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    SLICE_CALL(device);
    NEEDS(id);
    *id = slice->gi;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    SLICE_CALL(device);
    NEEDS(id);
    *id = slice->ci;
    return NVML_SUCCESS;
}

struct size slice_size(const struct slice *slice)
{
    struct size s = {0};
    if (sscanf(slice->profile, "%uc.%ug.%ugb", &s.c, &s.g, &s.gb) == 3)
        return s;
    sscanf(slice->profile, "%ug.%ugb", &s.g, &s.gb);
    s.c = s.g;
    return s;
}

static nvmlReturn_t give_attributes(const struct call *call, const struct gpu *gpu, const struct slice *slice,
                                    nvmlDeviceAttributes_t *out)
{
    struct size size = slice_size(slice);
    int64_t multiprocessors = 0;
    NEEDS(out);
    read_value(call, value_slice_multiprocessors, &multiprocessors);
    bool media = strstr(slice->profile, "+me") != NULL;
    *out = (nvmlDeviceAttributes_t){
        .multiprocessorCount = (unsigned int)multiprocessors * size.c,
        .sharedCopyEngineCount = size.g,
        .sharedDecoderCount = size.g,
        .sharedJpegCount = size.g,
        .sharedOfaCount = media,
        .gpuInstanceSliceCount = size.g,
        .computeInstanceSliceCount = size.c,
        .memorySizeMB = slice_memory(gpu, slice) >> 20,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    SLICE_CALL(device);
    return give_attributes(&call, gpu, slice, attributes);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    SLICE_CALL(device);
    return give_attributes(&call, gpu, slice, attributes);
}
