package health

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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
