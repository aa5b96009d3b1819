package device

import (
	"slices"
	"time"
)

// How long a device that no listing has any more stays on the Board, unhealthy. From
// 1.37 on a kubelet crashes when a device vanishes while its Allocate is under way
// (pkg/kubelet/cm/devicemanager); it reports one that it is not told of as healthy in
// the status of the pod that holds it; and a GPU that fell off the bus is worth
// showing for longer than a slice that somebody took away.
const (
	goneMIGDeviceTTL = 10 * time.Second
	goneGPUTTL       = 10 * time.Minute
)

// ReasonGone is the reason of a device that no listing has any more.
const ReasonGone = "gone"

// trackedDevice is what the Monitor remembers of one device: of a slice that is its own, and
// of a whole GPU no more than that it is there, since what is wrong with a GPU is
// wrong with all its devices.
type trackedDevice struct {
	Device
	gpu       *trackedGPU
	state     healthState // of a slice alone
	affected  []Device    // itself; replaced, never written
	goneSince time.Time   // since when no listing has it; zero: the newest has
	reason    string      // why it is not healthy, as of since
	since     time.Time   // zero: it has not been judged yet
}

// currentHealth is where the device stands, and the verdict that holds.
func (d *trackedDevice) currentHealth() (Health, healthCause) {
	g := d.gpu
	switch {
	case g.cause.reason != "":
		return g.health, g.cause
	case !d.goneSince.IsZero():
		return Unhealthy, healthCause{reason: ReasonGone}
	case d.state.cause.reason != "":
		return d.state.health, d.state.cause
	default: // each is Well or Suspect
		return max(g.health, d.state.health), healthCause{}
	}
}

// status is what the Board is told.
func (d *trackedDevice) status(h Health, v healthCause, now time.Time) Status {
	if d.since.IsZero() {
		d.reason, d.since = v.reason, now
		if !v.since.IsZero() { // it was so before this process
			d.since = v.since
		}
	}
	if d.reason != v.reason {
		d.reason, d.since = v.reason, now
	}
	action := v.action
	if h == Recovering { // it was done
		action = ""
	}
	return Status{
		Device: d.Device, Healthy: v.reason == "", Health: h, Reason: v.reason, Action: action,
		Since: d.since, Gone: !d.goneSince.IsZero(), Xids: d.gpu.xids,
	}
}

// expired tells whether the device has been gone for so long that nobody needs to be
// told any more.
func (d *trackedDevice) expired(now time.Time) bool {
	ttl := goneMIGDeviceTTL
	if d.WholeGPU() {
		ttl = goneGPUTTL
	}
	return !d.goneSince.IsZero() && now.Sub(d.goneSince) >= ttl
}

// trackedDevice finds a device; nil where there is none.
func (m *Monitor) trackedDevice(id ID) *trackedDevice {
	if i := slices.IndexFunc(m.devices, func(d *trackedDevice) bool { return d.ID == id }); i >= 0 {
		return m.devices[i]
	}
	return nil
}

// groupByGPU has each GPU know its slices, and what is hit with it.
func (m *Monitor) groupByGPU() {
	slices.SortFunc(m.devices, func(a, b *trackedDevice) int { return a.Compare(b.Device) })
	for _, g := range m.gpus {
		g.migDevices, g.affected = nil, nil
	}
	for _, d := range m.devices {
		d.affected = []Device{d.Device}
		g := d.gpu
		if d.goneSince.IsZero() || d.WholeGPU() {
			g.affected = append(g.affected, d.Device)
		}
		if !d.WholeGPU() {
			g.migDevices = append(g.migDevices, d)
		}
	}
}

// mergeDevices takes a whole listing in.
func (m *Monitor) mergeDevices(devices []Device, now time.Time) {
	for _, g := range m.gpus {
		g.listed = false
	}
	listed := map[ID]bool{}
	for _, d := range devices {
		g := m.gpus[d.GPU]
		if g == nil {
			g = &trackedGPU{gpu: d.GPU, number: len(m.gpus), firstListedAt: now, checkDeadline: now.Add(firstCheckTimeout)}
			m.gpus[d.GPU] = g
			m.historyChanged = true // the next process has to know that it was there
			m.restoreRecord(g, &g.healthState, "", now)
		}
		dev := m.trackedDevice(d.ID)
		if dev == nil {
			dev = &trackedDevice{}
			m.devices = append(m.devices, dev)
			if !d.WholeGPU() {
				m.restoreRecord(g, &dev.state, d.ID, now)
			}
		}
		dev.Device, dev.gpu, dev.goneSince = d, g, time.Time{}
		g.listed, listed[d.ID] = true, true
		if d.WholeGPU() {
			g.device, g.goneSince = d, time.Time{}
			g.device.DeviceNodes, g.device.InfoLabels = nil, nil
		}
	}
	m.restoreAbsent(now)
	for _, dev := range m.devices {
		if !listed[dev.ID] && dev.goneSince.IsZero() {
			dev.goneSince = now
			m.log.Info("device is gone", "device", dev.ID, "gpu", dev.GPU, "profile", dev.Profile)
		}
	}
	for _, g := range m.gpus {
		if !g.listed { // with what it had until now
			if g.goneSince.IsZero() {
				g.goneSince = now
			}
			m.markGPUUnhealthy(g, healthCause{reason: ReasonGone, faultAt: now, notedAt: now}, now)
		}
	}
	m.groupByGPU()
}

// isAllocated reports whether a container has the device.
func (m *Monitor) isAllocated(id ID) bool {
	return m.options.IsAllocated != nil && m.options.IsAllocated(id)
}

// removeExpired drops what has been gone for long enough, once nobody holds it.
func (m *Monitor) removeExpired(now time.Time) {
	before := len(m.devices)
	m.devices = slices.DeleteFunc(m.devices, func(d *trackedDevice) bool {
		expired := d.expired(now) && !m.isAllocated(d.ID)
		if expired && !d.WholeGPU() {
			m.keepRecord(d.gpu, &d.state, d.ID, now)
		}
		return expired
	})
	if len(m.devices) == before {
		return
	}
	m.historyChanged = true
	for gpu, g := range m.gpus {
		if !slices.ContainsFunc(m.devices, func(d *trackedDevice) bool { return d.gpu == g }) {
			m.keepRecord(g, &g.healthState, "", now)
			delete(m.gpus, gpu)
		}
	}
	m.groupByGPU()
}
