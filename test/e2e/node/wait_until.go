package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// Tolerance returns the factor of time limits, as the machine may be busy:
// PODGAUGE_TOLERANCE, by default 4.
func Tolerance() time.Duration {
	factor, err := strconv.Atoi(cmp.Or(os.Getenv("PODGAUGE_TOLERANCE"), "4"))
	if err != nil {
		panic("PODGAUGE_TOLERANCE: " + err.Error())
	}
	return time.Duration(factor)
}

// Until calls try every 20 ms until try returns nil. After the end of ctx the
// error includes the condition and the last error of try.
func Until(ctx context.Context, condition string, try func(context.Context) error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error // except errors caused by the end of ctx
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if final := (permanentError{}); errors.As(err, &final) {
			return fmt.Errorf("wait until %s: %w", condition, final.error)
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w; last: %w", condition, context.Cause(ctx), last)
		}
	}
}

// StopRetrying marks an error that ends Until.
func StopRetrying(err error) error { return permanentError{err} }

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }
