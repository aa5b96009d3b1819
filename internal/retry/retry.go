// Package retry waits: between attempts, and for calls that may hang.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep waits for d or until ctx is done, and returns ctx.Err().
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err()
}

// Spread returns a random delay around d, so that the nodes of a cluster do not
// return to a server at once.
func Spread(d time.Duration) time.Duration {
	return d/2 + rand.N(max(d, 1)) //nolint:gosec // no secret
}

// Aligned returns the time until the last whole second of the wall clock within
// d, or until 0.1 s after d. All components look at the world on whole seconds,
// so that the process wakes once.
func Aligned(d time.Duration) time.Duration {
	now := time.Now()
	return now.Add(d + 100*time.Millisecond).Truncate(time.Second).Sub(now)
}

// Backoff is a delay that doubles with each failure, from Min to Max.
type Backoff struct {
	Min, Max time.Duration
	delay    time.Duration // of the last failure; 0 after Reset
}

// Next returns the delay before the next attempt.
func (b *Backoff) Next() time.Duration {
	b.delay = min(max(b.Min, 2*b.delay), b.Max)
	return b.delay
}

// Reset makes Min the next delay.
func (b *Backoff) Reset() { b.delay = 0 }

// WithTimeout is Await with a timeout.
func WithTimeout[T any](
	ctx context.Context, timeout time.Duration, call func(context.Context) T,
) (answer T, inTime bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return Await(ctx, call)
}

// Await returns the result of call, and false if ctx is done first. A call that
// hangs ends with the process.
func Await[T any](ctx context.Context, call func(context.Context) T) (answer T, inTime bool) {
	result := make(chan T, 1)
	go func() { result <- call(ctx) }()
	select {
	case answer = <-result:
	case <-ctx.Done():
	}
	return answer, ctx.Err() == nil
}
