package app

import (
	"context"
	"io"
	"io/fs"
	"log/slog"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/sxid"
	"github.com/spf13/pflag"
)

// Platform is the hardware of the process: NVIDIA's driver, or a simulated
// machine. Each binary has one.
type Platform interface {
	// AddFlags declares the flags of this platform.
	AddFlags(f *pflag.FlagSet)
	// Open returns the devices and, if simulated, the node.
	Open(o OpenOptions) (*Hardware, error)
}

// OpenOptions is the configuration of a platform.
type OpenOptions struct {
	DriverRoots []string                  // folders to search for the driver's library, in order
	PerLink     bool                      // whether each NVLink is read
	Reads       func(*device.Metric) bool // rows to read
	// CheckFabricManager is as in nvml.Options.
	CheckFabricManager bool
	Log                *slog.Logger
}

// Hardware is the devices of a node and, if simulated, the node.
type Hardware struct {
	device.Backend
	Library   DriverLibrary // of the driver; nil: none
	Simulated bool
	// Capture writes the answers of the driver; nil: there is no driver.
	Capture func(ctx context.Context, version string, w io.Writer) error
	// ClaimedDevice returns the device of a DRA claim, by the device names of the
	// DRA driver.
	ClaimedDevice func(c allocation.Claim, statuses []device.Status) (device.ID, bool)

	// All below are of a simulated node; zero: of this machine.
	Node                        SimulatedNode
	KubeletDir, DevicePluginDir string
	CDIDir                      string // of CDI specs
	ProcDir                     string // of processes
	Sysfs                       fs.FS
	ProcessResolver             exporter.ProcessResolver
	SwitchErrors                *sxid.Log // of NVSwitches
}

// SimulatedNode is the task of a simulation: a node with a kubelet, or the
// control of a machine.
type SimulatedNode interface {
	// Run runs the task until ctx is done.
	Run(ctx context.Context) error
	// Close removes the files. Run must have returned.
	Close()
}

// DriverLibrary is the library of a driver.
type DriverLibrary interface {
	// Library describes the library.
	Library() device.Library
	// XidEventAt returns the event of an Xid in the kernel log, for the GPU at
	// a PCI address and its GPU instance and compute instance; false: no such
	// GPU is known.
	XidEventAt(pci string, xid uint64, gi, ci uint32) (device.Event, bool)
	// Close unloads the library. No other call may be in progress.
	Close()
}

// close removes the files of a simulated node.
func (m *Hardware) close() {
	if m.Node != nil {
		m.Node.Close()
	}
}

// shutdownTimeout limits the end of the process. A longer call hangs in the
// driver: a wait for events takes two seconds.
const shutdownTimeout = 3 * time.Second

// shutdown unloads the driver's library, unless a call hangs in it. A hanging
// call ends with the process.
func (m *Hardware) shutdown(readers *health.Readers, monitor *health.Monitor) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	readers.SetPaused(true) // an interrupted scrape may have begun a collection
	if !readers.Drain(ctx) || !monitor.Drain(ctx) || m.Library == nil {
		return
	}
	retry.WithTimeout(ctx, shutdownTimeout, func(context.Context) (none struct{}) {
		m.Library.Close()
		return none
	})
}
