// Package exporter exports readings, health and allocations over HTTP.
//
// A scrape shows one collection: all GPUs and the kubelet are read at the same
// time, within a fixed timeout, and joined on device.ID. Concurrent scrapes
// share a collection.
package exporter

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sysfs"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/internal/web/status"
	dto "github.com/prometheus/client_model/go"
)

const (
	// collectionTimeout bounds a collection; late GPUs are left out.
	collectionTimeout = time.Second
	// maxCollectionAge bounds the age of a collection shared with a later
	// scrape, provided that allocations and health stay the same.
	maxCollectionAge = time.Second
	// maxPageReadingsAge bounds the age of a collection shown on the status
	// page, regardless of changes since: health and allocations on the page do
	// not come from it. So all viewers together cause one collection per
	// interval.
	maxPageReadingsAge = 2 * time.Second
)

// Exporter exports the node.
type Exporter struct {
	sources Sources
	options Options
	// collections counts the goroutines of collections and of readings for
	// Allocates; all end within collectionTimeout.
	collections sync.WaitGroup
	renderer    *renderer    // used by the running collection
	attribution *attribution // used by the running collection, and by BeginAllocate
	history     status.ReadingHistory
	// readsProcesses is set if a family of processes is exported.
	readsProcesses bool

	finished atomic.Pointer[scrapeCollection] // newest
	mu       sync.Mutex
	newest   *scrapeCollection // guarded by mu
}

// scrapeCollection is a collection, running or finished.
type scrapeCollection struct {
	begin    time.Time
	statuses []device.Status
	stale    <-chan struct{} // closed when an allocation has changed since begin
	done     chan struct{}   // closed when the collection is finished, and the fields below are set
	families []*dto.MetricFamily
	readings status.Readings
}

// New returns an exporter. Nothing is read before the first scrape.
func New(s Sources, o Options) *Exporter {
	if o.SeriesLimit == 0 {
		o.SeriesLimit = DefaultSeriesLimit
	}
	e := &Exporter{sources: s, options: o, attribution: newAttribution(s.Metrics)}
	for _, f := range usageFamilies {
		e.readsProcesses = e.readsProcesses || o.Filter.Matches(f.container) || o.Filter.Matches(f.unattributed)
	}
	e.renderer = newRenderer(&e.sources, &e.options, e.attribution)
	return e
}

// BeginAllocate reads the counters of devices for an Allocate, in the
// background. The caller publishes the allocation and then calls done. No
// collection begins between the two calls: a collection begins before both or
// sees the allocation.
func (e *Exporter) BeginAllocate(devices ...device.ID) (done func()) {
	if e.options.StableSeries { // counters are the driver's own
		return func() {}
	}
	statuses := e.sources.State.Statuses()
	e.mu.Lock()
	for gpu := range byGPU(statuses) {
		var ids []device.ID
		for _, s := range gpu {
			if slices.Contains(devices, s.ID) {
				ids = append(ids, s.ID)
			}
		}
		if ids == nil {
			continue
		}
		event := e.attribution.beginAllocate(ids)
		e.collections.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), collectionTimeout)
			defer cancel()
			e.attribution.addAllocateReading(event, ids, e.sources.Readers.ReadOne(ctx, gpu[0].GPU))
		})
	}
	return e.mu.Unlock
}

// Drain waits for the running collection and readings.
func (e *Exporter) Drain() { e.collections.Wait() }

// waitForCollection reports whether a collection, or a later one, is finished
// before ctx is done. It goes on in any case.
func (e *Exporter) waitForCollection(ctx context.Context, reusable func(*scrapeCollection, time.Time) bool) bool {
	select {
	case <-e.collection(time.Now(), reusable).done:
		return true
	case <-ctx.Done():
		return false
	}
}

// collection returns a running or reusable collection, or starts one.
func (e *Exporter) collection(now time.Time, reusable func(*scrapeCollection, time.Time) bool) *scrapeCollection {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.newest; c != nil && (!pubsub.IsClosed(c.done) || reusable(c, now)) {
		return c
	}
	statuses := e.sources.State.Statuses()
	_, stale := e.sources.State.Allocations.Get()
	e.newest = &scrapeCollection{begin: now, done: make(chan struct{}), statuses: statuses, stale: stale}
	e.attribution.beginCollection()
	c := e.newest
	e.collections.Go(func() { e.collect(c) })
	return c
}

