package metric

import "github.com/podgauge/podgauge/internal/nvml/lib"

// DerivedFamilies are families that the exporter makes of other things than rows, and what those
// take.
var DerivedFamilies = [...]struct {
	functions []string
	Families  []string
}{
	{lib.EventFunctions[:], []string{"nvidia_gpu_xid_errors_total", "nvidia_gpu_xid_last_timestamp_seconds"}},
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

// MissingFamilies names the families of which a row, or all, cannot be read.
func MissingFamilies(s lib.Symbols) []string {
	var families []string
	add := func(name string) {
		if n := len(families); n == 0 || families[n-1] != name { // rows of a family stand together
			families = append(families, name)
		}
	}
	for _, r := range Rows {
		if !canRead(s, r) {
			add(r.name)
		}
	}
	for _, m := range DerivedFamilies {
		if !s.HasAll(m.functions) {
			families = append(families, m.Families...)
		}
	}
	return families
}

// canRead tells whether any function gives the row. Whether a GPU has the field is
// another matter: that is no lack of the library.
func canRead(s lib.Symbols, r Row) bool {
	if len(r.Sources) > 0 && s[lib.FieldValuesSymbol] {
		return true
	}
	for _, c := range Calls {
		if c.Provides(r.ValueID) && s[c.Symbol] {
			return true
		}
	}
	switch r.ValueID {
	case MigEnabled, MigPending, HasMIG:
		return s["nvmlDeviceGetMigMode"]
	case HasC2C, HasECC, HasNVLink, HasRetirement, HasRemapping:
		return s[lib.FieldValuesSymbol]
	case HasGPM:
		return s.SupportsGPM()
	}
	return r.ValueID >= GPMGraphics && s.SupportsGPM()
}
