// Package nvml is everything this program knows about NVIDIA.
//
// It answers for NVIDIA's GPUs through libnvidia-ml.so.1, which go-nvml opens
// while the program runs: so the driver may be absent, appear later, be old, lack
// functions, hang, or fail for one GPU alone. metrics_*.go have a row for each thing
// that is read, calls.go one for each that is asked for by a call of its own, health.go
// one for each that is judged, xids.go and kinds.go one for each report of the driver's,
// symbols.go one for each function that is called; and flight.go says what is asked for
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
	_ device.Backend = (*Backend)(nil)
	_ device.Closer  = (*Backend)(nil)
	_ device.Idler   = (*Backend)(nil)
	_ device.Linker  = (*Backend)(nil)
	_ device.Peopled = (*Backend)(nil)
)

// Backend is NVIDIA's device.Backend. Calls for different GPUs, one Devices or Links
// and one Wait may run at the same time. While the library is not initialised, Read,
// Check and Wait fail at once, also when its initialisation hangs.
type Backend struct {
	options   Options
	metrics   []device.Metric
	catalogue *catalogue

	// table is the newest listing, with the driver that it came from; nil while
	// there is none. Written by Devices and Close; a table itself is never written.
	table atomic.Pointer[table]
	// left is the last listing before Close, for XidAt; it is only told from, and nobody is
	// asked by its handles.
	left atomic.Pointer[table]
	// missing is what Missing returns; written by Devices.
	missing atomic.Pointer[[]string]
	// about is what About returns; written by Devices.
	about atomic.Pointer[About]

	mu sync.Mutex
	// All below are guarded by mu, which Devices holds for as long as it runs.
	lib       nvml.Interface // nil until a library was found that can be used
	file      file           // that the library was loaded from
	driver    *driver        // nil while the library is not initialised
	worked    bool           // it was initialised once
	restarted bool           // the driver ended what an earlier Init had begun
	histories map[device.GPU]*history
	questions map[int]*question // that have not been answered in time, by index

	asking *asking
	// answered has one when a listing has an answer to look at.
	answered chan struct{}

	// gone are GPUs that are no longer listed and have samples of the library.
	gone []*gpu

	// waiting guards events. Wait holds it for as long as it runs.
	waiting sync.Mutex
	events  events
}

// driver is the library after one Init. It is never written.
type driver struct {
	lib nvml.Interface
	has symbols
	// asking is the Backend's.
	asking *asking
	// can tells which of calls can be made, and direct has what go-nvml is too costly for.
	can       [len(calls)]bool
	direct    direct
	catalogue *catalogue
	// renumbered says that the fields of isClockReason mean something else.
	renumbered bool
	// facts are the labels that all GPUs share.
	facts []device.Label
	// instances says that events name the instances of the slice that they are about.
	// Where go-nvml has only the older function to wait with, it gives zeros instead,
	// which are the numbers of instances that may exist.
	instances bool
}

// table is one listing.
type table struct {
	*driver
	gpus     []*gpu
	byID     map[device.GPU]*gpu
	byHandle map[nvml.Device]*gpu
	byIndex  map[int]*gpu
	slices   map[*gpu][]*slice
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
	read := rows
	if o.PerLink {
		read = slices.Concat(rows, eachLinkRows())
	}
	return &Backend{
		options: o, metrics: metricsOf(read), catalogue: newCatalogue(read), histories: map[device.GPU]*history{},
		questions: map[int]*question{}, asking: &asking{}, answered: make(chan struct{}, 1),
	}
}

// Metrics are the rows that Read fills. No driver is needed to know them.
func (b *Backend) Metrics() []device.Metric { return b.metrics }

// Missing names the metric families of which something is absent because the
// driver's library lacks a function. It is nil until one was initialised.
func (b *Backend) Missing() []string {
	if missing := b.missing.Load(); missing != nil {
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
	b.waiting.Lock()
	defer b.waiting.Unlock()
	t := b.table.Swap(nil)
	b.left.Store(t)
	b.asking.calls.Wait()
	if b.driver == nil { // without an Init, Shutdown may be a symbol of no library
		return
	}
	if t != nil {
		b.gone = append(b.gone, t.gpus...)
	}
	for _, g := range b.gone {
		g.free(b.driver)
	}
	b.gone = nil
	if b.events.driver == b.driver { // else the set went with an earlier Init
		b.events.free()
	}
	b.driver = nil
	_ = b.lib.Shutdown() // what it answers changes nothing for us
}

// Idle tells whether no question was left behind that still waits for its answer.
func (b *Backend) Idle() bool { return b.asking.open.Load() == 0 }

// gpu finds a GPU in the newest listing.
func (b *Backend) gpu(id device.GPU) (*table, *gpu, error) {
	t := b.table.Load()
	if t == nil {
		return nil, nil, device.ErrNoDriver
	}
	g := t.byID[id]
	if g == nil {
		return nil, nil, fmt.Errorf("%s is not listed", id)
	}
	return t, g, nil
}
