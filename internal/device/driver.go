package device

import "fmt"

// DriverState is the state of the driver as a whole.
type DriverState uint8

// The states of the driver.
const (
	DriverStarting      DriverState = iota
	DriverUp                        //
	DriverFailing                   // answers, but cannot list devices
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
	m.driver.Set(Driver{s, err})
	switch {
	case s == DriverReleased:
		m.log.Info("driver released")
	case s != DriverUp:
		m.log.Warn("driver lists no devices", "err", err)
	case err != nil:
		m.log.Warn("driver cannot list some devices", "err", err)
	default:
		m.log.Info("driver up")
	}
}
