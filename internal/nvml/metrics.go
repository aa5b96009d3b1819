package nvml

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

// metricDef is one fact that can be read: what it is called, and where it comes from.
// Rows of one family stand together. Of its sources the first that a GPU has counts.
type metricDef struct {
	name, help string
	kind       device.Kind
	labels     []device.Label
	hardware   string
	slow       bool // its fields are asked for at the slow pace

	// sources are fields that have it; of a GPU that has several the first counts.
	sources []fieldSource
	// valueID is where a call leaves it. A call that could be spared by fields is made only
	// for a GPU that does not have them.
	valueID valueID
	// unlessValue is a slot: while it is filled, the row says what another one says better.
	unlessValue valueID

	// conversion is what the slot counts in. Where bit is set the value is a set of flags, of
	// which the row is one; and where is is, it is one of an enumeration.
	conversion conversion
	bit        uint64
	state      enumState
	// monotonic counters may wrap or begin again, and are made one that only rises.
	monotonic bool
	// maxRate is what a metered counter can rise by in a second at the very most.
	maxRate float64
}

// fieldSource is a field that is asked for: of one scope, or of each there is, summed up.
type fieldSource struct {
	fieldKey
	sum        bool
	conversion conversion
}

// fieldKey is what a field is asked for by.
type fieldKey struct {
	id    uint32
	scope fieldScope
	n     uint32 // the scope's number
}

// fieldScope is what a field is asked about.
type fieldScope uint8

