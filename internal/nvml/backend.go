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
	"sync"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
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
	_ device.ProcessLister      = (*Backend)(nil)
)

// Backend is NVIDIA's device.Backend. Calls for different GPUs, one Devices or Links
// and one Wait may run at the same time. While the library is not initialised, Read,
// Check and Wait fail at once, also when its initialisation hangs.
type Backend struct {
	options Options
	metrics []device.Metric
	plan    *metric.ReadPlan

	// Inventory is the newest listing, with the driver that it came from; nil while
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
	lib             nvml.Interface       // nil until a library was found that can be used
	libraryFile     lib.LibraryFile      // that the library was loaded from
	session         *nvmlSession         // nil while the library is not initialised
	initialized     bool                 // it was initialised once
	driverRestarted bool                 // the driver ended what an earlier Init had begun
	probes          map[int]*deviceProbe // that have not been answered in time, by index

	histories    collect.Histories
	pendingCalls *lib.PendingCalls
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
	*lib.Session
	// pendingCalls is the Backend's.
	pendingCalls *lib.PendingCalls
	// commonLabels are the labels that all GPUs share.
	commonLabels []device.Label
	// eventsNameInstances says that events name the instances of the slice that they are about.
	// Where go-nvml has only the older function to wait with, it gives zeros instead,
	// which are the numbers of instances that may exist.
	eventsNameInstances bool
}

// gpu is a GPU as long as it is listed.
type gpu struct {
	*collect.GPUReader
	device device.Device // its Index and Nodes are those of no listing: see asDevice
	// layout is how the GPU is partitioned, as the newest listing that could tell found;
	// never nil, and written by Devices.
	layout atomic.Pointer[migLayout]
}

// inventory is one listing.
type inventory struct {
	*nvmlSession
	gpus     []*gpu
	byID     map[device.GPU]*gpu
	byHandle map[nvml.Device]*gpu
	byIndex  map[int]*gpu
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
	plan := metric.NewReadPlan(o.PerLink)
	return &Backend{
		options: o, metrics: plan.Metrics(), plan: plan,
		probes: map[int]*deviceProbe{}, pendingCalls: &lib.PendingCalls{}, probeDone: make(chan struct{}, 1),
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
	b.pendingCalls.Wait()
	if b.session == nil { // without an Init, Shutdown may be a symbol of no library
		return
	}
	if inv != nil {
		b.delisted = append(b.delisted, inv.gpus...)
	}
	for _, g := range b.delisted {
		g.FreeSamples(b.session.Session)
	}
	b.delisted = nil
	if b.eventSet.session == b.session { // else the set went with an earlier Init
		b.eventSet.free()
	}
	b.session = nil
	_ = b.lib.Shutdown() // what it answers changes nothing for us
}

// Idle reports whether no call to the driver runs in the background.
func (b *Backend) Idle() bool { return b.pendingCalls.Idle() }

// findGPU finds a GPU in the newest listing.
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

// Read returns the values of a GPU.
func (b *Backend) Read(id device.GPU, buf []device.Sample) ([]device.Sample, error) {
	g, err := b.findGPU(id)
	if err != nil {
		return buf, err
	}
	return g.Read(buf)
}

// Check returns an error if a GPU is not healthy.
func (b *Backend) Check(id device.GPU) (device.ResetEvidence, error) {
	g, err := b.findGPU(id)
	if err != nil {
		return device.ResetEvidence{}, err
	}
	return g.Check()
}

// ReadProcessUsage lists the processes of a GPU and what each uses.
func (b *Backend) ReadProcessUsage(id device.GPU, buf []device.ProcessUsage) (uses []device.ProcessUsage, known bool) {
	g, err := b.findGPU(id)
	if err != nil {
		return buf, false
	}
	return g.ReadProcessUsage(buf)
}

// Processes lists the processes that have a context on a device.
func (b *Backend) Processes(d device.Device) ([]uint32, error) {
	g, err := b.findGPU(d.GPU)
	if err != nil {
		return nil, err
	}
	return g.ProcessIDs(d)
}
