/* Count of GPUs, and handles by index, UUID and PCI address. */

#include <stdio.h>
#include <string.h>

#include "call.h"

enum { PCI_SUBSYSTEM_ID = 0x16C110DE, PCI_CLASS_DISPLAY = 3, PCI_SUBCLASS_3D = 2 };

struct pci {
    unsigned int domain, bus, device, function;
};

/* Parses the three forms of a PCI address that the header allows. */
static bool scan_pci(const char *text, struct pci *out)
{
    *out = (struct pci){0};
    return sscanf(text, "%x:%x:%x.%x", &out->domain, &out->bus, &out->device, &out->function) >= 3 ||
           sscanf(text, "%x:%x.%x", &out->bus, &out->device, &out->function) == 3;
}

static bool same_slot(const struct pci *a, const struct pci *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->device == b->device;
}

static nvmlReturn_t get_count(const struct call *call, unsigned int *count)
{
    REQUIRE(count);
    *count = call->scenario->gpu_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
    CALL(NO_GPU);
    return get_count(&call, deviceCount);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    CALL(NO_GPU);
    return get_count(&call, deviceCount);
}

/* The search by index is a call on the GPU, because NVML initializes it. */
static int gpu_at(unsigned int index)
{
    return index < MAX_GPUS ? (int)index : NOT_A_HANDLE;
}

static nvmlReturn_t get_handle(int gpu, nvmlDevice_t *device)
{
    REQUIRE(device);
    *device = handle_of(gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    CALL(gpu_at(index));
    return get_handle(call.gpu, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    CALL(gpu_at(index));
    return get_handle(call.gpu, device);
}

/* Finds a MIG device by a UUID of the newer form. As for a GPU, the search is a call without a GPU. */
static nvmlReturn_t find_mig_device(const struct call *call, int gpu, const char *uuid, nvmlDevice_t *device)
{
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    for (int i = 0; i < MAX_MIG_DEVICES && is_partitioned(call, gpu); i++) {
        const struct mig_device *mig = &call->scenario->gpus[gpu].mig_devices[i];
        if (!mig->present || strcmp(mig->uuid, "old") == 0)
            continue;
        mig_uuid(&call->scenario->gpus[gpu], mig, text, sizeof text);
        if (strcmp(uuid, text) != 0)
            continue;
        REQUIRE(device);
        *device = handle_of_mig_device(call, gpu, i);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

/* The header: GPU_IS_LOST "if any GPU has fallen off the bus", because the search includes all GPUs. */
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    CALL(NO_GPU);
    REQUIRE(uuid);
    const struct scenario *s = call.scenario;
    for (unsigned int i = 0; i < s->gpu_count; i++) {
        if (s->gpus[i].lost)
            return NVML_ERROR_GPU_IS_LOST;
    }
    for (unsigned int i = 0; i < s->gpu_count; i++) {
        if (strcmp(uuid, s->gpus[i].texts[text_uuid]) == 0)
            return get_handle((int)i, device);
        nvmlReturn_t ret = find_mig_device(&call, (int)i, uuid, device);
        if (ret != NVML_ERROR_NOT_FOUND)
            return ret;
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t find_by_pci(const struct scenario *s, const char *bus_id, nvmlDevice_t *device)
{
    struct pci wanted, found;
    REQUIRE(bus_id && scan_pci(bus_id, &wanted));
    for (unsigned int i = 0; i < s->gpu_count; i++) {
        if (scan_pci(s->gpus[i].texts[text_pci], &found) && same_slot(&wanted, &found))
            return s->gpus[i].lost ? NVML_ERROR_GPU_IS_LOST : get_handle((int)i, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
    CALL(NO_GPU);
    return find_by_pci(call.scenario, pciBusId, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    CALL(NO_GPU);
    return find_by_pci(call.scenario, pciBusId, device);
}

static nvmlReturn_t get_pci(const struct call *call, const struct gpu *gpu, nvmlPciInfo_t *out)
{
    struct pci pci;
    int64_t id;
    REQUIRE(out);
    if (!read_value(call, value_pci_id, &id))
        return NVML_ERROR_NOT_SUPPORTED;
    scan_pci(gpu->texts[text_pci], &pci);
    *out = (nvmlPciInfo_t){
        .domain = pci.domain,
        .bus = pci.bus,
        .device = pci.device,
        .pciDeviceId = (unsigned int)id,
        .pciSubSystemId = PCI_SUBSYSTEM_ID,
    };
    snprintf(out->busId, sizeof out->busId, NVML_DEVICE_PCI_BUS_ID_FMT, pci.domain, pci.bus, pci.device);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", pci.domain & 0xFFFF, pci.bus & 0xFF,
             pci.device & 0xFF);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE_CALL(device);
    return get_pci(&call, gpu, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE_CALL(device);
    return get_pci(&call, gpu, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE_CALL(device);
    return get_pci(&call, gpu, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    DEVICE_CALL(device);
    REQUIRE(pci);
    if (pci->version != nvmlPciInfoExt_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlPciInfo_t plain;
    nvmlReturn_t ret = get_pci(&call, gpu, &plain);
    if (ret != NVML_SUCCESS)
        return ret;
    *pci = (nvmlPciInfoExt_t){
        .version = pci->version,
        .domain = plain.domain,
        .bus = plain.bus,
        .device = plain.device,
        .pciDeviceId = plain.pciDeviceId,
        .pciSubSystemId = plain.pciSubSystemId,
        .baseClass = PCI_CLASS_DISPLAY,
        .subClass = PCI_SUBCLASS_3D,
    };
    memcpy(pci->busId, plain.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}
