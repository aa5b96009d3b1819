package metric

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// Rows are all metrics of a GPU, in the order of device.Sample.Metric.
var Rows = slices.Concat(memoryRows, engineRows, powerRows, pcieRows, linkRows, faultRows, modeRows)

// GPMValue is a GPM metric with the value's ID.
type GPMValue struct {
	Metric nvml.GpmMetricId
	ID     ValueID
}

// Calls are all functions for values: shared functions, and functions of single rows.
var Calls = assigned.calls

// GPMValues are the GPM metrics of rows.
var GPMValues = assigned.gpm

var assigned = assignValues(Rows)

// assignedValues are the sources of rows with a separate ValueID.
type assignedValues struct {
	calls []Call
	gpm   []GPMValue
}

func assignValues(rows []Row) assignedValues {
	calls, next := slices.Clone(sharedCalls), firstOwnValue
	own, gpm := map[*ownFunction]ValueID{}, []GPMValue(nil)
	for i := range rows {
		r := &rows[i]
		switch {
		case next >= MaxValues:
			panic("metric: MaxValues is too small")
		case r.gpm != 0:
			gpm = append(gpm, GPMValue{r.gpm, next})
			r.ValueID, next = next, next+1
		case r.function == nil:
		case own[r.function] != NoValue:
			r.ValueID = own[r.function]
		default:
			id, f := next, r.function
			c := newCall(f.symbol, f.pace, TargetGPU, func(d nvml.Device, values *Values) nvml.Return {
				v, ret := f.read(d)
				values.Set(ret, id, v)
				return ret
			}, []ValueID{id})
			c.Part, c.Parts = f.part, f.parts
			calls = append(calls, c)
			r.ValueID, own[f], next = id, id, next+1
		}
	}
	return assignedValues{calls, gpm}
}

// UnsetGPM drops the values of GPM.
func (vs *Values) UnsetGPM() {
	for _, g := range GPMValues {
		vs.Present[g.ID] = false
	}
}

// Symbols returns the functions of all calls.
func Symbols() (symbols []string) {
	for i := range Calls {
		symbols = append(symbols, Calls[i].Symbol)
		if parts := Calls[i].Parts; parts != nil {
			symbols = append(symbols, parts.Symbol)
		}
	}
	slices.Sort(symbols)
	return slices.Compact(symbols)
}

// Metrics returns the rows for the exporter, in the order of Backend.Read's numbers.
func Metrics() []device.Metric { return metricsOf(Rows) }

// MetricsPerLink returns the rows of Metrics, then the rows of each NVLink.
func MetricsPerLink() []device.Metric { return metricsOf(slices.Concat(Rows, perLinkRows())) }

func metricsOf(rows []Row) []device.Metric {
	metrics := make([]device.Metric, len(rows))
	for i := range rows {
		r := &rows[i]
		metrics[i] = device.Metric{
			Name: r.name, Help: r.help, Kind: r.kind, Labels: r.labels,
			Source: r.sourceText(), Hardware: r.hardware, ReadPace: r.pace(),
		}
	}
	return metrics
}

// DerivedFamilies are the exporter's families from events and processes, with the required functions.
var DerivedFamilies = [...]struct {
	functions []string
	Families  []string
}{
	{lib.EventFunctions, []string{"nvidia_gpu_xid_errors_total", "nvidia_gpu_xid_last_timestamp_seconds"}},
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

// MissingFamilies returns the families with a row beyond the library's functions.
func MissingFamilies(s lib.Symbols) (families []string) {
	for i := range Rows {
		r := &Rows[i]
		if n := len(families); !r.canRead(s) && (n == 0 || families[n-1] != r.name) { // rows of a family stand together
			families = append(families, r.name)
		}
	}
	for _, f := range DerivedFamilies {
		if !s.HasAll(f.functions) {
			families = append(families, f.Families...)
		}
	}
	return families
}

// canRead reports whether the library has a function for the row, regardless of the GPU's fields.
func (r *Row) canRead(s lib.Symbols) bool {
	return len(r.Sources) > 0 && s[lib.FieldValuesSymbol] ||
		slices.ContainsFunc(Calls, func(c Call) bool { return c.Provides(r.ValueID) && s[c.Symbol] }) ||
		r.state != nil && len(r.state.symbols) > 0 && s.HasAll(r.state.symbols)
}
