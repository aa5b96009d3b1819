package device

import (
	"errors"
	"fmt"
	"time"
)

// DriverState is the state of the driver as a whole.
type DriverState uint8

// The states of the driver.
const (
	DriverStarting      DriverState = iota
	DriverUp                        //
	DriverFailing                   // present, but cannot start or list devices, or calls to all GPUs fail
	DriverAbsent                    // missing, or refuses to start
	DriverNotResponding             // a listing, the start of the library, or calls about all GPUs hang
	DriverReplaced                  // Run returns ErrDriverReplaced when no call runs
	DriverReleased                  // by Release
)

// Driver is the driver's state, with an error if the driver is not up.
type Driver struct {
	State DriverState
	Err   error
}

// ErrRestart is the error of Run if the driver fails for long: a new container may have access.
var ErrRestart = errors.New("exiting, so that the kubelet restarts the container: the driver fails")

// Driver returns the driver's state.
func (m *Monitor) Driver() Driver {
	d, _ := m.driver.Get()
	return d
}

// setDriver publishes and logs a new state.
func (m *Monitor) setDriver(s DriverState, err error) {
	if before := m.Driver(); before.State == s && fmt.Sprint(before.Err) == fmt.Sprint(err) {
		return
	}
	if m.Driver().State != s {
		m.driverSince = time.Now()
	}
	m.driver.Set(Driver{s, err})
	switch {
	case s == DriverReleased:
		m.log.Info("driver released")
	case s != DriverUp:
		m.log.Warn("driver unusable", "err", err)
	case err != nil:
		m.log.Warn("driver cannot list some devices", "err", err)
	default:
		m.log.Info("driver up")
	}
}

const (
	maxRestartPause  = time.Hour
	restartResetTime = 10 * time.Minute // of a working driver, until the pause is RestartAfter again
)

// checkRestart returns ErrRestart if the driver of known GPUs has failed for RestartAfter, doubled by each restart since the driver last
// worked. The number of restarts is on disk before; otherwise restarts could follow each other closely.
func (m *Monitor) checkRestart(now time.Time) error {
	t, d, lasting := m.engine, m.Driver(), now.Sub(m.driverSince)
	known := t.driverErr != nil || len(t.gpus) == 0 && len(t.absentRecords) > 0
	switch {
	case d.State == DriverUp && t.restarts > 0 && lasting >= restartResetTime:
		t.restarts, t.historyChanged = 0, true
	case d.State != DriverFailing || m.phase != phaseActive || t.options.RestartAfter == 0 || !known:
		m.restarting = false
	case !m.restarting && lasting >= max(t.options.RestartAfter, min(t.options.RestartAfter<<min(t.restarts, 10), maxRestartPause)):
		t.restarts++
		m.restarting, t.historyChanged, t.historyUrgent = true, true, true
	case m.restarting && (t.options.Store == nil || t.options.Store.Stored()):
		return fmt.Errorf("%w: %w", ErrRestart, d.Err)
	}
	return nil
}
