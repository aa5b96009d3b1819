package lib

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/xid"
)

// Error is a return code of NVML, as an error. nvml.Return would be one too, but
// it takes its text from a call into the library, through a variable that another
// thread may write; so it never leaves this package and is never printed.
type Error nvml.Return

// nvmlErrors names the codes and says which of them are a verdict on the GPU. What
// is not in it is passed through by its number.
var nvmlErrors = map[Error]struct {
	name    string
	verdict error
}{
	Error(nvml.ERROR_UNINITIALIZED):             {"UNINITIALIZED", nil},
	Error(nvml.ERROR_INVALID_ARGUMENT):          {"INVALID_ARGUMENT", nil},
	Error(nvml.ERROR_NOT_SUPPORTED):             {"NOT_SUPPORTED", nil},
	Error(nvml.ERROR_NO_PERMISSION):             {"NO_PERMISSION", nil},
	Error(nvml.ERROR_ALREADY_INITIALIZED):       {"ALREADY_INITIALIZED", nil},
	Error(nvml.ERROR_NOT_FOUND):                 {"NOT_FOUND", nil},
	Error(nvml.ERROR_INSUFFICIENT_SIZE):         {"INSUFFICIENT_SIZE", nil},
	Error(nvml.ERROR_INSUFFICIENT_POWER):        {"INSUFFICIENT_POWER", nil},
	Error(nvml.ERROR_DRIVER_NOT_LOADED):         {"DRIVER_NOT_LOADED", nil},
	Error(nvml.ERROR_TIMEOUT):                   {"TIMEOUT", nil},
	Error(nvml.ERROR_IRQ_ISSUE):                 {"IRQ_ISSUE", nil},
	Error(nvml.ERROR_LIBRARY_NOT_FOUND):         {"LIBRARY_NOT_FOUND", nil},
	Error(nvml.ERROR_FUNCTION_NOT_FOUND):        {"FUNCTION_NOT_FOUND", nil},
	Error(nvml.ERROR_CORRUPTED_INFOROM):         {"CORRUPTED_INFOROM", nil},
	Error(nvml.ERROR_GPU_IS_LOST):               {"GPU_IS_LOST", device.ErrLost},
	Error(nvml.ERROR_RESET_REQUIRED):            {"RESET_REQUIRED", &device.Fault{Reason: "reset_required", Action: xid.ActionResetGPU}},
	Error(nvml.ERROR_OPERATING_SYSTEM):          {"OPERATING_SYSTEM", nil},
	Error(nvml.ERROR_LIB_RM_VERSION_MISMATCH):   {"LIB_RM_VERSION_MISMATCH", nil},
	Error(nvml.ERROR_IN_USE):                    {"IN_USE", nil},
	Error(nvml.ERROR_MEMORY):                    {"MEMORY", nil},
	Error(nvml.ERROR_NO_DATA):                   {"NO_DATA", nil},
	Error(nvml.ERROR_VGPU_ECC_NOT_SUPPORTED):    {"VGPU_ECC_NOT_SUPPORTED", nil},
	Error(nvml.ERROR_INSUFFICIENT_RESOURCES):    {"INSUFFICIENT_RESOURCES", nil},
	Error(nvml.ERROR_FREQ_NOT_SUPPORTED):        {"FREQ_NOT_SUPPORTED", nil},
	Error(nvml.ERROR_ARGUMENT_VERSION_MISMATCH): {"ARGUMENT_VERSION_MISMATCH", nil},
	Error(nvml.ERROR_DEPRECATED):                {"DEPRECATED", nil},
	Error(nvml.ERROR_NOT_READY):                 {"NOT_READY", nil},
	Error(nvml.ERROR_GPU_NOT_FOUND):             {"GPU_NOT_FOUND", nil},
	Error(nvml.ERROR_INVALID_STATE):             {"INVALID_STATE", nil},
	Error(nvml.ERROR_UNKNOWN):                   {"UNKNOWN", nil},
}

func (e Error) Error() string {
	if known, ok := nvmlErrors[e]; ok {
		return known.name
	}
	return "NVML answers " + strconv.Itoa(int(e))
}

// Unwrap is the verdict that the code is: device.ErrLost, a *device.Fault, or
// none.
func (e Error) Unwrap() error { return nvmlErrors[e].verdict }

// IsNotSupported tells whether a code says that the GPU does not have what it was asked
// for, and not that something is wrong.
func IsNotSupported(r nvml.Return) bool {
	return r == nvml.ERROR_NOT_SUPPORTED || r == nvml.ERROR_INVALID_ARGUMENT
}

// IsFinal tells whether a code ends all asking: the GPU or the library is gone,
// and each further call could take the driver's 45 s to say so again.
func IsFinal(r nvml.Return) bool {
	return r == nvml.ERROR_GPU_IS_LOST || r == nvml.ERROR_RESET_REQUIRED || r == nvml.ERROR_UNINITIALIZED
}

// IsUnavailable tells whether a code says that the GPU or its driver does not have what it was
// asked for, in the form that it was asked for in.
func IsUnavailable(ret nvml.Return) bool {
	return IsNotSupported(ret) || ret == nvml.ERROR_ARGUMENT_VERSION_MISMATCH || ret == nvml.ERROR_FUNCTION_NOT_FOUND || ret == nvml.ERROR_DEPRECATED
}
