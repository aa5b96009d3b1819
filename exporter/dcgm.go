package exporter

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
)

// dcgmSeries renders families of dcgm-exporter.
type dcgmSeries struct {
	families []dcgm.Family
	terms    [][]dcgmTerm // by row of Sources.Metrics
	device   []dcgmSum    // by family
	gpu      []dcgmSum    // of the GPU of a MIG device
	rates    rateTracker
}

// dcgmTerm is a row's part of a family.
type dcgmTerm struct {
	family  int
	weight  float64
	divides bool
}

// dcgmSum is a sum of samples.
type dcgmSum struct {
	value, divisor float64
	samples        int
}

func newDCGMSeries(families []dcgm.Family, metrics []device.Metric) dcgmSeries {
	if len(families) == 0 {
		return dcgmSeries{}
	}
	s := dcgmSeries{families: families, rates: rateTracker{}}
	for _, m := range metrics {
		selector, terms := m.Selector(), []dcgmTerm(nil)
		for i, f := range families {
			for _, source := range f.Sources {
				if source.Selector == selector {
					terms = append(terms, dcgmTerm{i, source.Weight, false})
				}
			}
			for _, source := range f.Per {
				if source.Selector == selector {
					terms = append(terms, dcgmTerm{i, source.Weight, true})
				}
			}
		}
		s.terms = append(s.terms, terms)
	}
	return s
}

// render renders a device as dcgm-exporter does: a whole GPU, or each GPU instance of a partitioned GPU.
func (c *dcgmSeries) render(d *deviceRendering, samples []device.Sample) {
	if len(c.families) == 0 {
		return
	}
	c.sum(d.status.ID, samples)
	if d.status.WholeGPU() {
		c.gpu = c.device
		isMIGDevice := func(s device.Status) bool { return !s.WholeGPU() && !s.Gone }
		if d.status.MIGEnabled && slices.ContainsFunc(d.gpu, isMIGDevice) {
			return
		}
	} else if !isFirstOfInstance(d.status, d.gpu) {
		return
	}
	var groups [1 << 2][]seriesGroup // by the generations' bits
	for i := range c.families {
		f := &c.families[i]
		v, ok := c.value(d, i)
		if !ok || f.Type == dcgm.Label {
			continue
		}
		bits := 0
		for _, g := range f.Generations {
			bits |= 1 << g
		}
		if groups[bits] == nil {
			groups[bits] = c.groups(d, f.Generations)
		}
		for _, group := range groups[bits] {
			if f.Xid {
				group.set(f.Name, v, strconv.FormatFloat(v, 'f', -1, 64), dcgmXidText(uint64(v)))
			} else {
				group.set(f.Name, v)
			}
		}
	}
}

// groups returns a group for each HPC job, as in dcgm-exporter. Fields of type label are labels of the families of
// their generation.
func (c *dcgmSeries) groups(d *deviceRendering, generations []dcgm.Generation) (groups []seriesGroup) {
	labels := append(ownerLabels(d.readingOwner), dcgmDeviceLabels(d.status, d.options.Hostname, generations)...)
	for i, f := range c.families {
		isOfFamily := func(g dcgm.Generation) bool { return slices.Contains(generations, g) }
		if f.Type != dcgm.Label || !slices.ContainsFunc(f.Generations, isOfFamily) {
			continue
		}
		text := infoValue(&d.status, f.InfoLabel)
		if v, ok := c.value(d, i); ok {
			text = strconv.FormatFloat(v, 'f', -1, 64)
		}
		if text != "" {
			labels = append(labels, device.Label{Name: f.Name, Value: text})
		}
	}
	for _, job := range d.jobLabels(d.node.PodMeta(d.readingOwner.Namespace, d.readingOwner.Pod).Workload) {
		groups = append(groups, d.group(append(slices.Clone(labels), job...)))
	}
	return groups
}

