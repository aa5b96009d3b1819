/* Error counters of a GPU, remapped rows and retired pages. */

#include "faults.h"

/* -- ECC -- */

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    DEVICE_CALL(device);
    REQUIRE(current && pending);
    READ(mode, ecc_mode);
    *current = *pending = (nvmlEnableState_t)mode;
    return NVML_SUCCESS;
}

static const struct {
    enum value dram, sram[2]; /* the SRAM counters are summed */
} counts[NVML_MEMORY_ERROR_TYPE_COUNT][NVML_ECC_COUNTER_TYPE_COUNT] = {
    [NVML_MEMORY_ERROR_TYPE_CORRECTED] =
        {
            [NVML_VOLATILE_ECC] = {value_ecc_volatile_corrected, {value_sram_volatile_corrected, VALUE_COUNT}},
            [NVML_AGGREGATE_ECC] = {value_ecc_aggregate_corrected, {value_sram_aggregate_corrected, VALUE_COUNT}},
        },
    [NVML_MEMORY_ERROR_TYPE_UNCORRECTED] =
        {
            [NVML_VOLATILE_ECC] = {value_ecc_volatile_uncorrected,
                                   {value_sram_volatile_parity, value_sram_volatile_secded}},
            [NVML_AGGREGATE_ECC] = {value_ecc_aggregate_uncorrected,
                                    {value_sram_aggregate_parity, value_sram_aggregate_secded}},
        },
};

/* Sums the SRAM counters. Returns false for a GPU without SRAM counters. */
static bool count_sram(const struct call *call, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter, int64_t *out)
{
    bool any = false;
    *out = 0;
    for (int i = 0; i < 2; i++) {
        int64_t count;
        enum value value = counts[error][counter].sram[i];
        if (value == VALUE_COUNT || !read_value(call, value, &count))
            continue;
        *out += count;
        any = true;
    }
    return any;
}

bool count_ecc(const struct call *call, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter, int64_t *out)
{
    int64_t sram;
    if (!read_value(call, counts[error][counter].dram, out))
        return false;
    if (count_sram(call, error, counter, &sram))
        *out += sram;
    return true;
}

static bool are_counters(nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter)
{
    return (unsigned int)error < NVML_MEMORY_ERROR_TYPE_COUNT && (unsigned int)counter < NVML_ECC_COUNTER_TYPE_COUNT;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                         nvmlEccCounterType_t counterType, unsigned long long *eccCounts)
{
    DEVICE_CALL(device);
    REQUIRE(eccCounts && are_counters(errorType, counterType));
    int64_t count;
    if (!count_ecc(&call, errorType, counterType, &count))
        return NVML_ERROR_NOT_SUPPORTED;
    *eccCounts = (unsigned long long)count;
    return NVML_SUCCESS;
}

