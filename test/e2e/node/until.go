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
	for {
		err := try(ctx)
		var final giveUp
		switch {
		case err == nil:
			return nil
		case errors.As(err, &final):
			return fmt.Errorf("wait until %s: %w", what, final.error)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w; last: %w", what, context.Cause(ctx), err)
		}
	}
}

// GiveUp marks an error after which Until need not try again.
func GiveUp(err error) error { return giveUp{err} }

type giveUp struct{ error }

func (g giveUp) Unwrap() error { return g.error }
