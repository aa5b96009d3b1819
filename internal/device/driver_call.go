package device

import (
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/pubsub"
)

// driverCall is a kind of call to the Backend. One call runs at a time, in the background, and may hang. All fields belong to the
// goroutine of Monitor.Run.
type driverCall struct {
	startedAt time.Time // zero: no call runs
	nextAt    time.Time // the next call is due
	err       error     // of the newest result, see logError
}

func (c *driverCall) running() bool { return !c.startedAt.IsZero() }

func (c *driverCall) due(now time.Time) bool { return !c.running() && !now.Before(c.nextAt) }

// start runs call in the background. The goroutine of Run then calls the returned function with the time.
func (m *Monitor) start(c *driverCall, now time.Time, call func() func(time.Time)) {
	c.startedAt = now
	m.calls.Go(func() { m.results <- call() })
}

// end ends the call. The next is due after interval.
func (c *driverCall) end(now time.Time, interval time.Duration) {
	c.startedAt, c.nextAt = time.Time{}, now.Add(interval)
}

// logError logs an error that differs from the previous one.
func (c *driverCall) logError(log *slog.Logger, message string, err error) {
	if fmt.Sprint(err) != fmt.Sprint(c.err) {
		log.Warn(message, "err", err, "previous_err", c.err)
	}
	c.err = err
}

const (
	waitTimeout       = 10 * time.Second // for a Wait that does not return, or that keeps failing
	waitRetryInterval = time.Second      // after a failed Wait
)

// eventWait waits for the driver's events. Only interrupted may be used outside the goroutine of Monitor.Run.
type eventWait struct {
	driverCall
	// failingSince is the start of the first of the Waits that have hung or failed since the newest success; zero: no Wait has begun.
	failingSince time.Time
	interrupted  atomic.Bool // and logged
}

// update logs the begin and the end of an interruption. A Wait takes seconds.
func (w *eventWait) update(log *slog.Logger, now time.Time) {
	interrupted := !w.failingSince.IsZero() && now.Sub(w.failingSince) > waitTimeout
	if w.interrupted.Swap(interrupted) != interrupted {
		if interrupted {
			log.Warn("driver events interrupted", "err", w.err)
		} else {
			log.Info("driver events resumed")
		}
	}
}

// linkRetryInterval is between a failed or incomplete reading of the links and the next.
const linkRetryInterval = time.Minute

// topology reads the links between GPUs once for each set of GPUs. Only links may be used outside the goroutine of Monitor.Run.
type topology struct {
	driverCall
	links   pubsub.Value[[]Link] // nil: not read yet
	gpus    []GPU                // of the newest scheduled reading
	pending bool                 // a reading is due at nextAt
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
func (t *topology) handleResult(links []Link, err error, log *slog.Logger, now time.Time) {
	t.startedAt = time.Time{}
	t.logError(log, "cannot read all links between GPUs", err)
	if err != nil && !t.pending {
		t.pending, t.nextAt = true, now.Add(linkRetryInterval)
	}
	if links != nil {
		t.links.Set(links)
	}
}
