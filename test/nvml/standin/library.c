/* Start and end of the library, and versions of the system. */

#include <stdio.h>

#include "call.h"
#include "event.h"
#include "names.h"

static nvmlReturn_t start(void)
{
    if (!scenario_present())
        return NVML_ERROR_DRIVER_NOT_LOADED;
    library_start();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void)
{
    CALL(NO_GPU);
    return start();
}

nvmlReturn_t nvmlInit_v2(void)
{
    CALL(NO_GPU);
    return start();
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    CALL(NO_GPU);
    (void)flags;
    return start();
}

nvmlReturn_t nvmlShutdown(void)
{
    CALL(NO_GPU);
    library_end();
    if (!library_started())
        event_sets_free();
    return NVML_SUCCESS;
}

/* Works without initialization, cannot fail or hang, and is not counted. */
const char *nvmlErrorString(nvmlReturn_t result)
{
    return return_text(result);
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    CALL(NO_GPU);
    return copy_text(call.scenario->driver, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    CALL(NO_GPU);
    char text[NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE];
    snprintf(text, sizeof text, "%s.%.60s", NVML_API_VERSION_STR, call.scenario->driver);
    return copy_text(text, version, length);
}

static nvmlReturn_t get_cuda_version(int *version)
{
    REQUIRE(version);
    *version = NVML_API_VERSION * 1000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
    CALL(NO_GPU);
    return get_cuda_version(cudaDriverVersion);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
    CALL(NO_GPU);
    return get_cuda_version(cudaDriverVersion);
}
