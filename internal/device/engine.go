package device

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/loglimit"
)

const (
	countsInterval    = 250 * time.Millisecond // least between publications, and between saves, of counts alone
	logInterval       = 10 * time.Second       // between log lines about one kind of event of a device
	firstCheckTimeout = 5 * time.Second        // after a listing or an unverified failure, until a GPU does not respond
)

// engine holds the health of all devices, publishes it and saves it. A engine makes no calls to the driver and belongs
// to the goroutine of Monitor.Run.
type engine struct {
	options   MonitorOptions
	inventory *Inventory
	log       *slog.Logger
	limiter   *loglimit.Limiter[eventLogKey]

	devices   []*trackedDevice // ordered by Device.Compare
	gpus      map[GPU]*trackedGPU
	listed    bool        // after the first listing
	released  HealthCause // of all devices while the driver is released; zero: the driver is in use
	startedAt time.Time   // of Run

	driverErr     error     // of the first check that failed by a fault of the driver; nil: a GPU has answered since
	driverEndedAt time.Time // the newest driverErr ended then
	listingBegan  time.Time // of the newest listing
	listingFailed bool      // as a whole, of the same
	listingDue    bool      // at once, to decide whose fault a failed check is
	restarts      uint      // as HealthHistory.DriverRestarts

	published   []Status // nil: none yet
	publishedAt time.Time
	scratch     []Status // compared with published
	// countsUnpublished is set if a count has changed since the last publication.
	countsUnpublished bool

	absentRecords   map[recordKey]HealthRecord // of devices that are not tracked
	awaitRecovering bool                       // the first publication waits for recovering devices
	historyLost     bool                       // as in HealthHistory; until the first publication
	historyChanged  bool                       // a cause has, since the last save
	historyUrgent   bool                       // a fault has become a cause since the last save
	countsChanged   bool                       // a count has, since the last save
	historySavedAt  time.Time
}

// eventLogKey identifies log lines about one kind of event of a device.
type eventLogKey struct {
	gpu    GPU
	device ID
	reason string
}

// apply applies evidence to one level of a GPU: to the GPU if id is empty.
func (t *engine) apply(g *trackedGPU, id ID, s *healthState, e evidence, now time.Time) transition {
	next, tr := s.apply(e, now)
	*s = next
	if tr.to == Healthy && (tr.previous.isFault() || e.kind == evidenceTrusted) {
		g.xidsOverAt = now
	}
	t.historyChanged = t.historyChanged || tr.save
	t.historyUrgent = t.historyUrgent || tr.newCause && s.cause.isFault()
	if tr.newCause || tr.from != tr.to && tr.previous.Reason != "" {
		level := slog.LevelInfo
		switch {
		case s.cause.Reason == reasonDriver || tr.previous.Reason == reasonDriver && !s.cause.isFault(): // one line is about the driver
			level = slog.LevelDebug
		case tr.to == Unhealthy && s.cause.isFault():
			level = slog.LevelWarn
		}
		message := [...]string{"device healthy", "device suspect", "device unhealthy", "device recovering"}[tr.to]
		if lost := lostMessages[s.cause.Reason]; tr.to == Unhealthy && lost != "" {
			message = lost
		}
		t.log.Log(context.Background(), level, message, "gpu", g.gpu, "index", g.device.Index, "device", id, "from", tr.from, "to", tr.to,
			"reason", s.cause.Reason, "previous_reason", tr.previous.Reason, "action", s.cause.Action, "flaps", s.flaps)
	}
	return tr
}

// lostMessages are the log messages about a lost GPU, by reason.
var lostMessages = map[string]string{
	reasonLost: "GPU lost: fallen off the bus",
	ReasonGone: "GPU lost: no longer listed by the driver",
}

func (t *engine) applyAll(g *trackedGPU, e evidence, now time.Time) {
	for id, s := range g.levels() {
		t.apply(g, id, s, e, now)
	}
}

// addFault applies a fault to one level of a GPU.
func (t *engine) addFault(g *trackedGPU, id ID, s *healthState, e evidence, now time.Time) transition {
	tr := t.apply(g, id, s, e, now)
	g.assessed = g.assessed || id == ""
	if t.released.Reason != "" { // a reset may come before the next check
		t.apply(g, id, s, evidence{kind: evidenceResetCount, check: math.MaxUint64, resets: g.resets}, now)
	}
	return tr
}

