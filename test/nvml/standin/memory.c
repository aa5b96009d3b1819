/* The memory of a GPU or MIG device. */

#include "call.h"

/* Returns the MIG device, or another of its GPU instance if only the other has the value. */
static const struct mig_device *device_with(const struct gpu *gpu, const struct mig_device *mig, bool (*has)(const struct mig_device *))
{
    for (int i = 0; i < MAX_MIG_DEVICES && !has(mig); i++) {
        const struct mig_device *other = &gpu->mig_devices[i];
        if (other->present && other->gi == mig->gi && has(other))
            return other;
    }
    return mig;
}

static bool has_memory(const struct mig_device *mig)
{
    return mig->memory != 0;
}

static bool has_used(const struct mig_device *mig)
{
    return mig->used.shape != ABSENT;
}

static bool has_bar1(const struct mig_device *mig)
{
    return mig->bar1_used.shape != ABSENT;
}

unsigned long long mig_memory(const struct gpu *gpu, const struct mig_device *mig)
{
    const struct mig_device *source = device_with(gpu, mig, has_memory);
    return source->memory ? source->memory : (unsigned long long)profile_size(mig).gb << 30;
}

static unsigned long long now(const struct call *call, const struct curve *c)
{
    int64_t value;
    return curve_at(call->scenario, c, call->now, &value) ? (unsigned long long)value : 0;
}

static nvmlReturn_t get_mig_memory(const struct call *call, const struct gpu *gpu, const struct mig_device *mig,
                                   nvmlMemory_v2_t *memory)
{
    memory->total = mig_memory(gpu, mig);
    memory->reserved = 0;
    memory->used = now(call, &device_with(gpu, mig, has_used)->used);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

static nvmlReturn_t get_memory(const struct call *call, const struct gpu *gpu, const struct mig_device *mig,
                               nvmlMemory_v2_t *memory)
{
    int64_t total, reserved, used;
    if (mig)
        return get_mig_memory(call, gpu, mig, memory);
    if (!read_value(call, value_memory_total, &total) || !read_value(call, value_memory_reserved, &reserved) ||
        !read_value(call, value_memory_used, &used))
        return NVML_ERROR_NOT_SUPPORTED;
    memory->total = (unsigned long long)total;
    memory->reserved = (unsigned long long)reserved;
    memory->used = (unsigned long long)used;
    memory->free = (unsigned long long)(total - reserved - used);
    return NVML_SUCCESS;
}

/* The first version of this struct counts reserved memory as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ANY_CALL(device);
    REQUIRE(memory);
    nvmlMemory_v2_t whole;
    nvmlReturn_t ret = get_memory(&call, gpu, mig, &whole);
    if (ret == NVML_SUCCESS)
        *memory = (nvmlMemory_t){whole.total, whole.free, whole.used + whole.reserved};
    return ret;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ANY_CALL(device);
    REQUIRE(memory);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return get_memory(&call, gpu, mig, memory);
}

/* A MIG device has a fraction of the window, in eighths. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
    ANY_CALL(device);
    REQUIRE(bar1Memory);
    READ(total, bar1_total);
    READ(used, bar1_used);
    if (mig) {
        total = total / 8 * (int64_t)profile_size(mig).g;
        used = (int64_t)now(&call, &device_with(gpu, mig, has_bar1)->bar1_used);
    }
    *bar1Memory = (nvmlBAR1Memory_t){
        .bar1Total = (unsigned long long)total,
        .bar1Free = (unsigned long long)(total - used),
        .bar1Used = (unsigned long long)used,
    };
    return NVML_SUCCESS;
}
