/* MIG devices and their handles. */

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "call.h"

/* The handle of a MIG device points to a slot with the device's identity. A later MIG device may have the same index, GI and CI. */
static struct nvmlDevice_st {
    struct mig_device identity; /* not present: the slot is unused */
} slots[MAX_GPUS][64];

enum { SLOT_COUNT = sizeof slots[0] / sizeof *slots[0] };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards slots */

bool is_partitioned(const struct call *call, int gpu)
{
    int64_t mode;
    return curve_at(call->scenario, &call->scenario->gpus[gpu].values[value_mig_mode], call->now, &mode) && mode == 1;
}

int gpu_of_mig_device(nvmlDevice_t device)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        for (int j = 0; j < SLOT_COUNT; j++) {
            if (device.handle == &slots[i][j])
                return i;
        }
    }
    return NOT_A_HANDLE;
}

bool is_mig_device(nvmlDevice_t device)
{
    return gpu_of_mig_device(device) != NOT_A_HANDLE;
}

bool same_mig_device(const struct mig_device *a, const struct mig_device *b)
{
    return a->present && b->present && a->gi == b->gi && a->ci == b->ci && strcmp(a->uuid, b->uuid) == 0 &&
           strcmp(a->profile, b->profile) == 0;
}

/* Returns the GPU's MIG device with this identity, or NULL. */
static const struct mig_device *find_same(const struct call *call, int gpu, const struct mig_device *identity)
{
    for (int i = 0; i < MAX_MIG_DEVICES && is_partitioned(call, gpu); i++) {
        const struct mig_device *mig = &call->scenario->gpus[gpu].mig_devices[i];
        if (same_mig_device(mig, identity))
            return mig;
    }
    return NULL;
}

const struct mig_device *mig_device_of(const struct call *call, nvmlDevice_t device)
{
    int gpu = gpu_of_mig_device(device);
    if (gpu == NOT_A_HANDLE)
        return NULL;
    pthread_mutex_lock(&lock);
    struct mig_device identity = device.handle->identity;
    pthread_mutex_unlock(&lock);
    return find_same(call, gpu, &identity);
}

/* Returns the slot of a MIG device: its own or an unused slot. With "reuse handles", or without an unused slot, the slot of a
 * removed MIG device comes first. */
static struct nvmlDevice_st *slot_of(const struct call *call, int gpu, const struct mig_device *mig)
{
    struct nvmlDevice_st *unused = NULL, *stale = NULL;
    for (int i = SLOT_COUNT; i-- > 0;) {
        struct nvmlDevice_st *slot = &slots[gpu][i];
        if (same_mig_device(&slot->identity, mig))
            return slot;
        if (!slot->identity.present)
            unused = slot;
        else if (!find_same(call, gpu, &slot->identity))
            stale = slot;
    }
    return stale && (call->scenario->reuse_handles || !unused) ? stale : unused;
}

nvmlDevice_t handle_of_mig_device(const struct call *call, int gpu, int index)
{
    const struct mig_device *mig = &call->scenario->gpus[gpu].mig_devices[index];
    pthread_mutex_lock(&lock);
    struct nvmlDevice_st *slot = slot_of(call, gpu, mig);
    slot->identity = *mig;
    pthread_mutex_unlock(&lock);
    return (nvmlDevice_t){slot};
}

void mig_uuid(const struct gpu *gpu, const struct mig_device *mig, char *out, size_t size)
{
    if (strcmp(mig->uuid, "old") == 0)
        snprintf(out, size, "MIG-%.80s/%u/%u", gpu->texts[text_uuid], mig->gi, mig->ci);
    else if (mig->uuid[0])
        snprintf(out, size, "%s", mig->uuid);
    else /* in NVIDIA's form, and constant for the same GPU, GI and CI */
        snprintf(out, size, "MIG-%.8s-%04u-5%03u-8000-%.12s", gpu->texts[text_uuid] + strlen("GPU-"), mig->gi, mig->ci,
                 gpu->texts[text_uuid] + strlen("GPU-00000000-0000-0000-0000-"));
}

/* -- functions of a GPU -- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    DEVICE_CALL(device);
    REQUIRE(currentMode && pendingMode);
    READ(mode, mig_mode);
    *currentMode = *pendingMode = (unsigned int)mode;
    return NVML_SUCCESS;
}

/* Returns the possible number of MIG devices, not the current number. */
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    DEVICE_CALL(device);
    REQUIRE(count);
    *count = is_partitioned(&call, call.gpu) ? MAX_MIG_DEVICES : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
    DEVICE_CALL(device);
    REQUIRE(migDevice);
    if (!is_partitioned(&call, call.gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    REQUIRE(index < MAX_MIG_DEVICES);
    if (!gpu->mig_devices[index].present)
        return NVML_ERROR_NOT_FOUND;
    *migDevice = handle_of_mig_device(&call, call.gpu, (int)index);
    return NVML_SUCCESS;
}

/* -- functions of a MIG device -- */

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
    ANY_CALL(device);
    REQUIRE(isMigDevice);
    *isMigDevice = mig != NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device)
{
    MIG_CALL(migDevice);
    REQUIRE(device);
    *device = handle_of(call.gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    MIG_CALL(device);
    REQUIRE(id);
    *id = mig->gi;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    MIG_CALL(device);
    REQUIRE(id);
    *id = mig->ci;
    return NVML_SUCCESS;
}

struct size profile_size(const struct mig_device *mig)
{
    struct size s = {0};
    if (sscanf(mig->profile, "%uc.%ug.%ugb", &s.c, &s.g, &s.gb) == 3)
        return s;
    sscanf(mig->profile, "%ug.%ugb", &s.g, &s.gb);
    s.c = s.g;
    return s;
}

static nvmlReturn_t get_attributes(const struct call *call, const struct gpu *gpu, const struct mig_device *mig,
                                   nvmlDeviceAttributes_t *out)
{
    struct size size = profile_size(mig);
    int64_t multiprocessors = 0;
    REQUIRE(out);
    read_value(call, value_slice_multiprocessors, &multiprocessors);
    bool media = strstr(mig->profile, "+me") != NULL;
    *out = (nvmlDeviceAttributes_t){
        .multiprocessorCount = (unsigned int)multiprocessors * size.c,
        .sharedCopyEngineCount = size.g,
        .sharedDecoderCount = size.g,
        .sharedJpegCount = size.g,
        .sharedOfaCount = media,
        .gpuInstanceSliceCount = size.g,
        .computeInstanceSliceCount = size.c,
        .memorySizeMB = mig_memory(gpu, mig) >> 20,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    MIG_CALL(device);
    return get_attributes(&call, gpu, mig, attributes);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    MIG_CALL(device);
    return get_attributes(&call, gpu, mig, attributes);
}