// addGPUFault applies a fault of the GPU that no event reported.
func (t *engine) addGPUFault(g *trackedGPU, e evidence, now time.Time) transition {
	tr := t.addFault(g, "", &g.health, e, now)
	if tr.newCause && e.cause.isFault() {
		t.notify(HealthEvent{
			At: now, GPU: g.gpu, Affected: g.affected, Reason: e.cause.Reason, Action: g.health.cause.Action, MarkedUnhealthy: true,
		})
	}
	return tr
}

func (t *engine) notify(e HealthEvent) {
	if t.options.OnHealthEvent != nil {
		t.options.OnHealthEvent(e)
	}
}

// release marks all devices unhealthy until their checks pass after resume. The cause is no fault.
func (t *engine) release(reason string, now time.Time) {
	t.released = HealthCause{Reason: reason, noFault: true}
	for _, g := range t.gpus {
		t.applyAll(g, evidence{kind: evidenceResetCount, check: math.MaxUint64, resets: g.resets}, now) // resets from now on count
		t.addGPUFault(g, evidence{cause: t.released}, now)
	}
}

// checkAll makes a check of each GPU due: the cause of a problem is unknown.
func (t *engine) checkAll() {
	for _, g := range t.gpus {
		g.checkNow = true
	}
}

// handleEvent handles a report of an event at a time.
func (t *engine) handleEvent(e Event, at, now time.Time) {
	g := t.gpus[e.GPU]
	if g == nil {
		if t.limiter.Allow(eventLogKey{reason: xidReason(e.Xid)}, now) {
			t.log.Warn("driver event about an unknown GPU, checking all GPUs", "gpu", e.GPU, "xid", e.Xid)
		}
		t.checkAll()
		return
	}
	if e.Xid == 0 && e.Kind == "" {
		return
	}
	counter := t.countEvent(g, e, at, now)
	if counter == nil {
		return
	}
	policy := PolicyDefault
	if t.options.Policy != nil && e.Xid != 0 {
		policy = t.options.Policy(e.Xid)
	}
	if policy == PolicyIgnore {
		return
	}
	byPolicy := !e.Historical && policy.apply(&e)
	if t.limiter.Allow(eventLogKey{g.gpu, e.Device, counter.reason}, now) {
		level := slog.LevelInfo
		if policy == PolicyWarn {
			level = slog.LevelWarn
		}
		t.log.Log(context.Background(), level, "driver event", "gpu", e.GPU, "device", e.Device, "xid", e.Xid, "kind", e.Kind,
			"fatal", e.Recovery == RecoveryAfterReset, "action", e.Action, "count", counter.Count)
	}
	id, s, affected := g.level(e.Device)
	event := HealthEvent{
		At: at, GPU: e.GPU, Affected: affected, Xid: e.Xid, Reason: counter.reason, Class: e.Class, Action: e.Action,
		Source: e.Source, Historical: e.Historical,
	}
	switch e.Recovery {
	case RecoveryAfterReset:
		event.MarkedUnhealthy = t.addFault(g, id, s, evidence{cause: HealthCause{
			Reason: counter.reason, Action: e.Action, Class: e.Class, NeedsReset: true, ByPolicy: byPolicy,
			FaultAt: now, notedAt: now, checksBegun: g.checksBegun,
		}}, now).newCause
		if s.cause.Reason == counter.reason {
			event.Action = s.cause.Action
		}
	case RecoveryChecksPass:
		t.apply(g, id, s, evidence{kind: evidenceReport}, now)
	}
	t.notify(event)
	g.checkNow = true // a check may read more about the event
}

// countEvent counts a report, and returns the counter; nil for a duplicate from the other source.
func (t *engine) countEvent(g *trackedGPU, e Event, at, now time.Time) *eventCounter {
	counter := g.eventCounter(e)
	t.countsChanged = true
	before := counter.Xid
	if e.Historical {
		counter.LastHistorical = latest(counter.LastHistorical, at)
	} else if !counter.record(e, at, now) {
		t.countsUnpublished = t.countsUnpublished || counter.Xid != before
		return nil
	}
	t.countsUnpublished = true
	return counter
}

