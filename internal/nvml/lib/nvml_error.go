package lib

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
)

// Error is a return code of NVML. The text of an nvml.Return comes from a call
// into the library, through a variable shared by threads, so no nvml.Return is
// ever printed.
type Error nvml.Return

// errorNames are nvml.h's names after NVML_ERROR_, by code.
var errorNames = [...]string{
	"SUCCESS", "UNINITIALIZED", "INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "ALREADY_INITIALIZED",
	"NOT_FOUND", "INSUFFICIENT_SIZE",
	"INSUFFICIENT_POWER", "DRIVER_NOT_LOADED", "TIMEOUT", "IRQ_ISSUE", "LIBRARY_NOT_FOUND", "FUNCTION_NOT_FOUND",
	"CORRUPTED_INFOROM", "GPU_IS_LOST",
	"RESET_REQUIRED", "OPERATING_SYSTEM", "LIB_RM_VERSION_MISMATCH", "IN_USE", "MEMORY", "NO_DATA",
	"VGPU_ECC_NOT_SUPPORTED",
	"INSUFFICIENT_RESOURCES", "FREQ_NOT_SUPPORTED", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED", "NOT_READY",
	"GPU_NOT_FOUND", "INVALID_STATE",
}

func (e Error) Error() string {
	switch {
	case e == Error(nvml.ERROR_UNKNOWN):
		return "UNKNOWN"
	case e >= 0 && int(e) < len(errorNames):
		return errorNames[e]
	default:
		return "NVML returned " + strconv.Itoa(int(e))
	}
}

// Unwrap returns whose fault the code is: device.ErrLost, a *device.Fault,
// device.ErrDriverFault, or nil: unknown.
func (e Error) Unwrap() error {
	switch nvml.Return(e) {
	case nvml.ERROR_GPU_IS_LOST:
		return device.ErrLost
	case nvml.ERROR_RESET_REQUIRED:
		return &device.Fault{Reason: "reset_required", Action: xid.ActionResetGPU}
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_DRIVER_NOT_LOADED,
		nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_INSUFFICIENT_RESOURCES:
		return device.ErrDriverFault
	default:
		return nil
	}
}

// IsNotSupported reports whether the GPU lacks the feature, which is no error.
func IsNotSupported(r nvml.Return) bool {
	return r == nvml.ERROR_NOT_SUPPORTED || r == nvml.ERROR_INVALID_ARGUMENT
}

// IsUnavailable reports whether the GPU or its driver lacks the feature, or the
// form of the request.
func IsUnavailable(r nvml.Return) bool {
	return IsNotSupported(r) || r == nvml.ERROR_ARGUMENT_VERSION_MISMATCH || r == nvml.ERROR_FUNCTION_NOT_FOUND ||
		r == nvml.ERROR_DEPRECATED
}

// IsFinal reports whether the GPU or the library is gone. Further calls are
// useless, and each could take the driver 45 s.
func IsFinal(r nvml.Return) bool {
	return r == nvml.ERROR_GPU_IS_LOST || r == nvml.ERROR_RESET_REQUIRED || r == nvml.ERROR_UNINITIALIZED
}