// value returns a family's value of a device, otherwise that of the GPU.
func (c *dcgmSeries) value(d *deviceRendering, family int) (float64, bool) {
	f := &c.families[family]
	switch {
	case f.Xid:
		return float64(currentXid(d.gpu[0], d.snapshot.end)), true
	case f.InfoLabel != "":
		v, err := strconv.ParseFloat(infoValue(&d.status, f.InfoLabel), 64)
		return v, err == nil && f.Type != dcgm.Label
	}
	sum, terms := c.device[family], len(f.Sources)+len(f.Per)
	if f.Enum {
		terms = 1
	}
	if sum.samples < terms && !f.OwnOnly {
		sum = c.gpu[family]
	}
	v := sum.value * f.Scale
	if f.Scale > 1 { // 0.29 * 100 is 28.999999999999996
		v = math.Round(v*1e6) / 1e6
	}
	switch {
	case sum.samples < terms:
		return 0, false
	case f.Rate:
		return c.rates.update(rateKey{d.status.ID, family}, d.readingOwner, v, d.snapshot.end)
	case len(f.Per) > 0:
		return v / sum.divisor, sum.divisor > 0
	}
	return v, true
}

// sum sums the samples of a device by family.
func (c *dcgmSeries) sum(id device.ID, samples []device.Sample) {
	c.device = make([]dcgmSum, len(c.families))
	for _, s := range samples {
		if s.Device != id {
			continue
		}
		for _, t := range c.terms[s.Metric] {
			sum := &c.device[t.family]
			sum.samples++
			if t.divides {
				sum.divisor += s.Value * t.weight
			} else {
				sum.value += s.Value * t.weight
			}
		}
	}
}

// infoValue returns a property of a device, by its label in nvidia_gpu_info.
func infoValue(s *device.Status, label string) string {
	switch label {
	case "gpu":
		return strconv.Itoa(s.Index)
	case "uuid":
		return string(s.GPU)
	case "minor":
		return strconv.Itoa(s.Minor)
	case "model":
		return s.Model
	case "pci_bus_id":
		return longPCIAddress(s.PCI)
	}
	return s.InfoLabel(label)
}

// isFirstOfInstance reports whether a MIG device is the first one of its GPU
// instance. A device that is gone has no instance.
func isFirstOfInstance(d device.Status, gpu []device.Status) bool {
	for _, other := range gpu {
		if other.ID == d.ID {
			return !d.Gone
		}
		if sameGPUInstance(d, other) {
			return false
		}
	}
	return true
}

// currentXid returns the code of a GPU's latest Xid; 0 if it is over. dcgm-exporter keeps the code until a restart.
func currentXid(gpu device.Status, now time.Time) uint64 {
	last := device.Xid{Last: gpu.XidsOverAt}
	last.Code, _ = xid.OfReason(gpu.Reason)
	for _, x := range gpu.Xids {
		if x.Last.After(last.Last) && (gpu.Health != device.Healthy || now.Sub(x.Last) < harmlessXidAge) {
			last = x
		}
	}
	return last.Code
}

// dcgmXidText returns an Xid in words, and dcgm-exporter's words without any.
func dcgmXidText(number uint64) string {
	if number == 0 {
		return "No Error"
	}
	return cmp.Or(xid.Xids[number].Name, "Unknown Error")
}

const (
	// harmlessXidAge is how long the Xid of a GPU that stays healthy counts, as
	// of a program: long enough for two scrapes.
	harmlessXidAge = 2 * time.Minute
	// minRateWindow is the shortest window of a rate. Within the window the
	// previous rate stands, so a frequent reader shortens no window.
	minRateWindow = 10 * time.Second
	// maxRateAge is how long a rate outlives its last update.
	maxRateAge = time.Hour
)

// rateTracker turns counters into rates.
type rateTracker map[rateKey]rateWindow

type rateKey struct {
	device device.ID
	row    int
}

// rateWindow is a counter at the begin of a window, and the rate in the previous window.
type rateWindow struct {
	owner allocation.Owner
	value float64
	begin time.Time
	rate  float64
	known bool
}

// update returns a counter's increase per second in the last window; false if
// no window has ended since the device got this owner, or if the counter
// restarted.
func (t rateTracker) update(key rateKey, owner allocation.Owner, value float64, now time.Time) (float64, bool) {
	last, ok := t[key]
	if ok && last.owner != owner {
		last, ok = rateWindow{}, false
	}
	elapsed := now.Sub(last.begin)
	if ok && elapsed < minRateWindow {
		return last.rate, last.known
	}
	rate := (value - last.value) / elapsed.Seconds()
	known := ok && rate >= 0
	t[key] = rateWindow{owner, value, now, rate, known}
	return rate, known
}

func (t rateTracker) prune(now time.Time) {
	maps.DeleteFunc(t, func(_ rateKey, last rateWindow) bool { return now.Sub(last.begin) > maxRateAge })
}
