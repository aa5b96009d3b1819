// Package exporter exports readings, health and allocations over HTTP.
//
// A scrape shows one collection: all GPUs and the kubelet are read at the same time, within a fixed timeout, and joined on
// device.ID. Concurrent scrapes share a collection.
package exporter

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
)

const (
	// collectionTimeout bounds a collection; late GPUs are left out.
	collectionTimeout = time.Second
	// maxCollectionAge bounds the age of a collection shared with a later scrape, provided that allocations and health stay the same.
	maxCollectionAge = time.Second
	// maxPageReadingsAge bounds the age of a collection shown on the status page, regardless of changes since: health and allocations on
	// the page do not come from it. So all viewers together cause one collection per interval.
	maxPageReadingsAge = 2 * time.Second
	// maxFreeRendered bounds the spare renderedMetrics, which take megabytes. More are in use if scrapes overtake slow readers.
	maxFreeRendered = 1
)

// Exporter exports the node.
type Exporter struct {
	sources Sources
	options Options
	// collections counts the goroutines of collections and of readings for Allocates; all end within collectionTimeout.
	collections sync.WaitGroup
	encoder     bodyEncoder
	sender      sender

	mu sync.Mutex
	// All below are guarded by mu.
	newest *scrapeCollection
	free   []*renderedMetrics // without users

	// attribution is used by the running collection, and by ReadAllocated.
	attribution *attribution
}

// scrapeCollection is a collection, running or finished.
type scrapeCollection struct {
	begin    time.Time
	done     chan struct{}    // closed when the collection is finished
	rendered *renderedMetrics // not written after done is closed, until there are no users
	users    int              // guarded by Exporter.mu
	statuses []device.Status
	stale    <-chan struct{}                // closed when an allocation has changed since begin
	bodies   map[representation]*scrapeBody // guarded by bodyEncoder.mu
}

// New returns an exporter. It reads nothing before the first scrape.
func New(s Sources, o Options) *Exporter {
	if o.SeriesLimit == 0 {
		o.SeriesLimit = DefaultSeriesLimit
	}
	return &Exporter{sources: s, options: o, attribution: newAttribution(s.Metrics)}
}

// ReadAllocated reads the counters of devices being allocated, in the background: the count so far is not the new owner's. It does
// not affect a running collection, however long that waits for the kubelet or another GPU.
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

// Drain waits for the running collection and readings.
func (e *Exporter) Drain() { e.collections.Wait() }

// waitForCollection returns a finished collection, to be released after use, or nil if ctx is done first. The collection goes on
// for other users.
func (e *Exporter) waitForCollection(ctx context.Context, reusable func(*scrapeCollection, time.Time) bool) *scrapeCollection {
	c := e.acquire(time.Now(), reusable)
	select {
	case <-c.done:
		return c
	case <-ctx.Done():
		e.release(c)
		return nil
	}
}

// acquire adds the caller to the users of a running or reusable collection, or starts one.
func (e *Exporter) acquire(now time.Time, reusable func(*scrapeCollection, time.Time) bool) *scrapeCollection {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.newest; c != nil && (!c.isFinished() || reusable(c, now)) {
		c.users++
		return c
	}
	return e.startCollection(now)
}

// release removes a user of a collection.
func (e *Exporter) release(c *scrapeCollection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.releaseLocked(c)
}

func (e *Exporter) releaseLocked(c *scrapeCollection) {
	if c.users--; c.users == 0 && len(e.free) < maxFreeRendered {
		e.free = append(e.free, c.rendered)
	}
}

// startCollection starts a collection with the caller as a user. None may be running. The caller holds mu.
func (e *Exporter) startCollection(now time.Time) *scrapeCollection {
	if e.newest != nil {
		e.releaseLocked(e.newest)
	}
	statuses, _ := e.sources.Node.Statuses()
	_, stale := e.sources.Node.Allocations()
	c := &scrapeCollection{
		begin: now, done: make(chan struct{}), statuses: statuses, stale: stale,
		users: 2, // the caller, and the exporter until the next collection
	}
	if n := len(e.free); n > 0 {
		c.rendered, e.free = e.free[n-1], e.free[:n-1]
	} else {
		c.rendered = newRenderedMetrics(&e.sources, &e.options)
	}
	e.newest = c
	e.attribution.beginCollection()
	e.collections.Go(func() { e.collect(c) })
	return c
}

func (c *scrapeCollection) isFinished() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// isReusable reports whether a scrape can show a finished collection. A storm of Xids changes counts hundreds of times a second, so
// they may be as old as readings.
func (e *Exporter) isReusable(c *scrapeCollection, now time.Time) bool {
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

// isReusableForPage reports whether the status page can show a finished collection.
func isReusableForPage(c *scrapeCollection, now time.Time) bool {
	return now.Sub(c.begin) < maxPageReadingsAge
}

// collect runs a collection. Collections do not overlap, so each has the readers' buffers to itself.
func (e *Exporter) collect(c *scrapeCollection) {
	defer close(c.done)
	ctx, cancel := context.WithDeadline(context.Background(), c.begin.Add(collectionTimeout))
	defer cancel()
	node, readers, processes := e.sources.Node, e.sources.Readers, e.sources.Processes
	var allocations device.Allocations
	var listing sync.WaitGroup
	listing.Go(func() { allocations = node.ListAllocations(ctx) })
	readings := readers.Read(ctx, gpus(c.statuses))
	listing.Wait()
	s := &nodeSnapshot{
		begin: c.begin, end: time.Now(), statuses: c.statuses, readings: readings, allocations: allocations, driver: node.Driver(),
		stalled: readers.Stalled, processesVisible: processes.Visible(), incidents: node.Incidents(),
	}
	s.healthStored, s.healthErr = node.HealthStore()
	c.rendered.render(s, e.attribution)
	processes.Sweep()
}

// gpus returns the GPUs of the devices, in order.
func gpus(statuses []device.Status) []device.GPU {
	list := make([]device.GPU, 0, len(statuses))
	for _, s := range statuses {
		if n := len(list); n == 0 || list[n-1] != s.GPU { // MIG devices follow their GPU
			list = append(list, s.GPU)
		}
	}
	return list
}

// pageState is the state that the status page shows.
type pageState struct {
	Node
	exporter *Exporter
}

// Stalled implements status.PageState.
func (s pageState) Stalled(gpu device.GPU) bool { return s.exporter.sources.Readers.Stalled(gpu) }

// Readings implements status.PageState.
func (s pageState) Readings(ctx context.Context) status.Readings {
	c := s.exporter.waitForCollection(ctx, isReusableForPage)
	if c == nil {
		return status.Readings{}
	}
	defer s.exporter.release(c)
	return status.Readings{At: c.rendered.page.at, Devices: slices.Clone(c.rendered.page.devices)}
}
