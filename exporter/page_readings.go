package exporter

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
)

// pageReadings are the readings shown on the status page.
type pageReadings struct {
	quantities []status.Quantity // by row of Sources.Metrics
	devices    []status.DeviceReading
	at         time.Time
}

func (p *pageReadings) store(readings []device.Reading, at time.Time) {
	p.at, p.devices = at, p.devices[:0]
	for i := range readings {
		if readings[i].Err == nil {
			p.storeGPU(&readings[i])
		}
	}
}

func (p *pageReadings) storeGPU(r *device.Reading) {
	first, index := len(p.devices), -1 // of the GPU, and of the previous sample's device
	for _, s := range r.Samples {
		quantity := p.quantities[s.Metric]
		if quantity == status.NotShown {
			continue
		}
		if index < 0 || p.devices[index].Device != s.Device {
			index = slices.IndexFunc(p.devices[first:], func(g status.DeviceReading) bool { return g.Device == s.Device })
			if index += first; index < first {
				index = len(p.devices)
				p.devices = append(p.devices, status.DeviceReading{Device: s.Device})
			}
		}
		p.devices[index].Set(quantity, s.Value)
	}
}
