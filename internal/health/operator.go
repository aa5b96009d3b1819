package health

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// ErrUnknownDevice is the error of Retire, Trust and Forget about a device
// without health.
var ErrUnknownDevice = errors.New("unknown device")

var (
	errNotListed = errors.New("the driver does not list the device")
	errListed    = errors.New("the driver lists the GPU: only a GPU that is gone can be forgotten")
	errAllocated = errors.New("the GPU or one of its MIG devices is allocated: delete the pods first")
	errStopped   = errors.New("podgauge stops, and may have applied the request")
)

// trustTimeout bounds the wait for a check.
const trustTimeout = 5 * time.Second

// handleRequest starts a request. The answer about a device follows the next
// publication.
func (e *engine) handleRequest(r request) {
	p := pendingAnswer{request: r}
	switch r.action {
	case actionRelease, actionResume:
		e.handleRelease(r)
		return
	case actionForget:
		p.err = e.forget(r.id)
	case actionRetire:
		p.err = e.retire(r.id, r.note)
	case actionTrust:
		e.trust(&p)
	}
	e.waiting = append(e.waiting, p)
}

// trackedDevice returns a device by its id; nil if there is none.
func (e *engine) trackedDevice(id device.ID) *trackedDevice {
	i := slices.IndexFunc(e.devices, func(d *trackedDevice) bool { return d.ID == id })
	if i < 0 {
		return nil
	}
	return e.devices[i]
}

func (e *engine) retire(id device.ID, note string) error {
	d := e.trackedDevice(id)
	if d == nil {
		return ErrUnknownDevice
	}
	g := d.gpu
	level, s, affected := g.level(id)
	s.retired = &device.Retirement{Note: note, At: e.now}
	e.needSave(saveNow)
	e.log.Info("device retired by the operator", "gpu", g.gpu, "device", level, "note", note)
	e.emit(notify{
		At: e.now, GPU: g.gpu, Affected: affected, Reason: device.ReasonRetired, Note: note, MarkedUnhealthy: true,
	})
	return nil
}

// trust ends retirements. For a listed device, a check decides about the cause.
func (e *engine) trust(p *pendingAnswer) {
	d := e.trackedDevice(p.id)
	switch {
	case d == nil && e.absent.trust(p.id):
		e.needSave(saveNow)
		p.Retired, p.Err = true, errNotListed
	case d == nil:
		p.err = ErrUnknownDevice
	case !d.gpu.listed:
		p.Retired, p.Err = e.endRetirements(d), errNotListed
	default:
		g := d.gpu
		p.Retired, p.gpu = e.endRetirements(d), g
		p.checksBegun, p.deadline = g.checksBegun, e.now.Add(trustTimeout)
		g.checkNow = true
	}
}

// endRetirements ends the retirement of a MIG device, or of a GPU with its MIG
// devices, and reports whether there was one.
func (e *engine) endRetirements(d *trackedDevice) (retired bool) {
	id, _, _ := d.gpu.level(d.ID)
	for level, s := range d.gpu.levels(id) {
		if s.retired != nil {
			retired, s.retired = true, nil
			e.needSave(saveNow)
			e.log.Info("retirement ended by the operator", "gpu", d.gpu.gpu, "device", level)
		}
	}
	return retired
}

// decideTrust applies a check to the Trusts that wait for the check. A passed
// check ends all causes.
func (e *engine) decideTrust(c checked) {
	for i := range e.waiting {
		p := &e.waiting[i]
		if p.gpu == nil || p.gpu.gpu != c.gpu || c.seq <= p.checksBegun || errors.Is(c.err, device.ErrStalled) {
			continue
		}
		g := p.gpu
		p.gpu = nil
		p.RepairPending = c.evidence.RepairPending
		p.Err = c.err
		if c.err == nil {
			e.needSave(saveNow)
			id, _, _ := g.level(p.id)
			for level, s := range g.levels(id) {
				e.mark(g, level, s, evidence{kind: evidenceTrusted})
			}
		}
	}
}

