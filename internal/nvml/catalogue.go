package nvml

import (
	"github.com/podgauge/podgauge/internal/device"
)

// catalogue is what is read of each GPU, and what must be asked for it. It is never
// written.
type catalogue struct {
	rows []row
	// refs are the sources of each row, as they lie in the batch of its pace.
	refs [][]ref
	// fast and slow are the fields of the two batches, each once.
	fast, slow batch
	// spared are the slots that need no call while fields give all rows that want them,
	// and spare those rows.
	spare []int
	// ofSlices are the rows that slices have as well.
	ofSlices []int
}

// ref is where a source lies in a batch: n keys from at on.
type ref struct{ at, n int }

// batch is the keys of fields that are asked for together.
type batch struct {
	keys []key
	at   map[key]int
}

func newCatalogue(rows []row) *catalogue {
	c := &catalogue{rows: rows, refs: make([][]ref, len(rows)), fast: newBatch(), slow: newBatch()}
	for i := range rows {
		r := &rows[i]
		b := &c.fast
		if r.slow {
			b = &c.slow
		}
		for _, s := range r.sources {
			c.refs[i] = append(c.refs[i], b.add(s))
		}
		if len(r.sources) > 0 && r.slot != noSlot {
			c.spare = append(c.spare, i)
		}
		if ofSlices(r.slot) {
			c.ofSlices = append(c.ofSlices, i)
		}
	}
	return c
}

func newBatch(keys ...key) batch {
	b := batch{at: map[key]int{}}
	for _, k := range keys {
		b.addKey(k)
	}
	return b
}

// add returns where the source lies. Links of a sum lie together, unless one row is
// of a single link: then they are where that row's family has put them all.
func (b *batch) add(s source) ref {
	if !s.sum {
		return ref{b.addKey(s.key), 1}
	}
	n := mostLinks
	if s.scope == ofC2CLink {
		n = mostC2CLinks
	}
	first := b.addKey(s.key)
	for link := 1; link < n; link++ {
		k := s.key
		k.n = uint32(link)
		b.addKey(k)
	}
	return ref{first, n}
}

func (b *batch) addKey(k key) int {
	at, known := b.at[k]
	if !known {
		at = len(b.keys)
		b.keys = append(b.keys, k)
		b.at[k] = at
	}
	return at
}

// ofSlices tells whether a slice has what is in the slot.
func ofSlices(s slot) bool {
	if s >= gpmGraphics {
		return true
	}
	for i := range calls {
		if calls[i].about&migSlices != 0 && calls[i].fills(s) {
			return true
		}
	}
	return false
}

// fieldsOf are the fields of a row's pace.
func (g *gpu) fieldsOf(r *row) *fields {
	if r.slow {
		return &g.slow
	}
	return &g.fast
}

// ownSources and ownPaces say for slots that no call of the table fills where they
// come from.
var ownSources = [slotCount]string{
	migNow: "nvmlDeviceGetMigMode", migPending: "nvmlDeviceGetMigMode", hasMIG: "nvmlDeviceGetMigMode",
	hasGPM: "nvmlGpmQueryDeviceSupport",
	hasC2C: "field 170", hasECC: "field 1", hasNVLink: "field 91", hasRetirement: "field 30", hasRemapping: "field 143",
	gpmGraphics: gpmSource + "1 GRAPHICS_UTIL", gpmSM: gpmSource + "2 SM_UTIL", gpmOccupancy: gpmSource + "3 SM_OCCUPANCY",
	gpmInteger: gpmSource + "4 INTEGER_UTIL", gpmTensor: gpmSource + "5 ANY_TENSOR_UTIL", gpmDFMA: gpmSource + "6 DFMA_TENSOR_UTIL",
	gpmHMMA: gpmSource + "7 HMMA_TENSOR_UTIL", gpmIMMA: gpmSource + "9 IMMA_TENSOR_UTIL", gpmDRAM: gpmSource + "10 DRAM_BW_UTIL",
	gpmFP64: gpmSource + "11 FP64_UTIL", gpmFP32: gpmSource + "12 FP32_UTIL", gpmFP16: gpmSource + "13 FP16_UTIL",
}

const gpmSource = "nvmlGpmMetricsGet, metric "

var ownPaces = [slotCount]device.Pace{
	migNow: device.Slow, migPending: device.Slow, hasMIG: device.Slow, hasGPM: device.Static,
	hasC2C: device.Slow, hasECC: device.Slow, hasNVLink: device.Slow, hasRetirement: device.Slow, hasRemapping: device.Slow,
}
