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

// ErrRestart is the error of Run if the driver fails for long: a new container
// may have access.
var ErrRestart = errors.New("exiting, so that the kubelet restarts the container: the driver fails")

// setDriver publishes and logs a new state.
func (e *engine) setDriver(s DriverState, err error) {
	before := e.driver
	if before.State == s && fmt.Sprint(before.Err) == fmt.Sprint(err) {
		return
	}
	if before.State != s {
		e.driverSince = e.now
	}
	e.driver = Driver{s, err}
	e.emit(setDriver(e.driver))
	switch {
	case s == DriverReleased:
		e.log.Info("driver released")
	case s != DriverUp:
		e.log.Warn("driver unusable", "err", err)
	case err != nil:
		e.log.Warn("driver cannot list some devices", "err", err)
	default:
		e.log.Info("driver up")
	}
}

const (
	maxRestartPause  = time.Hour
	restartResetTime = 10 * time.Minute // of a working driver, until the pause is RestartAfter again
)

// checkRestart ends Run with ErrRestart if the driver of known GPUs has failed
// for RestartAfter, doubled by each restart since the driver last worked. The
// number of restarts is on disk before; otherwise restarts could follow each
// other closely.
func (e *engine) checkRestart(stored bool) {
	after, lasting := e.options.RestartAfter, e.now.Sub(e.driverSince)
	known := e.driverErr != nil || len(e.gpus) == 0 && len(e.absent) > 0
	switch {
	case e.driver.State == DriverUp && e.restarts > 0 && lasting >= restartResetTime:
		e.restarts = 0
		e.needSave(saveSoon)
	case e.driver.State != DriverFailing || e.phase != phaseActive || after == 0 || !known:
		e.restarting = false
	case !e.restarting && lasting >= max(after, min(after<<min(e.restarts, 10), maxRestartPause)):
		e.restarts++
		e.restarting = true
		e.needSave(saveNow) // the tick saves this, and the next one looks whether it is stored
	case e.restarting && stored:
		e.emit(end{fmt.Errorf("%w: %w", ErrRestart, e.driver.Err)})
	}
}
