// Package metric is the table of what is read of a GPU: a row for each metric, with its sources and its conversion.
package metric

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// Row is one fact that can be read: what it is called, and where it comes from.
// Rows of one family stand together. Of its sources the first that a GPU has counts.
type Row struct {
	name, help string
	kind       device.Kind
	labels     []device.Label
	hardware   string
	Slow       bool // its fields are asked for at the slow pace

	// Sources are fields that have it; of a GPU that has several the first counts.
	Sources []fieldSource
	// ValueID is where a call leaves it. A call that could be spared by fields is made only
	// for a GPU that does not have them.
	ValueID ValueID
	// UnlessValue is a slot: while it is filled, the row says what another one says better.
	UnlessValue ValueID

	// Conversion is what the slot counts in. Where bit is set the value is a set of flags, of
	// which the row is one; and where is is, it is one of an enumeration.
	Conversion Conversion
	Bit        uint64
	State      enumState
	// Monotonic counters may wrap or begin again, and are made one that only rises.
	Monotonic bool
	// MaxRate is what a metered counter can rise by in a second at the very most.
	MaxRate float64
}

// fieldSource is a field that is asked for: of one scope, or of each there is, summed up.
type fieldSource struct {
	FieldKey
	sum        bool
	Conversion Conversion
}

// FieldKey is what a field is asked for by.
type FieldKey struct {
	ID    uint32
	Scope FieldScope
	N     uint32 // the scope's number
}

// FieldScope is what a field is asked about.
type FieldScope uint8

const (
	ScopeGPU     FieldScope = iota // the number is the field's own affair
	ScopeNVLink                    // NVLink n
	ScopeC2CLink                   // link n to the CPU
)

// allLinks stands for all links at once, in fields that know it.
const allLinks = ^uint32(0)

// enumState is one state of an enumeration. A driver may be newer than the enumeration:
// other is every value that is none of known.
type enumState struct {
	known []uint32
	value uint32
	other bool
}

func (s enumState) IsSet() bool { return s.known != nil }

func (s enumState) Matches(v float64) bool {
	if !s.other {
		return v == float64(s.value)
	}
	return !slices.ContainsFunc(s.known, func(known uint32) bool { return v == float64(known) })
}

// Conversion turns the driver's number into the base unit that a row's name says. A
// number above most is none: it is a negative one, or all bits set for "unknown",
// in a type that could not say so. Nor is one below least.
type Conversion struct {
	Multiplier, Divisor, min, max float64
	// trueStates are the values that count as 1, by their bits: every other one is 0. None: the
	// number is no state.
	trueStates uint64
	// capAtOne says that nothing is more than 1, though it be measured as a little more.
	capAtOne bool
}

var (
	inBytes         = Conversion{Multiplier: 1, Divisor: 1, max: 1 << 50}
	inByteCount     = Conversion{Multiplier: 1, Divisor: 1, max: 1 << 62} // bytes, counted
	inKibibytes     = Conversion{Multiplier: 1 << 10, Divisor: 1, max: 1 << 62}
	inMegabytes     = Conversion{Multiplier: 1e6, Divisor: 1, max: 1e9}                 // a second
	inPercent       = Conversion{Multiplier: 1, Divisor: 100, max: 100}                 // divided: 29 * 0.01 is not 0.29
	inCyclePercent  = Conversion{Multiplier: 1, Divisor: 100, max: 102, capAtOne: true} // percent of what was counted
	inCelsius       = Conversion{Multiplier: 1, Divisor: 1, max: 1000}
	inCelsiusMargin = Conversion{Multiplier: 1, Divisor: 1, min: -1000, max: 1000} // degrees, to a limit
	inMilliwatts    = Conversion{Multiplier: 1, Divisor: 1000, max: 1e8}
	inMillijoules   = Conversion{Multiplier: 1, Divisor: 1000, max: 1 << 53} // above it a float64 no longer counts by one
	inNanoseconds   = Conversion{Multiplier: 1, Divisor: 1e9, max: 1 << 62}
	inMegahertz     = Conversion{Multiplier: 1e6, Divisor: 1, max: 1e5}
	inCount         = Conversion{Multiplier: 1, Divisor: 1, max: 1 << 53}
	inBool          = Conversion{Multiplier: 1, Divisor: 1, max: 1}
	inLinkState     = Conversion{
		Multiplier: 1, Divisor: 1, max: nvml.NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED,
		trueStates: 1<<nvml.NVLINK_STATE_ACTIVE | 1<<nvml.NVLINK_STATE_SLEEP,
	}
)

func (c Conversion) Convert(v float64) (float64, bool) {
	switch {
	case !(v >= c.min && v <= c.max): // nor is it NaN
		return 0, false
	case c.trueStates != 0:
		return float64(c.trueStates >> uint64(v) & 1), true
	}
	if v = v * c.Multiplier / c.Divisor; c.capAtOne {
		v = min(v, 1)
	}
	return v, true
}

// Rows are all that is read, in the order of device.Sample.Metric.
var Rows = slices.Concat(memoryRows, engineRows, powerRows, pcieRows, linkRows, faultRows, modeRows)

// Metrics are the rows, in the order in which Backend.Read numbers them.
func Metrics() []device.Metric { return metricsOf(Rows) }

// MetricsPerLink are the rows of a Backend with Options.PerLink: those of Metrics, and
// behind them those of each single link.
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

