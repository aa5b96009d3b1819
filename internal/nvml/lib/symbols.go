package lib

import "fmt"

// The driver's library is as old as the driver, and go-nvml binds each of its
// functions when it is first called. Calling one that is not there ends the
// process with status 127, past every defer and recover; so does calling any while
// no library is loaded. So each function that this package calls has a row here,
// is looked up once for each Init, and is called only if it was found. A test
// compares the rows with the calls in the package's source.

// Functions are the rows: the symbol, and the older ones that go-nvml calls
// instead where it is absent. A library without a needed one is of no use.
var Functions = [...]struct {
	Symbol string
	Older  []string
	Needed bool
}{
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
	{"nvmlDeviceGetMemoryInfo_v2", nil, false},
	{"nvmlDeviceGetMemoryInfo", nil, false},
	{"nvmlDeviceGetUtilizationRates", nil, false},
	{"nvmlDeviceGetEncoderUtilization", nil, false},
	{"nvmlDeviceGetDecoderUtilization", nil, false},
	{"nvmlDeviceGetJpgUtilization", nil, false},
	{"nvmlDeviceGetOfaUtilization", nil, false},
	{"nvmlDeviceGetTemperature", nil, false},
	{"nvmlDeviceGetPowerUsage", nil, false},
	{"nvmlDeviceGetClockInfo", nil, false},
	{"nvmlDeviceGetCurrentClocksEventReasons", nil, false},
	{"nvmlDeviceGetCurrentClocksThrottleReasons", nil, false}, // the same, up to driver 530
	{"nvmlDeviceGetBAR1MemoryInfo", nil, false},
	{"nvmlDeviceGetPerformanceState", nil, false},
	{"nvmlDeviceGetMarginTemperature", nil, false},
	{"nvmlDeviceGetEnforcedPowerLimit", nil, false},
	{"nvmlDeviceGetCurrPcieLinkGeneration", nil, false},
	{"nvmlDeviceGetCurrPcieLinkWidth", nil, false},
	{"nvmlDeviceGetSramEccErrorStatus", nil, false},
	{"nvmlDeviceGetRowRemapperHistogram", nil, false},
	{"nvmlDeviceGetRepairStatus", nil, false},
	{"nvmlDeviceGetUnrepairableMemoryFlag_v1", nil, false},
	{"nvmlDeviceGetGpuFabricInfoV", nil, false},
	{"nvmlDeviceGetPersistenceMode", nil, false},
	{"nvmlDeviceGetComputeMode", nil, false},
	{"nvmlDeviceGetMemoryErrorCounter", nil, false},
	{"nvmlDeviceGetMaxClockInfo", nil, false},
	{"nvmlDeviceGetTemperatureThreshold", nil, false},
	{"nvmlDeviceGetMaxPcieLinkGeneration", nil, false},
	{"nvmlDeviceGetMaxPcieLinkWidth", nil, false},
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

// FieldValuesSymbol is the function behind all rows that have a field id.
const FieldValuesSymbol = "nvmlDeviceGetFieldValues"

// EventFunctions serve only together.
var EventFunctions = [...]string{
	"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2",
	"nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents",
}

// MIGFunctions serve only together.
var MIGFunctions = [...]string{
	"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
}

// gpmFunctions serve only together.
var gpmFunctions = [...]string{
	"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree",
	"nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet",
}

func (s Symbols) SupportsGPM() bool { return s.HasAll(gpmFunctions[:]) }

// Symbols are the functions that can be called, under the names of the rows.
type Symbols map[string]bool

// lookupSymbols looks all functions up. The lookup returns an error for what is absent.
func lookupSymbols(lookup func(symbol string) error) Symbols {
	has := Symbols{}
	for _, f := range Functions {
		found := lookup(f.Symbol) == nil
		for _, older := range f.Older {
			found = found || lookup(older) == nil
		}
		has[f.Symbol] = found // go-nvml picks the version, so one name stands for all
	}
	return has
}

// checkRequired returns an error that names a function without which nothing works.
func (s Symbols) checkRequired() error {
	for _, f := range Functions {
		if f.Needed && !s[f.Symbol] {
			return fmt.Errorf("the library lacks %s", f.Symbol)
		}
	}
	return nil
}

// MissingFunctions names the functions that cannot be called, in the order of the rows.
func (s Symbols) MissingFunctions() (names []string) {
	for _, f := range Functions {
		if !s[f.Symbol] {
			names = append(names, f.Symbol)
		}
	}
	return names
}

// SupportsEvents tells whether events can be waited for.
func (s Symbols) SupportsEvents() bool { return s.HasAll(EventFunctions[:]) }

// SupportsMIG tells whether MIG slices can be listed.
func (s Symbols) SupportsMIG() bool { return s.HasAll(MIGFunctions[:]) }

func (s Symbols) HasAll(symbols []string) bool {
	for _, symbol := range symbols {
		if !s[symbol] {
			return false
		}
	}
	return true
}
