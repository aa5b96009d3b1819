package health

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// A device that is gone stays in the Inventory, unhealthy. A kubelet ≥ 1.37
// crashes if a device vanishes during its Allocate
// (pkg/kubelet/cm/devicemanager), and reports a missing device as healthy in
// the pod's status. A GPU that fell off the bus stays longer than a MIG device,
// which was removed on purpose.
const (
	goneMIGDeviceTTL = 10 * time.Second
	goneGPUTTL       = 10 * time.Minute
)

// Intervals of the checks of a GPU.
const (
	checkInterval    = 5 * time.Second  // if healthy
	minCheckInterval = time.Second / 20 // at most, however many reports come
	// maxCheckSpacing is the maximum distance between the checks of two GPUs: a
	// node with few GPUs checks each more often, so a hang of the driver is
	// found as quickly.
	maxCheckSpacing = time.Second
)

// trackedGPU is a GPU's state in the Monitor.
type trackedGPU struct {
	gpu           device.GPU
	number        int           // of the GPUs, in the order of their first listing
	firstListedAt time.Time     //
	checkDeadline time.Time     // a GPU that is not assessed by then does not answer
	listed        bool          // in the newest listing
	device        device.Device // from the newest listing with the GPU
	goneSince     time.Time     // zero: in the newest listing
	assessed      bool          // a check has ended or a fault was found
	checkedAt     time.Time     // start of the newest check
	checksBegun   uint64
	resets        uint64    // as counted by checks
	energyCounter uint64    // by the newest check; 0: unknown, or the GPU has none
	resumedAt     time.Time // of a resume without a known energy counter, until a check; zero: none
	stalledSince  time.Time // start of the first in a row of checks with ErrStalled; zero: none
	checkNow      bool      // a check is due at once
	failingSince  time.Time // end of the first in a row of failed checks without a fault of the GPU; zero: none
	failure       error     // of the newest of them
	answeredAt    time.Time // start of the newest check that the GPU answered, with and without a fault
	health        healthState
	migDevices    []*trackedDevice
	eventCounters []eventCounter // in the order of the first event
	xids          []device.Xid   // as published, by code; replaced, never written
	xidsOverAt    time.Time      // as in Status
}

// trackedDevice is a device's state in the Monitor. MIG devices carry their own
// health; a whole GPU's health is on trackedGPU.
type trackedDevice struct {
	device.Device
	gpu       *trackedGPU
	health    healthState // of a MIG device
	goneSince time.Time   // zero: in the newest listing
	reason    string      // as published since
	since     time.Time   // zero: not published yet
	times     device.HealthTimes
}

// levels returns the health of the GPU, with an empty id, and of each MIG device;
// only of the MIG device with the id, if set.
func (g *trackedGPU) levels(id device.ID) iter.Seq2[device.ID, *healthState] {
	return func(yield func(device.ID, *healthState) bool) {
		if id == "" && !yield("", &g.health) {
			return
		}
		for _, d := range g.migDevices {
			if (id == "" || id == d.ID) && !yield(d.ID, &d.health) {
				return
			}
		}
	}
}

// endXids ends the Xids until now. Those of the GPU, with an empty id, or of the
// MIG device no longer count towards the threshold of a policy.
func (g *trackedGPU) endXids(id device.ID, now time.Time) {
	g.xidsOverAt = now
	for _, s := range g.levels(id) {
		s.xidReports = nil
	}
}

// level returns the health and the affected devices of a fault: the MIG
// device's, or the GPU's if id names none.
func (g *trackedGPU) level(id device.ID) (device.ID, *healthState, []device.Device) {
	for _, d := range g.migDevices {
		if d.ID == id {
			return d.ID, &d.health, []device.Device{d.Device}
		}
	}
	return "", &g.health, g.affected()
}