// handleCheckResult handles the result of a check.
func (t *engine) handleCheckResult(c gpuCheckResult, now time.Time) {
	g := t.gpus[c.gpu]
	if g == nil || c.seq > g.checksBegun { // the GPU was removed, and maybe added again
		return
	}
	if errors.Is(c.err, ErrStalled) { // the check made no call
		if g.stalledSince.IsZero() {
			g.stalledSince = c.startedAt
		}
		return
	}
	g.stalledSince = time.Time{}
	t.addResetCount(g, c, now)
	if c.err != nil {
		t.addFailedCheck(g, c, now)
		return
	}
	g.assessed, g.failure = true, checkFailure{}
	t.addAnswer(g, c, now)
	if g.listed {
		t.applyAll(g, evidence{kind: evidenceCheckPassed, startedAt: c.startedAt, repairPending: c.evidence.RepairPending}, now)
	}
}

// addAnswer notes that a GPU has answered a check: the driver works.
func (t *engine) addAnswer(g *trackedGPU, c gpuCheckResult, now time.Time) {
	if t.driverErr != nil {
		t.driverEndedAt = now
	}
	g.answeredAt, t.driverErr = c.startedAt, nil
}

// addResetCount applies what a check knows about resets.
func (t *engine) addResetCount(g *trackedGPU, c gpuCheckResult, now time.Time) {
	g.resets = max(g.resets, c.evidence.Resets) // a failed check may not know the count
	if c.evidence.EnergyCounter != 0 {
		g.energyCounter = c.evidence.EnergyCounter
	}
	t.applyAll(g, evidence{kind: evidenceResetCount, check: c.seq, resets: g.resets, energyCounter: c.evidence.EnergyCounter}, now)
	t.resetAbsentRecords(g.gpu, c.evidence.EnergyCounter, now)
	if g.resumedAt.IsZero() || c.err != nil && !errors.As(c.err, new(*Fault)) {
		return
	}
	// Without an energy counter a reset between release and resume leaves no trace, so a cause from before the resume counts as
	// reset. The GPU has answered: before its first answer, the counter is only unknown.
	for id, s := range g.levels() {
		if g.energyCounter == 0 && s.cause.EnergyCounter == 0 && !s.cause.notedAt.After(g.resumedAt) {
			t.apply(g, id, s, evidence{kind: evidenceReset}, now)
		}
	}
	g.resumedAt = time.Time{}
}

// addFailedCheck applies a failed check.
func (t *engine) addFailedCheck(g *trackedGPU, c gpuCheckResult, now time.Time) {
	for _, d := range g.migDevices {
		t.apply(g, d.ID, &d.health, evidence{kind: evidenceGPUCheckFailed}, now)
	}
	e := evidence{cause: HealthCause{FaultAt: c.startedAt, notedAt: c.startedAt, checksBegun: c.seq}}
	var f *Fault
	switch {
	case errors.As(c.err, &f):
		t.addAnswer(g, c, now)
		e.cause.Reason, e.cause.Action, e.cause.NeedsReset, e.cause.noFault = f.Reason, f.Action, f.NeedsReset, f.External
		if !f.External {
			t.decideSeverity(g, now)
		}
		if f.NeedsReset { // the GPU answered, so all earlier resets are counted
			e.cause.resetBaseline = new(g.resets)
		}
	case errors.Is(c.err, ErrLost):
		e.cause.Reason, e.cause.Action = reasonLost, "reboot"
	default:
		t.addUnexplainedFailure(g, c, now)
		return
	}
	g.failure = checkFailure{}
	t.addGPUFault(g, e, now)
}

// decideSeverity makes recent Xids of undecided severity severe: the GPU has a fault.
func (t *engine) decideSeverity(g *trackedGPU, now time.Time) {
	for i := range g.eventCounters {
		if c := &g.eventCounters[i]; c.Nonfatal && now.Sub(c.undecidedAt) <= sourceMatchWindow {
			c.Nonfatal, t.countsUnpublished, t.countsChanged = false, true, true
		}
	}
}