/* GPUs since Turing have the locations DRAM and SRAM. As the header specifies, a MIG device only has volatile uncorrected errors
 * in SRAM. A MIG-enabled GPU has all errors, which the header denies for volatile ones. */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                             nvmlEccCounterType_t counterType, nvmlMemoryLocation_t locationType,
                                             unsigned long long *count)
{
    ANY_CALL(device);
    REQUIRE(count && are_counters(errorType, counterType));
    bool in_sram = locationType == NVML_MEMORY_LOCATION_SRAM, is_volatile = counterType == NVML_VOLATILE_ECC;
    int64_t number;
    if (mig && !(in_sram && is_volatile && errorType == NVML_MEMORY_ERROR_TYPE_UNCORRECTED))
        return NVML_ERROR_NOT_SUPPORTED;
    if (!in_sram && locationType != NVML_MEMORY_LOCATION_DRAM)
        return NVML_ERROR_NOT_SUPPORTED;
    if (in_sram ? !count_sram(&call, errorType, counterType, &number)
                : !read_value(&call, counts[errorType][counterType].dram, &number))
        return NVML_ERROR_NOT_SUPPORTED;
    *count = (unsigned long long)number;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    DEVICE_CALL(device);
    REQUIRE(status);
    if (status->version != nvmlEccSramErrorStatus_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    READ(threshold, sram_threshold);
    status->bThresholdExceeded = (unsigned int)threshold;
#define COUNT(member, value) \
    READ(member, value); \
    status->member = (unsigned long long)member
    COUNT(volatileCor, sram_volatile_corrected);
    COUNT(volatileUncParity, sram_volatile_parity);
    COUNT(volatileUncSecDed, sram_volatile_secded);
    COUNT(aggregateCor, sram_aggregate_corrected);
    COUNT(aggregateUncParity, sram_aggregate_parity);
    COUNT(aggregateUncSecDed, sram_aggregate_secded);
    COUNT(aggregateUncBucketL2, sram_l2);
    COUNT(aggregateUncBucketSm, sram_sm);
    COUNT(aggregateUncBucketPcie, sram_pcie);
    COUNT(aggregateUncBucketMcu, sram_mcu);
    COUNT(aggregateUncBucketOther, sram_other);
#undef COUNT
    return NVML_SUCCESS;
}

/* -- remapped rows, since Ampere -- */

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows,
                                       unsigned int *isPending, unsigned int *failureOccurred)
{
    DEVICE_CALL(device);
    REQUIRE(corrRows && uncRows && isPending && failureOccurred);
    if (is_partitioned(&call, call.gpu)) /* specified by the header */
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

nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *info)
{
    DEVICE_CALL(device);
    REQUIRE(info);
    if (is_partitioned(&call, call.gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    READ(corrected, remapped_corrected);
    READ(uncorrected, remapped_uncorrected);
    READ(corrected_inactive, remapped_corrected_inactive);
    READ(uncorrected_inactive, remapped_uncorrected_inactive);
    READ(pending, remapped_pending);
    READ(failure, remapped_failure);
    *info = (nvmlRemappedRowsInfo_v2_t){
        .corrActiveRemaps = (unsigned int)corrected,
        .corrInactiveRemaps = (unsigned int)corrected_inactive,
        .uncActiveRemaps = (unsigned int)uncorrected,
        .uncInactiveRemaps = (unsigned int)uncorrected_inactive,
        .bPending = (unsigned int)pending,
        .bFailureOccurred = (unsigned int)failure,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    DEVICE_CALL(device);
    REQUIRE(values);
    READ(max, remap_banks_max);
    READ(high, remap_banks_high);
    READ(partial, remap_banks_partial);
    READ(low, remap_banks_low);
    READ(none, remap_banks_none);
    *values = (nvmlRowRemapperHistogramValues_t){(unsigned int)max, (unsigned int)high, (unsigned int)partial,
                                                 (unsigned int)low, (unsigned int)none};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *repairStatus)
{
    DEVICE_CALL(device);
    REQUIRE(repairStatus);
    if (repairStatus->version != nvmlRepairStatus_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    READ(channel, repair_channel);
    READ(tpc, repair_tpc);
    repairStatus->bChannelRepairPending = (unsigned int)channel;
    repairStatus->bTpcRepairPending = (unsigned int)tpc;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device,
                                                    nvmlUnrepairableMemoryStatus_v1_t *unrepairableMemoryStatus)
{
    DEVICE_CALL(device);
    REQUIRE(unrepairableMemoryStatus);
    READ(flag, unrepairable);
    unrepairableMemoryStatus->bUnrepairableMemory = (unsigned int)flag;
    return NVML_SUCCESS;
}

/* -- retired pages, before Ampere -- */

static nvmlReturn_t get_pages(const struct call *call, nvmlPageRetirementCause_t cause, unsigned int *size,
                              unsigned long long *addresses, unsigned long long *times)
{
    REQUIRE(size && (addresses || *size == 0) && (unsigned int)cause < NVML_PAGE_RETIREMENT_CAUSE_COUNT);
    int64_t count;
    if (!read_value(call, cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? value_retired_double : value_retired_single,
                    &count))
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int i = 0; i < *size && i < (uint64_t)count; i++) {
        addresses[i] = 0x10000ull * (i + 1);
        if (times)
            times[i] = (unsigned long long)call->scenario->epoch;
    }
    bool fits = (uint64_t)count <= *size;
    *size = (unsigned int)count;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *pageCount,
                                       unsigned long long *addresses)
{
    DEVICE_CALL(device);
    return get_pages(&call, cause, pageCount, addresses, NULL);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *pageCount,
                                          unsigned long long *addresses, unsigned long long *timestamps)
{
    DEVICE_CALL(device);
    return get_pages(&call, cause, pageCount, addresses, timestamps);
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *isPending)
{
    DEVICE_CALL(device);
    REQUIRE(isPending);
    READ(pending, retired_pending);
    *isPending = (nvmlEnableState_t)pending;
    return NVML_SUCCESS;
}
