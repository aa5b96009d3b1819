/* The errors that a GPU has counted. */

#include "call.h"


nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    DEVICE_CALL(device);
    NEEDS(current && pending);
    READ(mode, ecc_mode);
    *current = *pending = (nvmlEnableState_t)mode;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_ecc(const struct call *call, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                             unsigned long long *out)
{
    static const enum value counts[NVML_MEMORY_ERROR_TYPE_COUNT][NVML_ECC_COUNTER_TYPE_COUNT] = {
        [NVML_MEMORY_ERROR_TYPE_CORRECTED] =
            {
                [NVML_VOLATILE_ECC] = value_ecc_volatile_corrected,
                [NVML_AGGREGATE_ECC] = value_ecc_aggregate_corrected,
            },
        [NVML_MEMORY_ERROR_TYPE_UNCORRECTED] =
            {
                [NVML_VOLATILE_ECC] = value_ecc_volatile_uncorrected,
                [NVML_AGGREGATE_ECC] = value_ecc_aggregate_uncorrected,
            },
    };
    NEEDS(out);
    NEEDS((unsigned int)error < NVML_MEMORY_ERROR_TYPE_COUNT && (unsigned int)counter < NVML_ECC_COUNTER_TYPE_COUNT);
    int64_t count;
    if (!read_value(call, counts[error][counter], &count))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned long long)count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                         nvmlEccCounterType_t counterType, unsigned long long *eccCounts)
{
    DEVICE_CALL(device);
    return give_ecc(&call, errorType, counterType, eccCounts);
}

/* All errors lie in the DRAM, the SRAM has none, and a GPU of this age knows no other places. */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                             nvmlEccCounterType_t counterType, nvmlMemoryLocation_t locationType,
                                             unsigned long long *count)
{
    DEVICE_CALL(device);
    if (locationType != NVML_MEMORY_LOCATION_DRAM && locationType != NVML_MEMORY_LOCATION_SRAM)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t answer = give_ecc(&call, errorType, counterType, count);
    if (answer == NVML_SUCCESS && locationType == NVML_MEMORY_LOCATION_SRAM)
        *count = 0;
    return answer;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows,
                                       unsigned int *isPending, unsigned int *failureOccurred)
{
    DEVICE_CALL(device);
    NEEDS(corrRows && uncRows && isPending && failureOccurred);
    if (is_partitioned(&call, call.gpu)) /* the header says so */
        return NVML_ERROR_NOT_SUPPORTED;
    READ(corrected, remapped_corrected);
    READ(uncorrected, remapped_uncorrected);
    READ(pending, remapped_pending);
    READ(failure, remapped_failure);
    *corrRows = (unsigned int)corrected;
    *uncRows = (unsigned int)uncorrected;
    *isPending = (unsigned int)pending;
    *failureOccurred = (unsigned int)failure;
    return NVML_SUCCESS;
}
