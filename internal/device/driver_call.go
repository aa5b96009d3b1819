package device

import (
	"log/slog"
	"sync"
	"time"
)

// driverCall is a kind of call to the Backend. One call runs at a time, in the background, and may hang. All fields belong to the
// goroutine of Monitor.Run.
type driverCall[T any] struct {
	results   chan callResult[T] // buffered, so a call never waits for its reader
	startedAt time.Time          // zero: no call runs
	nextAt    time.Time          // the next call is due
	err       string             // of the newest result, see logError
}

type callResult[T any] struct {
	value T
	err   error
}

func newDriverCall[T any]() driverCall[T] { return driverCall[T]{results: make(chan callResult[T], 1)} }

func (c *driverCall[T]) running() bool { return !c.startedAt.IsZero() }

func (c *driverCall[T]) due(now time.Time) bool { return !c.running() && !now.Before(c.nextAt) }

// start calls f in a goroutine that calls counts.
func (c *driverCall[T]) start(calls *sync.WaitGroup, now time.Time, f func() (T, error)) {
	c.startedAt = now
	calls.Go(func() {
		value, err := f()
		c.results <- callResult[T]{value, err}
	})
}

// end ends the call. The next is due after interval.
func (c *driverCall[T]) end(now time.Time, interval time.Duration) {
	c.startedAt, c.nextAt = time.Time{}, now.Add(interval)
}

// logError logs an error that differs from the previous one.
func (c *driverCall[T]) logError(log *slog.Logger, message string, err error) {
	if text := errorText(err); text != c.err {
		log.Warn(message, "err", err, "previous_err", c.err)
		c.err = text
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