// answerRequests answers the requests that have ended.
func (e *engine) answerRequests() {
	e.waiting = slices.DeleteFunc(e.waiting, func(p pendingAnswer) bool {
		if p.gpu != nil {
			if e.now.Before(p.deadline) {
				return false
			}
			p.Err = fmt.Errorf("no check of the GPU ended within %s", trustTimeout)
		}
		e.emit(reply{p.replyTo, p.requestEnd})
		return true
	})
}

// forget removes a GPU that is gone, with its health and counts.
func (e *engine) forget(id device.ID) error {
	g := e.gpus[device.GPU(id)]
	_, recorded := e.absent[recordKey{gpu: device.GPU(id)}]
	isAllocated := slices.ContainsFunc(e.devices, func(d *trackedDevice) bool {
		return d.GPU == device.GPU(id) && e.isAllocated(d.ID)
	})
	for key := range e.absent {
		isAllocated = isAllocated || key.gpu == device.GPU(id) && e.isAllocated(cmp.Or(key.device, id))
	}
	switch {
	case g == nil && !recorded:
		return ErrUnknownDevice
	case g != nil && g.listed:
		return errListed
	case isAllocated:
		return errAllocated
	}
	maps.DeleteFunc(e.absent, func(key recordKey, _ Record) bool { return key.gpu == device.GPU(id) })
	delete(e.gpus, device.GPU(id))
	e.devices = slices.DeleteFunc(e.devices, func(d *trackedDevice) bool { return d.GPU == device.GPU(id) })
	e.group()
	e.needSave(saveNow)
	e.log.Info("GPU forgotten by the operator", "gpu", id)
	return nil
}

func (e *engine) handleRelease(r request) {
	var err error
	switch {
	case e.release != nil:
		err = errors.New("a release is in progress")
	case e.replacedErr != nil:
		err = e.replacedErr
	case e.phase == phaseClosing: // left by a release that timed out
		err = errors.New("the driver's library is still being unloaded")
	case (r.action == actionRelease) == (e.phase == phaseReleased): // already so
	case r.action == actionRelease:
		e.log.Info("releasing driver")
		e.release = &r
		e.stopCalls("released")
		return
	default:
		for _, g := range e.gpus {
			if g.energyCounter == 0 {
				g.resumedAt = e.now
			}
		}
		e.resume()
	}
	e.emit(reply{r.replyTo, requestEnd{err: err}})
}

// stopCalls prevents new calls, and marks all devices unhealthy until their
// checks pass after resume. The cause is no fault.
func (e *engine) stopCalls(reason string) {
	e.phase = phaseDraining
	e.emit(pause(true))
	e.released = Cause{Reason: reason, noFault: true}
	for _, g := range e.gpus {
		// Resets from now on count.
		e.markAll(g, evidence{kind: evidenceResetCount, check: math.MaxUint64, resets: g.resets})
		e.markFault(g, e.released)
	}
}

// startCallsAgain ends the release.
func (e *engine) startCallsAgain() {
	e.phase, e.released = phaseActive, Cause{}
	e.requestList()
	e.emit(pause(false))
}

// resume calls the driver again after Close.
func (e *engine) resume() {
	e.log.Info("resuming driver")
	e.links.gpus = nil // the links may have changed
	for _, g := range e.gpus {
		// No call hangs or fails after Close.
		g.stalledSince = time.Time{}
		g.failingSince = time.Time{}
		g.endXids("", e.now)
	}
	e.startCallsAgain()
}

// advanceRelease moves a release to the next phase. Idle: no call about a GPU
// runs.
func (e *engine) advanceRelease(idle bool) {
	drained := idle && !e.list.running() && !e.links.running() && !e.wait.running()
	timedOut := e.release != nil && e.release.ctx.Err() != nil
	switch {
	case e.phase == phaseDraining && drained && e.replacedErr != nil:
		e.emit(end{e.replacedErr})
	case e.phase == phaseDraining && drained:
		e.phase = phaseClosing
		e.emit(closeBackend{})
	case e.phase == phaseDraining && timedOut:
		e.startCallsAgain()
		e.endRelease(fmt.Errorf("wait for driver calls: %w", e.release.ctx.Err()))
	case e.phase == phaseClosing && timedOut:
		e.endRelease(fmt.Errorf("unload the driver's library: %w", e.release.ctx.Err()))
	}
}

