/* nvmlDeviceGetFieldValues: many values by their number, each with a return code of its own. */

#include "call.h"

/* The fields that say what a value of the GPU says. A driver knows hundreds; the others answer NOT_SUPPORTED until the
 * scenario gives them a value. */
static const struct {
    unsigned int id;
    nvmlValueType_t type;
    enum value value;
} fields[] = {
    {NVML_FI_DEV_ECC_CURRENT, NVML_VALUE_TYPE_UNSIGNED_INT, value_ecc_mode},
    {NVML_FI_DEV_ECC_PENDING, NVML_VALUE_TYPE_UNSIGNED_INT, value_ecc_mode},
    {NVML_FI_DEV_ECC_SBE_VOL_TOTAL, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_ecc_volatile_corrected},
    {NVML_FI_DEV_ECC_DBE_VOL_TOTAL, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_ecc_volatile_uncorrected},
    {NVML_FI_DEV_ECC_SBE_AGG_TOTAL, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_ecc_aggregate_corrected},
    {NVML_FI_DEV_ECC_DBE_AGG_TOTAL, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_ecc_aggregate_uncorrected},
    {NVML_FI_DEV_MEMORY_TEMP, NVML_VALUE_TYPE_UNSIGNED_INT, value_memory_temperature},
    {NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_energy},
    {NVML_FI_DEV_ENERGY, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, value_energy},
    {NVML_FI_DEV_PCIE_REPLAY_COUNTER, NVML_VALUE_TYPE_UNSIGNED_INT, value_pcie_replay},
    {NVML_FI_DEV_REMAPPED_COR, NVML_VALUE_TYPE_UNSIGNED_INT, value_remapped_corrected},
    {NVML_FI_DEV_REMAPPED_UNC, NVML_VALUE_TYPE_UNSIGNED_INT, value_remapped_uncorrected},
    {NVML_FI_DEV_REMAPPED_PENDING, NVML_VALUE_TYPE_UNSIGNED_INT, value_remapped_pending},
    {NVML_FI_DEV_REMAPPED_FAILURE, NVML_VALUE_TYPE_UNSIGNED_INT, value_remapped_failure},
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

/* The newest line of the scenario that gives the field. */
static const struct field *given(const struct call *call, const nvmlFieldValue_t *asked)
{
    for (size_t i = call->scenario->fields.count; i-- > 0;) {
        const struct field *f = &call->scenario->fields.items[i];
        if (f->gpus & (gpu_set)1 << call->gpu && f->id == asked->fieldId && (f->any_scope || f->scope == asked->scopeId))
            return f;
    }
    return NULL;
}

static nvmlReturn_t answer_field(const struct call *call, const struct gpu *gpu, nvmlFieldValue_t *f)
{
    const struct rule *fail = scenario_rule(call->scenario, FAIL_FIELD, (int)f->fieldId, call->gpu);
    if (fail)
        return fail->answer;
    const struct field *own = given(call, f);
    if (own)
        return put_curve(call, f, own->type, &own->curve);
    /* Another scope is another thing than the GPU: a link, or the module that it sits on. */
    for (int i = 0; i < FIELD_COUNT && f->scopeId == 0; i++) {
        if (fields[i].id == f->fieldId)
            return put_curve(call, f, fields[i].type, &gpu->values[fields[i].value]);
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
    DEVICE_CALL(device);
    NEEDS(values && valuesCount > 0);
    for (int i = 0; i < valuesCount; i++) {
        values[i].nvmlReturn = answer_field(&call, gpu, &values[i]);
        values[i].timestamp = (long long)(call.now * 1e6);
        values[i].latencyUsec = (long long)((call.now - call.began) * 1e6);
    }
    return NVML_SUCCESS;
}
