package device

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

// Library describes the driver's library.
type Library struct {
	Path    string // of the loaded file; empty: no usable library
	Version string // of the driver; empty: not initialized
	// MissingFunctions are absent in all their versions.
	MissingFunctions []string
	MissingFamilies  []string // of metrics, with a row beyond the library's functions
	NotReady         bool     // confidential computing is on, and the GPUs do not accept work yet
}