// affected returns the devices that a fault of the GPU affects.
func (g *trackedGPU) affected() (devices []device.Device) {
	if g.device.ID != "" { // listed
		devices = append(devices, g.device)
	}
	for _, d := range g.migDevices {
		if d.goneSince.IsZero() {
			devices = append(devices, d.Device)
		}
	}
	return devices
}

// retirement returns the retirement of the GPU or MIG device; nil: not retired.
func (d *trackedDevice) retirement() *device.Retirement {
	return cmp.Or(d.gpu.health.retirement(), d.health.retirement())
}

// maskedFault returns the fault behind the device's retirement: a present one of
// the GPU before one of the MIG device.
func (d *trackedDevice) maskedFault() device.MaskedFault {
	ofGPU, ofMIG := d.gpu.health.maskedFault(), d.health.maskedFault()
	if ofMIG.Present && !ofGPU.Present {
		return ofMIG
	}
	return cmp.Or(ofGPU, ofMIG)
}

// currentHealth returns the device's health and its cause.
func (d *trackedDevice) currentHealth() (device.Health, Cause) {
	g := d.gpu
	switch retired := d.retirement(); {
	case retired != nil:
		return device.Unhealthy, Cause{Reason: device.ReasonRetired, Since: retired.At}
	case g.health.cause.Reason != "":
		return g.health.state, g.health.cause
	case !d.goneSince.IsZero():
		return device.Unhealthy, Cause{Reason: device.ReasonGone}
	case d.health.cause.Reason != "":
		return d.health.state, d.health.cause
	default: // both are Healthy or Suspect
		return max(g.health.state, d.health.state), Cause{}
	}
}

// status returns the device's Status.
func (d *trackedDevice) status(h device.Health, c Cause, now time.Time) device.Status {
	retired := d.retirement()
	if c.Reason != device.ReasonRetired { // the driver may be released
		retired = nil
	}
	switch {
	case d.since.IsZero() && !c.Since.IsZero() || retired != nil: // from an earlier process, or with a date
		d.reason, d.since = c.Reason, c.Since
	case d.since.IsZero() || d.reason != c.Reason:
		d.reason, d.since = c.Reason, now
	}
	d.times = d.times.Enter(h, c.Reason, now)
	action := c.Action
	if h == device.Recovering { // the action was taken
		action = ""
	}
	s := device.Status{
		Device: d.Device, Healthy: c.Reason == "", Health: h, Reason: c.Reason, Action: action,
		Since: d.since, Times: d.times, Gone: !d.goneSince.IsZero(),
		Flaps: d.gpu.health.flaps + d.health.flaps, Xids: d.gpu.xids, XidsOverAt: d.gpu.xidsOverAt,
	}
	if retired != nil {
		s.Note, s.MaskedFault = retired.Note, d.maskedFault()
	}
	return s
}

// eventCounter returns the counter of reports like e. Beyond maxEventCounters the
// counter is temporary: reports are handled, not counted.
func (g *trackedGPU) eventCounter(e device.Event) *eventCounter {
	for i := range g.eventCounters {
		if c := &g.eventCounters[i]; c.Code == e.Xid && c.kind == e.Kind {
			return c
		}
	}
	c := eventCounter{Xid: device.Xid{Code: e.Xid}, kind: e.Kind, reason: reasonOf(e)}
	if len(g.eventCounters) >= maxEventCounters {
		return &c
	}
	g.eventCounters = append(g.eventCounters, c)
	return &g.eventCounters[len(g.eventCounters)-1]
}

// updateXids updates the GPU's published Xids. An Xid known only from before
// podgauge listened is left out: it would look like a new one.
func (g *trackedGPU) updateXids() {
	var xids []device.Xid
	for _, c := range g.eventCounters {
		if c.Code != 0 && !c.Last.IsZero() {
			xids = append(xids, c.Xid)
		}
	}
	slices.SortFunc(xids, func(a, b device.Xid) int { return cmp.Compare(a.Code, b.Code) })
	g.xids = xids
}
