package nvml

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

// nvmlSession is the library after an Init, never written.
type nvmlSession struct {
	*lib.Session
	pendingCalls *lib.PendingCalls
	commonLabels []device.Label // of all GPUs
	confidential bool           // confidential computing is on
	// eventsNameInstances is false with the older function for waiting: go-nvml
	// then fills in zeros, valid numbers of instances.
	eventsNameInstances bool
}

// gpu is a GPU as long as it is listed.
type gpu struct {
	*collect.GPUReader
	device device.Device // appendDevices adds index and nodes
	// reportsLayout is set if the driver's events report a change of the
	// partitioning, until the first change. Written by Wait.
	reportsLayout atomic.Bool
	// probedAt is the time when Devices read the partitioning; the zero time: not
	// since the registration, which misses earlier changes.
	probedAt atomic.Pointer[time.Time]
	// After a failed registration in the event set. Guarded by
	// Backend.eventsMu.
	registerBackoff retry.Backoff
	registerAfter   time.Time
}

// lockUntil locks the GPU after short calls, unless a call hangs.
func (g *gpu) lockUntil(ctx context.Context, deadline time.Time) bool {
	for ctx.Err() == nil && g.Responsive.Load() {
		if g.Mu.TryLock() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		_ = retry.Sleep(ctx, time.Millisecond)
	}
	return false
}

type inventory struct {
	*nvmlSession
	gpus     []*gpu
	byID     map[device.GPU]*gpu
	byHandle map[nvml.Device]*gpu
	byIndex  map[int]*gpu
}

// deviceProbe examines an index on a separate goroutine, since a call may never
// return. A hanging probe is kept and not repeated: a hanging GPU costs a
// thread and no listing.
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
	mig     *collect.MIGState // nil: unknown
	migErrs []string          // one for each unknown MIG device
}

func (p *deviceProbe) isDone() bool { return pubsub.IsClosed(p.done) }

func (r *probeResult) addError(text string) { r.migErrs = append(r.migErrs, text) }

// joinErrors returns one line, since the error ends in one line of the log.
func joinErrors(errs []string) error {
	if len(errs) == 0 {
		return nil
	}
	return errors.New(strings.Join(errs, "; "))
}
