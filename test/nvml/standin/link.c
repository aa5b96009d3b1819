/* Connections of GPUs: NVLinks to GPUs or switches, and the PCIe topology. */

#include <stdio.h>
#include <string.h>

#include "link.h"

/* Finds the GPU's link with this number. */
static nvmlReturn_t find_link(const struct gpu *gpu, unsigned int number, const struct link **out)
{
    bool any = false;
    for (int i = 0; i < NVML_NVLINK_MAX_LINKS; i++)
        any |= gpu->links[i].kind != NO_LINK;
    if (!any)
        return NVML_ERROR_NOT_SUPPORTED;
    REQUIRE(number < NVML_NVLINK_MAX_LINKS && gpu->links[number].kind != NO_LINK);
    *out = &gpu->links[number];
    return NVML_SUCCESS;
}

/* FIND declares a link, or returns the error. */
#define FIND(variable, number) \
    const struct link *variable = NULL; \
    nvmlReturn_t found = find_link(gpu, number, &variable); \
    if (found != NVML_SUCCESS) \
        return found

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *isActive)
{
    DEVICE_CALL(device);
    REQUIRE(isActive);
    FIND(end, link);
    *isActive = end->kind == LINK_OFF ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    DEVICE_CALL(device);
    REQUIRE(version);
    FIND(end, link);
    READ(number, nvlink_version);
    *version = (unsigned int)number;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *pNvLinkDeviceType)
{
    DEVICE_CALL(device);
    REQUIRE(pNvLinkDeviceType);
    FIND(end, link);
    if (end->kind == LINK_OFF)
        return NVML_ERROR_NOT_SUPPORTED;
    *pNvLinkDeviceType = end->kind == LINK_TO_GPU ? NVML_NVLINK_DEVICE_TYPE_GPU : NVML_NVLINK_DEVICE_TYPE_SWITCH;
    return NVML_SUCCESS;
}

/* The node has four switches, at PCI buses after the GPUs. A GPU's links alternate between the switches. */
static nvmlReturn_t get_remote(const struct call *call, const struct gpu *gpu, unsigned int number, nvmlPciInfo_t *pci)
{
    REQUIRE(pci);
    FIND(end, number);
    if (end->kind == LINK_OFF)
        return NVML_ERROR_NOT_SUPPORTED;
    *pci = (nvmlPciInfo_t){.bus = 0xc4 + number % 4};
    if (end->kind == LINK_TO_GPU)
        sscanf(call->scenario->gpus[end->gpu].texts[text_pci], "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, pci->domain, pci->bus, pci->device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    DEVICE_CALL(device);
    return get_remote(&call, gpu, link, pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    DEVICE_CALL(device);
    return get_remote(&call, gpu, link, pci);
}

/* -- fields of links -- */

bool link_is_up(const struct gpu *gpu, unsigned int number)
{
    return number < NVML_NVLINK_MAX_LINKS && gpu->links[number].kind > LINK_OFF;
}

/* Returns the number of a GPU's links of this kind or a later kind. */
static int64_t count_links(const struct gpu *gpu, int kind)
{
    int64_t count = 0;
    for (int i = 0; i < NVML_NVLINK_MAX_LINKS; i++)
        count += (int)gpu->links[i].kind >= kind;
    return count;
}

static int64_t count_switched(const struct gpu *gpu)
{
    int64_t count = 0;
    for (int i = 0; i < NVML_NVLINK_MAX_LINKS; i++)
        count += gpu->links[i].kind == LINK_TO_SWITCH;
    return count;
}

/* Reads a field of a link. The speed of a link that is off is 0. */
static nvmlReturn_t field_of_link(const struct call *call, const struct gpu *gpu, unsigned int id, unsigned int number,
                                  int64_t *out)
{
    FIND(end, number);
    switch (id) {
    case NVML_FI_DEV_NVLINK_GET_STATE:
        *out = end->kind == LINK_OFF ? NVML_NVLINK_STATE_INACTIVE : NVML_NVLINK_STATE_ACTIVE;
        return NVML_SUCCESS;
    case NVML_FI_DEV_NVLINK_GET_VERSION:
        return read_value(call, value_nvlink_version, out) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    default:
        *out = 0;
        return end->kind == LINK_OFF || read_value(call, value_nvlink_speed, out) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t link_field(const struct call *call, const struct gpu *gpu, unsigned int id, unsigned int scope, int64_t *out)
{
    switch (id) {
    case NVML_FI_DEV_NVLINK_GET_STATE:
    case NVML_FI_DEV_NVLINK_GET_VERSION:
    case NVML_FI_DEV_NVLINK_GET_SPEED:
        return field_of_link(call, gpu, id, scope, out);
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        *out = count_links(gpu, LINK_OFF);
        break;
    case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
        *out = count_switched(gpu);
        break;
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
        return count_links(gpu, LINK_TO_SWITCH) > 0 && read_value(call, value_nvlink_speed, out) ? NVML_SUCCESS
                                                                                               : NVML_ERROR_NOT_SUPPORTED;
    default:
        return NVML_ERROR_NOT_FOUND;
    }
    return count_links(gpu, LINK_OFF) > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* Counts, delays and fails as a call on the first GPU. The second GPU must be valid as well. */
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t *pathInfo)
{
    DEVICE_CALL(device1);
    int other = gpu_of(device2);
    REQUIRE(pathInfo && other != NOT_A_HANDLE && !is_mig_device(device2) && (unsigned int)other < call.scenario->gpu_count);
    if (call.scenario->gpus[other].lost)
        return NVML_ERROR_GPU_IS_LOST;
    *pathInfo = gpu->ancestors[other];
    return NVML_SUCCESS;
}
