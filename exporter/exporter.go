// Package exporter renders readings, health and holders over HTTP.
//
// A scrape is answered from one flight: every GPU is read and the kubelet is
// asked who holds what, at the same time and within a fixed budget, and the two
// are joined on device.ID. Concurrent scrapes share a flight. What is rendered
// stays in memory from flight to flight, so that only values are written anew.
package exporter

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/status"
)

const (
	// budget is how long a flight may take. What is late is left out.
	budget = time.Second
	// sharedFor is how long after its begin a flight's result may be given to another
	// scrape, if no allocation, no device's health and no inventory has changed.
	sharedFor = time.Second
)

// mostFree is how many pages are kept for flights to come. More are in use where scrapes
// come faster than they are answered, and they weigh megabytes.
const mostFree = 1

// Sources are whom the exporter asks.
type Sources struct {
	// Metrics are the rows that Read fills.
	Metrics []device.Metric
	// Look is the Board's: the devices and their health.
	Look func() ([]device.Status, <-chan struct{})
	// Read asks the GPUs, until ctx is done.
	Read func(ctx context.Context, gpus []device.GPU) []device.Reading
	// ReadOne reads one GPU, also while Read is under way.
	ReadOne func(ctx context.Context, gpu device.GPU) device.Reading
	// Stalled tells whether a GPU has stopped answering.
	Stalled func(device.GPU) bool
	// Owners asks who holds what, until ctx is done.
	Owners func(ctx context.Context) device.Holders
	// Held returns what is known of it without asking.
	Held func() (device.Holders, <-chan struct{})
	// Driver is the driver's state.
	Driver func() device.Driver

	// The rest may be nil, and then it is not shown.

	// Processes tell whose the processes are that a reading names.
	Processes Processes
	// Pod is what else is known of a pod.
	Pod func(namespace, pod string) device.PodMeta
	// Incidents are what is remembered of devices that went bad. As long as it is the
	// same, it comes in the same slices.
	Incidents func() incident.Known
	// Offers are what the kubelet is told of, for the page; none where another device plugin
	// tells it.
	Offers func() []status.Offer
	// PodsAPI says whether the kubelet's pods are followed, for the page.
	PodsAPI func() status.Feed
	// State says why health is not kept from one process to the next; nil: it is.
	State func() error
}

// Processes tell which containers processes run in. One goroutine at a time asks, a
// flight's.
type Processes interface {
	// Visible tells whether processes can be looked up at all.
	Visible() bool
	// Owner tells which of the containers that hold a device a process runs in, by its
	// number in a reading; false: in none of them, as far as can be seen.
	Owner(pid uint32, holders []device.Owner) (device.Owner, bool)
	// Sweep ends a flight: what was not asked about may be forgotten.
	Sweep()
}

// Options say how it is shown.
type Options struct {
	// Choice is of the families that are shown; the zero one takes all.
	Choice Choice
	// StableSeries has the series of devices carry no holder's labels, so that none ends
	// or begins with a pod, and their counters be the driver's own. Holders are then on
	// nvidia_gpu_allocation_info alone.
	StableSeries bool
	// PodUID puts the pod's UID on nvidia_gpu_allocation_info, where it is known.
	PodUID bool
	// SeriesLimit is how many series a scrape may have, this process's own apart; 0:
	// DefaultSeriesLimit.
	SeriesLimit int
	// DCGM adds dcgm-exporter's default families, with its names, units and labels.
	// Hostname is one of them.
	DCGM     bool
	Hostname string
}

// DefaultSeriesLimit is twice what a node of 16 GPUs has with everything on.
const DefaultSeriesLimit = 20000

// Exporter renders what its sources say.
type Exporter struct {
	Sources
	options Options
	// flights counts the goroutines that fly, or read for an Allocate; each ends within the budget.
	flights sync.WaitGroup
	encoder encoder
	sender  sender

	mu sync.Mutex
	// All below are guarded by mu.
	newest *flight
	free   []*page // pages that nobody reads, to be rendered on next

	// ledger is used by the flight that is under way, of which there is one at a time, and by
	// Mark.
	ledger *ledger
}

// flight is one snapshot in the making, or made.
type flight struct {
	begin    time.Time
	done     chan struct{} // closed when the page is rendered
	page     *page         // not written after done is closed, until nobody uses it
	users    int           // guarded by Exporter.mu
	statuses []device.Status
	// stale is closed when an allocation has changed since the flight began.
	stale <-chan struct{}
	// bodies are the answers to its scrapes. They are guarded by encoder.mu.
	bodies map[representation]*body
}

// New makes an exporter. It asks nobody before the first scrape.
func New(s Sources, o Options) *Exporter {
	if o.SeriesLimit == 0 {
		o.SeriesLimit = DefaultSeriesLimit
	}
	return &Exporter{Sources: s, options: o, ledger: newLedger(s.Metrics)}
}