const (
	scopeGPU     fieldScope = iota // the number is the field's own affair
	scopeNVLink                    // NVLink n
	scopeC2CLink                   // link n to the CPU
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

func (s enumState) isSet() bool { return s.known != nil }

func (s enumState) matches(v float64) bool {
	if !s.other {
		return v == float64(s.value)
	}
	return !slices.ContainsFunc(s.known, func(known uint32) bool { return v == float64(known) })
}

// conversion turns the driver's number into the base unit that a row's name says. A
// number above most is none: it is a negative one, or all bits set for "unknown",
// in a type that could not say so. Nor is one below least.
type conversion struct {
	multiplier, divisor, min, max float64
	// trueStates are the values that count as 1, by their bits: every other one is 0. None: the
	// number is no state.
	trueStates uint64
	// capAtOne says that nothing is more than 1, though it be measured as a little more.
	capAtOne bool
}

var (
	inBytes         = conversion{multiplier: 1, divisor: 1, max: 1 << 50}
	inByteCount     = conversion{multiplier: 1, divisor: 1, max: 1 << 62} // bytes, counted
	inKibibytes     = conversion{multiplier: 1 << 10, divisor: 1, max: 1 << 62}
	inMegabytes     = conversion{multiplier: 1e6, divisor: 1, max: 1e9}                 // a second
	inPercent       = conversion{multiplier: 1, divisor: 100, max: 100}                 // divided: 29 * 0.01 is not 0.29
	inCyclePercent  = conversion{multiplier: 1, divisor: 100, max: 102, capAtOne: true} // percent of what was counted
	inCelsius       = conversion{multiplier: 1, divisor: 1, max: 1000}
	inCelsiusMargin = conversion{multiplier: 1, divisor: 1, min: -1000, max: 1000} // degrees, to a limit
	inMilliwatts    = conversion{multiplier: 1, divisor: 1000, max: 1e8}
	inMillijoules   = conversion{multiplier: 1, divisor: 1000, max: 1 << 53} // above it a float64 no longer counts by one
	inNanoseconds   = conversion{multiplier: 1, divisor: 1e9, max: 1 << 62}
	inMegahertz     = conversion{multiplier: 1e6, divisor: 1, max: 1e5}
	inCount         = conversion{multiplier: 1, divisor: 1, max: 1 << 53}
	inBool          = conversion{multiplier: 1, divisor: 1, max: 1}
	inLinkState     = conversion{
		multiplier: 1, divisor: 1, max: nvml.NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED,
		trueStates: 1<<nvml.NVLINK_STATE_ACTIVE | 1<<nvml.NVLINK_STATE_SLEEP,
	}
)

func (c conversion) convert(v float64) (float64, bool) {
	switch {
	case !(v >= c.min && v <= c.max): // nor is it NaN
		return 0, false
	case c.trueStates != 0:
		return float64(c.trueStates >> uint64(v) & 1), true
	}
	if v = v * c.multiplier / c.divisor; c.capAtOne {
		v = min(v, 1)
	}
	return v, true
}

// rows are all that is read, in the order of device.Sample.Metric.
var rows = slices.Concat(memoryRows, engineRows, powerRows, pcieRows, linkRows, faultRows, modeRows)

// Metrics are the rows, in the order in which Backend.Read numbers them.
func Metrics() []device.Metric { return metricsOf(rows) }

// MetricsPerLink are the rows of a Backend with Options.PerLink: those of Metrics, and
// behind them those of each single link.
func MetricsPerLink() []device.Metric { return metricsOf(slices.Concat(rows, perLinkRows())) }

func metricsOf(rows []metricDef) []device.Metric {
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
func (r *metricDef) pace() device.ReadPace {
	switch {
	case r.slow:
		return device.PaceSlow
	case len(r.sources) > 0:
		return device.PaceFast
	}
	for i := range calls {
		if calls[i].provides(r.valueID) {
			return calls[i].pace
		}
	}
	return extraPaces[r.valueID]
}

// sourceText names the row's sources in words.
func (r *metricDef) sourceText() string {
	var texts []string
	for _, s := range r.sources {
		name := "field " + strconv.Itoa(int(s.id)) + " NVML_FI_" + lib.FieldNames[s.id]
		switch {
		case s.sum:
			name += ", over all links"
		case s.scope == scopeGPU && s.n == allLinks:
			name += ", of all links"
		case s.scope == scopeGPU && s.n > 0:
			name += ", scope " + strconv.Itoa(int(s.n))
		}
		texts = append(texts, name)
	}
	for i := range calls {
		if calls[i].provides(r.valueID) && !slices.Contains(texts, calls[i].symbol) {
			texts = append(texts, calls[i].symbol)
		}
	}
	if extra := extraSources[r.valueID]; extra != "" {
		texts = append(texts, extra)
	}
	return strings.Join(texts, "; ")
}

// The beginnings of a row. The labels, names and values in turns, set it apart from
// the others of its family.

func gaugeRow(name, help string, labels ...string) metricDef {
	return newRow(device.Gauge, name, help, labels)
}

func stateRow(name, help string, labels ...string) metricDef {
	return newRow(device.StateGauge, name, help, labels)
}

func ownerCounterRow(name, help string, labels ...string) metricDef {
	return newRow(device.OwnerCounter, name, help, labels)
}

func faultCounterRow(name, help string, labels ...string) metricDef {
	return newRow(device.FaultCounter, name, help, labels)
}

func newRow(kind device.Kind, name, help string, labels []string) metricDef {
	r := metricDef{name: name, help: help, kind: kind}
	for i := 0; i+1 < len(labels); i += 2 {
		r.labels = append(r.labels, device.Label{Name: labels[i], Value: labels[i+1]})
	}
	return r
}

// enumRows returns a row for each state of an enumeration, by its name.
func enumRows(name, help, label string, states []string, values []uint32, addSource func(metricDef) metricDef) []metricDef {
	list := make([]metricDef, 0, len(states)+1)
	for i, s := range states {
		r := addSource(stateRow(name, help, label, s))
		r.state = enumState{known: values, value: values[i]}
		list = append(list, r)
	}
	return list
}

// enumRowsWithOther returns the rows of enumRows and one more, for any other value.
func enumRowsWithOther(name, help, label string, states []string, values []uint32, addSource func(metricDef) metricDef) []metricDef {
	r := addSource(stateRow(name, help, label, "other"))
	r.state = enumState{known: values, other: true}
	return append(enumRows(name, help, label, states, values, addSource), r)
}

// fromField is a further source: a field, and whatever follows it where a GPU lacks that.
func (r metricDef) fromField(id uint32, u conversion) metricDef {
	return r.withSource(fieldSource{fieldKey: fieldKey{id: id}, conversion: u})
}

// fromScope is for fields whose scope is no link, or stands for all.
func (r metricDef) fromScope(id, n uint32, u conversion) metricDef {
	return r.withSource(fieldSource{fieldKey: fieldKey{id: id, n: n}, conversion: u})
}

func (r metricDef) fromLink(id, link uint32, u conversion) metricDef {
	return r.withSource(fieldSource{fieldKey: fieldKey{id, scopeNVLink, link}, conversion: u})
}

func (r metricDef) sumNVLinks(id uint32, u conversion) metricDef {
	return r.withSource(fieldSource{fieldKey: fieldKey{id: id, scope: scopeNVLink}, sum: true, conversion: u})
}

func (r metricDef) sumC2CLinks(id uint32, u conversion) metricDef {
	return r.withSource(fieldSource{fieldKey: fieldKey{id: id, scope: scopeC2CLink}, sum: true, conversion: u})
}

func (r metricDef) withSource(s fieldSource) metricDef {
	r.sources = append(slices.Clip(r.sources), s)
	return r
}

func (r metricDef) fromCall(id valueID, c conversion) metricDef {
	r.valueID, r.conversion = id, c
	return r
}

func (r metricDef) fromFlag(id valueID, bit uint64) metricDef {
	r.valueID, r.bit = id, bit
	return r
}

func (r metricDef) slowPace() metricDef {
	r.slow = true
	return r
}

func (r metricDef) onHardware(hardware string) metricDef {
	r.hardware = hardware
	return r
}

func (r metricDef) unlessPresent(id valueID) metricDef {
	r.unlessValue = id
	return r
}

func (r metricDef) counterUpTo(maxRate float64) metricDef {
	r.monotonic, r.maxRate = true, maxRate
	return r
}

// maxNVLinks is how many NVLinks NVML can speak of, and maxC2CLinks is more than any
// GPU has to its CPU.
const (
	maxNVLinks  = nvml.NVLINK_MAX_LINKS
	maxC2CLinks = 14
)

// decodeFieldValue reads the union of NVML's C struct. Types that are not known, and values
// that say "none" by all bits set or that no quantity has, are no value.
func decodeFieldValue(valueType uint32, value [8]byte, ret nvml.Return) (float64, bool) {
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
