// Package readiness decides whether the process is ready.
package readiness

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/plugin"
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

// Driver returns the driver's error on a node with known GPUs. A driver
// that was released on purpose is no error.
func Driver(state *node.State, monitor *health.Monitor) error {
	statuses := state.Statuses()
	switch d := monitor.Driver(); d.State {
	case device.DriverAbsent, device.DriverFailing, device.DriverNotResponding:
		if len(statuses) > 0 || Devices(state, monitor) != nil {
			return d.Err
		}
	case device.DriverStarting, device.DriverUp, device.DriverReplaced, device.DriverReleased:
	}
	return nil
}

// Devices returns an error if the driver does not list all known and
// expected GPUs. Excluded GPUs and retired GPUs are not missing.
func Devices(state *node.State, monitor *health.Monitor) error {
	settings := state.Settings.Newest()
	statuses := state.Statuses()
	known := slices.DeleteFunc(slices.Clone(monitor.Missing()), func(d device.Device) bool {
		return !settings.DeviceFilter.Allows(d)
	})
	names := text.Each(known, func(d device.Device) string { return fmt.Sprintf("GPU %d (%s)", d.Index, d.ID) })
	expected := settings.ExpectedGPUs
	for _, s := range statuses {
		if s.WholeGPU() && s.Gone && s.Reason == device.ReasonRetired {
			expected--
		}
	}
	missing := device.MissingGPUs(statuses, expected)
	switch {
	case monitor.Driver().State == device.DriverReleased || len(names) == 0 && missing == 0:
		return nil
	case len(names) == 0:
		return fmt.Errorf("%d of %d expected GPUs missing", missing, settings.ExpectedGPUs)
	}
	return fmt.Errorf("%s missing: %s", text.Plural(len(names), "known GPU"), text.JoinFirst(names))
}

// Notes returns a line for each resource with a first registration that waits
// for another plugin.
func Notes(state *node.State) (lines []string) {
	for _, r := range state.Resources.Newest() {
		if r.Waiting {
			lines = append(lines, r.Name+": "+plugin.OtherPluginReason)
		}
	}
	return lines
}