// finishRelease ends the release after Close. If the release has timed out, the
// driver is resumed.
func (e *engine) finishRelease() {
	if e.release == nil {
		e.resume()
		return
	}
	e.phase = phaseReleased
	e.setDriver(device.DriverReleased, errors.New("released"))
	e.endRelease(nil)
}

// endRelease answers the release in progress, if there is one.
func (e *engine) endRelease(err error) {
	if e.release != nil {
		e.emit(reply{e.release.replyTo, requestEnd{err: err}})
		e.release = nil
	}
}

// applyRetirements applies the list of retired devices to all devices, tracked
// and absent, and notes the faults behind retirements. The list and the
// commands on the node are independent: a device in both stays retired until
// both end.
func (e *engine) applyRetirements() {
	list := device.Retirements{}
	if e.options.Retired != nil {
		list = e.options.Retired()
	}
	for _, g := range e.gpus {
		for id, s := range g.levels("") {
			names := []string{cmp.Or(string(id), string(g.gpu))}
			if id == "" {
				names = append(names, g.device.Serial())
			}
			e.applyRetirement(g, id, s, e.listedRetirement(list, s.listed, names...))
			e.noteFaultBehind(g, s)
		}
	}
	for key, r := range e.absent {
		listed := e.listedRetirement(list, r.Listed, cmp.Or(string(key.device), string(key.gpu)))
		if listed != r.Listed {
			r.setRetired(r.retiredByCommand(), listed)
			e.absent[key] = r
			e.needSave(saveSoon)
		}
	}
}

// listedRetirement returns the retirement of a device by its names; the current
// one if nothing has changed, or if the list is unknown. A GPU that is gone is
// also found by its name in the list before: its serial number is unknown.
// Without a date, and with one in the future, the retirement begins now.
func (e *engine) listedRetirement(list device.Retirements, current *device.Retirement,
	names ...string,
) *device.Retirement {
	if current != nil {
		names = append(names, current.ListedAs)
	}
	r, ok := list.Of(names...)
	_, incomplete := list[device.IncompleteList]
	switch {
	case list == nil, incomplete && !ok:
		return current
	case !ok:
		return nil
	}
	if r.At.IsZero() || r.At.After(e.now) {
		r.At = e.now
		if current != nil {
			r.At = current.At
		}
	}
	if current != nil && r.Equal(*current) {
		return current
	}
	return &r
}

// applyRetirement sets the listed retirement of one level of a GPU.
func (e *engine) applyRetirement(g *trackedGPU, id device.ID, s *healthState, listed *device.Retirement) {
	before := s.retirement()
	if listed == s.listed {
		return
	}
	s.listed = listed
	e.needSave(saveSoon)
	if listed == nil {
		e.log.Info("device no longer in the list of retirements", "gpu", g.gpu, "device", id)
		return
	}
	e.log.Info("device retired by the list of retirements", "gpu", g.gpu, "device", id, "note", listed.Note)
	if before != nil {
		return
	}
	_, _, affected := g.level(id)
	e.emit(notify{
		At: e.now, GPU: g.gpu, Affected: affected, Reason: device.ReasonRetired, Note: listed.Note,
		MarkedUnhealthy: true,
	})
}

// noteFaultBehind notes the fault of a retired level, so that operators see it
// after its end, too.
func (e *engine) noteFaultBehind(g *trackedGPU, s *healthState) {
	behind := s.behind
	switch {
	case cmp.Or(g.health.retirement(), s.retirement()) == nil:
		behind = device.MaskedFault{}
	case s.cause.isFault():
		behind = device.MaskedFault{Reason: s.cause.Reason, Since: s.cause.Since}
	}
	if behind != s.behind {
		s.behind = behind
		e.needSave(saveSoon)
	}
}
