/* MIG, on a GPU that could be partitioned and is not. Instances come to hang under struct gpu, and their handles beside
 * those in call.c. */

#include "call.h"


nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    DEVICE_CALL(device);
    NEEDS(currentMode && pendingMode);
    READ(mode, mig_mode);
    *currentMode = *pendingMode = (unsigned int)mode;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    DEVICE_CALL(device);
    NEEDS(count);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
    DEVICE_CALL(device);
    NEEDS(isMigDevice);
    *isMigDevice = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
    DEVICE_CALL(device);
    NEEDS(migDevice);
    (void)index;
    return NVML_ERROR_NOT_FOUND;
}
