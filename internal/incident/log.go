package incident

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/state/disk"
)

// Intervals.
const (
	// publishInterval bounds how often what is known is published, however much happens.
	publishInterval = 100 * time.Millisecond
	// pruneInterval is how often what is too old is looked for.
	pruneInterval = time.Minute
	// heartbeatInterval is the interval of a loop that has nothing to do.
	heartbeatInterval = 10 * time.Second
)

// Options of a Log. A func that is nil knows nothing.
type Options struct {
	// Folder is where incidents.json is kept. Nil: nothing outlives the process.
	Folder *disk.Folder
	// MaxIncidents and MaxAge bound what is kept; 0: a thousand, and 30 days.
	MaxIncidents int
	MaxAge       time.Duration

	// Allocations are those of now, and change when the channel is closed
	// (podresources.Client.Snapshot). It is called on the goroutine that calls Happened.
	Allocations func() (device.Allocations, <-chan struct{})
	// Statuses tells which devices are healthy again (device.Inventory.Get).
	Statuses func() ([]device.Status, <-chan struct{})
	// Terminations tell how pods went on. Nil Fates: nobody can tell until the channel is closed.
	Terminations func() (TerminationLookup, <-chan struct{})

	Log *slog.Logger
}

// Log takes down what happens to devices, and to whom.
type Log struct {
	device.Heartbeat
	opts Options
	file *disk.File[storedState] // nil: nothing outlives the process

	wake chan struct{} // has Run turn

	mu sync.Mutex
	// All below are guarded by mu.
	tracker          *tracker
	publishedVersion uint64        // the book's version that was published
	storedCounts     *storedState  // whose counts were published; nil: none's
	snapshot         Snapshot      // what was published last
	changed          chan struct{} // closed when something else is
	loggedID         uint64        // the newest incident that is in the log already
}

