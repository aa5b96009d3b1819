/* GPU instances of a MIG-enabled GPU, and their handles. */

#include <stdio.h>
#include <string.h>

#include "call.h"

/* Targets of handles, by GPU and id. */
static struct nvmlGpuInstance_st {
    char unused;
} instances[MAX_GPUS][64];

enum { INSTANCE_COUNT = sizeof instances[0] / sizeof *instances[0] };

/* Returns the first MIG device of a GPU instance, or NULL. Its index is the begin of the instance. */
static const struct mig_device *first_mig_device(const struct call *call, int gpu, unsigned int gi)
{
    for (int i = 0; i < MAX_MIG_DEVICES && is_partitioned(call, gpu); i++) {
        const struct mig_device *mig = &call->scenario->gpus[gpu].mig_devices[i];
        if (mig->present && mig->gi == gi)
            return mig;
    }
    return NULL;
}

/* Profile numbers and sizes of an H100 and an H200 (nvidia-smi mig -lgip). */
static const struct {
    const char *name; /* of a GPU instance, without "1c." */
    unsigned int number, size;
} profiles[] = {
    {"1g.10gb+me", 20, 1}, {"1g.10gb", 19, 1}, {"1g.20gb", 15, 2}, {"2g.20gb", 14, 2},
    {"3g.40gb", 9, 4},     {"4g.40gb", 5, 4},  {"7g.80gb", 0, 8},
    {"1g.18gb+me", 20, 1}, {"1g.18gb", 19, 1}, {"1g.35gb", 15, 2}, {"2g.35gb", 14, 2},
    {"3g.71gb", 9, 4},     {"4g.71gb", 5, 4},  {"7g.141gb", 0, 8},
};

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gpuInstance)
{
    DEVICE_CALL(device);
    REQUIRE(gpuInstance);
    if (!is_partitioned(&call, call.gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (id >= INSTANCE_COUNT || !first_mig_device(&call, call.gpu, id))
        return NVML_ERROR_NOT_FOUND;
    *gpuInstance = (nvmlGpuInstance_t){&instances[call.gpu][id]};
    return NVML_SUCCESS;
}

static int gpu_of_instance(nvmlGpuInstance_t instance)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        for (int j = 0; j < INSTANCE_COUNT; j++) {
            if (instance.handle == &instances[i][j])
                return i;
        }
    }
    return NOT_A_HANDLE;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
    CALL(gpu_of_instance(gpuInstance));
    REQUIRE(info);
    unsigned int gi = (unsigned int)(gpuInstance.handle - instances[call.gpu]);
    const struct mig_device *mig = first_mig_device(&call, call.gpu, gi);
    if (!mig)
        return NVML_ERROR_INVALID_ARGUMENT;
    const char *name = strstr(mig->profile, "c.");
    name = name ? name + strlen("c.") : mig->profile;
    *info = (nvmlGpuInstanceInfo_t){.device = handle_of(call.gpu), .id = gi, .placement.size = 1};
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++) {
        if (strcmp(profiles[i].name, name) == 0) {
            info->profileId = profiles[i].number;
            info->placement.size = profiles[i].size;
        }
    }
    info->placement.start = (unsigned int)(mig - call.scenario->gpus[call.gpu].mig_devices);
    return NVML_SUCCESS;
}
