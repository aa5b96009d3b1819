package exporter

import (
	"context"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
)

// glanceFor is how long after its begin a flight is good for those who look at the page.
// What they see of health and holders does not come from it, so it is also good when these
// have changed since: however many look, and whatever happens, they cause one flight in so
// long at most.
const glanceFor = 2 * time.Second

// glance is what a flight read, as the page shows it: of the newest one, or of one that it
// waits for, until ctx is done.
func (e *Exporter) glance(ctx context.Context) status.Readings {
	f := e.joinToLook(time.Now())
	defer e.release(f)
	select {
	case <-f.done:
		return status.Readings{At: f.page.readAt, Of: slices.Clone(f.page.glances)}
	case <-ctx.Done():
		return status.Readings{}
	}
}

// joinToLook is join for whoever looks at the page.
func (e *Exporter) joinToLook(now time.Time) *flight {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.newest; f != nil && (!f.landed() || now.Sub(f.begin) < glanceFor) {
		f.users++
		return f
	}
	return e.start(now)
}

// keepGlances notes what the page shows of the readings.
func (p *page) keepGlances(readings []device.Reading, at time.Time) {
	p.readAt, p.glances = at, p.glances[:0]
	for i := range readings {
		if readings[i].Err == nil {
			p.keepGlance(&readings[i])
		}
	}
}

func (p *page) keepGlance(r *device.Reading) {
	first, at := len(p.glances), -1 // of this GPU's devices, and the one that the sample before was of
	for _, s := range r.Samples {
		of := p.quantities[s.Metric]
		if of == status.Unshown {
			continue
		}
		if at < 0 || p.glances[at].Device != s.Device {
			at = slices.IndexFunc(p.glances[first:], func(g status.Reading) bool { return g.Device == s.Device })
			if at += first; at < first {
				at = len(p.glances)
				p.glances = append(p.glances, status.Reading{Device: s.Device})
			}
		}
		p.glances[at].Set(of, s.Value)
	}
}
