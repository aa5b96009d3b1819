// Package metric is the catalogue of readings: a row for each metric, with
// sources and conversion. The calls, the symbols to look up and the
// documentation derive from the rows.
package metric

import (
	"math"
	"slices"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// Row is a metric with name and sources. The first source present on a GPU
// counts. Rows of a family stand together.
type Row struct {
	name, help string
	kind       device.Kind
	labels     []device.Label
	set        device.MetricSet
	hardware   string
	slow       bool // fields have the slow pace

	// Sources are fields with the metric.
	Sources []FieldSource
	// ValueID is a call's value. A GPU with the fields of all such rows spares
	// the call.
	ValueID ValueID
	// UnlessValue hides the row while the value is present: more detailed rows
	// replace this row.
	UnlessValue ValueID
	// call is a call for the rows with this pointer only. The catalogue assigns
	// the ValueID.
	call *Call
	// gpm is the row's GPM metric, likewise; 0: no GPM metric.
	gpm nvml.GpmMetricId
	// state is the source of a value without a call.
	state *derivedState

	// Conversion converts the value. Bit, if set, selects a flag of the value.
	Conversion Conversion
	Bit        uint64
	enum       *enumState
	// alwaysInSet is the state of the enumeration that its set exports while 0
	// too.
	alwaysInSet string
	// IsFeature marks the row as 0 after confirmed denials of its field.
	IsFeature bool
	// Monotonic counters may wrap or restart; the collector produces counters
	// without decreases.
	Monotonic bool
	// MaxRate is the highest plausible increase of a monotonic counter per
	// second.
	MaxRate float64
}

// derivedState describes a value from a listing or from slow fields.
type derivedState struct {
	source  string
	pace    device.ReadPace
	symbols []string
}

// FieldSource is a field of one scope, or the sum over all scopes.
type FieldSource struct {
	FieldKey
	sum        bool
	Conversion Conversion
}

// allLinks is the scope number of all links together, in some fields.
const allLinks = ^uint32(0)

const (
	// MaxNVLinks is the highest number of NVLinks in NVML.
	MaxNVLinks = nvml.NVLINK_MAX_LINKS
	// maxC2CLinks is above the number of links between any GPU and CPU.
	maxC2CLinks = 14
)

// ToValue returns the row's value for a converted number.
func (r *Row) ToValue(v float64) float64 {
	if r.enum != nil {
		return boolNumber(v >= r.enum.first && v <= r.enum.last != r.enum.outside)
	}
	return v
}

// Convert returns the row's value in a set of values, and false without a
// value.
func (r *Row) Convert(values *Values) (float64, bool) {
	v, ok := r.Conversion.Convert(values.Values[r.ValueID])
	return r.ToValue(v), ok && values.Present[r.ValueID]
}

// values are the values of calls that the row needs.
func (r *Row) values() []ValueID {
	ids := []ValueID{r.ValueID, r.UnlessValue}
	if r.Bit != 0 {
		ids = append(ids, SupportedClockReasons)
	}
	if r.gpm != 0 || r.ValueID == HasGPM {
		ids = append(ids, GPMSupport)
	}
	if r.call != nil {
		ids = append(ids, r.call.PartCount)
	}
	return ids
}

// newRow begins a row. Labels are names and values in turn.
func newRow(kind device.Kind, name, help string, labels []string) Row {
	r := Row{name: name, help: help, kind: kind}
	for i := 0; i+1 < len(labels); i += 2 {
		r.labels = append(r.labels, device.Label{Name: labels[i], Value: labels[i+1]})
	}
	return r
}

func gaugeRow(name, help string, labels ...string) Row {
	return newRow(device.Gauge, name, help, labels)
}

func stateRow(name, help string, labels ...string) Row {
	return newRow(device.StateGauge, name, help, labels)
}

func ownerCounterRow(name, help string, labels ...string) Row {
	return newRow(device.OwnerCounter, name, help, labels)
}

func faultCounterRow(name, help string, labels ...string) Row {
	return newRow(device.FaultCounter, name, help, labels)
}

// enumRows returns a row for each state of an enumeration, counted from first;
// with other, an additional row for unknown values.
func enumRows(r Row, label string, states []string, first uint32, other bool) []Row {
	rows := make([]Row, 0, len(states)+1)
	for i, name := range states {
		row := r.withLabel(label, name)
		row.enum = &enumState{first: float64(first) + float64(i), last: float64(first) + float64(i)}
		rows = append(rows, row)
	}
	if other {
		row := r.withLabel(label, "other")
		row.enum = &enumState{first: float64(first), last: float64(first) + float64(len(states)-1), outside: true}
		rows = append(rows, row)
	}
	return rows
}

func (r Row) fromField(id uint32, c Conversion) Row {
	return r.withSource(FieldSource{FieldKey: FieldKey{ID: id}, Conversion: c})
}

// fromScope adds a field with a scope number for something else than links.
func (r Row) fromScope(id, n uint32, c Conversion) Row {
	return r.withSource(FieldSource{FieldKey: FieldKey{ID: id, N: n}, Conversion: c})
}

func (r Row) fromLink(id, link uint32, c Conversion) Row {
	return r.withSource(FieldSource{FieldKey: FieldKey{id, ScopeNVLink, link}, Conversion: c})
}

func (r Row) sumNVLinks(id uint32, c Conversion) Row {
	return r.withSource(FieldSource{FieldKey: FieldKey{ID: id, Scope: ScopeNVLink}, sum: true, Conversion: c})
}

func (r Row) sumC2CLinks(id uint32, c Conversion) Row {
	return r.withSource(FieldSource{FieldKey: FieldKey{ID: id, Scope: ScopeC2CLink}, sum: true, Conversion: c})
}

func (r Row) withSource(s FieldSource) Row {
	r.Sources = append(slices.Clip(r.Sources), s)
	return r
}

// fromCall takes a value of a shared call.
func (r Row) fromCall(id ValueID, c Conversion) Row {
	r.ValueID, r.Conversion = id, c
	return r
}

func (r Row) fromFlag(id ValueID, bit uint64) Row {
	r.ValueID, r.Bit = id, bit
	return r
}

// fromFunction gives the row a function of its own.
func (r Row) fromFunction(symbol string, pace device.ReadPace, c Conversion, read readFunc) Row {
	r.call, r.Conversion = new(newCall(symbol, pace, single(read))), c
	return r
}

// ofPart limits the row's function to GPUs with this part.
func (r Row) ofPart(part int, count ValueID) Row {
	r.call.Part, r.call.PartCount = part, count
	return r
}

// fromGPM takes a GPM metric, a percentage.
func (r Row) fromGPM(id nvml.GpmMetricId, name string) Row {
	r.gpm, r.Conversion = id, inCyclePercent
	r.state = &derivedState{
		source:  "nvmlGpmMetricsGet, metric " + strconv.Itoa(int(id)) + " " + name,
		symbols: lib.GPMFunctions,
	}
	return r.onHardware("Hopper and newer")
}

// fromState takes a value without a call.
func (r Row) fromState(id ValueID, pace device.ReadPace, source string, symbols ...string) Row {
	r.state = &derivedState{source, pace, symbols}
	return r.fromCall(id, inBool)
}

// fromFeature takes a field as proof of a feature, by a number from first on.
func (r Row) fromFeature(id uint32, first float64) Row {
	r.IsFeature, r.enum = true, &enumState{first: first, last: math.Inf(1)}
	return r.fromField(id, inCount).slowPace()
}

func (r Row) slowPace() Row {
	r.slow = true
	return r
}

func (r Row) onHardware(hardware string) Row {
	r.hardware = hardware
	return r
}

// always exports a state of an enumeration in its set while the state is 0 too.
func (r Row) always(state string) Row {
	r.alwaysInSet = state
	return r
}

// inDefault adds the row to the set default, and inMinimal to both sets. Other
// rows are in the set full only.
func (r Row) inDefault() Row {
	r.set = device.SetDefault
	return r
}

func (r Row) inMinimal() Row {
	r.set = device.SetMinimal
	return r
}

func (r Row) unlessPresent(id ValueID) Row {
	r.UnlessValue = id
	return r
}

func (r Row) counterUpTo(maxRate float64) Row {
	r.Monotonic, r.MaxRate = true, maxRate
	return r
}

// labeled is the source of one row of a family, a field or a value.
type labeled[ID uint32 | ValueID] struct {
	label string
	id    ID
}

type (
	labeledField = labeled[uint32]
	labeledValue = labeled[ValueID]
)

// familyRows returns a row for each source, distinguished by a label.
func familyRows[ID uint32 | ValueID](
	r Row, label string, from func(Row, ID, Conversion) Row, c Conversion, sources ...labeled[ID],
) []Row {
	rows := make([]Row, len(sources))
	for i, s := range sources {
		rows[i] = from(r.withLabel(label, s.label), s.id, c)
	}
	return rows
}

func (r Row) withLabel(name, value string) Row {
	r.labels = append(slices.Clip(r.labels), device.Label{Name: name, Value: value})
	return r
}
