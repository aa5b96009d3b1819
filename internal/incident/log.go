package incident

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/state/disk"
)

// Intervals.
const (
	publishInterval   = 100 * time.Millisecond // minimum between two snapshots
	pruneInterval     = time.Minute
	heartbeatInterval = 10 * time.Second
)

// StateSource has the input of incidents. The channels are closed when the state changes.
type StateSource interface {
	Allocations() (device.Allocations, <-chan struct{})
	Statuses() ([]device.Status, <-chan struct{})
	// Terminations returns nil while terminations are unknown.
	Terminations() (TerminationLookup, <-chan struct{})
}

// Options of a Log.
type Options struct {
	Sources StateSource
	// Folder has incidents.json; nil: incidents are lost at the end of the process.
	Folder       *disk.Folder
	MaxIncidents int           // 0: 1000
	MaxAge       time.Duration // 0: 30 days
	Log          *slog.Logger
}

// Log records health events and the affected containers.
type Log struct {
	device.Heartbeat
	opts Options
	file *disk.File[storedState] // nil without a folder

	wake     chan struct{} // has room for one: starts a turn of Run
	snapshot pubsub.Value[Snapshot]

	mu sync.Mutex
	// All below are guarded by mu.
	tracker          *tracker
	publishedVersion uint64       // of the tracker
	storedCounts     *storedState // counts of the snapshot; nil: no counts
	loggedID         uint64       // the newest incident in the log
	prunedAt         time.Time
}

// New loads the incidents of an earlier process. If the file is unreadable, New logs a warning and starts without incidents.
func New(o Options) *Log {
	o.MaxIncidents, o.MaxAge = cmp.Or(o.MaxIncidents, 1000), cmp.Or(o.MaxAge, 30*24*time.Hour)
	l := &Log{opts: o, tracker: newTracker(o, time.Now()), wake: make(chan struct{}, 1)}
	if o.Folder != nil {
		l.file = disk.New(o.Folder, disk.Format[storedState]{Name: "incidents", Version: version, Validate: (*storedState).validate}, o.Log)
		s, err := l.file.Read()
		if err != nil {
			o.Log.Warn("incidents of an earlier process unreadable", "err", err)
		}
		l.tracker.load(s)
		l.loggedID, l.publishedVersion = l.tracker.lastID, l.tracker.version
		l.publish() // before the first scrape: a count must not disappear and return
	}
	return l
}

// Record records a health event with the current allocations. A repeated event costs no allocation: a storm of
// events must not delay the Monitor.
func (l *Log) Record(o device.HealthEvent) {
	allocations, _ := l.opts.Sources.Allocations()
	now := time.Now()
	l.mu.Lock()
	l.tracker.record(&o, &allocations, now)
	l.mu.Unlock()
	pubsub.Notify(l.wake)
}

// Get returns the snapshot, and a channel that the next snapshot closes.
func (l *Log) Get() (Snapshot, <-chan struct{}) { return l.snapshot.Get() }

// Flush writes the recorded incidents. Flush requires a folder, and waits for
// the disk.
func (l *Log) Flush() error {
	l.update(time.Now())
	return l.file.Flush()
}

// Run publishes, follows and stores incidents until ctx is done. The last snapshot is stored before Run returns, unless the disk hangs.
func (l *Log) Run(ctx context.Context) error {
	if l.file != nil {
		var writer sync.WaitGroup
		writer.Go(func() { l.file.Run(ctx) }) //nolint:errcheck // returns nil
		defer l.file.End()
		defer writer.Wait()
	}
	for ctx.Err() == nil {
		l.Beat()
		stored, statuses, allocations, terminations := l.update(time.Now())
		retry.Sleep(ctx, publishInterval) //nolint:errcheck // the select returns
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-stored:
		case <-statuses:
		case <-allocations:
		case <-terminations:
		case <-time.After(retry.Aligned(heartbeatInterval)):
		}
	}
	l.update(time.Now())
	return nil
}

// update applies the state of the sources and publishes changes. The results are the channels to wait for.
func (l *Log) update(now time.Time) (stored, statusesChanged, allocationsChanged, terminationsChanged <-chan struct{}) {
	statuses, statusesChanged := l.opts.Sources.Statuses()
	allocations, allocationsChanged := l.opts.Sources.Allocations()
	lookup, terminationsChanged := l.opts.Sources.Terminations()
	l.mu.Lock()
	t := l.tracker
	if now.Sub(l.prunedAt) >= pruneInterval {
		l.prunedAt = now
		t.prune(func(id device.ID) bool {
			return statuses == nil || slices.ContainsFunc(statuses, func(s device.Status) bool { return s.ID == id }) // nil: unknown
		}, now)
	}
	t.markRecovered(statuses, now)
	t.updateAffected(&allocations, now)
	t.mergeRepeats()
	if lookup != nil {
		t.updateTerminations(lookup, now)
	}
	if !t.awaitsTermination() {
		terminationsChanged = nil
	}
	added, stored := l.publish()
	l.mu.Unlock()
	for _, i := range slices.Backward(added) {
		l.logIncident(&i)
	}
	return stored, statusesChanged, allocationsChanged, terminationsChanged
}

// publish publishes a snapshot if anything has changed, and returns the new incidents. The caller holds mu.
//
// Incidents are published at once, counts after the write: a scraped count must not fall after a SIGKILL.
func (l *Log) publish() (added []Incident, stored <-chan struct{}) {
	t := l.tracker
	next, _ := l.snapshot.Get()
	changed := t.version != l.publishedVersion || next.Incidents == nil
	if changed {
		s := t.storedState()
		next.Incidents = s.Incidents
		next.Devices, next.Affected = splitCounts(s.Counts)
		if l.file != nil && t.version != l.publishedVersion {
			l.file.Save(s, t.urgent)
		}
		t.urgent, l.publishedVersion = false, t.version
	}
	if l.file != nil {
		var written disk.WriteStatus[storedState]
		written, stored = l.file.Get()
		changed = changed || written.Exportable != l.storedCounts || fmt.Sprint(written.Err) != fmt.Sprint(next.Err)
		next.Persisted, next.Err, next.Devices, next.Affected, l.storedCounts = written.Err == nil, written.Err, nil, nil, written.Exportable
		if written.Exportable != nil {
			next.Devices, next.Affected = splitCounts(written.Exportable.Counts)
		}
	}
	if !changed {
		return nil, stored
	}
	l.snapshot.Set(next)
	for i := len(t.entries) - 1; i >= 0 && t.entries[i].ID > l.loggedID; i-- {
		added = append(added, t.entries[i].Incident)
	}
	l.loggedID = t.lastID
	return added, stored
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
	l.opts.Log.Log(context.Background(), level, "incident", append(attributes,
		"action", i.Action, "marked_unhealthy", i.MarkedUnhealthy, "containers", affected, "owners_incomplete", i.OwnersIncomplete)...)
}
