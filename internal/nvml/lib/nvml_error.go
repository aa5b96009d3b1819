package lib

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/xid"
)

// Error is a return code of NVML. The text of an nvml.Return comes from a call into the library, through a variable shared by threads, so
// no nvml.Return is ever printed.
type Error nvml.Return

// errorNames are nvml.h's names after NVML_ERROR_.
var errorNames = map[Error]string{
	Error(nvml.ERROR_UNINITIALIZED):             "UNINITIALIZED",
	Error(nvml.ERROR_INVALID_ARGUMENT):          "INVALID_ARGUMENT",
	Error(nvml.ERROR_NOT_SUPPORTED):             "NOT_SUPPORTED",
	Error(nvml.ERROR_NO_PERMISSION):             "NO_PERMISSION",
	Error(nvml.ERROR_ALREADY_INITIALIZED):       "ALREADY_INITIALIZED",
	Error(nvml.ERROR_NOT_FOUND):                 "NOT_FOUND",
	Error(nvml.ERROR_INSUFFICIENT_SIZE):         "INSUFFICIENT_SIZE",
	Error(nvml.ERROR_INSUFFICIENT_POWER):        "INSUFFICIENT_POWER",
	Error(nvml.ERROR_DRIVER_NOT_LOADED):         "DRIVER_NOT_LOADED",
	Error(nvml.ERROR_TIMEOUT):                   "TIMEOUT",
	Error(nvml.ERROR_IRQ_ISSUE):                 "IRQ_ISSUE",
	Error(nvml.ERROR_LIBRARY_NOT_FOUND):         "LIBRARY_NOT_FOUND",
	Error(nvml.ERROR_FUNCTION_NOT_FOUND):        "FUNCTION_NOT_FOUND",
	Error(nvml.ERROR_CORRUPTED_INFOROM):         "CORRUPTED_INFOROM",
	Error(nvml.ERROR_GPU_IS_LOST):               "GPU_IS_LOST",
	Error(nvml.ERROR_RESET_REQUIRED):            "RESET_REQUIRED",
	Error(nvml.ERROR_OPERATING_SYSTEM):          "OPERATING_SYSTEM",
	Error(nvml.ERROR_LIB_RM_VERSION_MISMATCH):   "LIB_RM_VERSION_MISMATCH",
	Error(nvml.ERROR_IN_USE):                    "IN_USE",
	Error(nvml.ERROR_MEMORY):                    "MEMORY",
	Error(nvml.ERROR_NO_DATA):                   "NO_DATA",
	Error(nvml.ERROR_VGPU_ECC_NOT_SUPPORTED):    "VGPU_ECC_NOT_SUPPORTED",
	Error(nvml.ERROR_INSUFFICIENT_RESOURCES):    "INSUFFICIENT_RESOURCES",
	Error(nvml.ERROR_FREQ_NOT_SUPPORTED):        "FREQ_NOT_SUPPORTED",
	Error(nvml.ERROR_ARGUMENT_VERSION_MISMATCH): "ARGUMENT_VERSION_MISMATCH",
	Error(nvml.ERROR_DEPRECATED):                "DEPRECATED",
	Error(nvml.ERROR_NOT_READY):                 "NOT_READY",
	Error(nvml.ERROR_GPU_NOT_FOUND):             "GPU_NOT_FOUND",
	Error(nvml.ERROR_INVALID_STATE):             "INVALID_STATE",
	Error(nvml.ERROR_UNKNOWN):                   "UNKNOWN",
}

func (e Error) Error() string {
	if name, ok := errorNames[e]; ok {
		return name
	}
	return "NVML answers " + strconv.Itoa(int(e))
}

// Unwrap returns the GPU's fault: device.ErrLost, a *device.Fault or nil.
func (e Error) Unwrap() error {
	switch nvml.Return(e) {
	case nvml.ERROR_GPU_IS_LOST:
		return device.ErrLost
	case nvml.ERROR_RESET_REQUIRED:
		return &device.Fault{Reason: "reset_required", Action: xid.ActionResetGPU}
	default:
		return nil
	}
}

// IsNotSupported reports whether the GPU lacks the feature, which is no error.
func IsNotSupported(r nvml.Return) bool {
	return r == nvml.ERROR_NOT_SUPPORTED || r == nvml.ERROR_INVALID_ARGUMENT
}

// IsUnavailable reports whether the GPU or its driver lacks the feature, or the form of the request.
func IsUnavailable(r nvml.Return) bool {
	return IsNotSupported(r) || r == nvml.ERROR_ARGUMENT_VERSION_MISMATCH || r == nvml.ERROR_FUNCTION_NOT_FOUND || r == nvml.ERROR_DEPRECATED
}

// IsFinal reports whether the GPU or the library is gone. Further calls are useless, and each could take the driver 45 s.
func IsFinal(r nvml.Return) bool {
	return r == nvml.ERROR_GPU_IS_LOST || r == nvml.ERROR_RESET_REQUIRED || r == nvml.ERROR_UNINITIALIZED
}