// pace is that of the row's fields, or else of the call that fills its slot.
func (r *Row) pace() device.ReadPace {
	switch {
	case r.Slow:
		return device.PaceSlow
	case len(r.Sources) > 0:
		return device.PaceFast
	}
	for i := range Calls {
		if Calls[i].Provides(r.ValueID) {
			return Calls[i].Pace
		}
	}
	return extraPaces[r.ValueID]
}

// sourceText names the row's sources in words.
func (r *Row) sourceText() string {
	var texts []string
	for _, s := range r.Sources {
		name := "field " + strconv.Itoa(int(s.ID)) + " NVML_FI_" + lib.FieldNames[s.ID]
		switch {
		case s.sum:
			name += ", over all links"
		case s.Scope == ScopeGPU && s.N == allLinks:
			name += ", of all links"
		case s.Scope == ScopeGPU && s.N > 0:
			name += ", scope " + strconv.Itoa(int(s.N))
		}
		texts = append(texts, name)
	}
	for i := range Calls {
		if Calls[i].Provides(r.ValueID) && !slices.Contains(texts, Calls[i].Symbol) {
			texts = append(texts, Calls[i].Symbol)
		}
	}
	if extra := extraSources[r.ValueID]; extra != "" {
		texts = append(texts, extra)
	}
	return strings.Join(texts, "; ")
}

// The beginnings of a row. The labels, names and values in turns, set it apart from
// the others of its family.

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

func newRow(kind device.Kind, name, help string, labels []string) Row {
	r := Row{name: name, help: help, kind: kind}
	for i := 0; i+1 < len(labels); i += 2 {
		r.labels = append(r.labels, device.Label{Name: labels[i], Value: labels[i+1]})
	}
	return r
}

// enumRows returns a row for each state of an enumeration, by its name.
func enumRows(name, help, label string, states []string, values []uint32, addSource func(Row) Row) []Row {
	list := make([]Row, 0, len(states)+1)
	for i, s := range states {
		r := addSource(stateRow(name, help, label, s))
		r.State = enumState{known: values, value: values[i]}
		list = append(list, r)
	}
	return list
}

// enumRowsWithOther returns the rows of enumRows and one more, for any other value.
func enumRowsWithOther(name, help, label string, states []string, values []uint32, addSource func(Row) Row) []Row {
	r := addSource(stateRow(name, help, label, "other"))
	r.State = enumState{known: values, other: true}
	return append(enumRows(name, help, label, states, values, addSource), r)
}

// fromField is a further source: a field, and whatever follows it where a GPU lacks that.
func (r Row) fromField(id uint32, u Conversion) Row {
	return r.withSource(fieldSource{FieldKey: FieldKey{ID: id}, Conversion: u})
}

// fromScope is for fields whose scope is no link, or stands for all.
func (r Row) fromScope(id, n uint32, u Conversion) Row {
	return r.withSource(fieldSource{FieldKey: FieldKey{ID: id, N: n}, Conversion: u})
}

func (r Row) fromLink(id, link uint32, u Conversion) Row {
	return r.withSource(fieldSource{FieldKey: FieldKey{id, ScopeNVLink, link}, Conversion: u})
}

func (r Row) sumNVLinks(id uint32, u Conversion) Row {
	return r.withSource(fieldSource{FieldKey: FieldKey{ID: id, Scope: ScopeNVLink}, sum: true, Conversion: u})
}

func (r Row) sumC2CLinks(id uint32, u Conversion) Row {
	return r.withSource(fieldSource{FieldKey: FieldKey{ID: id, Scope: ScopeC2CLink}, sum: true, Conversion: u})
}

func (r Row) withSource(s fieldSource) Row {
	r.Sources = append(slices.Clip(r.Sources), s)
	return r
}

func (r Row) fromCall(id ValueID, c Conversion) Row {
	r.ValueID, r.Conversion = id, c
	return r
}

func (r Row) fromFlag(id ValueID, bit uint64) Row {
	r.ValueID, r.Bit = id, bit
	return r
}

func (r Row) slowPace() Row {
	r.Slow = true
	return r
}

func (r Row) onHardware(hardware string) Row {
	r.hardware = hardware
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

// maxNVLinks is how many NVLinks NVML can speak of, and maxC2CLinks is more than any
// GPU has to its CPU.
const (
	MaxNVLinks  = nvml.NVLINK_MAX_LINKS
	maxC2CLinks = 14
)

// DecodeField reads the union of NVML's C struct. Types that are not known, and values
// that say "none" by all bits set or that no quantity has, are no value.
func DecodeField(valueType uint32, value [8]byte, ret nvml.Return) (float64, bool) {
	if ret != nvml.SUCCESS {
		return 0, false
	}
	bits := binary.NativeEndian.Uint64(value[:])
	low := binary.NativeEndian.Uint32(value[:])
	switch nvml.ValueType(valueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		f := math.Float64frombits(bits)
		return f, !math.IsNaN(f) && !math.IsInf(f, 0)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(low), low != math.MaxUint32
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(low)), true
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		short := binary.NativeEndian.Uint16(value[:])
		return float64(short), short != math.MaxUint16
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG: // both 8 bytes where podgauge runs
		return float64(bits), bits != math.MaxUint64
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(bits)), true
	default:
		return 0, false
	}
}

// ToValue makes a row's value of a sound number.
func (r *Row) ToValue(v float64) (float64, bool) {
	switch {
	case !r.State.IsSet():
		return v, true
	case r.State.Matches(v):
		return 1, true
	default:
		return 0, true
	}
}
