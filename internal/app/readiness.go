package app

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/plugin"
)

// notReadyLogDelay hides the checks that fail while a process starts.
const notReadyLogDelay = 10 * time.Second

// readiness decides whether the process is ready. A new process is ready once
// all checks pass at the same time; from then on, a check counts if it fails
// for the timeout, so that a kubelet or driver that restarts does not stop a
// rollout.
type readiness struct {
	checks  map[string]func() error
	timeout time.Duration
	log     *slog.Logger

	mu           sync.Mutex
	wasReady     bool                 // guarded by mu
	failingSince map[string]time.Time // by check; guarded by mu
	logged       map[string]bool      // by check; guarded by mu
}

// Run notices changes between the probes until ctx is done.
func (r *readiness) Run(ctx context.Context) error {
	for retry.Sleep(ctx, retry.Aligned(time.Second)) == nil {
		r.failures()
	}
	return nil
}

// notes returns a line for each resource that waits for another plugin.
func (a *app) notes() (lines []string) {
	names, _ := a.node.WaitingResources()
	for _, name := range names {
		lines = append(lines, name+": "+plugin.OtherPluginReason)
	}
	return lines
}

// values returns 1 for each check that passes, and 0 for the others.
func (r *readiness) values() map[string]float64 {
	values, failures := map[string]float64{}, r.failures()
	for name := range r.checks {
		if failures[name] == nil {
			values[name] = 1
		} else {
			values[name] = 0
		}
	}
	return values
}

// runChecks returns the errors of the checks that fail.
func runChecks(checks map[string]func() error) map[string]error {
	failures := map[string]error{}
	for name, check := range checks {
		if err := check(); err != nil {
			failures[name] = err
		}
	}
	return failures
}

// failures runs all checks, and returns the errors that make the process not
// ready.
func (r *readiness) failures() map[string]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failures, now := runChecks(r.checks), time.Now()
	if !r.wasReady && len(failures) == 0 { // the first listing may have come between two checks
		failures = runChecks(r.checks)
	}
	r.wasReady = r.wasReady || len(failures) == 0
	for name := range r.checks {
		err, since := failures[name], r.failingSince[name]
		switch {
		case err == nil:
			delete(r.failingSince, name)
		case since.IsZero():
			r.failingSince[name], since = now, now
		}
		if r.wasReady && now.Sub(since) < r.timeout {
			delete(failures, name)
		}
		switch {
		case failures[name] == nil && r.logged[name]:
			r.log.Info("readiness check passes", "check", name)
		case failures[name] != nil && !r.logged[name] && now.Sub(since) >= notReadyLogDelay:
			r.log.Warn("not ready", "check", name, "err", err)
		default:
			continue
		}
		r.logged[name] = failures[name] != nil
	}
	return failures
}
