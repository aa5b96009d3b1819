package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// waitTimeout limits waits for conditions that usually take a second or two. measureDurations checks the actual limits.
var waitTimeout = max(30*time.Second, node.Tolerance()*8*time.Second)

// must ends the test after an error.
func must(t *testing.T, err error) {
	t.Helper()
	require.NoError(t, err)
}

// expect fails the test after an error, and the test goes on.
func expect(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// await calls try until it returns nil, at most for waitTimeout, and returns the time that this took.
func await(t *testing.T, condition string, try func(context.Context) error) time.Duration {
	t.Helper()
	return awaitWithin(t, waitTimeout, condition, try)
}

// awaitWithin is await with another timeout.
func awaitWithin(t *testing.T, timeout time.Duration, condition string, try func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	must(t, node.Until(ctx, condition, try))
	return time.Since(begin)
}

// waitUntil waits until a time.
func waitUntil(t *testing.T, end time.Time) {
	t.Helper()
	select {
	case <-time.After(time.Until(end)):
	case <-t.Context().Done():
		t.Fatal(context.Cause(t.Context()))
	}
}
