package lib

import (
	"fmt"
	"slices"
)

// go-nvml binds each function at its first call. A call of an absent function, or without a loaded library, ends the process with status
// 127, past defer and recover. So all functions are looked up after each Init, and only present ones are called. A test compares the calls
// in the source with Functions and the metrics' functions.

// Function is a function of the library.
type Function struct {
	Symbol string
	Older  []string // go-nvml calls these instead if Symbol is absent
	Needed bool     // no library is usable without it
}

// Functions are all functions that are called, apart from those of metrics.
var Functions = []Function{
	{"nvmlInit_v2", []string{"nvmlInit"}, true},
	{"nvmlShutdown", nil, true},
	{"nvmlDeviceGetCount_v2", []string{"nvmlDeviceGetCount"}, true},
	{"nvmlDeviceGetHandleByIndex_v2", []string{"nvmlDeviceGetHandleByIndex"}, true},
	{"nvmlDeviceGetUUID", nil, true},

	{"nvmlSystemGetDriverVersion", nil, false},
	{"nvmlSystemGetCudaDriverVersion", nil, false},
	{"nvmlSystemGetConfComputeState", nil, false},
	{"nvmlDeviceGetMinorNumber", nil, false},
	{"nvmlDeviceGetName", nil, false},
	{"nvmlDeviceGetPciInfo_v3", []string{"nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"}, false},
	{"nvmlDeviceGetMigMode", nil, false},
	{"nvmlDeviceGetMaxMigDeviceCount", nil, false},
	{"nvmlDeviceGetMigDeviceHandleByIndex", nil, false},
	{"nvmlDeviceGetGpuInstanceId", nil, false},
	{"nvmlDeviceGetComputeInstanceId", nil, false},
	{"nvmlDeviceGetAttributes_v2", []string{"nvmlDeviceGetAttributes"}, false},
	{"nvmlDeviceGetGpuInstanceById", nil, false},
	{"nvmlGpuInstanceGetInfo", nil, false},
	{"nvmlDeviceGetSerial", nil, false},
	{"nvmlDeviceGetVbiosVersion", nil, false},
	{"nvmlDeviceGetCudaComputeCapability", nil, false},
	{"nvmlDeviceGetArchitecture", nil, false},
	{"nvmlDeviceGetPlatformInfo", nil, false},

	{"nvmlDeviceGetFieldValues", nil, false},
	{"nvmlDeviceGetSupportedClocksEventReasons", nil, false},
	{"nvmlDeviceGetSupportedClocksThrottleReasons", nil, false},

	{"nvmlDeviceGetNvLinkState", nil, false},
	{"nvmlDeviceGetNvLinkRemoteDeviceType", nil, false},
	{"nvmlDeviceGetNvLinkRemotePciInfo_v2", []string{"nvmlDeviceGetNvLinkRemotePciInfo"}, false},
	{"nvmlDeviceGetTopologyCommonAncestor", nil, false},

	{"nvmlDeviceGetComputeRunningProcesses_v3", []string{"nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"}, false},
	{"nvmlDeviceGetGraphicsRunningProcesses_v3", []string{"nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses"}, false},
	{"nvmlDeviceGetMPSComputeRunningProcesses_v3", []string{"nvmlDeviceGetMPSComputeRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses"}, false},
	{"nvmlDeviceGetProcessUtilization", nil, false},

	{"nvmlGpmQueryDeviceSupport", nil, false},
	{"nvmlGpmSampleAlloc", nil, false},
	{"nvmlGpmSampleFree", nil, false},
	{"nvmlGpmSampleGet", nil, false},
	{"nvmlGpmMigSampleGet", nil, false},
	{"nvmlGpmMetricsGet", nil, false},

	{"nvmlEventSetCreate", nil, false},
	{"nvmlEventSetFree", nil, false},
	{"nvmlEventSetWait_v2", []string{"nvmlEventSetWait"}, false},
	{"nvmlDeviceGetSupportedEventTypes", nil, false},
	{"nvmlDeviceRegisterEvents", nil, false},
}

// FieldValuesSymbol is the function that reads fields.
const FieldValuesSymbol = "nvmlDeviceGetFieldValues"

// Each of these lists is of use as a whole only.
var (
	EventFunctions = []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"}
	MIGFunctions   = []string{"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId"}
	GPMFunctions   = []string{
		"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet",
	}
)

// Symbols are the functions that can be called, by Function.Symbol.
type Symbols map[string]bool

// lookUp looks up Functions and more. The lookup returns an error for an absent symbol.
func lookUp(lookup func(symbol string) error, more []string) Symbols {
	has := Symbols{}
	for _, f := range Functions {
		found := func(symbol string) bool { return lookup(symbol) == nil }
		has[f.Symbol] = found(f.Symbol) || slices.ContainsFunc(f.Older, found) // go-nvml picks the version
	}
	for _, symbol := range more {
		has[symbol] = lookup(symbol) == nil
	}
	return has
}

// checkRequired returns an error with the first absent needed function.
func (s Symbols) checkRequired() error {
	for _, f := range Functions {
		if f.Needed && !s[f.Symbol] {
			return fmt.Errorf("the library lacks %s", f.Symbol)
		}
	}
	return nil
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

// SupportsEvents reports whether events can be waited for.
func (s Symbols) SupportsEvents() bool { return s.HasAll(EventFunctions) }

// SupportsMIG reports whether MIG devices can be listed.
func (s Symbols) SupportsMIG() bool { return s.HasAll(MIGFunctions) }

// SupportsGPM reports whether GPM can be sampled.
func (s Symbols) SupportsGPM() bool { return s.HasAll(GPMFunctions) }

// HasAll reports whether all functions can be called.
func (s Symbols) HasAll(symbols []string) bool {
	return !slices.ContainsFunc(symbols, func(symbol string) bool { return !s[symbol] })
}
