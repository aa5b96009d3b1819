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

/* The memory of profiles of H100 and H200, by the size in their names. Other profiles have the size in the name. */
static const struct {
    unsigned int gb;
    unsigned long long mib;
} profile_memory[] = {{10, 9984}, {20, 20096}, {40, 40448}, {18, 16384}, {35, 33280}, {71, 71424}};

unsigned long long mig_memory(const struct gpu *gpu, const struct mig_device *mig)
{
    const struct mig_device *source = device_with(gpu, mig, has_memory);
    unsigned int gb = profile_size(mig).gb;
    if (source->memory)
        return source->memory;
    for (size_t i = 0; i < sizeof profile_memory / sizeof *profile_memory; i++) {
        if (profile_memory[i].gb == gb)
            return profile_memory[i].mib << 20;
    }
    return (unsigned long long)gb << 30;
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

/* The part of the window that a MIG-enabled GPU keeps besides its memory. */
enum { KEPT_BAR1 = 513 << 20 };

/* A MIG-enabled GPU maps all its memory. A MIG device has a part of the rest, in eighths as its memory. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
    ANY_CALL(device);
    REQUIRE(bar1Memory);
    READ(total, bar1_total);
    READ(used, bar1_used);
    if (is_partitioned(&call, call.gpu)) {
        READ(memory, memory_total);
        READ(reserved, memory_reserved);
        if (total > memory + KEPT_BAR1)
            used = memory - reserved;
        if (mig) {
            int64_t eighths = (8 * ((int64_t)profile_size(mig).gb << 30) + memory / 2) / memory;
            total = (total - used - KEPT_BAR1) / 8 * eighths;
            used = (int64_t)now(&call, &device_with(gpu, mig, has_bar1)->bar1_used);
        }
    }
    *bar1Memory = (nvmlBAR1Memory_t){
        .bar1Total = (unsigned long long)total,
        .bar1Free = (unsigned long long)(total - used),
        .bar1Used = (unsigned long long)used,
    };
    return NVML_SUCCESS;
}
