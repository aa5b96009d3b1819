package exporter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
)

// dcgmSeries renders the families of DCGMFields.
type dcgmSeries struct {
	fields [][]int // indexes of DCGMFields, by row of Sources.Metrics; nil without Options.DCGM
	device dcgmValues
	gpu    dcgmValues // of the GPU of a MIG device
	rates  rateTracker
}

// dcgmValues are sums by index of DCGMFields.
type dcgmValues map[int]float64

func newDCGMSeries(metrics []device.Metric) dcgmSeries {
	s := dcgmSeries{fields: make([][]int, len(metrics)), rates: rateTracker{}}
	for i, m := range metrics {
		for index, f := range DCGMFields {
			if slices.Contains(f.Sources, m.RowName()) {
				s.fields[i] = append(s.fields[i], index)
			}
		}
	}
	return s
}

// render renders a device as dcgm-exporter does: a whole GPU, or each GPU instance of a partitioned GPU.
func (c *dcgmSeries) render(d *deviceRendering, samples []device.Sample) {
	if c.fields == nil {
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
	var groups []seriesGroup // one for each HPC job, as in dcgm-exporter
	for _, job := range d.jobLabels(d.node.PodMeta(d.readingOwner.Namespace, d.readingOwner.Pod).Workload) {
		labels := append(ownerLabels(d.readingOwner), dcgmDeviceLabels(d.status, d.options.Hostname)...)
		groups = append(groups, d.group(append(labels, job...)))
	}
	for index := range DCGMFields {
		f := &DCGMFields[index]
		v, ok := c.device[index]
		if !ok && f.kind != ownGauge {
			v, ok = c.gpu[index]
		}
		if ok && f.kind == gpuRate {
			v, ok = c.rates.update(rateKey{d.status.ID, index}, d.readingOwner, v, d.snapshot.end)
		}
		if ok {
			for _, group := range groups {
				group.set(f.Name, v)
			}
		}
	}
	number := currentXid(d.gpu[0], d.snapshot.end)
	for _, group := range groups {
		group.set(dcgmXidFamily, float64(number), strconv.FormatUint(number, 10), dcgmXidText(number))
	}
}

// sum sums the samples of a device by field.
func (c *dcgmSeries) sum(id device.ID, samples []device.Sample) {
	c.device = dcgmValues{}
	for _, s := range samples {
		if s.Device == id {
			for _, index := range c.fields[s.Metric] {
				c.device[index] += s.Value * DCGMFields[index].scale
			}
		}
	}
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
