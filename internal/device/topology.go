package device

import (
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
)

// linkRetryInterval is between a failed or incomplete reading of the links and the next.
const linkRetryInterval = time.Minute

// topology reads the links between GPUs once for each set of GPUs. Only links may be used outside the goroutine of Monitor.Run.
type topology struct {
	driverCall[[]Link]
	links   atomic.Pointer[[]Link] // nil: not read yet
	gpus    []GPU                  // of the newest scheduled reading
	pending bool                   // a reading is due at nextAt
}

// schedule makes a reading due if the set of GPUs has changed.
func (t *topology) schedule(devices []Device, now time.Time) {
	var gpus []GPU
	for _, d := range devices {
		if d.WholeGPU() {
			gpus = append(gpus, d.GPU)
		}
	}
	slices.Sort(gpus)
	if !slices.Equal(gpus, t.gpus) {
		t.gpus, t.pending, t.nextAt = gpus, true, now
	}
}

// handleResult publishes the links, and schedules another reading after an error.
func (t *topology) handleResult(r callResult[[]Link], log *slog.Logger, now time.Time) {
	t.startedAt = time.Time{}
	t.logError(log, "cannot read all links between GPUs", r.err)
	if r.err != nil && !t.pending {
		t.pending, t.nextAt = true, now.Add(linkRetryInterval)
	}
	if r.value != nil {
		t.links.Store(&r.value)
	}
}
