package nvml

import (
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// row is one fact that can be read: what it is called, and where it comes from.
// Rows of one family stand together. Of its sources the first that a GPU has counts.
type row struct {
	name, help string
	kind       device.Kind
	labels     []device.Label
	hardware   string
	slow       bool // its fields are asked for at the slow pace

	// sources are fields that have it; of a GPU that has several the first counts.
	sources []source
	// slot is where a call leaves it. A call that could be spared by fields is made only
	// for a GPU that does not have them.
	slot slot
	// unless is a slot: while it is filled, the row says what another one says better.
	unless slot

	// unit is what the slot counts in. Where bit is set the value is a set of flags, of
	// which the row is one; and where is is, it is one of an enumeration.
	unit unit
	bit  uint64
	is   stateOf
	// metered counters may wrap or begin again, and are made one that only rises.
	metered bool
	// most is what a metered counter can rise by in a second at the very most.
	most float64
}

// source is a field that is asked for: of one scope, or of each there is, summed up.
type source struct {
	key
	sum  bool
	unit unit
}

// key is what a field is asked for by.
type key struct {
	id    uint32
	scope scope
	n     uint32 // the scope's number
}

// scope is what a field is asked about.
type scope uint8

const (
	ofGPU     scope = iota // the number is the field's own affair
	ofLink                 // NVLink n
	ofC2CLink              // link n to the CPU
)

// all stands for all links at once, in fields that know it.
const all = ^uint32(0)

// stateOf is one state of an enumeration. A driver may be newer than the enumeration:
// other is every value that is none of known.
type stateOf struct {
	known []uint32
	value uint32
	other bool
}

func (s stateOf) set() bool { return s.known != nil }

func (s stateOf) holds(v float64) bool {
	if !s.other {
		return v == float64(s.value)
	}
	return !slices.ContainsFunc(s.known, func(known uint32) bool { return v == float64(known) })
}

// unit turns the driver's number into the base unit that a row's name says. A
// number above most is none: it is a negative one, or all bits set for "unknown",
// in a type that could not say so. Nor is one below least.
type unit struct {
	times, per, least, most float64
	// states are the values that count as 1, by their bits: every other one is 0. None: the
	// number is no state.
	states uint64
	// full says that nothing is more than 1, though it be measured as a little more.
	full bool
}

var (
	inBytes       = unit{times: 1, per: 1, most: 1 << 50}
	inTraffic     = unit{times: 1, per: 1, most: 1 << 62} // bytes, counted
	inKibibytes   = unit{times: 1 << 10, per: 1, most: 1 << 62}
	inMegabytes   = unit{times: 1e6, per: 1, most: 1e9}             // a second
	inPercent     = unit{times: 1, per: 100, most: 100}             // divided: 29 * 0.01 is not 0.29
	inCycles      = unit{times: 1, per: 100, most: 102, full: true} // percent of what was counted
	inCelsius     = unit{times: 1, per: 1, most: 1000}
	inMargin      = unit{times: 1, per: 1, least: -1000, most: 1000} // degrees, to a limit
	inMilliwatts  = unit{times: 1, per: 1000, most: 1e8}
	inMillijoules = unit{times: 1, per: 1000, most: 1 << 53} // above it a float64 no longer counts by one
	inNanoseconds = unit{times: 1, per: 1e9, most: 1 << 62}
	inMegahertz   = unit{times: 1e6, per: 1, most: 1e5}
	inNumber      = unit{times: 1, per: 1, most: 1 << 53}
	inTruth       = unit{times: 1, per: 1, most: 1}
	inLinkState   = unit{
		times: 1, per: 1, most: nvml.NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED,
		states: 1<<nvml.NVLINK_STATE_ACTIVE | 1<<nvml.NVLINK_STATE_SLEEP,
	}
)

func (u unit) convert(v float64) (float64, bool) {
	switch {
	case !(v >= u.least && v <= u.most): // nor is it NaN
		return 0, false
	case u.states != 0:
		return float64(u.states >> uint64(v) & 1), true
	}
	if v = v * u.times / u.per; u.full {
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
func MetricsPerLink() []device.Metric { return metricsOf(slices.Concat(rows, eachLinkRows())) }

func metricsOf(rows []row) []device.Metric {
	metrics := make([]device.Metric, len(rows))
	for i := range rows {
		r := &rows[i]
		metrics[i] = device.Metric{
			Name: r.name, Help: r.help, Kind: r.kind, Labels: r.labels,
			Source: r.from(), Hardware: r.hardware, Pace: r.pace(),
		}
	}
	return metrics
}

// pace is that of the row's fields, or else of the call that fills its slot.
func (r *row) pace() device.Pace {
	switch {
	case r.slow:
		return device.Slow
	case len(r.sources) > 0:
		return device.Fast
	}
	for i := range calls {
		if calls[i].fills(r.slot) {
			return calls[i].pace
		}
	}
	return ownPaces[r.slot]
}

// from names the row's sources in words.
func (r *row) from() string {
	var from []string
	for _, s := range r.sources {
		name := "field " + strconv.Itoa(int(s.id)) + " NVML_FI_" + fieldNames[s.id]
		switch {
		case s.sum:
			name += ", over all links"
		case s.scope == ofGPU && s.n == all:
			name += ", of all links"
		case s.scope == ofGPU && s.n > 0:
			name += ", scope " + strconv.Itoa(int(s.n))
		}
		from = append(from, name)
	}
	for i := range calls {
		if calls[i].fills(r.slot) && !slices.Contains(from, calls[i].symbol) {
			from = append(from, calls[i].symbol)
		}
	}
	if own := ownSources[r.slot]; own != "" {
		from = append(from, own)
	}
	return strings.Join(from, "; ")
}

// The beginnings of a row. The labels, names and values in turns, set it apart from
// the others of its family.

func gauge(name, help string, labels ...string) row { return begin(device.Gauge, name, help, labels) }

func fact(name, help string, labels ...string) row { return begin(device.State, name, help, labels) }

func use(name, help string, labels ...string) row {
	return begin(device.HolderCounter, name, help, labels)
}

func fault(name, help string, labels ...string) row {
	return begin(device.FaultCounter, name, help, labels)
}

func begin(kind device.Kind, name, help string, labels []string) row {
	r := row{name: name, help: help, kind: kind}
	for i := 0; i+1 < len(labels); i += 2 {
		r.labels = append(r.labels, device.Label{Name: labels[i], Value: labels[i+1]})
	}
	return r
}

// knownStates returns a row for each state of an enumeration, by its name.
func knownStates(name, help, label string, states []string, values []uint32, from func(row) row) []row {
	set := make([]row, 0, len(states)+1)
	for i, s := range states {
		r := from(fact(name, help, label, s))
		r.is = stateOf{known: values, value: values[i]}
		set = append(set, r)
	}
	return set
}

// stateSet returns the rows of knownStates and one more, for any other value.
func stateSet(name, help, label string, states []string, values []uint32, from func(row) row) []row {
	r := from(fact(name, help, label, "other"))
	r.is = stateOf{known: values, other: true}
	return append(knownStates(name, help, label, states, values, from), r)
}

// in is a further source: a field, and whatever follows it where a GPU lacks that.
func (r row) in(id uint32, u unit) row { return r.of(source{key: key{id: id}, unit: u}) }

// inScope is for fields whose scope is no link, or stands for all.
func (r row) inScope(id, n uint32, u unit) row {
	return r.of(source{key: key{id: id, n: n}, unit: u})
}

func (r row) inLink(id, link uint32, u unit) row {
	return r.of(source{key: key{id, ofLink, link}, unit: u})
}

func (r row) overLinks(id uint32, u unit) row {
	return r.of(source{key: key{id: id, scope: ofLink}, sum: true, unit: u})
}

func (r row) overC2C(id uint32, u unit) row {
	return r.of(source{key: key{id: id, scope: ofC2CLink}, sum: true, unit: u})
}

func (r row) of(s source) row {
	r.sources = append(slices.Clip(r.sources), s)
	return r
}

func (r row) asked(s slot, u unit) row {
	r.slot, r.unit = s, u
	return r
}

func (r row) flagged(s slot, bit uint64) row {
	r.slot, r.bit = s, bit
	return r
}

func (r row) slowly() row {
	r.slow = true
	return r
}

func (r row) on(hardware string) row {
	r.hardware = hardware
	return r
}

func (r row) unlessFilled(s slot) row {
	r.unless = s
	return r
}

func (r row) metering(most float64) row {
	r.metered, r.most = true, most
	return r
}

// mostLinks is how many NVLinks NVML can speak of, and mostC2CLinks is more than any
// GPU has to its CPU.
const (
	mostLinks    = nvml.NVLINK_MAX_LINKS
	mostC2CLinks = 14
)
