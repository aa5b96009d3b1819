/* nvmlDeviceGetFieldValues: values by id, each with a return code. */

#include "call.h"
#include "faults.h"
#include "link.h"

/* The fields that correspond to a value of the GPU. Other fields return NOT_SUPPORTED unless the scenario sets a value. */
static const struct {
    unsigned int id;
    nvmlValueType_t type;
    enum value value;
} fields[] = {
    {NVML_FI_DEV_ECC_CURRENT, NVML_VALUE_TYPE_UNSIGNED_INT, value_ecc_mode},
    {NVML_FI_DEV_ECC_PENDING, NVML_VALUE_TYPE_UNSIGNED_INT, value_ecc_mode},
    {NVML_FI_DEV_ECC_SBE_VOL_DEV, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_ecc_volatile_corrected},
    {NVML_FI_DEV_ECC_DBE_VOL_DEV, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_ecc_volatile_uncorrected},
    {NVML_FI_DEV_ECC_SBE_AGG_DEV, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_ecc_aggregate_corrected},
    {NVML_FI_DEV_ECC_DBE_AGG_DEV, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_ecc_aggregate_uncorrected},
    {NVML_FI_DEV_RETIRED_SBE, NVML_VALUE_TYPE_UNSIGNED_INT, value_retired_single},
    {NVML_FI_DEV_RETIRED_DBE, NVML_VALUE_TYPE_UNSIGNED_INT, value_retired_double},
    {NVML_FI_DEV_RETIRED_PENDING, NVML_VALUE_TYPE_UNSIGNED_INT, value_retired_pending},
    {NVML_FI_DEV_MEMORY_TEMP, NVML_VALUE_TYPE_UNSIGNED_INT, value_memory_temperature},
    {NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_energy},
    {NVML_FI_DEV_ENERGY, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_energy},
    {NVML_FI_DEV_PCIE_REPLAY_COUNTER, NVML_VALUE_TYPE_UNSIGNED_INT, value_pcie_replay},
    {NVML_FI_DEV_REMAPPED_COR, NVML_VALUE_TYPE_UNSIGNED_INT, value_remapped_corrected},
    {NVML_FI_DEV_REMAPPED_UNC, NVML_VALUE_TYPE_UNSIGNED_INT, value_remapped_uncorrected},
    {NVML_FI_DEV_REMAPPED_PENDING, NVML_VALUE_TYPE_UNSIGNED_INT, value_remapped_pending},
    {NVML_FI_DEV_REMAPPED_FAILURE, NVML_VALUE_TYPE_UNSIGNED_INT, value_remapped_failure},
    {NVML_FI_DEV_REMAPPED_ROWS_COR_INACTIVE, NVML_VALUE_TYPE_UNSIGNED_INT, value_remapped_corrected_inactive},
    {NVML_FI_DEV_REMAPPED_ROWS_UNC_INACTIVE, NVML_VALUE_TYPE_UNSIGNED_INT, value_remapped_uncorrected_inactive},
    /* Byte counters of 32 bits, which wrap. */
    {NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_VALUE_TYPE_UNSIGNED_INT, value_pcie_tx},
    {NVML_FI_DEV_PCIE_COUNT_RX_BYTES, NVML_VALUE_TYPE_UNSIGNED_INT, value_pcie_rx},
    {NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, NVML_VALUE_TYPE_SIGNED_INT, value_margin_shutdown},
    {NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, NVML_VALUE_TYPE_SIGNED_INT, value_margin_slowdown},
    {NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, NVML_VALUE_TYPE_SIGNED_INT, value_margin_memory_max},
    {NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, NVML_VALUE_TYPE_SIGNED_INT, value_margin_max},
    {NVML_FI_DEV_POWER_AVERAGE, NVML_VALUE_TYPE_UNSIGNED_INT, value_power},
    {NVML_FI_DEV_POWER_INSTANT, NVML_VALUE_TYPE_UNSIGNED_INT, value_power},
    {NVML_FI_DEV_POWER_MIN_LIMIT, NVML_VALUE_TYPE_UNSIGNED_INT, value_power_limit_min},
    {NVML_FI_DEV_POWER_MAX_LIMIT, NVML_VALUE_TYPE_UNSIGNED_INT, value_power_limit_max},
    {NVML_FI_DEV_POWER_DEFAULT_LIMIT, NVML_VALUE_TYPE_UNSIGNED_INT, value_power_limit_default},
    {NVML_FI_DEV_POWER_CURRENT_LIMIT, NVML_VALUE_TYPE_UNSIGNED_INT, value_power_limit},
    {NVML_FI_DEV_POWER_REQUESTED_LIMIT, NVML_VALUE_TYPE_UNSIGNED_INT, value_power_limit},
    {NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_VALUE_TYPE_UNSIGNED_INT, value_recovery_action},
    {NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_throttle_ns_sw_power},
    {NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_throttle_ns_sync_boost},
    {NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
     value_throttle_ns_sw_thermal},
    {NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
     value_throttle_ns_hw_thermal},
    {NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
     value_throttle_ns_hw_power_brake},
    {NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_throttle_ns_board_limit},
    {NVML_FI_DEV_PERF_POLICY_RELIABILITY, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_throttle_ns_reliability},
};

