// Package nvml is everything this program knows about NVIDIA.
//
// It answers for NVIDIA's GPUs through libnvidia-ml.so.1, which go-nvml opens
// while the program runs: so the driver may be absent, appear later, be old, lack
// functions, hang, or fail for one GPU alone. metrics_*.go have a row for each thing
// that is read, calls.go one for each that is asked for by a call of its own, health.go
// one for each that is judged, xids.go and event_types.go one for each report of the driver's,
// symbols.go one for each function that is called; and collection.go says what is asked for
// when.
package nvml

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// Options say where things are. The zero Options fit a driver that is installed
// beside this program.
type Options struct {
	// DriverRoots are folders under which the driver may be installed. They are
	// searched in this order, and before the places that the dynamic linker knows.
	DriverRoots []string
	// DevRoot is where the device nodes are looked for: <DevRoot>/dev/nvidiactl.
	// They are listed without it. Default: /.
	DevRoot string
	// SysRoot is where sysfs is mounted. Default: /sys.
	SysRoot string
	// ProcRoot is where procfs is mounted, in which the driver says which device
	// nodes open a MIG slice. Default: /proc.
	ProcRoot string
	// PerLink has Read give what is known of each single NVLink as well: the rows are
	// those of MetricsPerLink.
	PerLink bool
}

var (
	_ device.Backend            = (*Backend)(nil)
	_ device.Closer             = (*Backend)(nil)
	_ device.LinkReader         = (*Backend)(nil)
	_ device.ProcessUsageReader = (*Backend)(nil)
)

// Backend is NVIDIA's device.Backend. Calls for different GPUs, one Devices or Links
// and one Wait may run at the same time. While the library is not initialised, Read,
// Check and Wait fail at once, also when its initialisation hangs.
type Backend struct {
	options Options
	metrics []device.Metric
	plan    *readPlan

	// inventory is the newest listing, with the driver that it came from; nil while
	// there is none. Written by Devices and Close; a table itself is never written.
	inventory atomic.Pointer[inventory]
	// lastInventory is the last listing before Close, for XidAt; it is only told from, and nobody is
	// asked by its handles.
	lastInventory atomic.Pointer[inventory]
	// missingFamilies is what Missing returns; written by Devices.
	missingFamilies atomic.Pointer[[]string]
	// libraryInfo is what About returns; written by Devices.
	libraryInfo atomic.Pointer[LibraryInfo]

	mu sync.Mutex
	// All below are guarded by mu, which Devices holds for as long as it runs.
	lib             nvml.Interface // nil until a library was found that can be used
	libraryFile     libraryFile    // that the library was loaded from
	session         *nvmlSession   // nil while the library is not initialised
	initialized     bool           // it was initialised once
	driverRestarted bool           // the driver ended what an earlier Init had begun
	histories       map[device.GPU]*gpuHistory
	probes          map[int]*deviceProbe // that have not been answered in time, by index

	pendingCalls *pendingCalls
	// probeDone has one when a listing has an answer to look at.
	probeDone chan struct{}

	// delisted are GPUs that are no longer listed and have samples of the library.
	delisted []*gpu

	// eventsMu guards events. Wait holds it for as long as it runs.
	eventsMu sync.Mutex
	eventSet eventSet
}

// nvmlSession is the library after one Init. It is never written.
type nvmlSession struct {
	lib     nvml.Interface
	symbols symbols
	// pendingCalls is the Backend's.
	pendingCalls *pendingCalls
	// callable tells which of calls can be made, and direct has what go-nvml is too costly for.
	callable [len(calls)]bool
	raw      rawSymbols
	plan     *readPlan
	// renumberedFields says that the fields of isClockReason mean something else.
	renumberedFields bool
	// commonLabels are the labels that all GPUs share.
	commonLabels []device.Label
	// eventsNameInstances says that events name the instances of the slice that they are about.
	// Where go-nvml has only the older function to wait with, it gives zeros instead,
	// which are the numbers of instances that may exist.
	eventsNameInstances bool
}

// inventory is one listing.
type inventory struct {
	*nvmlSession
	gpus       []*gpu
	byID       map[device.GPU]*gpu
	byHandle   map[nvml.Device]*gpu
	byIndex    map[int]*gpu
	migDevices map[*gpu][]*listedMIGDevice
}

// New asks nothing of the driver: the first Devices does.
func New(o Options) *Backend {
	if o.DevRoot == "" {
		o.DevRoot = "/"
	}
	if o.SysRoot == "" {
		o.SysRoot = "/sys"
	}
	if o.ProcRoot == "" {
		o.ProcRoot = "/proc"
	}
	readRows := rows
	if o.PerLink {
		readRows = slices.Concat(rows, perLinkRows())
	}
	return &Backend{
		options: o, metrics: metricsOf(readRows), plan: newReadPlan(readRows), histories: map[device.GPU]*gpuHistory{},
		probes: map[int]*deviceProbe{}, pendingCalls: &pendingCalls{}, probeDone: make(chan struct{}, 1),
	}
}

// Metrics are the rows that Read fills. No driver is needed to know them.
func (b *Backend) Metrics() []device.Metric { return b.metrics }

// MissingFamilies names the metric families of which something is absent because the
// driver's library lacks a function. It is nil until one was initialised.
func (b *Backend) MissingFamilies() []string {
	if missing := b.missingFamilies.Load(); missing != nil {
		return *missing
	}
	return nil
}

// Close gives the driver up. No call may be under way, and none that hangs may
// ever return: NVML does not survive being shut down beneath a call. For questions that
// were left behind it waits, for as long as they hang. A Devices that comes
// later starts it again.
func (b *Backend) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.eventsMu.Lock()
	defer b.eventsMu.Unlock()
	inv := b.inventory.Swap(nil)
	b.lastInventory.Store(inv)
	b.pendingCalls.wg.Wait()
	if b.session == nil { // without an Init, Shutdown may be a symbol of no library
		return
	}
	if inv != nil {
		b.delisted = append(b.delisted, inv.gpus...)
	}
	for _, g := range b.delisted {
		g.freeSamples(b.session)
	}
	b.delisted = nil
	if b.eventSet.session == b.session { // else the set went with an earlier Init
		b.eventSet.free()
	}
	b.session = nil
	_ = b.lib.Shutdown() // what it answers changes nothing for us
}

// Idle reports whether no call to the driver runs in the background.
func (b *Backend) Idle() bool { return b.pendingCalls.count.Load() == 0 }

// findGPU finds a GPU in the newest listing.
func (b *Backend) findGPU(id device.GPU) (*inventory, *gpu, error) {
	inv := b.inventory.Load()
	if inv == nil {
		return nil, nil, device.ErrNoDriver
	}
	g := inv.byID[id]
	if g == nil {
		return nil, nil, fmt.Errorf("%s is not listed", id)
	}
	return inv, g, nil
}