// isReusable reports whether a scrape can show a finished collection. A storm
// of Xids changes counts hundreds of times a second, so they may be as old as
// readings.
func (e *Exporter) isReusable(c *scrapeCollection, now time.Time) bool {
	statuses := e.sources.State.Statuses()
	return !pubsub.IsClosed(c.stale) && now.Sub(c.begin) < maxCollectionAge &&
		slices.EqualFunc(c.statuses, statuses, device.Status.EqualExceptXids)
}

// collect runs a collection. Collections do not overlap, so each has the
// readers' buffers to itself.
func (e *Exporter) collect(c *scrapeCollection) {
	defer close(c.done)
	ctx, cancel := context.WithDeadline(context.Background(), c.begin.Add(collectionTimeout))
	defer cancel()
	readers, processes := e.sources.Readers, e.sources.Processes
	var allocations allocation.Snapshot
	var others sync.WaitGroup // sources other than the GPUs
	others.Go(func() { allocations = e.sources.ListAllocations(ctx) })
	var ports *sysfs.Reading
	others.Go(func() { ports = e.sources.Sysfs.Read(ctx) })
	gpus := make([]device.GPU, 0, len(c.statuses))
	for gpu := range byGPU(c.statuses) {
		gpus = append(gpus, gpu[0].GPU)
	}
	readings := readers.Read(ctx, gpus, e.readsProcesses && processes.Visible())
	others.Wait()
	s := &nodeSnapshot{Node: e.node(), begin: c.begin, end: time.Now(), readings: readings, stalled: readers.Stalled}
	s.Statuses, s.Allocations, s.sysfs = c.statuses, allocations, ports
	s.stateFile = e.sources.State.StateFile.Newest()
	c.families = e.renderer.render(s)
	c.readings = e.pageReadings(s)
	e.finished.Store(c)
	processes.Sweep()
}

// pageReadings returns the readings shown on the status page.
func (e *Exporter) pageReadings(s *nodeSnapshot) status.Readings {
	devices := map[device.ID]status.DeviceReading{}
	for _, r := range s.readings {
		for _, sample := range r.Samples {
			if quantity := e.renderer.rows[sample.Metric].quantity; quantity != "" && r.Err == nil {
				if devices[sample.Device] == nil {
					devices[sample.Device] = status.DeviceReading{}
				}
				devices[sample.Device][quantity] = sample.Value
			}
		}
	}
	e.history.Record(s.end, devices)
	return status.Readings{At: s.end, Devices: devices, History: &e.history}
}

// watchedNode returns the published state, and channels of which the next change
// closes one.
func (e *Exporter) watchedNode() (api.Node, []<-chan struct{}) {
	changes := e.sources.State.Changes() // first: a change during node is not lost
	return e.node(), changes
}

// node returns the published state.
func (e *Exporter) node() api.Node {
	state := e.sources.State
	n := api.Node{
		Name: e.options.Hostname, Statuses: state.Statuses(), Incidents: state.StoredIncidents(),
		ExpectedGPUs: state.ExpectedGPUs(), Allocations: state.Allocations.Newest(), Driver: state.Driver.Newest(),
	}
	for _, r := range state.Resources.Newest() {
		n.Resources = append(n.Resources, api.ResourceJSON{
			Name: r.Name, Devices: r.Devices, Waiting: r.Waiting, Error: r.Err,
		})
	}
	return n
}

// pageNode returns the published state, and the readings of the newest
// collection, or of a new one until ctx is done.
func (e *Exporter) pageNode(ctx context.Context) status.PageState {
	n := status.PageState{Stalled: e.sources.Readers.Stalled, IsPlugin: e.sources.State.IsPlugin}
	reusable := func(c *scrapeCollection, now time.Time) bool { return now.Sub(c.begin) < maxPageReadingsAge }
	if e.waitForCollection(ctx, reusable) {
		n.Readings = e.finished.Load().readings
	}
	pods := e.sources.State.Pods.Newest()
	n.Node, n.PodsSynced, n.PodsErr = e.node(), pods.Synced, pods.Err
	n.Resources = e.sources.State.PluginResources()
	return n
}
