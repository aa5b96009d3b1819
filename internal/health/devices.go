package health

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// merge updates the devices from a listing.
func (e *engine) merge(devices []device.Device) {
	for _, g := range e.gpus {
		g.listed = false
	}
	listed := map[device.ID]bool{}
	for _, d := range devices {
		g := e.gpus[d.GPU]
		if g == nil {
			g = e.addGPU(d.GPU)
		}
		i := slices.IndexFunc(e.devices, func(o *trackedDevice) bool { return o.ID == d.ID })
		if i < 0 {
			i = len(e.devices)
			e.devices = append(e.devices, &trackedDevice{})
			if !d.WholeGPU() {
				e.restoreRecord(g, d.ID, &e.devices[i].health)
			}
		}
		dev := e.devices[i]
		dev.Device, dev.gpu, dev.goneSince = d, g, time.Time{}
		g.listed, listed[d.ID] = true, true
		if d.WholeGPU() {
			g.device, g.goneSince = d, time.Time{}
		}
	}
	e.restoreAbsent()
	for _, g := range e.gpus {
		if !g.listed {
			e.loseGPU(g)
		}
	}
	for _, dev := range e.devices {
		if !listed[dev.ID] && dev.goneSince.IsZero() {
			dev.goneSince = e.now
			if dev.gpu.listed {
				e.log.Info("MIG device gone", "device", dev.ID, "gpu", dev.GPU, "profile", dev.Profile)
			}
		}
	}
	e.group()
	e.listed = true
}

// loseGPU marks a GPU that is not listed. The fault affects the MIG devices of
// the listing before.
func (e *engine) loseGPU(g *trackedGPU) {
	wasGone := !g.goneSince.IsZero()
	if !wasGone {
		g.goneSince = e.now
	}
	isNew := e.markFault(g, Cause{Reason: device.ReasonGone, FaultAt: e.now, notedAt: e.now})
	if !wasGone && !isNew { // unhealthy before
		e.log.Warn(lostMessages[device.ReasonGone],
			"gpu", g.gpu, "index", g.device.Index, "reason", g.health.cause.Reason)
	}
}

// addGPU adds a GPU with the health of its record.
func (e *engine) addGPU(gpu device.GPU) *trackedGPU {
	g := &trackedGPU{
		gpu: gpu, number: len(e.gpus),
		firstListedAt: e.now, xidsOverAt: e.now, checkDeadline: e.now.Add(firstCheckTimeout),
	}
	e.gpus[gpu] = g
	e.needSave(saveSoon) // the next process must know that the GPU was present
	e.restoreRecord(g, "", &g.health)
	return g
}

// group orders the devices, and assigns the MIG devices of each GPU.
func (e *engine) group() {
	slices.SortFunc(e.devices, func(a, b *trackedDevice) int { return a.Compare(b.Device) })
	for _, g := range e.gpus {
		g.migDevices = nil
	}
	for _, d := range e.devices {
		if !d.WholeGPU() {
			d.gpu.migDevices = append(d.gpu.migDevices, d)
		}
	}
}

// removeExpired removes devices that have been gone for their TTL, unless
// allocated or an expected GPU.
func (e *engine) removeExpired() {
	before, missing := len(e.devices), e.missingGPUs()
	e.devices = slices.DeleteFunc(e.devices, func(d *trackedDevice) bool {
		ttl := goneMIGDeviceTTL
		if d.WholeGPU() {
			ttl = goneGPUTTL
		}
		expired := (missing <= 0 || !d.WholeGPU()) &&
			!d.goneSince.IsZero() && e.now.Sub(d.goneSince) >= ttl && !e.isAllocated(d.ID)
		if expired && !d.WholeGPU() {
			e.absent.keep(d.gpu.healthRecord(d.ID, &d.health, e.now))
		}
		return expired
	})
	if len(e.devices) == before {
		return
	}
	e.needSave(saveSoon)
	maps.DeleteFunc(e.gpus, func(_ device.GPU, g *trackedGPU) bool {
		removed := !slices.ContainsFunc(e.devices, func(d *trackedDevice) bool { return d.gpu == g })
		if removed {
			e.absent.keep(g.healthRecord("", &g.health, e.now))
		}
		return removed
	})
	e.group()
}

// restoreAbsent adds GPUs of an earlier process that the listing lacks, since a
// kubelet takes an unlisted device for healthy. Such a GPU expires like any gone
// GPU. A GPU gone for longer than goneGPUTTL is added only if allocated, or
// among the newest of missing GPUs.
func (e *engine) restoreAbsent() {
	goneSince := func(r Record) time.Time {
		if r.GoneSince.IsZero() || r.GoneSince.After(e.now) { // the clock was set back
			return e.now
		}
		return r.GoneSince
	}
	missing := e.missingGPUs()
	for _, g := range e.gpus {
		if !g.listed {
			missing-- // in the Inventory as gone
		}
	}
	newestFirst := func(a, b Record) int { return cmp.Or(goneSince(b).Compare(goneSince(a)), a.compare(b)) }
	for _, r := range slices.SortedFunc(maps.Values(e.absent), newestFirst) {
		r.GoneSince = goneSince(r)
		id := r.LastListed.ID
		old := e.now.Sub(r.GoneSince) >= goneGPUTTL
		if r.Device != "" || id == "" || e.gpus[r.GPU] != nil || old && missing <= 0 && !e.isAllocated(id) {
			continue
		}
		missing--
		g := e.addGPU(r.GPU)
		g.device, g.goneSince = r.LastListed, r.GoneSince
		e.devices = append(e.devices, &trackedDevice{Device: r.LastListed, gpu: g, goneSince: r.GoneSince})
		e.log.Warn("GPU of an earlier process not listed",
			"gpu", r.GPU, "index", r.LastListed.Index, "pci", r.LastListed.PCI, "gone_since", r.GoneSince)
	}
}
