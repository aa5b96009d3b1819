// Package nvml is the backend for NVIDIA's GPUs: enumeration, MIG devices,
// events and links.
//
// go-nvml opens libnvidia-ml.so.1 at run time, so the driver may be absent,
// appear later, be old, lack functions, hang, or fail for a single GPU. Package
// lib knows the library, package metric the rows, package collect the readings
// and checks, package xid the reports.
package nvml

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/xid"
)

// Options are the folders of the driver. The zero Options fit a driver beside
// this program.
type Options struct {
	// DriverRoots are folders with an installed driver, in search order. The
	// dynamic linker's folders come last.
	DriverRoots []string
	// DevRoot is the parent of dev with the device nodes. Default: /.
	DevRoot string
	// SysRoot is the mount point of sysfs. Default: /sys.
	SysRoot string
	// ProcRoot is the mount point of procfs, with the device nodes of MIG
	// devices. Default: /proc.
	ProcRoot string
	// PerLink adds the rows of each NVLink: metric.MetricsPerLink.
	PerLink bool
	// Reads selects the rows to read. Default: all.
	Reads func(*device.Metric) bool
	// CheckFabricManager marks GPUs before Hopper unhealthy as long as the
	// Fabric Manager has not trained their NVLinks. Unproven on hardware.
	CheckFabricManager bool
	// Library replaces the driver's library. Default: that below DriverRoots.
	Library nvml.Interface
}

var _ device.Backend = (*Backend)(nil)

// Backend is NVIDIA's device.Backend. Calls about GPUs, one Devices or Links
// and one Wait may run at the same time. Without an initialized library Read,
// Check and Wait fail at once, even while the initialization hangs.
type Backend struct {
	options Options
	metrics []device.Metric
	plan    *metric.ReadPlan

	// inventory is the newest listing, nil before the first. Written by Devices
	// and Close.
	inventory atomic.Pointer[inventory]
	// lastInventory is the last listing before Close, for XidEventAt. The
	// handles are invalid.
	lastInventory atomic.Pointer[inventory]
	library       atomic.Pointer[device.Library] // never nil; written by Devices
	histories     collect.Histories
	fabric        struct {
		once  sync.Once
		found bool
	}
	pendingCalls *lib.PendingCalls
	probedAt     atomic.Pointer[time.Time] // begin of the newest listing, or the newest end of a probe

	mu sync.Mutex
	// The fields below are guarded by mu, held by Devices.
	lib             nvml.Interface  // nil: not found yet
	libraryFile     lib.LibraryFile // loaded
	session         *nvmlSession    // nil: not initialized
	initialized     bool            // at least once
	driverRestarted bool            // the driver has ended an earlier Init
	probes          map[int]*deviceProbe

	// eventsMu guards the fields below, and is held by Wait.
	eventsMu sync.Mutex
	eventSet eventSet
}

// eventSet is an event set with its GPUs. The zero value has no set.
type eventSet struct {
	session    *nvmlSession // of the set
	set        nvml.EventSet
	registered map[*gpu]bool
}

// New returns a Backend. The first Devices loads the library.
func New(o Options) *Backend {
	o.DevRoot, o.SysRoot, o.ProcRoot = cmp.Or(o.DevRoot, "/"), cmp.Or(o.SysRoot, "/sys"), cmp.Or(o.ProcRoot, "/proc")
	plan := metric.NewReadPlan(o.PerLink, o.Reads)
	b := &Backend{
		options: o, metrics: plan.Metrics(), plan: plan, lib: o.Library,
		probes: map[int]*deviceProbe{}, pendingCalls: &lib.PendingCalls{},
	}
	b.library.Store(&device.Library{})
	return b
}

// Metrics returns the rows of Read, without a driver too.
func (b *Backend) Metrics() []device.Metric { return b.metrics }

// Library returns the library's description, even while its initialization
// hangs.
func (b *Backend) Library() device.Library { return *b.library.Load() }

// Idle reports whether no call of a listing is pending.
func (b *Backend) Idle() bool { return b.pendingCalls.Idle() }

func (b *Backend) findGPU(id device.GPU) (*gpu, error) {
	inv := b.inventory.Load()
	if inv == nil {
		return nil, device.ErrNoDriver
	}
	g := inv.byID[id]
	if g == nil {
		return nil, fmt.Errorf("%s is not listed", id)
	}
	return g, nil
}

// Read returns the values of a GPU and of its MIG devices.
func (b *Backend) Read(id device.GPU) ([]device.Sample, error) {
	g, err := b.findGPU(id)
	if err != nil {
		return nil, err
	}
	return g.Read()
}

// Check returns an error for an unhealthy GPU.
func (b *Backend) Check(id device.GPU) (device.ResetEvidence, error) {
	g, err := b.findGPU(id)
	if err != nil {
		return device.ResetEvidence{}, err
	}
	evidence, err := g.Check()
	switch {
	case err != nil:
	case b.library.Load().NotReady:
		err = &device.Fault{Reason: "confidential_computing", External: true}
	case g.MIG.Load().Unknown: // a partitioned GPU must not be offered as a whole
		err = &device.Fault{Reason: "mig_mode_unknown", Action: xid.ActionInspect}
	}
	return evidence, err
}

// ReadProcessUsage returns the processes of a GPU with their usage.
func (b *Backend) ReadProcessUsage(id device.GPU) (uses []device.ProcessUsage, known bool) {
	g, err := b.findGPU(id)
	if err != nil {
		return nil, false
	}
	return g.ReadProcessUsage()
}

// Processes returns the processes with a context on a device.
func (b *Backend) Processes(d device.Device) ([]uint32, error) {
	g, err := b.findGPU(d.GPU)
	if err != nil {
		return nil, err
	}
	return g.ProcessIDs(d)
}
