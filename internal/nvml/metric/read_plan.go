package metric

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// ReadPlan has the rows, fields and calls of each GPU. The plan is never
// written.
type ReadPlan struct {
	Rows []Row
	// NeedsCall is set for each of Calls with a value for a row.
	NeedsCall []bool
	// Fields are the fields of all rows, each once.
	Fields FieldBatch
	// Ranges are the sources of each row, as positions in Fields.
	Ranges [][]FieldRange
	// MIGRows are the rows of MIG devices.
	MIGRows []int
}

// FieldRange is the position of a source in a batch: N keys from Start on.
type FieldRange struct{ Start, N int }

// FieldBatch is a list of fields to read in one call.
type FieldBatch struct {
	Keys  []FieldKey
	Slow  []bool // by position: all rows of the key have the slow pace
	Index map[FieldKey]int
}

// NewReadPlan returns the plan for the rows selected by reads, including the
// rows of each NVLink if perLink is set; nil selects all. Resets and links are
// always detected.
func NewReadPlan(perLink bool, reads func(*device.Metric) bool) *ReadPlan {
	p := &ReadPlan{NeedsCall: make([]bool, len(Calls)), Fields: NewFieldBatch(FieldKey{ID: EnergyField})}
	p.Fields.addKey(FieldKey{ID: nvml.FI_DEV_NVLINK_LINK_COUNT}, true)
	p.Fields.addKey(FieldKey{ID: nvml.FI_DEV_C2C_LINK_COUNT}, true)
	rows := Rows
	if perLink {
		rows = slices.Concat(Rows, perLinkRows())
	}
	for i := range rows {
		if m := rows[i].metric(); reads == nil || reads(&m) {
			p.addRow(&rows[i])
		}
	}
	return p
}

func (p *ReadPlan) addRow(r *Row) {
	var ranges []FieldRange
	for _, s := range r.Sources {
		ranges = append(ranges, p.Fields.addSource(s, r.slow))
	}
	if r.gpm != 0 || slices.ContainsFunc(Calls,
		func(c Call) bool { return c.Targets&TargetMIG != 0 && c.Provides(r.ValueID) }) {
		p.MIGRows = append(p.MIGRows, len(p.Rows))
	}
	p.Rows, p.Ranges = append(p.Rows, *r), append(p.Ranges, ranges)
	for _, id := range r.values() {
		for i := range Calls {
			p.NeedsCall[i] = p.NeedsCall[i] || Calls[i].Provides(id)
		}
	}
}

// NewFieldBatch returns a batch of the keys, each once, with the fast pace.
func NewFieldBatch(keys ...FieldKey) FieldBatch {
	b := FieldBatch{Index: map[FieldKey]int{}}
	for _, k := range keys {
		b.addKey(k, false)
	}
	return b
}

// addSource returns the position of the source. The links of a sum stand
// together: later rows of single links reuse the positions.
func (b *FieldBatch) addSource(s FieldSource, slow bool) FieldRange {
	if !s.sum {
		return FieldRange{b.addKey(s.FieldKey, slow), 1}
	}
	n := MaxNVLinks
	if s.Scope == ScopeC2CLink {
		n = maxC2CLinks
	}
	first := b.addKey(s.FieldKey, slow)
	for link := 1; link < n; link++ {
		b.addKey(FieldKey{s.ID, s.Scope, uint32(link)}, slow)
	}
	return FieldRange{first, n}
}

func (b *FieldBatch) addKey(k FieldKey, slow bool) int {
	at, known := b.Index[k]
	if !known {
		at = len(b.Keys)
		b.Keys, b.Slow, b.Index[k] = append(b.Keys, k), append(b.Slow, slow), at
	}
	b.Slow[at] = b.Slow[at] && slow
	return at
}

// Metrics returns the rows for the exporter, in the order of Backend.Read's
// numbers.
func Metrics() []device.Metric { return NewReadPlan(false, nil).Metrics() }

// MetricsPerLink returns the rows of Metrics, then the rows of each NVLink.
func MetricsPerLink() []device.Metric { return NewReadPlan(true, nil).Metrics() }

// Metrics returns the rows for the exporter.
func (p *ReadPlan) Metrics() []device.Metric {
	metrics := make([]device.Metric, len(p.Rows))
	for i := range p.Rows {
		metrics[i] = p.Rows[i].metric()
	}
	return metrics
}
