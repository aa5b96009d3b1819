/* GPU instances: the parts of a partitioned GPU that its slices are in, and their handles. */

#include <stdio.h>
#include <string.h>

#include "call.h"

/* A handle points at the place of its GPU and its number. */
static struct nvmlGpuInstance_st {
    char unused;
} places[MAX_GPUS][64];

enum { PLACE_COUNT = sizeof places[0] / sizeof *places[0] };

/* The first slice of a GPU instance, whose index is where the instance begins; NULL when there is no such instance. */
static const struct slice *first_of(const struct call *call, int gpu, unsigned int gi)
{
    for (int i = 0; i < MAX_SLICES && is_partitioned(call, gpu); i++) {
        const struct slice *slice = &call->scenario->gpus[gpu].slices[i];
        if (slice->present && slice->gi == gi)
            return slice;
    }
    return NULL;
}

/* The numbers of profiles are an H100's (nvidia-smi mig -lgip), and the most memory that one has on it. */
static const struct {
    const char *name; /* of an instance, and so without a "1c." */
    unsigned int number, size;
} profiles[] = {
    {"1g.10gb+me", 20, 1}, {"1g.10gb", 19, 1}, {"1g.20gb", 15, 2}, {"2g.20gb", 14, 2},
    {"3g.40gb", 9, 4},     {"4g.40gb", 5, 4},  {"7g.80gb", 0, 8},
};

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gpuInstance)
{
    DEVICE_CALL(device);
    NEEDS(gpuInstance);
    if (!is_partitioned(&call, call.gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (id >= PLACE_COUNT || !first_of(&call, call.gpu, id))
        return NVML_ERROR_NOT_FOUND;
    *gpuInstance = (nvmlGpuInstance_t){&places[call.gpu][id]};
    return NVML_SUCCESS;
}

static int gpu_of_instance(nvmlGpuInstance_t instance)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        for (int j = 0; j < PLACE_COUNT; j++) {
            if (instance.handle == &places[i][j])
                return i;
        }
    }
    return NOT_A_HANDLE;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
    CALL(gpu_of_instance(gpuInstance));
    NEEDS(info);
    unsigned int gi = (unsigned int)(gpuInstance.handle - places[call.gpu]);
    const struct slice *slice = first_of(&call, call.gpu, gi);
    if (!slice)
        return NVML_ERROR_INVALID_ARGUMENT;
    const char *name = strstr(slice->profile, "c.");
    name = name ? name + strlen("c.") : slice->profile;
    *info = (nvmlGpuInstanceInfo_t){.device = handle_of(call.gpu), .id = gi, .placement.size = 1};
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++) {
        if (strcmp(profiles[i].name, name) == 0) {
            info->profileId = profiles[i].number;
            info->placement.size = profiles[i].size;
        }
    }
    info->placement.start = (unsigned int)(slice - call.scenario->gpus[call.gpu].slices);
    return NVML_SUCCESS;
}
