package app

import (
	"context"
	"log/slog"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/spf13/pflag"
)

// Platform is the hardware below the process: NVIDIA's driver, or a simulated machine. Each binary has one.
type Platform interface {
	// Simulated reports whether the devices are simulated.
	Simulated() bool
	// AddFlags declares the flags that only this platform has.
	AddFlags(f *pflag.FlagSet)
	// CheckFlags returns the first error in their values. For doctor, there must be a node to examine.
	CheckFlags(forDoctor bool) error
	// Open returns the devices, and the simulated node that they are on; nil: they are on this machine.
	Open(o OpenOptions) (device.Backend, SimulatedNode, error)
	// Driver returns the driver for doctor to examine; nil: there is none. Roots are searched in order.
	Driver(roots []string) doctor.DriverProbe
	// ClaimedDevice returns the device that a DRA claim allocates, by the device names of the platform's DRA driver.
	ClaimedDevice(c device.Claim, statuses []device.Status) (device.ID, bool)
}

// OpenOptions is what a platform needs to know of the configuration.
type OpenOptions struct {
	DriverRoots []string // folders that may have the driver's library, in order
	PerLink     bool     // whether each NVLink is read
	Log         *slog.Logger
}

// SimulatedNode is a simulated node with a kubelet.
type SimulatedNode interface {
	// Dir returns the kubelet's root folder.
	Dir() string
	// DevicePluginDir returns the folder of the device-plugin sockets.
	DevicePluginDir() string
	// Processes are those of the node's pods.
	Processes() exporter.ProcessResolver
	// Run runs the node until ctx is done.
	Run(ctx context.Context) error
	// Close removes the node's files. Run must have returned.
	Close()
}

// libraryBackend is a Backend that loads a library.
type libraryBackend interface {
	// MissingFamilies returns the metric families that the library is too old for.
	MissingFamilies() []string
	// XidEventAt returns the event of an Xid that the kernel's log has for the GPU at a PCI address, and for its GPU instance
	// and compute instance; false: no such GPU is known.
	XidEventAt(pci string, xid uint64, gi, ci uint32) (device.Event, bool)
	// Close unloads the library. No other call may be in progress.
	Close()
}
