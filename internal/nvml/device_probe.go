package nvml

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// How long a listing waits for answers, counted from the newest one: a driver may
// give them one after the other. A GPU that was never listed may have to be started up
// first, which takes seconds. Of one that is known there is enough to list, and what
// is overdue has had its time.
const (
	newGPUTimeout       = 4 * time.Second
	knownGPUTimeout     = time.Second
	pendingProbeTimeout = 50 * time.Millisecond
)

// deviceProbe is what a listing asks at one index. It has a goroutine of its own, since
// the answer may never come: then the GPU is listed without it, if it is known, and
// the question stays, and is not asked a second time. So a GPU that hangs costs one
// thread, and no listing.
type deviceProbe struct {
	session    *nvmlSession
	timeout    time.Duration // how long it is waited for
	identified chan struct{} // closed when it is known what is at the index
	done       chan struct{} // closed when it was answered
	result     probeResult   // not written after told was closed
}

// probeResult is what is at an index.
type probeResult struct {
	handle nvml.Device // nil where it could not be had
	gpu    *gpu        // nil where err says why
	isNew  bool        // the GPU was not known
	err    error
	layout *migLayout // how it is partitioned; nil where that cannot be told
	// migErrs are of its slices that cannot be told, one each.
	migErrs []string
}

func (p *deviceProbe) isDone() bool { return isClosed(p.done) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// probeAll has a question be under way at each index, and returns what was found by
// those that were answered in time. A GPU that has said who it is, and hangs as it is met,
// was found too: only what is listed can be found to be ill.
func (l *deviceListing) probeAll(ctx context.Context, count int) map[int]probeResult {
	found, pending := map[int]probeResult{}, map[int]*deviceProbe{}
	for i := range count {
		probe := l.probes[i]
		switch {
		case probe == nil:
			probe = l.startProbe(i)
		case !probe.isDone():
			probe.timeout = pendingProbeTimeout
		case probe.session != l.session || !probe.result.isNew:
			probe = l.startProbe(i) // it is too late for that answer
		}
		l.probes[i], pending[i] = probe, probe
	}
	for lastAnswer := time.Now(); len(pending) > 0; {
		var timeout time.Duration
		for i, probe := range pending {
			if !probe.isDone() {
				timeout = max(timeout, probe.timeout)
				continue
			}
			lastAnswer = time.Now()
			if probe.session != l.session { // handles of an earlier Init mean nothing any more
				probe = l.startProbe(i)
				l.probes[i], pending[i], timeout = probe, probe, max(timeout, probe.timeout)
				continue
			}
			found[i] = probe.result
			delete(pending, i)
			delete(l.probes, i)
		}
		timer := time.NewTimer(timeout - time.Since(lastAnswer))
		select {
		case <-l.probeDone:
			timer.Stop()
			continue
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		break
	}
	for i, probe := range pending {
		if probe.session == l.session && isClosed(probe.identified) && ctx.Err() == nil {
			found[i] = probe.result
			delete(l.probes, i)
		}
	}
	return found
}

// startProbe begins a question.
func (l *deviceListing) startProbe(index int) *deviceProbe {
	probe := &deviceProbe{session: l.session, timeout: newGPUTimeout, identified: make(chan struct{}), done: make(chan struct{})}
	if l.old.byIndex[index] != nil {
		probe.timeout = knownGPUTimeout
	}
	old, probeDone, b := l.old, l.probeDone, l.Backend
	l.pendingCalls.Start(func() {
		probe.result = b.probeDevice(probe.session, index, old)
		if g := probe.result.gpu; probe.result.isNew && g != nil {
			g.Lock() // whoever reads it waits until it was met
			close(probe.identified)
			g.Initialize()
			g.Unlock()
		} else {
			close(probe.identified)
		}
		close(probe.done)
		select {
		case probeDone <- struct{}{}:
		default: // somebody is told already
		}
	})
	return probe
}

// probeDevice finds out what is at an index. One that is known is asked for nothing but how it
// is partitioned, and an answer that leaves that open changes nothing. While another
// call about the GPU is under way it waits, and costs no thread.
func (b *Backend) probeDevice(sess *nvmlSession, index int, old *inventory) (result probeResult) {
	previous := old.byIndex[index]
	if previous != nil {
		previous.Lock()
		defer previous.Unlock()
	}
	handle, ret := sess.NVML.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		result.err = fmt.Errorf("get its handle: %w", lib.Error(ret))
		return result
	}
	result.handle, result.gpu = handle, old.byHandle[handle]
	if result.gpu != nil && result.gpu != previous { // it has moved
		if !result.gpu.TryLock() { // to wait for two could be to wait for each other
			return result
		}
		defer result.gpu.Unlock()
	}
	layout, err := sess.readMIGMode(handle)
	switch {
	case result.gpu != nil && err != nil:
		return result
	case err != nil: // it might be offered, and be sliced
		result.err = err
		return result
	case result.gpu == nil:
		result.isNew = true
		if result.gpu, result.err = b.describeGPU(sess, handle); result.err != nil {
			return result
		}
	}
	if layout.denials.Denied() {
		layout = result.gpu.layout.Load().withDenial(time.Now())
	}
	result.layout = layout
	if layout.enabled {
		sess.listMIGDevices(&result)
	}
	return result
}
