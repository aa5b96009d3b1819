package app

import (
	"context"
	"log/slog"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/spf13/pflag"
)

// Platform is the hardware of the process: NVIDIA's driver, or a simulated machine. Each binary has one.
type Platform interface {
	// Simulated reports whether the devices are simulated.
	Simulated() bool
	// AddFlags declares the flags of this platform.
	AddFlags(f *pflag.FlagSet)
	// CheckFlags returns the first error in the values of these flags. doctor needs a node to examine.
	CheckFlags(forDoctor bool) error
	// Open returns the devices and, if simulated, the node of the devices; nil: this machine.
	Open(o OpenOptions) (device.Backend, SimulatedNode, error)
	// Driver returns the driver for doctor; nil: no driver. Roots are searched in order.
	Driver(roots []string) doctor.DriverProbe
	// ClaimedDevice returns the device of a DRA claim, by the device names of the platform's DRA driver.
	ClaimedDevice(c device.Claim, statuses []device.Status) (device.ID, bool)
}

// OpenOptions is the configuration of a platform.
type OpenOptions struct {
	DriverRoots []string // folders to search for the driver's library, in order
	PerLink     bool     // whether each NVLink is read
	Log         *slog.Logger
}

// SimulatedNode is a simulated node with a kubelet.
type SimulatedNode interface {
	// Dir returns the kubelet's root folder.
	Dir() string
	// DevicePluginDir returns the folder of the device-plugin sockets.
	DevicePluginDir() string
	// Processes returns the processes of the node's pods.
	Processes() exporter.ProcessResolver
	// Run runs the node until ctx is done.
	Run(ctx context.Context) error
	// Close removes the node's files. Run must have returned.
	Close()
}

// libraryBackend is a Backend with a driver library.
type libraryBackend interface {
	// MissingFamilies returns the metric families missing in an old library.
	MissingFamilies() []string
	// XidEventAt returns the event of an Xid in the kernel log, for the GPU at a PCI address and its GPU instance and compute
	// instance; false: no such GPU is known.
	XidEventAt(pci string, xid uint64, gi, ci uint32) (device.Event, bool)
	// Close unloads the library. No other call may be in progress.
	Close()
}
