package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// ErrUnknownDevice is the error of Retire, Trust and Forget about a device without health.
var ErrUnknownDevice = errors.New("unknown device")

var errNotListed = errors.New("the driver does not list the device")

// Trusted is the result of Monitor.Trust.
type Trusted struct {
	// Retired is set if the device, or a MIG device of the GPU, was retired.
	Retired bool
	// RepairPending is set if the next reset of the GPU repairs a part of a fault. A pending repair does not make a device unhealthy.
	RepairPending bool
	// Err is why the earlier cause still holds: the GPU failed its check, is gone, or was not checked.
	Err error
}

// trustTimeout bounds the wait for a check.
const trustTimeout = 5 * time.Second

// operatorRequest is a call of Retire, Trust or Forget.
type operatorRequest struct {
	id     ID
	retire *Retirement // nil: trust or forget
	forget bool
	done   chan<- requestEnd // buffered

	gpu         *trackedGPU // of a Trust that waits for a check; nil: ended
	checksBegun uint64      // the check that decides begins later
	deadline    time.Time   // of the check
	end         requestEnd
}

type requestEnd struct {
	Trusted
	err error
}

// Retire takes a GPU with its MIG devices, or one MIG device, out of service until Trust. The note is the operator's reason. Containers
// keep the device. Retire returns after the new health is published; Retire and Trust require a running Run.
func (m *Monitor) Retire(ctx context.Context, id ID, note string) error {
	_, err := m.sendOperatorRequest(ctx, operatorRequest{id: id, retire: &Retirement{Note: note, At: time.Now()}})
	return err
}

// Trust ends the retirement of a GPU and its MIG devices, or of one MIG device. If a passed check then shows that the device works, Trust
// also ends the cause of earlier reports, and forgets failed resets: the device is healthy at once, without a reset. A failed check shows
// that the cause holds, and so do a GPU that is gone and a call that hangs.
func (m *Monitor) Trust(ctx context.Context, id ID) (Trusted, error) {
	return m.sendOperatorRequest(ctx, operatorRequest{id: id})
}

// Forget removes a missing GPU from the known GPUs. A GPU that is listed, or has an allocated device, is not removed.
func (m *Monitor) Forget(ctx context.Context, gpu ID) error {
	_, err := m.sendOperatorRequest(ctx, operatorRequest{id: gpu, forget: true})
	return err
}

func (m *Monitor) sendOperatorRequest(ctx context.Context, r operatorRequest) (Trusted, error) {
	done := make(chan requestEnd, 1)
	r.done = done
	select {
	case m.operatorRequests <- r:
	case <-ctx.Done():
		return Trusted{}, fmt.Errorf("send request to the monitor: %w", ctx.Err())
	}
	select {
	case end := <-done:
		return end.Trusted, end.err
	case <-ctx.Done():
		return Trusted{}, fmt.Errorf("wait for the monitor, which may still apply the request: %w", ctx.Err())
	}
}

// handleOperatorRequest starts a request. The reply follows the next publication.
func (m *Monitor) handleOperatorRequest(r operatorRequest, now time.Time) {
	t := m.engine
	defer func() { m.pendingRequests = append(m.pendingRequests, r) }()
	i := slices.IndexFunc(t.devices, func(d *trackedDevice) bool { return d.ID == r.id })
	switch {
	case r.forget:
		r.end.err = t.forget(r.id)
		return
	case i < 0 && r.retire == nil && t.trustAbsent(r.id):
		r.end.Trusted = Trusted{Retired: true, Err: errNotListed}
		return
	case i < 0:
		r.end.err = ErrUnknownDevice
		return
	}
	g := t.devices[i].gpu
	id, s, affected := g.level(r.id)
	if r.retire != nil {
		s.retired = r.retire
		t.historyChanged, t.historyUrgent = true, true
		t.log.Info("device retired by the operator", "gpu", g.gpu, "device", id, "note", r.retire.Note)
		t.notify(HealthEvent{
			At: now, GPU: g.gpu, Affected: affected, Reason: ReasonRetired, Note: r.retire.Note, MarkedUnhealthy: true,
		})
		return
	}
	r.end.Retired = t.endRetirements(g, id)
	if r.end.Err = errNotListed; g.listed { // a check decides
		r.end.Err, r.gpu, r.checksBegun, r.deadline, g.checkNow = nil, g, g.checksBegun, now.Add(trustTimeout), true
	}
}

