/* How GPUs are connected: NVLinks, to each other or to switches, and what they have in common on the PCIe. */

#include <stdio.h>
#include <string.h>

#include "call.h"

/* The link that a call asks for, as far as the GPU has one of this number. */
static nvmlReturn_t find_link(const struct gpu *gpu, unsigned int number, const struct link **out)
{
    bool any = false;
    for (int i = 0; i < NVML_NVLINK_MAX_LINKS; i++)
        any |= gpu->links[i].kind != NO_LINK;
    if (!any)
        return NVML_ERROR_NOT_SUPPORTED;
    NEEDS(number < NVML_NVLINK_MAX_LINKS && gpu->links[number].kind != NO_LINK);
    *out = &gpu->links[number];
    return NVML_SUCCESS;
}

/* FIND declares a link, or answers why there is none. */
#define FIND(variable, number) \
    const struct link *variable = NULL; \
    nvmlReturn_t found = find_link(gpu, number, &variable); \
    if (found != NVML_SUCCESS) \
        return found

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *isActive)
{
    DEVICE_CALL(device);
    NEEDS(isActive);
    FIND(end, link);
    *isActive = end->kind == LINK_OFF ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *pNvLinkDeviceType)
{
    DEVICE_CALL(device);
    NEEDS(pNvLinkDeviceType);
    FIND(end, link);
    if (end->kind == LINK_OFF)
        return NVML_ERROR_NOT_SUPPORTED;
    *pNvLinkDeviceType = end->kind == LINK_TO_GPU ? NVML_NVLINK_DEVICE_TYPE_GPU : NVML_NVLINK_DEVICE_TYPE_SWITCH;
    return NVML_SUCCESS;
}

/* The node has four switches, behind the GPUs' addresses, and a GPU's links go to each in turn. */
static nvmlReturn_t give_remote(const struct call *call, const struct gpu *gpu, unsigned int number, nvmlPciInfo_t *pci)
{
    NEEDS(pci);
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
    return give_remote(&call, gpu, link, pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    DEVICE_CALL(device);
    return give_remote(&call, gpu, link, pci);
}

/* It is counted, delayed and refused as a call on the first of the two, and needs the second as well. */
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t *pathInfo)
{
    DEVICE_CALL(device1);
    int other = gpu_of(device2);
    NEEDS(pathInfo && other != NOT_A_HANDLE && !is_slice(device2) && (unsigned int)other < call.scenario->gpu_count);
    if (call.scenario->gpus[other].lost)
        return NVML_ERROR_GPU_IS_LOST;
    *pathInfo = gpu->ancestors[other];
    return NVML_SUCCESS;
}
