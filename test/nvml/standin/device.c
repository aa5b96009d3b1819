/* Functions that return one or a few current values of a GPU. */

#include <stdio.h>
#include <string.h>

#include "call.h"

/* -- functions with a single number -- */

#define NUMBER(function, type, value) \
    nvmlReturn_t function(nvmlDevice_t device, type *out) \
    { \
        DEVICE_CALL(device); \
        REQUIRE(out); \
        READ(number, value); \
        *out = (type)number; \
        return NVML_SUCCESS; \
    }

NUMBER(nvmlDeviceGetMinorNumber, unsigned int, minor)
NUMBER(nvmlDeviceGetNumaNodeId, unsigned int, numa)
NUMBER(nvmlDeviceGetPowerUsage, unsigned int, power)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, power_limit)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, power_limit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, power_limit_default)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy)
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t, pstate)
NUMBER(nvmlDeviceGetPowerState, nvmlPstates_t, pstate)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, throttle)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, throttle)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, throttle_supported)
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, throttle_supported)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, pcie_width)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, pcie_generation_max)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, pcie_generation_max)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, pcie_width_max)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, pcie_replay)
NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, persistence_mode)
NUMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, compute_mode)

NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, cores)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, memory_bus_width)
NUMBER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, virtualization)

/* The brand of all data center GPUs of current drivers. */
nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *type)
{
    DEVICE_CALL(device);
    REQUIRE(type);
    *type = NVML_BRAND_NVIDIA;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    DEVICE_CALL(device);
    REQUIRE(mode);
    if (mode->version != nvmlDeviceAddressingMode_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    READ(value, addressing_mode);
    mode->value = (unsigned int)value;
    return NVML_SUCCESS;
}

/* The index of a MIG device is its index on the GPU. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ANY_CALL(device);
    REQUIRE(index);
    *index = mig ? (unsigned int)(mig - gpu->mig_devices) : (unsigned int)call.gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE_CALL(device);
    REQUIRE(major && minor);
    if (sscanf(gpu->texts[text_compute_capability], "%d.%d", major, minor) != 2)
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* -- texts -- */

#define TEXT(function, text) \
    nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned int length) \
    { \
        DEVICE_CALL(device); \
        if (strcmp(gpu->texts[text_##text], "none") == 0) \
            return NVML_ERROR_NOT_SUPPORTED; \
        return copy_text(gpu->texts[text_##text], out, length); \
    }

TEXT(nvmlDeviceGetSerial, serial)
TEXT(nvmlDeviceGetVbiosVersion, vbios)

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ANY_CALL(device);
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    if (!mig)
        return copy_text(gpu->texts[text_uuid], uuid, length);
    mig_uuid(gpu, mig, text, sizeof text);
    return copy_text(text, uuid, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ANY_CALL(device);
    char text[2 * NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    if (!mig)
        return copy_text(gpu->texts[text_name], name, length);
    snprintf(text, sizeof text, "%s MIG %s", gpu->texts[text_name], mig->profile);
    return copy_text(text, name, length);
}

/* -- utilization, clocks, power -- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    DEVICE_CALL(device);
    REQUIRE(utilization);
    if (is_partitioned(&call, call.gpu)) /* specified by the header */
        return NVML_ERROR_NOT_SUPPORTED;
    READ(busy, utilization);
    READ(memory_busy, memory_utilization);
    *utilization = (nvmlUtilization_t){(unsigned int)busy, (unsigned int)memory_busy};
    return NVML_SUCCESS;
}

/* A MIG-enabled GPU does not report engines either. The period is the driver's sampling period in µs. */
#define ENGINE(function, value) \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *utilization, unsigned int *period) \
    { \
        DEVICE_CALL(device); \
        REQUIRE(utilization && period); \
        if (is_partitioned(&call, call.gpu)) \
            return NVML_ERROR_NOT_SUPPORTED; \
        READ(busy, value); \
        *utilization = (unsigned int)busy; \
        *period = 1000000 / 6; \
        return NVML_SUCCESS; \
    }

ENGINE(nvmlDeviceGetEncoderUtilization, encoder_utilization)
ENGINE(nvmlDeviceGetDecoderUtilization, decoder_utilization)
ENGINE(nvmlDeviceGetJpgUtilization, jpeg_utilization)
ENGINE(nvmlDeviceGetOfaUtilization, ofa_utilization)

static nvmlReturn_t get_clock(const struct call *call, const enum value *by_type, nvmlClockType_t type,
                              unsigned int *mhz)
{
    int64_t clock;
    REQUIRE(mhz && (unsigned int)type < NVML_CLOCK_COUNT);
    if (!read_value(call, by_type[type], &clock))
        return NVML_ERROR_NOT_SUPPORTED;
    *mhz = (unsigned int)clock;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    static const enum value clocks[NVML_CLOCK_COUNT] = {
        [NVML_CLOCK_GRAPHICS] = value_graphics_clock,
        [NVML_CLOCK_SM] = value_sm_clock,
        [NVML_CLOCK_MEM] = value_mem_clock,
        [NVML_CLOCK_VIDEO] = value_video_clock,
    };
    DEVICE_CALL(device);
    return get_clock(&call, clocks, type, clock);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    static const enum value clocks[NVML_CLOCK_COUNT] = {
        [NVML_CLOCK_GRAPHICS] = value_graphics_clock_max,
        [NVML_CLOCK_SM] = value_sm_clock_max,
        [NVML_CLOCK_MEM] = value_mem_clock_max,
        [NVML_CLOCK_VIDEO] = value_video_clock_max,
    };
    DEVICE_CALL(device);
    return get_clock(&call, clocks, type, clock);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minLimit,
                                                          unsigned int *maxLimit)
{
    DEVICE_CALL(device);
    REQUIRE(minLimit && maxLimit);
    READ(min, power_limit_min);
    READ(max, power_limit_max);
    *minLimit = (unsigned int)min;
    *maxLimit = (unsigned int)max;
    return NVML_SUCCESS;
}
