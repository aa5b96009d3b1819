// Package retry waits between attempts.
package retry

import (
	"context"
	"time"
)

// Sleep waits for d or until ctx is done, and returns ctx.Err().
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return ctx.Err()
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
