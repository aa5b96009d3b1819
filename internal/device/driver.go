package device

import (
	"log/slog"
	"sync/atomic"
)

// DriverState is the state of the driver as a whole.
type DriverState uint8

// The states of the driver.
const (
	DriverStarting     DriverState = iota
	DriverUp                       //
	DriverFailing                  // answers, but cannot list devices
	DriverAbsent                   // missing, or refuses to start
	DriverNotAnswering             // a listing, the start of the library, or calls about all GPUs hang
	DriverReplaced                 // Run returns ErrDriverReplaced when no call runs
	DriverReleased                 // by Release
)

// Driver is the driver's state, with an error if the driver is not up.
type Driver struct {
	State DriverState
	Err   error
}

// driverStatus is the driver's state as last seen by Monitor.Run.
type driverStatus struct {
	value atomic.Pointer[Driver]
	log   *slog.Logger
}

func (s *driverStatus) get() Driver { return *s.value.Load() }

// set changes the state and logs the change. listed is set after the first listing.
func (s *driverStatus) set(d Driver, listed bool) {
	previous := s.get()
	if previous.State == d.State && errorText(previous.Err) == errorText(d.Err) {
		return
	}
	s.value.Store(&d)
	switch {
	case d.State == DriverReleased:
		s.log.Info("driver released")
	case d.State == DriverReplaced:
		s.log.Warn("driver replaced", "err", d.Err)
	case d.State != DriverUp && listed:
		s.log.Warn("driver lists no devices, keeping the known devices", "err", d.Err)
	case d.State != DriverUp:
		s.log.Warn("driver lists no devices, waiting", "err", d.Err)
	case d.Err != nil:
		s.log.Warn("driver cannot list some devices", "err", d.Err)
	default:
		s.log.Info("driver up")
	}
}
