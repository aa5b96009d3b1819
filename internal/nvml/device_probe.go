package nvml

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// Timeouts of a listing count from the newest result, since a driver may serialize calls. A new GPU may take seconds to start. A known GPU
// is listed without its result. An overdue probe has no time left.
const (
	newGPUTimeout       = 4 * time.Second
	knownGPUTimeout     = time.Second
	pendingProbeTimeout = 50 * time.Millisecond
)

// deviceProbe examines an index on a separate goroutine, since a call may never return. A hanging probe is kept and not repeated: a
// hanging GPU costs a thread and no listing.
type deviceProbe struct {
	session    *nvmlSession
	timeout    time.Duration
	identified chan struct{} // closed when result has the GPU
	done       chan struct{} // closed at the end
	result     probeResult   // written before identified is closed
}

// probeResult is the GPU at an index.
type probeResult struct {
	handle  nvml.Device // nil: unknown
	gpu     *gpu        // nil: see err
	isNew   bool        // the GPU was unknown
	err     error
	layout  *migLayout // partitioning; nil: unknown
	migErrs []string   // one for each unknown MIG device
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

// probeAll examines each index, and returns the results in time. A GPU with a known identity counts as found even if its initialization
// hangs: only listed GPUs can be marked unhealthy.
func (l *deviceListing) probeAll(ctx context.Context, count int) map[int]probeResult {
	found, pending := map[int]probeResult{}, map[int]*deviceProbe{}
	for i := range count {
		probe := l.probes[i]
		switch {
		case probe == nil:
			probe = l.startProbe(i)
		case !probe.isDone():
			probe.timeout = pendingProbeTimeout
		case probe.session != l.session || !probe.result.isNew: // outdated
			probe = l.startProbe(i)
		}
		l.probes[i], pending[i] = probe, probe
	}
	for lastResult := time.Now(); len(pending) > 0; {
		var timeout time.Duration
		for i, probe := range pending {
			if !probe.isDone() {
				timeout = max(timeout, probe.timeout)
				continue
			}
			lastResult = time.Now()
			if probe.session != l.session { // handles of an earlier Init are invalid
				probe = l.startProbe(i)
				l.probes[i], pending[i], timeout = probe, probe, max(timeout, probe.timeout)
				continue
			}
			found[i] = probe.result
			delete(pending, i)
			delete(l.probes, i)
		}
		timer := time.NewTimer(timeout - time.Since(lastResult))
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

func (l *deviceListing) startProbe(index int) *deviceProbe {
	probe := &deviceProbe{session: l.session, timeout: newGPUTimeout, identified: make(chan struct{}), done: make(chan struct{})}
	if l.old.byIndex[index] != nil {
		probe.timeout = knownGPUTimeout
	}
	old, b := l.old, l.Backend
	l.pendingCalls.Start(func() {
		probe.result = b.probeDevice(probe.session, index, old)
		if g := probe.result.gpu; probe.result.isNew && g != nil {
			g.Lock() // reads wait for the initialization
			close(probe.identified)
			g.Initialize()
			g.Unlock()
		} else {
			close(probe.identified)
		}
		close(probe.done)
		select {
		case b.probeDone <- struct{}{}:
		default: // already signaled
		}
	})
	return probe
}

// probeDevice examines an index. A known GPU is asked only for its partitioning; without an answer nothing changes. While another call
// about the GPU is under way, the probe waits.
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
	if result.gpu != nil && result.gpu != previous { // moved to this index
		if !result.gpu.TryLock() { // two waiting probes could deadlock
			return result
		}
		defer result.gpu.Unlock()
	}
	layout, err := sess.readMIGMode(handle)
	switch {
	case result.gpu != nil && err != nil:
		return result
	case err != nil: // an unpartitioned device must not be offered by mistake
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
