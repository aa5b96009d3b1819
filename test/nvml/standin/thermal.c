/* Temperatures and their limits. */

#include "call.h"

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType, unsigned int *temp)
{
    DEVICE_CALL(device);
    REQUIRE(temp && sensorType == NVML_TEMPERATURE_GPU);
    READ(celsius, temperature);
    *temp = (unsigned int)celsius;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    DEVICE_CALL(device);
    REQUIRE(temperature && temperature->sensorType == NVML_TEMPERATURE_GPU);
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    READ(celsius, temperature);
    temperature->temperature = (int)celsius;
    return NVML_SUCCESS;
}

/* Since Ada, GPUs report the margin to their limits instead. */
nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t thresholdType,
                                               unsigned int *temp)
{
    static const enum value limits[] = {
        [NVML_TEMPERATURE_THRESHOLD_SHUTDOWN] = value_temperature_shutdown,
        [NVML_TEMPERATURE_THRESHOLD_SLOWDOWN] = value_temperature_slowdown,
        [NVML_TEMPERATURE_THRESHOLD_MEM_MAX] = value_temperature_memory_max,
        [NVML_TEMPERATURE_THRESHOLD_GPU_MAX] = value_temperature_max,
    };
    DEVICE_CALL(device);
    REQUIRE(temp && (unsigned int)thresholdType < NVML_TEMPERATURE_THRESHOLD_COUNT);
    int64_t celsius;
    if ((unsigned int)thresholdType >= sizeof limits / sizeof *limits ||
        !read_value(&call, limits[thresholdType], &celsius))
        return NVML_ERROR_NOT_SUPPORTED;
    *temp = (unsigned int)celsius;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *marginTempInfo)
{
    DEVICE_CALL(device);
    REQUIRE(marginTempInfo);
    if (marginTempInfo->version != nvmlMarginTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    READ(margin, temperature_margin);
    marginTempInfo->marginTemperature = (int)margin;
    return NVML_SUCCESS;
}
