package exporter

import (
	"context"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
)

// maxPageReadingsAge is how long after its begin a flight is good for those who look at the page.
// What they see of health and holders does not come from it, so it is also good when these
// have changed since: however many look, and whatever happens, they cause one flight in so
// long at most.
const maxPageReadingsAge = 2 * time.Second

// pageState is the state that the page shows.
type pageState struct {
	Node
	exporter *Exporter
}

// Stalled implements status.PageState.
func (s pageState) Stalled(gpu device.GPU) bool { return s.exporter.sources.Readers.Stalled(gpu) }

// Readings implements status.PageState.
func (s pageState) Readings(ctx context.Context) status.Readings {
	c := s.exporter.acquireForPage(time.Now())
	defer s.exporter.release(c)
	select {
	case <-c.done:
		return status.Readings{At: c.rendered.readAt, Devices: slices.Clone(c.rendered.pageReadings)}
	case <-ctx.Done():
		return status.Readings{}
	}
}

// acquireForPage is join for whoever looks at the page.
func (e *Exporter) acquireForPage(now time.Time) *scrapeCollection {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.newest; c != nil && (!c.isFinished() || now.Sub(c.begin) < maxPageReadingsAge) {
		c.users++
		return c
	}
	return e.startCollection(now)
}

// storePageReadings notes what the page shows of the readings.
func (rm *renderedMetrics) storePageReadings(readings []device.Reading, at time.Time) {
	rm.readAt, rm.pageReadings = at, rm.pageReadings[:0]
	for i := range readings {
		if readings[i].Err == nil {
			rm.storeGPUReadings(&readings[i])
		}
	}
}

func (rm *renderedMetrics) storeGPUReadings(r *device.Reading) {
	first, index := len(rm.pageReadings), -1 // of this GPU's devices, and the one that the sample before was of
	for _, s := range r.Samples {
		quantity := rm.quantities[s.Metric]
		if quantity == status.NotShown {
			continue
		}
		if index < 0 || rm.pageReadings[index].Device != s.Device {
			index = slices.IndexFunc(rm.pageReadings[first:], func(g status.DeviceReading) bool { return g.Device == s.Device })
			if index += first; index < first {
				index = len(rm.pageReadings)
				rm.pageReadings = append(rm.pageReadings, status.DeviceReading{Device: s.Device})
			}
		}
		rm.pageReadings[index].Set(quantity, s.Value)
	}
}