enum { FIELD_COUNT = sizeof fields / sizeof *fields };

static nvmlReturn_t put(nvmlFieldValue_t *out, nvmlValueType_t type, int64_t value)
{
    out->valueType = type;
    switch (type) {
    case NVML_VALUE_TYPE_DOUBLE:
        out->value.dVal = (double)value;
        return NVML_SUCCESS;
    case NVML_VALUE_TYPE_UNSIGNED_INT:
    case NVML_VALUE_TYPE_SIGNED_INT:
        out->value.uiVal = (unsigned int)value;
        return NVML_SUCCESS;
    case NVML_VALUE_TYPE_UNSIGNED_SHORT:
        out->value.usVal = (unsigned short)value;
        return NVML_SUCCESS;
    default:
        out->value.sllVal = value;
        return NVML_SUCCESS;
    }
}

static nvmlReturn_t put_curve(const struct call *call, nvmlFieldValue_t *out, nvmlValueType_t type, const struct curve *c)
{
    int64_t value;
    return curve_at(call->scenario, c, call->now, &value) ? put(out, type, value) : NVML_ERROR_NOT_SUPPORTED;
}

/* The scope for the sum of all links. */
enum { ALL_LINKS = 0xFFFFFFFF };

static bool in_scope(const struct scope *scope, unsigned int requested)
{
    return scope->kind == ANY_SCOPE || (scope->kind == ONE_SCOPE && scope->number == requested) ||
           (scope->kind == EACH_LINK && (requested < NVML_NVLINK_MAX_LINKS || requested == ALL_LINKS));
}

/* Returns the newest scenario line that sets the field, or NULL. */
static const struct field *find_override(const struct call *call, const nvmlFieldValue_t *request)
{
    for (size_t i = call->scenario->fields.count; i-- > 0;) {
        const struct field *f = &call->scenario->fields.items[i];
        if (f->gpus & (gpu_set)1 << call->gpu && request->fieldId >= f->first && request->fieldId <= f->last &&
            in_scope(&f->scope, request->scopeId))
            return f;
    }
    return NULL;
}

/* Writes the value of a scenario line. A link that is not up has no value. ALL_LINKS is the sum of all links, each with its newest
 * line. */
