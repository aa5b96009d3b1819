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
)

const (
	// collectionTimeout is how long a flight may take. What is late is left out.
	collectionTimeout = time.Second
	// maxCollectionAge is how long after its begin a flight's result may be given to another
	// scrape, if no allocation, no device's health and no inventory has changed.
	maxCollectionAge = time.Second
)

// maxFreePages is how many pages are kept for flights to come. More are in use where scrapes
// come faster than they are answered, and they weigh megabytes.
const maxFreePages = 1

// Options say how it is shown.
type Options struct {
	// Filter is of the families that are shown; the zero one takes all.
	Filter FamilyFilter
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
	sources Sources
	options Options
	// collections counts the goroutines that fly, or read for an Allocate; each ends within the budget.
	collections sync.WaitGroup
	encoder     bodyEncoder
	sender      sender

	mu sync.Mutex
	// All below are guarded by mu.
	newest    *scrapeCollection
	freePages []*renderedMetrics // pages that nobody reads, to be rendered on next

	// attribution is used by the flight that is under way, of which there is one at a time, and by
	// Mark.
	attribution *attribution
}

// scrapeCollection is one snapshot in the making, or made.
type scrapeCollection struct {
	begin    time.Time
	done     chan struct{}    // closed when the page is rendered
	rendered *renderedMetrics // not written after done is closed, until nobody uses it
	users    int              // guarded by Exporter.mu
	statuses []device.Status
	// stale is closed when an allocation has changed since the flight began.
	stale <-chan struct{}
	// bodies are the answers to its scrapes. They are guarded by bodyEncoder.mu.
	bodies map[representation]*scrapeBody
}

// New makes an exporter. It asks nobody before the first scrape.
func New(s Sources, o Options) *Exporter {
	if o.SeriesLimit == 0 {
		o.SeriesLimit = DefaultSeriesLimit
	}
	return &Exporter{sources: s, options: o, attribution: newAttribution(s.Metrics)}
}

// ReadAllocated has the counters of devices read now, of which the kubelet has just been told that they are
// allocated: what they counted before is not the new owner's. A collection that is under way goes
// on, however long it has to wait for the kubelet or another GPU. Mark does not wait.
func (e *Exporter) ReadAllocated(devices ...device.ID) {
	if e.options.StableSeries { // counters are the driver's own
		return
	}
	statuses, _ := e.sources.Node.Statuses()
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
		e.attribution.expectAllocateReading(ids)
		e.collections.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), collectionTimeout)
			defer cancel()
			e.attribution.addAllocateReading(ids, e.sources.Readers.ReadOne(ctx, gpu))
		})
	}
}

// Drain waits for the flight and the readings that are under way.
func (e *Exporter) Drain() { e.collections.Wait() }

// waitForCollection returns a flight that has landed, to be released after use, or nil
// when ctx is done first. The flight goes on for whoever else waits for it.
func (e *Exporter) waitForCollection(ctx context.Context) *scrapeCollection {
	c := e.acquire(time.Now())
	select {
	case <-c.done:
		return c
	case <-ctx.Done():
		e.release(c)
		return nil
	}
}

// release gives a flight back.
func (e *Exporter) release(c *scrapeCollection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.releaseLocked(c)
}

// releaseLocked counts a user of the flight out; the last one frees its page. The caller
// holds mu.
func (e *Exporter) releaseLocked(c *scrapeCollection) {
	if c.users--; c.users == 0 && len(e.freePages) < maxFreePages {
		e.freePages = append(e.freePages, c.rendered)
	}
}

// acquire counts the caller in as a user of the flight that a scrape at this time is
// answered from, and starts it where there is none to share.
func (e *Exporter) acquire(now time.Time) *scrapeCollection {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.newest; c != nil && e.isReusable(c, now) {
		c.users++
		return c
	}
	return e.startCollection(now)
}

// startCollection begins a flight, with the caller as a user of it. None may be under way.
// The caller holds mu.
func (e *Exporter) startCollection(now time.Time) *scrapeCollection {
	if e.newest != nil {
		e.releaseLocked(e.newest)
	}
	statuses, _ := e.sources.Node.Statuses()
	_, stale := e.sources.Node.Allocations()
	c := &scrapeCollection{
		begin: now, done: make(chan struct{}), statuses: statuses, stale: stale,
		rendered: e.takePage(), users: 2, // the caller, and the exporter until there is a newer one
	}
	e.newest = c
	e.attribution.beginCollection()
	e.collections.Go(func() { e.collect(c) })
	return c
}

// isFinished tells whether the flight's page is made.
func (c *scrapeCollection) isFinished() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// isReusable reports whether the flight's result is good for a scrape at this time. Counts of reports
// alone, of which a storm has hundreds a second, may be as old as readings are.
func (e *Exporter) isReusable(c *scrapeCollection, now time.Time) bool {
	if !c.isFinished() {
		return true
	}
	select {
	case <-c.stale:
		return false
	default:
	}
	statuses, _ := e.sources.Node.Statuses()
	if !sameSlice(c.statuses, statuses) && !slices.EqualFunc(c.statuses, statuses, device.Status.EqualExceptXids) {
		return false
	}
	return now.Sub(c.begin) < maxCollectionAge
}

// takePage takes a page to render on. Two are in use as long as no reader is slower
// than the scrapes come. The caller holds mu.
func (e *Exporter) takePage() *renderedMetrics {
	if n := len(e.freePages); n > 0 {
		rm := e.freePages[n-1]
		e.freePages = e.freePages[:n-1]
		return rm
	}
	return newRenderedMetrics(&e.sources, &e.options)
}

// collect makes the flight's page. Flights do not overlap, so the readings' buffers are its own.
func (e *Exporter) collect(c *scrapeCollection) {
	defer close(c.done)
	ctx, cancel := context.WithDeadline(context.Background(), c.begin.Add(collectionTimeout))
	defer cancel()
	var allocations device.Allocations
	var listing sync.WaitGroup
	listing.Go(func() { allocations = e.sources.Node.ListAllocations(ctx) })
	readings := e.sources.Readers.Read(ctx, gpus(c.statuses))
	listing.Wait()
	node, processes := e.sources.Node, e.sources.Processes
	s := nodeSnapshot{
		begin: c.begin, end: time.Now(), statuses: c.statuses, readings: readings, allocations: allocations, driver: node.Driver(),
		stalled: e.sources.Readers.Stalled, processesVisible: processes.Visible(), incidents: node.Incidents(),
	}
	s.healthStored, s.healthErr = node.HealthStore()
	c.rendered.render(s, e.attribution)
	processes.Sweep()
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
