package lib

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// go-nvml binds each function at its first call. A call of an absent function,
// or without a loaded library, ends the process with status 127, past defer and
// recover. So all functions are looked up after each Init, and only present
// ones are called. The tests of package nvml run with a library of only the
// listed functions.

// RequiredFunctions are functions without which no library is usable.
var RequiredFunctions = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID",
}

// Each of these lists is of use as a whole only.
var (
	EventFunctions = []string{
		"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2",
		"nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents",
	}
	MIGFunctions = []string{
		"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
		"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
	}
	GPMFunctions = []string{
		"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet",
		"nvmlGpmMigSampleGet", "nvmlGpmMetricsGet",
	}
)

// ProcessListSymbols are the lists of processes. Of the older versions only the
// newest has MIG devices.
var ProcessListSymbols = [3]string{
	"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
	"nvmlDeviceGetMPSComputeRunningProcesses_v3",
}

// Functions are all functions that are called, apart from those of metrics.
var Functions = slices.Concat(RequiredFunctions, EventFunctions, MIGFunctions, GPMFunctions, ProcessListSymbols[:],
	[]string{
		"nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion", "nvmlSystemGetConfComputeState",
		"nvmlSystemGetConfComputeGpusReadyState",
		"nvmlDeviceGetMinorNumber", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetSerial",
		"nvmlDeviceGetVbiosVersion",
		"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetArchitecture", "nvmlDeviceGetPlatformInfo",
		"nvmlDeviceGetVirtualizationMode",
		"nvmlDeviceGetMigMode", "nvmlDeviceGetAttributes_v2", "nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo",
		FieldValuesSymbol, UtilizationSymbol,
		"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2",
		"nvmlDeviceGetTopologyCommonAncestor",
	})

// FieldValuesSymbol is the function that reads fields.
const FieldValuesSymbol = "nvmlDeviceGetFieldValues"

// OlderVersions are called by go-nvml if a function is absent.
var OlderVersions = map[string][]string{
	"nvmlInit_v2":                   {"nvmlInit"},
	"nvmlDeviceGetCount_v2":         {"nvmlDeviceGetCount"},
	"nvmlDeviceGetHandleByIndex_v2": {"nvmlDeviceGetHandleByIndex"},
	"nvmlEventSetWait_v2":           {"nvmlEventSetWait"},
	"nvmlDeviceGetPciInfo_v3":       {"nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"},
	"nvmlDeviceGetAttributes_v2":    {"nvmlDeviceGetAttributes"},

	"nvmlDeviceGetNvLinkRemotePciInfo_v2": {"nvmlDeviceGetNvLinkRemotePciInfo"},
	"nvmlDeviceGetComputeRunningProcesses_v3": {
		"nvmlDeviceGetComputeRunningProcesses_v2",
		"nvmlDeviceGetComputeRunningProcesses",
	},
	"nvmlDeviceGetGraphicsRunningProcesses_v3": {
		"nvmlDeviceGetGraphicsRunningProcesses_v2",
		"nvmlDeviceGetGraphicsRunningProcesses",
	},
	"nvmlDeviceGetMPSComputeRunningProcesses_v3": {
		"nvmlDeviceGetMPSComputeRunningProcesses_v2",
		"nvmlDeviceGetMPSComputeRunningProcesses",
	},
}

// Symbols are the functions that can be called, by the name of the newest
// version.
type Symbols map[string]bool

// lookUp looks up Functions and more. The lookup returns an error for an absent
// symbol.
func lookUp(lookup func(symbol string) error, more []string) Symbols {
	has := Symbols{}
	found := func(symbol string) bool { return lookup(symbol) == nil }
	for _, symbol := range slices.Concat(Functions, more) {
		has[symbol] = found(symbol) || slices.ContainsFunc(OlderVersions[symbol], found) // go-nvml picks the version
	}
	return has
}

// Missing returns the absent functions, sorted.
func (s Symbols) Missing() (names []string) {
	for symbol, found := range s {
		if !found {
			names = append(names, symbol)
		}
	}
	slices.Sort(names)
	return names
}

// Ask returns the answer of a function of a handle or of the library; false if
// the function is absent or fails.
func Ask[T any](has Symbols, symbol string, call func() (T, nvml.Return)) (answer T, ok bool) {
	if !has[symbol] {
		return answer, false
	}
	answer, ret := call()
	return answer, ret == nvml.SUCCESS
}

// HasAll reports whether all functions can be called.
func (s Symbols) HasAll(symbols []string) bool {
	return !slices.ContainsFunc(symbols, func(symbol string) bool { return !s[symbol] })
}