// Mark has the counters of devices read now, of which the kubelet has just been told that they are
// allocated: what they counted before is not the new owner's. A collection that is under way goes
// on, however long it has to wait for the kubelet or another GPU. Mark does not wait.
func (e *Exporter) Mark(devices ...device.ID) {
	if e.options.StableSeries { // counters are the driver's own
		return
	}
	statuses, _ := e.Look()
	for _, gpu := range gpus(statuses) {
		var ids []device.ID
		for _, s := range statuses {
			if s.GPU == gpu && slices.Contains(devices, s.ID) {
				ids = append(ids, s.ID)
			}
		}
		if ids == nil {
			continue
		}
		e.ledger.await(ids)
		e.flights.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), budget)
			defer cancel()
			e.ledger.take(ids, e.ReadOne(ctx, gpu))
		})
	}
}

// Drain waits for the flight and the readings that are under way.
func (e *Exporter) Drain() { e.flights.Wait() }

// snapshot returns a flight that has landed, to be released after use, or nil
// when ctx is done first. The flight goes on for whoever else waits for it.
func (e *Exporter) snapshot(ctx context.Context) *flight {
	f := e.join(time.Now())
	select {
	case <-f.done:
		return f
	case <-ctx.Done():
		e.release(f)
		return nil
	}
}

// release gives a flight back.
func (e *Exporter) release(f *flight) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drop(f)
}

// drop counts a user of the flight out; the last one frees its page. The caller
// holds mu.
func (e *Exporter) drop(f *flight) {
	if f.users--; f.users == 0 && len(e.free) < mostFree {
		e.free = append(e.free, f.page)
	}
}

// join counts the caller in as a user of the flight that a scrape at this time is
// answered from, and starts it where there is none to share.
func (e *Exporter) join(now time.Time) *flight {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.newest; f != nil && e.serves(f, now) {
		f.users++
		return f
	}
	return e.start(now)
}

// start begins a flight, with the caller as a user of it. None may be under way.
// The caller holds mu.
func (e *Exporter) start(now time.Time) *flight {
	if e.newest != nil {
		e.drop(e.newest)
	}
	statuses, _ := e.Look()
	_, stale := e.Held()
	f := &flight{
		begin: now, done: make(chan struct{}), statuses: statuses, stale: stale,
		page: e.blank(), users: 2, // the caller, and the exporter until there is a newer one
	}
	e.newest = f
	e.ledger.begin()
	e.flights.Go(func() { e.fly(f) })
	return f
}

// landed tells whether the flight's page is made.
func (f *flight) landed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// serves reports whether the flight's result is good for a scrape at this time. Counts of reports
// alone, of which a storm has hundreds a second, may be as old as readings are.
func (e *Exporter) serves(f *flight, now time.Time) bool {
	if !f.landed() {
		return true
	}
	select {
	case <-f.stale:
		return false
	default:
	}
	statuses, _ := e.Look()
	if !same(f.statuses, statuses) && !slices.EqualFunc(f.statuses, statuses, device.Status.EqualButXids) {
		return false
	}
	return now.Sub(f.begin) < sharedFor
}

// blank takes a page to render on. Two are in use as long as no reader is slower
// than the scrapes come. The caller holds mu.
func (e *Exporter) blank() *page {
	if n := len(e.free); n > 0 {
		p := e.free[n-1]
		e.free = e.free[:n-1]
		return p
	}
	return newPage(&e.Sources, &e.options)
}

// fly makes the flight's page. Flights do not overlap, so the readings' buffers are its own.
func (e *Exporter) fly(f *flight) {
	defer close(f.done)
	ctx, cancel := context.WithDeadline(context.Background(), f.begin.Add(budget))
	defer cancel()
	var holders device.Holders
	var asked sync.WaitGroup
	asked.Go(func() { holders = e.Owners(ctx) })
	readings := e.Read(ctx, gpus(f.statuses))
	asked.Wait()
	s := snapshot{
		begin: f.begin, end: time.Now(), statuses: f.statuses, readings: readings,
		holders: holders, driver: e.Driver(), stalled: e.Stalled,
		visible: e.Processes != nil && e.Processes.Visible(),
	}
	if e.Incidents != nil {
		s.incidents = e.Incidents()
	}
	f.page.render(s, e.ledger)
	if e.Processes != nil {
		e.Processes.Sweep()
	}
}

// gpus are the physical GPUs of the devices, each once, in the devices' order.
func gpus(statuses []device.Status) []device.GPU {
	list := make([]device.GPU, 0, len(statuses))
	for _, s := range statuses {
		if n := len(list); n == 0 || list[n-1] != s.GPU { // a GPU's slices lie side by side
			list = append(list, s.GPU)
		}
	}
	return list
}