// merge updates the devices from a listing.
func (t *engine) merge(devices []Device, now time.Time) {
	for _, g := range t.gpus {
		g.listed = false
	}
	listed := map[ID]bool{}
	for _, d := range devices {
		g := t.gpus[d.GPU]
		if g == nil {
			g = t.addGPU(d.GPU, now)
		}
		i := slices.IndexFunc(t.devices, func(o *trackedDevice) bool { return o.ID == d.ID })
		if i < 0 {
			i = len(t.devices)
			t.devices = append(t.devices, &trackedDevice{})
			if !d.WholeGPU() {
				t.restoreRecord(g, d.ID, &t.devices[i].health, now)
			}
		}
		dev := t.devices[i]
		dev.Device, dev.gpu, dev.goneSince = d, g, time.Time{}
		g.listed, listed[d.ID] = true, true
		if d.WholeGPU() {
			g.device, g.goneSince = d, time.Time{}
		}
	}
	t.restoreAbsent(now)
	for _, dev := range t.devices {
		if !listed[dev.ID] && dev.goneSince.IsZero() {
			dev.goneSince = now
			if dev.gpu.listed {
				t.log.Info("MIG device gone", "device", dev.ID, "gpu", dev.GPU, "profile", dev.Profile)
			}
		}
	}
	for _, g := range t.gpus {
		if !g.listed { // affects the devices known so far
			wasGone := !g.goneSince.IsZero()
			if !wasGone {
				g.goneSince = now
			}
			tr := t.addGPUFault(g, evidence{cause: HealthCause{Reason: ReasonGone, FaultAt: now, notedAt: now}}, now)
			if !wasGone && !tr.newCause { // unhealthy before
				t.log.Warn(lostMessages[ReasonGone], "gpu", g.gpu, "index", g.device.Index, "reason", g.health.cause.Reason)
			}
		}
	}
	t.group()
	t.listed = true
}

// addGPU adds a GPU with the health of its record.
func (t *engine) addGPU(gpu GPU, now time.Time) *trackedGPU {
	g := &trackedGPU{gpu: gpu, number: len(t.gpus), firstListedAt: now, xidsOverAt: now, checkDeadline: now.Add(firstCheckTimeout)}
	t.gpus[gpu] = g
	t.historyChanged = true // the next process must know that the GPU was present
	t.restoreRecord(g, "", &g.health, now)
	return g
}

// group assigns the MIG devices and the affected devices of each GPU.
func (t *engine) group() {
	slices.SortFunc(t.devices, func(a, b *trackedDevice) int { return a.Compare(b.Device) })
	for _, g := range t.gpus {
		g.migDevices, g.affected = nil, nil
	}
	for _, d := range t.devices {
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

// isAllocated reports whether a container has the device.
func (t *engine) isAllocated(id ID) bool {
	return t.options.IsAllocated != nil && t.options.IsAllocated(id)
}

// missingGPUs returns how many of the expected GPUs the newest listing lacks.
func (t *engine) missingGPUs() int {
	if t.options.ExpectedGPUs == nil {
		return 0
	}
	missing := t.options.ExpectedGPUs()
	for _, g := range t.gpus {
		if g.listed {
			missing--
		}
	}
	return missing
}

// removeExpired removes devices that have been gone for their TTL, unless allocated or an expected GPU.
func (t *engine) removeExpired(now time.Time) {
	before, missing := len(t.devices), t.missingGPUs()
	t.devices = slices.DeleteFunc(t.devices, func(d *trackedDevice) bool {
		ttl := goneMIGDeviceTTL
		if d.WholeGPU() {
			ttl = goneGPUTTL
		}
		expired := (missing <= 0 || !d.WholeGPU()) && !d.goneSince.IsZero() && now.Sub(d.goneSince) >= ttl && !t.isAllocated(d.ID)
		if expired && !d.WholeGPU() {
			t.keepRecord(d.gpu, d.ID, &d.health, now)
		}
		return expired
	})
	if len(t.devices) == before {
		return
	}
	t.historyChanged = true
	maps.DeleteFunc(t.gpus, func(_ GPU, g *trackedGPU) bool {
		removed := !slices.ContainsFunc(t.devices, func(d *trackedDevice) bool { return d.gpu == g })
		if removed {
			t.keepRecord(g, "", &g.health, now)
		}
		return removed
	})
	t.group()
}