// endRetirements ends the retirement of one level, or of a GPU with its MIG devices, and reports whether there was one.
func (t *engine) endRetirements(g *trackedGPU, id ID) (retired bool) {
	g.trustedLevels(id, func(level ID, s *healthState) {
		if s.retired == nil {
			return
		}
		retired, s.retired = true, nil
		t.historyChanged, t.historyUrgent = true, true
		t.log.Info("retirement ended by the operator", "gpu", g.gpu, "device", level)
	})
	return retired
}

// trustAbsent forgets the health of an absent device, and reports whether the device was retired.
func (t *engine) trustAbsent(id ID) (retired bool) {
	for key, r := range t.absentRecords {
		if (string(key.gpu) == string(id) || key.device == id) && r.Retired != nil {
			r.Retired, retired, t.historyChanged, t.historyUrgent = nil, true, true, true
			t.absentRecords[key] = r
		}
	}
	return retired
}

// decideTrust applies a check to the Trusts that wait for the check. A passed check ends all causes.
func (m *Monitor) decideTrust(c gpuCheckResult, now time.Time) {
	for i := range m.pendingRequests {
		r := &m.pendingRequests[i]
		if r.gpu == nil || r.gpu.gpu != c.gpu || c.seq <= r.checksBegun || errors.Is(c.err, ErrStalled) {
			continue
		}
		g := r.gpu
		r.gpu, r.end.RepairPending, r.end.Err = nil, c.evidence.RepairPending, c.err
		if c.err == nil {
			id, _, _ := g.level(r.id)
			m.engine.historyUrgent = true
			g.trustedLevels(id, func(level ID, s *healthState) { m.engine.apply(g, level, s, evidence{kind: evidenceTrusted}, now) })
		}
	}
}

// answerOperator answers the requests that have ended.
func (m *Monitor) answerOperator(now time.Time) {
	m.pendingRequests = slices.DeleteFunc(m.pendingRequests, func(r operatorRequest) bool {
		if r.gpu != nil {
			if now.Before(r.deadline) {
				return false
			}
			r.end.Err = fmt.Errorf("no check of the GPU ended within %s", trustTimeout)
		}
		r.done <- r.end
		return true
	})
}

var (
	errListed    = errors.New("the driver lists the GPU: only a GPU that is gone can be forgotten")
	errAllocated = errors.New("the GPU or one of its MIG devices is allocated: delete the pods first")
)

// forget removes a GPU that is gone, with its health and counts.
func (t *engine) forget(id ID) error {
	g := t.gpus[GPU(id)]
	_, recorded := t.absentRecords[recordKey{gpu: GPU(id)}]
	isAllocated := slices.ContainsFunc(t.devices, func(d *trackedDevice) bool { return d.GPU == GPU(id) && t.isAllocated(d.ID) })
	for key := range t.absentRecords {
		isAllocated = isAllocated || key.gpu == GPU(id) && t.isAllocated(cmp.Or(key.device, id))
	}
	switch {
	case g == nil && !recorded:
		return ErrUnknownDevice
	case g != nil && g.listed:
		return errListed
	case isAllocated:
		return errAllocated
	}
	maps.DeleteFunc(t.absentRecords, func(key recordKey, _ HealthRecord) bool { return key.gpu == GPU(id) })
	delete(t.gpus, GPU(id))
	t.devices = slices.DeleteFunc(t.devices, func(d *trackedDevice) bool { return d.GPU == GPU(id) })
	t.group()
	t.historyChanged, t.historyUrgent = true, true
	t.log.Info("GPU forgotten by the operator", "gpu", id)
	return nil
}
