package nvml

import "fmt"

// The driver's library is as old as the driver, and go-nvml binds each of its
// functions when it is first called. Calling one that is not there ends the
// process with status 127, past every defer and recover; so does calling any while
// no library is loaded. So each function that this package calls has a row here,
// is looked up once for each Init, and is called only if it was found. A test
// compares the rows with the calls in the package's source.

// functions are the rows: the symbol, and the older ones that go-nvml calls
// instead where it is absent. A library without a needed one is of no use.
var functions = [...]struct {
	symbol string
	older  []string
	needed bool
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

// fieldValuesSymbol is the function behind all rows that have a field id.
const fieldValuesSymbol = "nvmlDeviceGetFieldValues"

// eventFunctions serve only together.
var eventFunctions = [...]string{
	"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2",
	"nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents",
}

// migFunctions serve only together.
var migFunctions = [...]string{
	"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
}

// derivedFamilies are families that the exporter makes of other things than rows, and what those
// take.
var derivedFamilies = [...]struct {
	functions []string
	families  []string
}{
	{eventFunctions[:], []string{"nvidia_gpu_xid_errors_total", "nvidia_gpu_xid_last_timestamp_seconds"}},
	{[]string{"nvmlDeviceGetComputeRunningProcesses_v3"}, []string{
		"nvidia_gpu_container_memory_used_bytes", "nvidia_gpu_unattributed_memory_used_bytes",
		"nvidia_gpu_container_processes", "nvidia_gpu_unattributed_processes",
	}},
	{[]string{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"}, []string{
		"nvidia_gpu_container_sm_utilization_ratio", "nvidia_gpu_unattributed_sm_utilization_ratio",
		"nvidia_gpu_container_memory_controller_utilization_ratio", "nvidia_gpu_unattributed_memory_controller_utilization_ratio",
		"nvidia_gpu_container_encoder_utilization_ratio", "nvidia_gpu_unattributed_encoder_utilization_ratio",
		"nvidia_gpu_container_decoder_utilization_ratio", "nvidia_gpu_unattributed_decoder_utilization_ratio",
	}},
}

// symbols are the functions that can be called, under the names of the rows.
type symbols map[string]bool

// lookupSymbols looks all functions up. The lookup returns an error for what is absent.
func lookupSymbols(lookup func(symbol string) error) symbols {
	has := symbols{}
	for _, f := range functions {
		found := lookup(f.symbol) == nil
		for _, older := range f.older {
			found = found || lookup(older) == nil
		}
		has[f.symbol] = found // go-nvml picks the version, so one name stands for all
	}
	return has
}

// checkRequired returns an error that names a function without which nothing works.
func (s symbols) checkRequired() error {
	for _, f := range functions {
		if f.needed && !s[f.symbol] {
			return fmt.Errorf("the library lacks %s", f.symbol)
		}
	}
	return nil
}

// supportsEvents tells whether events can be waited for.
func (s symbols) supportsEvents() bool { return s.hasAll(eventFunctions[:]) }

// supportsMIG tells whether MIG slices can be listed.
func (s symbols) supportsMIG() bool { return s.hasAll(migFunctions[:]) }

func (s symbols) hasAll(symbols []string) bool {
	for _, symbol := range symbols {
		if !s[symbol] {
			return false
		}
	}
	return true
}

// missingFamilies names the families of which a row, or all, cannot be read.
func (s symbols) missingFamilies() []string {
	var families []string
	add := func(name string) {
		if n := len(families); n == 0 || families[n-1] != name { // rows of a family stand together
			families = append(families, name)
		}
	}
	for _, r := range rows {
		if !s.canRead(r) {
			add(r.name)
		}
	}
	for _, m := range derivedFamilies {
		if !s.hasAll(m.functions) {
			families = append(families, m.families...)
		}
	}
	return families
}

// canRead tells whether any function gives the row. Whether a GPU has the field is
// another matter: that is no lack of the library.
func (s symbols) canRead(r metricDef) bool {
	if len(r.sources) > 0 && s[fieldValuesSymbol] {
		return true
	}
	for _, c := range calls {
		if c.provides(r.valueID) && s[c.symbol] {
			return true
		}
	}
	switch r.valueID {
	case migEnabled, migPending, hasMIG:
		return s["nvmlDeviceGetMigMode"]
	case hasC2C, hasECC, hasNVLink, hasRetirement, hasRemapping:
		return s[fieldValuesSymbol]
	case hasGPM:
		return s.supportsGPM()
	}
	return r.valueID >= gpmGraphics && s.supportsGPM()
}
