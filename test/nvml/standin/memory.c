/* The memory of a GPU, and that of a slice. */

#include "call.h"

/* A slice of the same GPU instance that says what this one does not; else this one. */
static const struct slice *sibling(const struct gpu *gpu, const struct slice *slice, bool (*says)(const struct slice *))
{
    for (int i = 0; i < MAX_SLICES && !says(slice); i++) {
        const struct slice *other = &gpu->slices[i];
        if (other->present && other->gi == slice->gi && says(other))
            return other;
    }
    return slice;
}

static bool says_memory(const struct slice *slice)
{
    return slice->memory != 0;
}

static bool says_used(const struct slice *slice)
{
    return slice->used.shape != ABSENT;
}

static bool says_bar1(const struct slice *slice)
{
    return slice->bar1_used.shape != ABSENT;
}

unsigned long long slice_memory(const struct gpu *gpu, const struct slice *slice)
{
    const struct slice *speaker = sibling(gpu, slice, says_memory);
    return speaker->memory ? speaker->memory : (unsigned long long)slice_size(slice).gb << 30;
}

static unsigned long long now(const struct call *call, const struct curve *c)
{
    int64_t value;
    return curve_at(call->scenario, c, call->now, &value) ? (unsigned long long)value : 0;
}

static nvmlReturn_t give_slice(const struct call *call, const struct gpu *gpu, const struct slice *slice,
                               nvmlMemory_v2_t *memory)
{
    memory->total = slice_memory(gpu, slice);
    memory->reserved = 0;
    memory->used = now(call, &sibling(gpu, slice, says_used)->used);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_memory(const struct call *call, const struct gpu *gpu, const struct slice *slice,
                                nvmlMemory_v2_t *memory)
{
    int64_t total, reserved, used;
    if (slice)
        return give_slice(call, gpu, slice, memory);
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
    NEEDS(memory);
    nvmlMemory_v2_t whole;
    nvmlReturn_t answer = give_memory(&call, gpu, slice, &whole);
    if (answer == NVML_SUCCESS)
        *memory = (nvmlMemory_t){whole.total, whole.free, whole.used + whole.reserved};
    return answer;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ANY_CALL(device);
    NEEDS(memory);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return give_memory(&call, gpu, slice, memory);
}

/* A slice has its share of the window, as of the memory: in eighths. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
    ANY_CALL(device);
    NEEDS(bar1Memory);
    READ(total, bar1_total);
    READ(used, bar1_used);
    if (slice) {
        total = total / 8 * (int64_t)slice_size(slice).g;
        used = (int64_t)now(&call, &sibling(gpu, slice, says_bar1)->bar1_used);
    }
    *bar1Memory = (nvmlBAR1Memory_t){
        .bar1Total = (unsigned long long)total,
        .bar1Free = (unsigned long long)(total - used),
        .bar1Used = (unsigned long long)used,
    };
    return NVML_SUCCESS;
}
