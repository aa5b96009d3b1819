package device

// DriverState says what the driver as a whole does.
type DriverState uint8

// The driver's states.
const (
	DriverStarting DriverState = iota
	DriverUp
	DriverFailing      // it answers, and not with a list of devices
	DriverAbsent       // not there, or it refuses to start
	DriverNotAnswering // a listing, the start of its library, or calls about all GPUs hang
	DriverReplaced     // Run ends with ErrDriverReplaced when no call is under way
	DriverReleased     // by Release
)

// Driver is the driver's state and, where it is not up, what is wrong.
type Driver struct {
	State DriverState
	Err   error
}

// Driver returns the driver's state as Run last saw it.
func (m *Monitor) Driver() Driver { return *m.driver.Load() }

// FirstListing returns a channel that is closed when a listing has come back for the first time. Driver is that
// listing's state then, or a newer one's. While the driver's library initializes, nothing comes back.
func (m *Monitor) FirstListing() <-chan struct{} { return m.firstListing }

// setDriver keeps the driver's state and says a change of it once.
func (m *Monitor) setDriver(d Driver) {
	previous := m.Driver()
	if previous.State == d.State && errorText(previous.Err) == errorText(d.Err) {
		return
	}
	m.driver.Store(&d)
	switch {
	case d.State == DriverReleased:
		m.log.Info("driver is released")
	case d.State == DriverReplaced:
		m.log.Warn("driver was replaced", "err", d.Err)
	case d.State != DriverUp:
		m.log.Warn(m.noDriverMessage(), "err", d.Err)
	case d.Err != nil:
		m.log.Warn("some devices cannot be listed", "err", d.Err)
	default:
		m.log.Info("driver is up")
	}
}

// noDriverMessage says what it means that nothing can be listed.
func (m *Monitor) noDriverMessage() string {
	if m.listedOnce {
		return "no devices from the driver; those that are known stay until it lists again"
	}
	return "no devices from the driver; will take them when it answers"
}
