package nvml

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// readPlan is what is read of each GPU, and what must be asked for it. It is never
// written.
type readPlan struct {
	rows []metricDef
	// ranges are the sources of each row, as they lie in the batch of its pace.
	ranges [][]fieldRange
	// fast and slow are the fields of the two batches, each once.
	fast, slow fieldBatch
	// spared are the slots that need no call while fields give all rows that want them,
	// and spare those rows.
	sparingRows []int
	// isMIGValue are the rows that slices have as well.
	migRows []int
}

// fieldRange is where a source lies in a batch: n keys from at on.
type fieldRange struct{ start, n int }

// fieldBatch is the keys of fields that are asked for together.
type fieldBatch struct {
	keys  []fieldKey
	index map[fieldKey]int
}

func newReadPlan(perLink bool) *readPlan {
	rows := rows
	if perLink {
		rows = slices.Concat(rows, perLinkRows())
	}
	c := &readPlan{rows: rows, ranges: make([][]fieldRange, len(rows)), fast: newFieldBatch(), slow: newFieldBatch()}
	for i := range rows {
		r := &rows[i]
		b := &c.fast
		if r.slow {
			b = &c.slow
		}
		for _, s := range r.sources {
			c.ranges[i] = append(c.ranges[i], b.addSource(s))
		}
		if len(r.sources) > 0 && r.valueID != noValue {
			c.sparingRows = append(c.sparingRows, i)
		}
		if isMIGValue(r.valueID) {
			c.migRows = append(c.migRows, i)
		}
	}
	return c
}

// metrics are the rows as the exporter knows them.
func (p *readPlan) metrics() []device.Metric { return metricsOf(p.rows) }

func newFieldBatch(keys ...fieldKey) fieldBatch {
	b := fieldBatch{index: map[fieldKey]int{}}
	for _, k := range keys {
		b.addKey(k)
	}
	return b
}

// addSource returns where the source lies. Links of a sum lie together, unless one row is
// of a single link: then they are where that row's family has put them all.
func (b *fieldBatch) addSource(s fieldSource) fieldRange {
	if !s.sum {
		return fieldRange{b.addKey(s.fieldKey), 1}
	}
	n := maxNVLinks
	if s.scope == scopeC2CLink {
		n = maxC2CLinks
	}
	first := b.addKey(s.fieldKey)
	for link := 1; link < n; link++ {
		k := s.fieldKey
		k.n = uint32(link)
		b.addKey(k)
	}
	return fieldRange{first, n}
}

func (b *fieldBatch) addKey(k fieldKey) int {
	at, known := b.index[k]
	if !known {
		at = len(b.keys)
		b.keys = append(b.keys, k)
		b.index[k] = at
	}
	return at
}

// isMIGValue tells whether a slice has what is in the slot.
func isMIGValue(id valueID) bool {
	if id >= gpmGraphics {
		return true
	}
	for i := range calls {
		if calls[i].targets&targetMIG != 0 && calls[i].provides(id) {
			return true
		}
	}
	return false
}

// extraSources and extraPaces say for slots that no call of the table fills where they
// come from.
var extraSources = [valueIDCount]string{
	migEnabled: "nvmlDeviceGetMigMode", migPending: "nvmlDeviceGetMigMode", hasMIG: "nvmlDeviceGetMigMode",
	hasGPM: "nvmlGpmQueryDeviceSupport",
	hasC2C: "field 170", hasECC: "field 1", hasNVLink: "field 91", hasRetirement: "field 30", hasRemapping: "field 143",
	gpmGraphics: gpmSourcePrefix + "1 GRAPHICS_UTIL", gpmSM: gpmSourcePrefix + "2 SM_UTIL", gpmOccupancy: gpmSourcePrefix + "3 SM_OCCUPANCY",
	gpmInteger: gpmSourcePrefix + "4 INTEGER_UTIL", gpmTensor: gpmSourcePrefix + "5 ANY_TENSOR_UTIL", gpmDFMA: gpmSourcePrefix + "6 DFMA_TENSOR_UTIL",
	gpmHMMA: gpmSourcePrefix + "7 HMMA_TENSOR_UTIL", gpmIMMA: gpmSourcePrefix + "9 IMMA_TENSOR_UTIL", gpmDRAM: gpmSourcePrefix + "10 DRAM_BW_UTIL",
	gpmFP64: gpmSourcePrefix + "11 FP64_UTIL", gpmFP32: gpmSourcePrefix + "12 FP32_UTIL", gpmFP16: gpmSourcePrefix + "13 FP16_UTIL",
}

const gpmSourcePrefix = "nvmlGpmMetricsGet, metric "

var extraPaces = [valueIDCount]device.ReadPace{
	migEnabled: device.PaceSlow, migPending: device.PaceSlow, hasMIG: device.PaceSlow, hasGPM: device.PaceStatic,
	hasC2C: device.PaceSlow, hasECC: device.PaceSlow, hasNVLink: device.PaceSlow, hasRetirement: device.PaceSlow, hasRemapping: device.PaceSlow,
}