static nvmlReturn_t put_override(const struct call *call, const struct gpu *gpu, nvmlFieldValue_t *out, const struct field *f)
{
    if (f->scope.kind != EACH_LINK)
        return put_curve(call, out, f->type, &f->curve);
    if (out->scopeId != ALL_LINKS)
        return link_is_up(gpu, out->scopeId) ? put_curve(call, out, f->type, &f->curve) : NVML_ERROR_NOT_SUPPORTED;
    int64_t sum = 0;
    bool any = false;
    for (unsigned int i = 0; i < NVML_NVLINK_MAX_LINKS; i++) {
        int64_t value;
        nvmlFieldValue_t request = {.fieldId = out->fieldId, .scopeId = i};
        const struct field *override = find_override(call, &request);
        if (!override || !link_is_up(gpu, i) || !curve_at(call->scenario, &override->curve, call->now, &value))
            continue;
        sum += value;
        any = true;
    }
    return any ? put(out, f->type, sum) : NVML_ERROR_NOT_SUPPORTED;
}

static const struct {
    unsigned int id;
    nvmlMemoryErrorType_t error;
    nvmlEccCounterType_t counter;
} totals[] = {
    {NVML_FI_DEV_ECC_SBE_VOL_TOTAL, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC},
    {NVML_FI_DEV_ECC_DBE_VOL_TOTAL, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC},
    {NVML_FI_DEV_ECC_SBE_AGG_TOTAL, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_AGGREGATE_ECC},
    {NVML_FI_DEV_ECC_DBE_AGG_TOTAL, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_AGGREGATE_ECC},
};

static nvmlReturn_t put_total(const struct call *call, nvmlFieldValue_t *out)
{
    int64_t count;
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++) {
        if (totals[i].id == out->fieldId && count_ecc(call, totals[i].error, totals[i].counter, &count))
            return put(out, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, count);
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t read_field(const struct call *call, const struct gpu *gpu, nvmlFieldValue_t *f)
{
    const struct rule *fail = scenario_rule(call->scenario, FAIL_FIELD, (int)f->fieldId, call->gpu);
    int64_t value;
    if (fail)
        return fail->ret;
    const struct field *override = find_override(call, f);
    if (override)
        return put_override(call, gpu, f, override);
    nvmlReturn_t ret = link_field(call, gpu, f->fieldId, f->scopeId, &value);
    if (ret != NVML_ERROR_NOT_FOUND)
        return ret == NVML_SUCCESS ? put(f, NVML_VALUE_TYPE_UNSIGNED_INT, value) : ret;
    /* Other scopes are not the GPU, but for example its module. */
    if (f->scopeId != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    for (int i = 0; i < FIELD_COUNT; i++) {
        if (fields[i].id == f->fieldId)
            return read_value(call, fields[i].value, &value) ? put(f, fields[i].type, value) : NVML_ERROR_NOT_SUPPORTED;
    }
    return put_total(call, f);
}

/* Adds the value before the call to an entry, in the type of the entry. */
static void add(nvmlFieldValue_t *out, nvmlValue_t before)
{
    switch (out->valueType) {
    case NVML_VALUE_TYPE_DOUBLE:
        out->value.dVal += before.dVal;
        break;
    case NVML_VALUE_TYPE_UNSIGNED_INT:
    case NVML_VALUE_TYPE_SIGNED_INT:
        out->value.uiVal += before.uiVal;
        break;
    case NVML_VALUE_TYPE_UNSIGNED_SHORT:
        out->value.usVal += before.usVal;
        break;
    default:
        out->value.sllVal += before.sllVal;
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
    DEVICE_CALL(device);
    REQUIRE(values && valuesCount > 0);
    for (int i = 0; i < valuesCount; i++) {
        nvmlValue_t before = values[i].value;
        values[i].nvmlReturn = read_field(&call, gpu, &values[i]);
        if (call.scenario->add_fields && values[i].nvmlReturn == NVML_SUCCESS)
            add(&values[i], before);
        values[i].timestamp = (long long)(call.now * 1e6);
        values[i].latencyUsec = (long long)((call.now - call.began) * 1e6);
    }
    return NVML_SUCCESS;
}
