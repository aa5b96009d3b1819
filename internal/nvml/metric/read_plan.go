package metric

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// ReadPlan is what is read of each GPU, and what must be asked for it. It is never
// written.
type ReadPlan struct {
	Rows []Row
	// Ranges are the sources of each row, as they lie in the batch of its pace.
	Ranges [][]FieldRange
	// Fast and slow are the fields of the two batches, each once.
	Fast, Slow FieldBatch
	// spared are the slots that need no call while fields give all rows that want them,
	// and spare those rows.
	SparingRows []int
	// isMIGValue are the rows that slices have as well.
	MIGRows []int
}

// FieldRange is where a source lies in a batch: n keys from at on.
type FieldRange struct{ Start, N int }

// FieldBatch is the keys of fields that are asked for together.
type FieldBatch struct {
	Keys  []FieldKey
	Index map[FieldKey]int
}

func NewReadPlan(perLink bool) *ReadPlan {
	rows := Rows
	if perLink {
		rows = slices.Concat(rows, perLinkRows())
	}
	c := &ReadPlan{Rows: rows, Ranges: make([][]FieldRange, len(rows)), Fast: NewFieldBatch(), Slow: NewFieldBatch()}
	for i := range rows {
		r := &rows[i]
		b := &c.Fast
		if r.Slow {
			b = &c.Slow
		}
		for _, s := range r.Sources {
			c.Ranges[i] = append(c.Ranges[i], b.addSource(s))
		}
		if len(r.Sources) > 0 && r.ValueID != NoValue {
			c.SparingRows = append(c.SparingRows, i)
		}
		if isMIGValue(r.ValueID) {
			c.MIGRows = append(c.MIGRows, i)
		}
	}
	return c
}

// Metrics are the rows as the exporter knows them.
func (p *ReadPlan) Metrics() []device.Metric { return metricsOf(p.Rows) }

func NewFieldBatch(keys ...FieldKey) FieldBatch {
	b := FieldBatch{Index: map[FieldKey]int{}}
	for _, k := range keys {
		b.AddKey(k)
	}
	return b
}

// addSource returns where the source lies. Links of a sum lie together, unless one row is
// of a single link: then they are where that row's family has put them all.
func (b *FieldBatch) addSource(s fieldSource) FieldRange {
	if !s.sum {
		return FieldRange{b.AddKey(s.FieldKey), 1}
	}
	n := MaxNVLinks
	if s.Scope == ScopeC2CLink {
		n = maxC2CLinks
	}
	first := b.AddKey(s.FieldKey)
	for link := 1; link < n; link++ {
		k := s.FieldKey
		k.N = uint32(link)
		b.AddKey(k)
	}
	return FieldRange{first, n}
}

func (b *FieldBatch) AddKey(k FieldKey) int {
	at, known := b.Index[k]
	if !known {
		at = len(b.Keys)
		b.Keys = append(b.Keys, k)
		b.Index[k] = at
	}
	return at
}

// isMIGValue tells whether a slice has what is in the slot.
func isMIGValue(id ValueID) bool {
	if id >= GPMGraphics {
		return true
	}
	for i := range Calls {
		if Calls[i].Targets&TargetMIG != 0 && Calls[i].Provides(id) {
			return true
		}
	}
	return false
}

// extraSources and extraPaces say for slots that no call of the table fills where they
// come from.
var extraSources = [ValueIDCount]string{
	MigEnabled: "nvmlDeviceGetMigMode", MigPending: "nvmlDeviceGetMigMode", HasMIG: "nvmlDeviceGetMigMode",
	HasGPM: "nvmlGpmQueryDeviceSupport",
	HasC2C: "field 170", HasECC: "field 1", HasNVLink: "field 91", HasRetirement: "field 30", HasRemapping: "field 143",
	GPMGraphics: gpmSourcePrefix + "1 GRAPHICS_UTIL", GPMSM: gpmSourcePrefix + "2 SM_UTIL", gpmOccupancy: gpmSourcePrefix + "3 SM_OCCUPANCY",
	gpmInteger: gpmSourcePrefix + "4 INTEGER_UTIL", gpmTensor: gpmSourcePrefix + "5 ANY_TENSOR_UTIL", gpmDFMA: gpmSourcePrefix + "6 DFMA_TENSOR_UTIL",
	gpmHMMA: gpmSourcePrefix + "7 HMMA_TENSOR_UTIL", gpmIMMA: gpmSourcePrefix + "9 IMMA_TENSOR_UTIL", gpmDRAM: gpmSourcePrefix + "10 DRAM_BW_UTIL",
	gpmFP64: gpmSourcePrefix + "11 FP64_UTIL", gpmFP32: gpmSourcePrefix + "12 FP32_UTIL", gpmFP16: gpmSourcePrefix + "13 FP16_UTIL",
}

const gpmSourcePrefix = "nvmlGpmMetricsGet, metric "

var extraPaces = [ValueIDCount]device.ReadPace{
	MigEnabled: device.PaceSlow, MigPending: device.PaceSlow, HasMIG: device.PaceSlow, HasGPM: device.PaceStatic,
	HasC2C: device.PaceSlow, HasECC: device.PaceSlow, HasNVLink: device.PaceSlow, HasRetirement: device.PaceSlow, HasRemapping: device.PaceSlow,
}
