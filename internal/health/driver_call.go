package health

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// driverCall is a kind of call to the Backend. One call runs at a time, in the
// background, and may hang.
type driverCall struct {
	startedAt time.Time // zero: no call runs
	nextAt    time.Time // the next call is due; zero: at once or, while a call runs, not decided
	err       error     // of the newest result, see logError
}

func (c *driverCall) running() bool { return !c.startedAt.IsZero() }

func (c *driverCall) due(now time.Time) bool { return !c.running() && !now.Before(c.nextAt) }

func (c *driverCall) start(now time.Time) { c.startedAt, c.nextAt = now, time.Time{} }

// end ends the call. The next is due after interval, unless one was requested
// during the call: then at once.
func (c *driverCall) end(now time.Time, interval time.Duration) {
	c.startedAt = time.Time{}
	if c.nextAt.IsZero() {
		c.nextAt = now.Add(interval)
	}
}

// logError logs an error that differs from the previous one.
func (c *driverCall) logError(log *slog.Logger, message string, err error) {
	if fmt.Sprint(err) != fmt.Sprint(c.err) {
		log.Warn(message, "err", err, "previous_err", c.err)
	}
	c.err = err
}

// waitCall waits for the driver's events.
type waitCall struct {
	driverCall
	// failingSince is the start of the first of the Waits that have hung or
	// failed since the newest success; zero: no Wait has begun.
	failingSince time.Time
	interrupted  bool // as published
}

// linkCall reads the links between GPUs once for each set of GPUs.
type linkCall struct {
	driverCall
	gpus    []device.GPU // of the newest scheduled reading
	pending bool         // a reading is due at nextAt
}
