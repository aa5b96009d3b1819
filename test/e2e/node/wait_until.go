package node

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Until tries every 20 ms until try returns nil. When ctx ends first, the error says what was waited for, and why try was not content.
func Until(ctx context.Context, what string, try func(context.Context) error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error // of a try that was not cut short: that one would only say so
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if final := (permanentError{}); errors.As(err, &final) {
			return fmt.Errorf("wait until %s: %w", what, final.error)
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w; last: %w", what, context.Cause(ctx), last)
		}
	}
}

// StopRetrying marks an error after which Until need not try again.
func StopRetrying(err error) error { return permanentError{err} }

type permanentError struct{ error }

func (g permanentError) Unwrap() error { return g.error }
