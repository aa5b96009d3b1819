#include "names.h"

#include <stdlib.h>
#include <string.h>

const char *const function_names[FUNCTION_COUNT] = {
#define X(name) #name,
    FUNCTIONS(X)
#undef X
};

static int compare_names(const void *name, const void *row)
{
    return strcmp(name, *(const char *const *)row);
}

int find_function(const char *name)
{
    const char *const *row = bsearch(name, function_names, FUNCTION_COUNT, sizeof *function_names, compare_names);
    return row ? (int)(row - function_names) : -1;
}

#define ERROR(name, text) {NVML_ERROR_##name, #name, text}

static const struct {
    nvmlReturn_t code;
    const char *name;
    const char *text;
} returns[] = {
    {NVML_SUCCESS, "SUCCESS", "Success"},
    ERROR(UNINITIALIZED, "Uninitialized"),
    ERROR(INVALID_ARGUMENT, "Invalid Argument"),
    ERROR(NOT_SUPPORTED, "Not Supported"),
    ERROR(NO_PERMISSION, "Insufficient Permissions"),
    ERROR(ALREADY_INITIALIZED, "Already Initialized"),
    ERROR(NOT_FOUND, "Not Found"),
    ERROR(INSUFFICIENT_SIZE, "Insufficient Size"),
    ERROR(INSUFFICIENT_POWER, "Insufficient External Power"),
    ERROR(DRIVER_NOT_LOADED, "Driver Not Loaded"),
    ERROR(TIMEOUT, "Timeout"),
    ERROR(IRQ_ISSUE, "Interrupt Request Issue"),
    ERROR(LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"),
    ERROR(FUNCTION_NOT_FOUND, "Function Not Found"),
    ERROR(CORRUPTED_INFOROM, "Corrupted infoROM"),
    ERROR(GPU_IS_LOST, "GPU is lost"),
    ERROR(RESET_REQUIRED, "GPU requires reset"),
    ERROR(OPERATING_SYSTEM, "Blocked by the operating system"),
    ERROR(LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"),
    ERROR(IN_USE, "In use by another client"),
    ERROR(MEMORY, "Insufficient Memory"),
    ERROR(NO_DATA, "No data"),
    ERROR(VGPU_ECC_NOT_SUPPORTED, "vGPU is not supported while ECC is enabled"),
    ERROR(INSUFFICIENT_RESOURCES, "Insufficient Resources"),
    ERROR(FREQ_NOT_SUPPORTED, "Frequency Not Supported"),
    ERROR(ARGUMENT_VERSION_MISMATCH, "Argument Version Mismatch"),
    ERROR(DEPRECATED, "Deprecated"),
    ERROR(NOT_READY, "System Not Ready"),
    ERROR(GPU_NOT_FOUND, "No GPUs were found"),
    ERROR(INVALID_STATE, "Invalid State"),
    ERROR(RESET_TYPE_NOT_SUPPORTED, "Reset Type Not Supported"),
    ERROR(UNKNOWN, "Unknown Error"),
};

enum { RETURN_COUNT = sizeof returns / sizeof *returns };

bool parse_return(const char *name, nvmlReturn_t *out)
{
    static const char prefix[] = "NVML_ERROR_";
    if (strncmp(name, prefix, strlen(prefix)) == 0)
        name += strlen(prefix);
    for (int i = 0; i < RETURN_COUNT; i++) {
        if (strcmp(name, returns[i].name) == 0) {
            *out = returns[i].code;
            return true;
        }
    }
    /* Newer drivers have codes that this header lacks; podgauge must handle them. */
    char *end;
    *out = (nvmlReturn_t)strtoul(name, &end, 10);
    return end != name && *end == '\0';
}

const char *return_text(nvmlReturn_t code)
{
    for (int i = 0; i < RETURN_COUNT; i++) {
        if (returns[i].code == code)
            return returns[i].text;
    }
    return "Unknown Error";
}
