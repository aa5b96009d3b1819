// Package readiness decides whether the process is ready.
package readiness

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
)

// notReadyLogDelay hides the checks that fail while a process starts.
const notReadyLogDelay = 10 * time.Second

// Readiness decides whether the process is ready. A new process is ready once all
// checks pass at the same time; from then on, a check counts if it fails for the
// timeout, so that a kubelet or driver that restarts does not stop a rollout.
type Readiness struct {
	checks  map[string]func() error
	timeout time.Duration
	log     *slog.Logger

	mu           sync.Mutex
	wasReady     bool                 // guarded by mu
	failingSince map[string]time.Time // by check; guarded by mu
	logged       map[string]bool      // by check; guarded by mu
}

// New returns a Readiness by checks.
func New(checks map[string]func() error, timeout time.Duration, log *slog.Logger) *Readiness {
	return &Readiness{
		checks: checks, timeout: timeout, log: log,
		failingSince: map[string]time.Time{}, logged: map[string]bool{},
	}
}

// Run notices changes between the probes until ctx is done.
func (r *Readiness) Run(ctx context.Context) error {
	for retry.Sleep(ctx, retry.Aligned(time.Second)) == nil {
		r.Failures()
	}
	return nil
}

// Failures runs all checks, and returns the errors that make the process not
// ready.
func (r *Readiness) Failures() map[string]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failures, now := RunChecks(r.checks), time.Now()
	if !r.wasReady && len(failures) == 0 { // the first listing may have come between two checks
		failures = RunChecks(r.checks)
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

// Values returns 1 for each check that passes, and 0 for the others.
func (r *Readiness) Values() map[string]float64 {
	values, failures := map[string]float64{}, r.Failures()
	for name := range r.checks {
		if failures[name] == nil {
			values[name] = 1
		} else {
			values[name] = 0
		}
	}
	return values
}

// RunChecks returns the errors of the checks that fail.
func RunChecks(checks map[string]func() error) map[string]error {
	failures := map[string]error{}
	for name, check := range checks {
		if err := check(); err != nil {
			failures[name] = err
		}
	}
	return failures
}
