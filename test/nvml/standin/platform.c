/* The environment of a GPU: fabric, rack, link to the CPU, confidential computing. */

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "call.h"

/* Later versions of the struct only add fields at the end. */
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *gpuFabricInfo)
{
    DEVICE_CALL(device);
    REQUIRE(gpuFabricInfo);
    bool newest = gpuFabricInfo->version == nvmlGpuFabricInfo_v3;
    if (!newest && gpuFabricInfo->version != nvmlGpuFabricInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    READ(state, fabric_state);
    READ(status, fabric_status);
    READ(clique, fabric_clique);
    READ(health, fabric_health);
    memset(gpuFabricInfo->clusterUuid, 0, NVML_GPU_FABRIC_UUID_LEN);
    if (clique) /* of a domain of several nodes */
        memcpy(gpuFabricInfo->clusterUuid, "stand-in cluster", NVML_GPU_FABRIC_UUID_LEN);
    gpuFabricInfo->state = (nvmlGpuFabricState_t)state;
    gpuFabricInfo->status = (nvmlReturn_t)status;
    gpuFabricInfo->cliqueId = (unsigned int)clique;
    gpuFabricInfo->healthMask = (unsigned int)health;
    if (newest) {
        READ(summary, fabric_summary);
        gpuFabricInfo->healthSummary = (unsigned char)summary;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *gpuFabricInfo)
{
    DEVICE_CALL(device);
    REQUIRE(gpuFabricInfo);
    READ(state, fabric_state);
    READ(status, fabric_status);
    READ(clique, fabric_clique);
    memset(gpuFabricInfo->clusterUuid, 0, NVML_GPU_FABRIC_UUID_LEN);
    if (clique) /* of a domain of several nodes */
        memcpy(gpuFabricInfo->clusterUuid, "stand-in cluster", NVML_GPU_FABRIC_UUID_LEN);
    gpuFabricInfo->state = (nvmlGpuFabricState_t)state;
    gpuFabricInfo->status = (nvmlReturn_t)status;
    gpuFabricInfo->cliqueId = (unsigned int)clique;
    return NVML_SUCCESS;
}

/* Both versions of the struct have the same layout with different names. */
nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *platformInfo)
{
    DEVICE_CALL(device);
    REQUIRE(platformInfo);
    unsigned int version = platformInfo->version;
    if (version != nvmlPlatformInfo_v1 && version != nvmlPlatformInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    READ(slot, platform_slot);
    READ(tray, platform_tray);
    READ(host, platform_host);
    READ(peer, platform_peer);
    READ(module, platform_module);
    *platformInfo = (nvmlPlatformInfo_t){
        .version = version,
        .ibGuid = {0x94, 0x6d, 0xae, 0x03, 0x00, 0x5e, 0xed, (unsigned char)call.gpu},
        .slotNumber = (unsigned char)slot,
        .trayIndex = (unsigned char)tray,
        .hostId = (unsigned char)host,
        .peerType = (unsigned char)peer,
        .moduleId = (unsigned char)module,
    };
    /* In the header, the serial has at most 13 bytes, without a final zero if it fills the field. */
    memcpy(platformInfo->chassisSerialNumber, gpu->texts[text_chassis_serial],
           strnlen(gpu->texts[text_chassis_serial], sizeof platformInfo->chassisSerialNumber));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *c2cModeInfo)
{
    DEVICE_CALL(device);
    REQUIRE(c2cModeInfo);
    READ(mode, c2c);
    c2cModeInfo->isC2cEnabled = (unsigned int)mode;
    return NVML_SUCCESS;
}

/* -- confidential computing, for the whole machine -- */

nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state)
{
    CALL(NO_GPU);
    REQUIRE(state);
    int confidential = call.scenario->confidential;
    if (confidential == CC_NONE)
        return NVML_ERROR_NOT_SUPPORTED;
    *state = (nvmlConfComputeSystemState_t){
        .environment = confidential == CC_OFF ? NVML_CC_SYSTEM_ENVIRONMENT_UNAVAILABLE : NVML_CC_SYSTEM_ENVIRONMENT_PROD,
        .ccFeature = confidential == CC_OFF ? NVML_CC_SYSTEM_FEATURE_DISABLED : NVML_CC_SYSTEM_FEATURE_ENABLED,
        .devToolsMode = confidential == CC_DEVTOOLS ? NVML_CC_SYSTEM_DEVTOOLS_MODE_ON : NVML_CC_SYSTEM_DEVTOOLS_MODE_OFF,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeGpusReadyState(unsigned int *isAcceptingWork)
{
    CALL(NO_GPU);
    REQUIRE(isAcceptingWork);
    if (call.scenario->confidential == CC_NONE)
        return NVML_ERROR_NOT_SUPPORTED;
    *isAcceptingWork = call.scenario->confidential == CC_ON || call.scenario->confidential == CC_DEVTOOLS
                           ? NVML_CC_ACCEPTING_CLIENT_REQUESTS_TRUE : NVML_CC_ACCEPTING_CLIENT_REQUESTS_FALSE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeCapabilities(nvmlConfComputeSystemCaps_t *capabilities)
{
    CALL(NO_GPU);
    REQUIRE(capabilities);
    if (call.scenario->confidential == CC_NONE)
        return NVML_ERROR_NOT_SUPPORTED;
    *capabilities = (nvmlConfComputeSystemCaps_t){
        .cpuCaps = call.scenario->confidential == CC_OFF ? NVML_CC_SYSTEM_CPU_CAPS_NONE : NVML_CC_SYSTEM_CPU_CAPS_AMD_SEV_SNP,
        .gpusCaps = NVML_CC_SYSTEM_GPUS_CC_CAPABLE,
    };
    return NVML_SUCCESS;
}
