package incident

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

// Intervals.
const (
	publishInterval   = 100 * time.Millisecond // minimum between two snapshots
	pruneInterval     = time.Minute
	heartbeatInterval = 10 * time.Second
)

// SnapshotStore keeps incidents for the next process.
type SnapshotStore interface {
	// SaveIncidents stores all incidents in the background, newest first; at
	// once if urgent: a device turned unhealthy.
	SaveIncidents(all []Incident, urgent bool)
}

// Options of a Log.
type Options struct {
	Devices     *device.Inventory
	Allocations *pubsub.Value[allocation.Snapshot]
	// Terminations returns nil while terminations are unknown. The channel is
	// closed by the next change.
	Terminations func() (TerminationLookup, <-chan struct{})
	HPCJobs      func(device.Device) []string // of a device now; nil: unknown
	Incidents    *pubsub.Value[Snapshot]      // receives the snapshots
	Stored       []Incident                   // by earlier processes, newest first
	Store        SnapshotStore                // nil: incidents are lost at the end of the process
	MaxIncidents int                          // 0: 1000
	MaxAge       time.Duration                // 0: 30 days
	Log          *slog.Logger
}

// Log records health events and the affected containers.
type Log struct {
	device.Heartbeat
	opts Options

	wake chan struct{} // has room for one: starts a turn of Run

	mu sync.Mutex
	// All below are guarded by mu.
	tracker  *tracker
	loggedID uint64 // the newest incident in the log
	prunedAt time.Time
}

// New returns a Log with the stored incidents.
func New(o Options) *Log {
	o.MaxIncidents, o.MaxAge = cmp.Or(o.MaxIncidents, 1000), cmp.Or(o.MaxAge, 30*24*time.Hour)
	l := &Log{opts: o, wake: make(chan struct{}, 1)}
	l.tracker = &tracker{maxIncidents: o.MaxIncidents, maxAge: o.MaxAge, startedAt: time.Now(), counters: counterSet{}}
	l.tracker.load(o.Stored)
	l.loggedID = l.tracker.lastID
	l.publish()
	return l
}

// Record records a health event with the current allocations, without waiting:
// a storm of events must not delay the Monitor.
func (l *Log) Record(o device.HealthEvent) {
	allocations := l.opts.Allocations.Newest()
	var jobs []string
	for _, d := range o.Affected {
		if l.opts.HPCJobs != nil {
			jobs = append(jobs, l.opts.HPCJobs(d)...)
		}
	}
	slices.Sort(jobs)
	now := time.Now()
	l.mu.Lock()
	l.tracker.record(&o, &allocations, slices.Compact(jobs), now)
	l.mu.Unlock()
	pubsub.Notify(l.wake)
}

// Flush publishes and saves what was recorded.
func (l *Log) Flush() { l.update(time.Now()) }

// Run publishes and follows incidents until ctx is done. The last snapshot is
// saved before Run returns.
func (l *Log) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		l.Beat()
		statuses, allocations, terminations := l.update(time.Now())
		retry.Sleep(ctx, publishInterval) //nolint:errcheck // the select returns
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-statuses:
		case <-allocations:
		case <-terminations:
		case <-time.After(retry.Aligned(heartbeatInterval)):
		}
	}
	l.Flush()
	return nil
}

// update applies the state of the sources and publishes changes. The results
// are the channels to wait for.
func (l *Log) update(now time.Time) (statusesChanged, allocationsChanged, terminationsChanged <-chan struct{}) {
	statuses, statusesChanged := l.opts.Devices.Get()
	allocations, allocationsChanged := l.opts.Allocations.Get()
	lookup, terminationsChanged := l.opts.Terminations()
	l.mu.Lock()
	t := l.tracker
	if now.Sub(l.prunedAt) >= pruneInterval {
		l.prunedAt = now
		t.prune(now)
	}
	if !t.update(statuses, &allocations, lookup, now) {
		terminationsChanged = nil
	}
	added := l.publish()
	l.mu.Unlock()
	for _, i := range slices.Backward(added) {
		l.logIncident(&i)
	}
	return statusesChanged, allocationsChanged, terminationsChanged
}

// publish publishes and saves a snapshot if anything has changed, and returns
// the new incidents. The caller holds mu.
func (l *Log) publish() (added []Incident) {
	t := l.tracker
	if !t.resetChanged() {
		return nil
	}
	s := Snapshot{Incidents: t.incidents()}
	s.Devices, s.Affected = t.counters.counts()
	l.opts.Incidents.Set(s)
	if l.opts.Store != nil {
		l.opts.Store.SaveIncidents(s.Incidents, t.urgent)
	}
	t.urgent = false
	for _, i := range s.Incidents {
		if i.ID > l.loggedID {
			added = append(added, i)
		}
	}
	l.loggedID = t.lastID
	return added
}

func (l *Log) logIncident(i *Incident) {
	level := slog.LevelInfo
	if i.MarkedUnhealthy {
		level = slog.LevelWarn
	}
	var affected []string
	for _, c := range UniqueOwners(i.Affected) {
		affected = append(affected, c.Namespace+"/"+c.Pod+"/"+c.Container)
	}
	attributes := []any{"id", i.ID, "device", i.Device, "reason", i.Reason}
	if i.Note != "" {
		attributes = append(attributes, "note", i.Note)
	}
	if len(i.MIGDevices) > 0 {
		attributes = append(attributes, "mig_devices", len(i.MIGDevices))
	}
	attributes = append(attributes, "action", i.Action, "marked_unhealthy", i.MarkedUnhealthy,
		"containers", affected, "owners_incomplete", i.OwnersIncomplete)
	l.opts.Log.Log(context.Background(), level, "incident", attributes...)
}
