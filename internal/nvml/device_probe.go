package nvml

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/pubsub"
)

// Timeouts of a listing count from the newest result, since a driver may
// serialize calls. A new GPU may take seconds to start. A known GPU is listed
// without its result. An overdue probe has no time left.
const (
	newGPUTimeout       = 4 * time.Second
	knownGPUTimeout     = time.Second
	pendingProbeTimeout = 50 * time.Millisecond
)

// quietProbeInterval is between probes of a GPU that is not partitioned and
// reports a change. It is less than a multiple of the listings'.
const quietProbeInterval = 55 * time.Second

// deviceListing is a listing in progress. GPUs are found by index only: a
// search by UUID or PCI address touches all GPUs, and fails if one is lost
// (nvml.h, nvmlDeviceGetHandleByUUID).
type deviceListing struct {
	*Backend
	old, next *inventory
	devices   []device.Device
	errs      []string // one for each omission
	explained bool     // an omission is the fault of its GPU
}

// isQuiet reports whether a GPU needs no probe: the number of GPUs and the
// partitioning are those of the previous listing.
func (l *deviceListing) isQuiet(index, count int) bool {
	g := l.old.byIndex[index]
	return g != nil && len(l.old.gpus) == count && g.reportsLayout.Load() && !g.MIG.Load().Enabled &&
		time.Since(*g.probedAt.Load()) < quietProbeInterval
}

// wait waits for the end of a probe, until its timeout has passed without the
// end of any probe.
func (l *deviceListing) wait(ctx context.Context, probe *deviceProbe) {
	for !probe.isDone() && ctx.Err() == nil {
		remaining := time.Until(l.probedAt.Load().Add(probe.timeout))
		if remaining <= 0 {
			return
		}
		select {
		case <-probe.done:
		case <-time.After(remaining):
		case <-ctx.Done():
		}
	}
}

// probeAll examines each index, and returns the results in time. A GPU with a
// known identity counts as found even if its initialization hangs: only listed
// GPUs can be marked unhealthy.
func (l *deviceListing) probeAll(ctx context.Context, count int) map[int]probeResult {
	l.probedAt.Store(new(time.Now()))
	found := map[int]probeResult{}
	for i := range count {
		switch probe := l.probes[i]; {
		case probe == nil && l.isQuiet(i, count):
			found[i] = probeResult{handle: l.old.byIndex[i].Handle, gpu: l.old.byIndex[i]}
		case probe == nil:
			l.startProbe(i)
		case !probe.isDone():
			probe.timeout = pendingProbeTimeout
		case probe.session != l.session || !probe.result.isNew: // outdated
			l.startProbe(i)
		}
	}
	for i := range count {
		if probe := l.probes[i]; probe != nil {
			// handles of an earlier Init are invalid
			if l.wait(ctx, probe); probe.session != l.session && probe.isDone() {
				l.wait(ctx, l.startProbe(i))
			}
		}
	}
	for i := range count {
		if probe := l.probes[i]; probe != nil && probe.session == l.session && pubsub.IsClosed(probe.identified) &&
			ctx.Err() == nil {
			found[i] = probe.result
			delete(l.probes, i)
		}
	}
	return found
}

func (l *deviceListing) startProbe(index int) *deviceProbe {
	probe := &deviceProbe{
		session: l.session, timeout: newGPUTimeout, identified: make(chan struct{}),
		done: make(chan struct{}),
	}
	if l.old.byIndex[index] != nil {
		probe.timeout = knownGPUTimeout
	}
	old, b := l.old, l.Backend
	l.probes[index] = probe
	l.pendingCalls.Start(func() {
		defer close(probe.done)
		probe.result = b.probeDevice(probe.session, index, old)
		if g := probe.result.gpu; probe.result.isNew && g != nil {
			g.Mu.Lock() // reads wait for the initialization
			defer g.Mu.Unlock()
			close(probe.identified)
			g.Initialize()
		} else {
			close(probe.identified)
		}
		b.probedAt.Store(new(time.Now()))
	})
	return probe
}

// probeDevice examines an index. A known GPU is asked only for its
// partitioning; without an answer nothing changes. While another call about the
// GPU is under way, the probe waits.
func (b *Backend) probeDevice(sess *nvmlSession, index int, old *inventory) (result probeResult) {
	previous := old.byIndex[index]
	if previous != nil {
		previous.Mu.Lock()
		defer previous.Mu.Unlock()
	}
	handle, ret := sess.NVML.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		result.err = fmt.Errorf("get its handle: %w", lib.Error(ret))
		return result
	}
	result.handle, result.gpu = handle, old.byHandle[handle]
	if result.gpu != nil && result.gpu != previous { // moved to this index
		if !result.gpu.Mu.TryLock() { // two waiting probes could deadlock
			return result
		}
		defer result.gpu.Mu.Unlock()
	}
	if result.gpu == nil {
		result.isNew = true
		if result.gpu, result.err = b.describeGPU(sess, handle); result.err != nil {
			return result
		}
	}
	known := result.gpu.MIG.Load()
	mig, err := sess.readMIGMode(handle)
	switch {
	case err != nil && known.Unknown: // Check keeps the GPU out of use
		result.addError(err.Error())
		return result
	case err != nil || known.Capable && !mig.Capable: // or a stray denial
		return result
	}
	if mig.Denials > 0 {
		mig.Denials += known.Denials
	}
	result.mig = mig
	if mig.Enabled {
		sess.listMIGDevices(&result)
	}
	return result
}
