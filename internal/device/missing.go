package device

import (
	"slices"
	"time"
)

// knownPeriod is the time after a loss in which a new process still knows the GPU: an older loss must not stop a rollout.
const knownPeriod = 24 * time.Hour

// missing returns the GPUs of Monitor.Missing.
func (t *engine) missing() (missing []Device) {
	add := func(d Device, goneSince time.Time, retired *Retirement) {
		hasPlace := func(o *trackedDevice) bool {
			return o.goneSince.IsZero() && o.WholeGPU() && o.PCI == d.PCI && d.PCI != ""
		}
		isOld := !goneSince.IsZero() && t.startedAt.Sub(goneSince) >= knownPeriod
		if d.ID != "" && retired == nil && !isOld && !slices.ContainsFunc(t.devices, hasPlace) {
			missing = append(missing, d)
		}
	}
	for _, g := range t.gpus {
		if !g.listed {
			add(g.device, g.goneSince, g.health.retired)
		}
	}
	for key, r := range t.absentRecords {
		if key.device == "" {
			add(r.LastListed, r.GoneSince, r.Retired)
		}
	}
	slices.SortFunc(missing, Device.Compare)
	return missing
}
