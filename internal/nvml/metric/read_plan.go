package metric

import "slices"

// ReadPlan has the rows and fields of each GPU. The plan is never written.
type ReadPlan struct {
	Rows []Row
	// Ranges are the sources of each row, as positions in the batch of the row's pace.
	Ranges [][]FieldRange
	// Fast and Slow are the fields of the two paces, each once.
	Fast, Slow FieldBatch
	// MIGRows are the rows of MIG devices.
	MIGRows []int
}

// FieldRange is the position of a source in a batch: N keys from Start on.
type FieldRange struct{ Start, N int }

// FieldBatch is a list of fields to read in one call.
type FieldBatch struct {
	Keys  []FieldKey
	Index map[FieldKey]int
}

// NewReadPlan returns the plan for all rows, including the rows of each NVLink if perLink is set.
func NewReadPlan(perLink bool) *ReadPlan {
	p := &ReadPlan{Rows: Rows, Fast: NewFieldBatch(), Slow: NewFieldBatch()}
	if perLink {
		p.Rows = slices.Concat(Rows, perLinkRows())
	}
	p.Ranges = make([][]FieldRange, len(p.Rows))
	for i := range p.Rows {
		r := &p.Rows[i]
		b := &p.Fast
		if r.Slow {
			b = &p.Slow
		}
		for _, s := range r.Sources {
			p.Ranges[i] = append(p.Ranges[i], b.addSource(s))
		}
		if r.gpm != 0 || slices.ContainsFunc(Calls, func(c Call) bool { return c.Targets&TargetMIG != 0 && c.Provides(r.ValueID) }) {
			p.MIGRows = append(p.MIGRows, i)
		}
	}
	return p
}

// NewFieldBatch returns a batch of the keys, each once.
func NewFieldBatch(keys ...FieldKey) FieldBatch {
	b := FieldBatch{Index: map[FieldKey]int{}}
	for _, k := range keys {
		b.addKey(k)
	}
	return b
}

// addSource returns the position of the source. The links of a sum stand together: later rows of single links reuse the positions.
func (b *FieldBatch) addSource(s FieldSource) FieldRange {
	if !s.sum {
		return FieldRange{b.addKey(s.FieldKey), 1}
	}
	n := MaxNVLinks
	if s.Scope == ScopeC2CLink {
		n = maxC2CLinks
	}
	first := b.addKey(s.FieldKey)
	for link := 1; link < n; link++ {
		b.addKey(FieldKey{s.ID, s.Scope, uint32(link)})
	}
	return FieldRange{first, n}
}

func (b *FieldBatch) addKey(k FieldKey) int {
	at, known := b.Index[k]
	if !known {
		at = len(b.Keys)
		b.Keys, b.Index[k] = append(b.Keys, k), at
	}
	return at
}
