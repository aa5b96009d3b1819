package metric

import (
	"slices"
	"strconv"
	"strings"

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

// Calls are all functions for values: shared functions, and functions of single
// rows.
var Calls, gpmValues = assignValues(Rows)

// GPMValues are the GPM metrics of rows.
var GPMValues = gpmValues

// assignValues gives the sources of single rows a separate ValueID.
func assignValues(rows []Row) (calls []Call, gpm []GPMValue) {
	calls = slices.Clone(sharedCalls)
	next := firstOwnValue
	for i := range rows {
		r := &rows[i]
		switch {
		case next >= MaxValues:
			panic("metric: MaxValues is too small")
		case r.gpm != 0:
			gpm = append(gpm, GPMValue{r.gpm, next})
			r.ValueID, next = next, next+1
		case r.call == nil:
		case len(r.call.Values) > 0: // of an earlier row
			r.ValueID = r.call.Values[0]
		default:
			r.call.Values = []ValueID{next}
			if len(r.Sources) > 0 {
				r.call.SparedBy = &r.Sources[0].FieldKey
			}
			calls = append(calls, *r.call)
			r.ValueID, next = next, next+1
		}
	}
	return calls, gpm
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
	}
	slices.Sort(symbols)
	return slices.Compact(symbols)
}

// DerivedFamilies are the exporter's families from events and processes, with
// the required functions.
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
		"nvidia_gpu_container_memory_controller_utilization_ratio",
		"nvidia_gpu_unattributed_memory_controller_utilization_ratio",
		"nvidia_gpu_container_encoder_utilization_ratio", "nvidia_gpu_unattributed_encoder_utilization_ratio",
		"nvidia_gpu_container_decoder_utilization_ratio", "nvidia_gpu_unattributed_decoder_utilization_ratio",
	}},
}

// MissingFamilies returns the families with a row beyond the library's
// functions.
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

// canRead reports whether the library has a function for the row, regardless of
// the GPU's fields.
func (r *Row) canRead(s lib.Symbols) bool {
	return len(r.Sources) > 0 && s[lib.FieldValuesSymbol] ||
		slices.ContainsFunc(Calls, func(c Call) bool { return c.Provides(r.ValueID) && s[c.Symbol] }) ||
		r.state != nil && len(r.state.symbols) > 0 && s.HasAll(r.state.symbols)
}

// metric returns the row for the exporter.
func (r *Row) metric() device.Metric {
	return device.Metric{
		Name: r.name, Help: r.help, Kind: r.kind, Labels: r.labels,
		Enum: r.enum != nil && !r.IsFeature || r.Bit != 0,
		Set:  r.set, AlwaysInSet: r.isAlwaysInSet(),
		Source: r.sourceText(), Hardware: r.hardware, ReadPace: r.pace(),
	}
}

func (r *Row) isAlwaysInSet() bool {
	return slices.ContainsFunc(r.labels, func(l device.Label) bool { return l.Value == r.alwaysInSet })
}

// pace is the pace of the row's fields, call or state.
func (r *Row) pace() device.ReadPace {
	switch {
	case r.slow:
		return device.PaceSlow
	case len(r.Sources) > 0 || r.gpm != 0:
		return device.PaceFast
	case r.state != nil:
		return r.state.pace
	}
	return Calls[slices.IndexFunc(Calls, func(c Call) bool { return c.Provides(r.ValueID) })].Pace
}

// sourceText lists the row's sources.
func (r *Row) sourceText() string {
	var texts []string
	for _, s := range r.Sources {
		text := "field " + strconv.Itoa(int(s.ID))
		switch {
		case s.sum:
			text += ", over all links"
		case s.Scope == ScopeGPU && s.N == allLinks:
			text += ", of all links"
		case s.Scope == ScopeGPU && s.N > 0:
			text += ", scope " + strconv.Itoa(int(s.N))
		}
		texts = append(texts, text)
	}
	for i := range Calls {
		if Calls[i].Provides(r.ValueID) && !slices.Contains(texts, Calls[i].Symbol) {
			texts = append(texts, Calls[i].Symbol)
		}
	}
	if r.state != nil {
		texts = append(texts, r.state.source)
	}
	return strings.Join(texts, "; ")
}