// New makes a Log that knows what an earlier process has left. It never fails: if that cannot
// be read, one line of the log says why.
func New(o Options) *Log {
	if o.MaxIncidents <= 0 {
		o.MaxIncidents = 1000
	}
	if o.MaxAge <= 0 {
		o.MaxAge = 30 * 24 * time.Hour
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Allocations == nil {
		o.Allocations = func() (device.Allocations, <-chan struct{}) { return device.Allocations{}, nil }
	}
	if o.Statuses == nil {
		o.Statuses = func() ([]device.Status, <-chan struct{}) { return nil, nil }
	}
	if o.Terminations == nil {
		o.Terminations = func() (TerminationLookup, <-chan struct{}) { return nil, nil }
	}
	l := &Log{opts: o, tracker: newTracker(o, time.Now()), wake: make(chan struct{}, 1), changed: make(chan struct{})}
	if o.Folder != nil {
		l.file = disk.New(o.Folder, fileFormat(), o.Log)
		l.load(l.file.Read())
	}
	return l
}

func (l *Log) load(found disk.ReadResult[storedState]) {
	if found.Err != nil {
		l.opts.Log.Warn("incidents of an earlier process cannot be read, their counts start from 0", "err", found.Err)
	}
	s := found.Value
	if found.CountsStale { // counts that are 0 stay, so that a scrape shows it
		for i := range s.devices {
			s.devices[i].Count = 0
		}
		for i := range s.affected {
			s.affected[i].Count = 0
		}
	}
	l.tracker.load(s)
	if l.loggedID = l.tracker.lastID; !found.CountsStale {
		l.publishedVersion = l.tracker.version
	}
	l.publish() // a scrape must not see a count vanish and come back
}

// Record takes an occurrence down, with those who hold the devices now. It waits for
// nobody and allocates nothing for what goes on happening, so that a storm of reports
// holds up nobody.
func (l *Log) Record(o device.HealthEvent) {
	allocations, _ := l.opts.Allocations()
	now := time.Now()
	l.mu.Lock()
	l.tracker.record(&o, &allocations, now)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Get returns what is known, and a channel that is closed when something else is.
func (l *Log) Get() (Snapshot, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.snapshot, l.changed
}

// Ready returns nil: what an earlier process has left is known from the beginning.
func (l *Log) Ready() error { return nil }

// Run publishes what happened, follows how it goes on, and keeps it on disk, until ctx
// is done. What is known then is written before it returns, unless the disk hangs.
func (l *Log) Run(ctx context.Context) error {
	if l.file != nil {
		writing, stop := context.WithCancel(context.WithoutCancel(ctx))
		var writer sync.WaitGroup
		writer.Go(func() { l.file.Run(writing) }) //nolint:errcheck // it returns nil
		defer l.file.End()
		defer writer.Wait()
		defer stop()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var pruned time.Time
	for {
		l.Beat()
		now := time.Now()
		if now.Sub(pruned) >= pruneInterval {
			pruned = now
			l.prune(now)
		}
		stored, statusesChanged, allocations, terminations := l.update(now)
		if !sleep(ctx, timer, publishInterval) {
			l.update(time.Now())
			return nil
		}
		timer.Reset(heartbeatInterval)
		select {
		case <-ctx.Done():
			l.update(time.Now())
			return nil
		case <-l.wake:
		case <-stored:
		case <-statusesChanged:
		case <-allocations:
		case <-terminations:
		case <-timer.C:
		}
	}
}

// sleep rests for a while, or until ctx is done, and tells which.
func sleep(ctx context.Context, timer *time.Timer, d time.Duration) bool {
	timer.Reset(d)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// update takes in what holds now, publishes what has changed by it, and returns what to wait
// for.
func (l *Log) update(now time.Time) (stored, statusesChanged, allocations, terminations <-chan struct{}) {
	statuses, statusesChanged := l.opts.Statuses()
	current, allocations := l.opts.Allocations()
	lookup, terminations := l.opts.Terminations()
	l.mu.Lock()
	t := l.tracker
	t.markRecovered(statuses, now)
	t.updateAffected(&current, now)
	if lookup != nil {
		t.updateTerminations(lookup, now)
	}
	if !t.awaitsTermination() {
		terminations = nil
	}
	added, stored := l.publish()
	l.mu.Unlock()
	for i := len(added) - 1; i >= 0; i-- {
		l.logIncident(&added[i])
	}
	return stored, statusesChanged, allocations, terminations
}

// publish shows what is known where it is other than before, and returns the incidents
// that are new in it. Incidents are shown at once, and counts when they are stored: what a
// scrape has shown must not fall when the process is killed. The caller holds mu.
func (l *Log) publish() (added []Incident, stored <-chan struct{}) {
	t, next := l.tracker, l.snapshot
	changed := t.version != l.publishedVersion || next.Incidents == nil
	if changed {
		s := t.storedState()
		next.Incidents, next.Devices, next.Affected = s.incidents, s.devices, s.affected
		if l.file != nil && t.version != l.publishedVersion {
			l.file.Save(s, t.urgent)
		}
		t.urgent, l.publishedVersion = false, t.version
	}
	if l.file != nil {
		var written disk.WriteStatus[storedState]
		written, stored = l.file.Get()
		changed = changed || written.Exportable != l.storedCounts || !sameErr(written.Err, next.Err)
		next.Persisted, next.Err, next.Devices, next.Affected, l.storedCounts = written.Err == nil, written.Err, nil, nil, written.Exportable
		if written.Exportable != nil {
			next.Devices, next.Affected = written.Exportable.devices, written.Exportable.affected
		}
	}
	if !changed {
		return nil, stored
	}
	l.snapshot = next
	close(l.changed)
	l.changed = make(chan struct{})
	for i := len(t.entries) - 1; i >= 0 && t.entries[i].ID > l.loggedID; i-- {
		added = append(added, t.entries[i].Incident)
	}
	l.loggedID = t.lastID
	return added, stored
}

func sameErr(a, b error) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error())
}

// logIncident logs an incident once, when it is new.
func (l *Log) logIncident(i *Incident) {
	level := slog.LevelInfo
	if i.MarkedUnhealthy {
		level = slog.LevelWarn
	}
	affected := make([]string, len(i.Affected))
	for k, h := range i.Affected {
		affected[k] = h.Namespace + "/" + h.Pod + "/" + h.Container
	}
	l.opts.Log.Log(context.Background(), level, "incident", "id", i.ID, "device", i.Device, "reason", i.Reason,
		"action", i.Action, "condemned", i.MarkedUnhealthy, "holders", affected, "nameless", i.OwnersIncomplete)
}

func (l *Log) prune(now time.Time) {
	statuses, _ := l.opts.Statuses()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tracker.prune(func(id device.ID) bool {
		for _, s := range statuses {
			if s.ID == id {
				return true
			}
		}
		return statuses == nil // nobody can say that it is gone
	}, now)
}
