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
	// turnEvery bounds how often what is known is published, however much happens.
	turnEvery = 100 * time.Millisecond
	// pruneEvery is how often what is too old is looked for.
	pruneEvery = time.Minute
	// beatEvery is the interval of a loop that has nothing to do.
	beatEvery = 10 * time.Second
)

// Options of a Log. A func that is nil knows nothing.
type Options struct {
	// Folder is where incidents.json is kept. Nil: nothing outlives the process.
	Folder *disk.Folder
	// MaxIncidents and MaxAge bound what is kept; 0: a thousand, and 30 days.
	MaxIncidents int
	MaxAge       time.Duration

	// Holders are those of now, and change when the channel is closed
	// (podresources.Client.Look). It is called on the goroutine that calls Happened.
	Holders func() (device.Holders, <-chan struct{})
	// Board tells which devices are healthy again (device.Board.Look).
	Board func() ([]device.Status, <-chan struct{})
	// Pods tell how pods went on. Nil Fates: nobody can tell until the channel is closed.
	Pods func() (Fates, <-chan struct{})

	Log *slog.Logger
}

// Log takes down what happens to devices, and to whom.
type Log struct {
	device.Pulse
	o    Options
	file *disk.File[snapshot] // nil: nothing outlives the process

	wake chan struct{} // has Run turn

	mu sync.Mutex
	// All below are guarded by mu.
	book    *book
	shown   uint64        // the book's version that was published
	counted *snapshot     // whose counts were published; nil: none's
	known   Known         // what was published last
	changed chan struct{} // closed when something else is
	said    uint64        // the newest incident that is in the log already
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
	if o.Holders == nil {
		o.Holders = func() (device.Holders, <-chan struct{}) { return device.Holders{}, nil }
	}
	if o.Board == nil {
		o.Board = func() ([]device.Status, <-chan struct{}) { return nil, nil }
	}
	if o.Pods == nil {
		o.Pods = func() (Fates, <-chan struct{}) { return nil, nil }
	}
	l := &Log{o: o, book: newBook(o, time.Now()), wake: make(chan struct{}, 1), changed: make(chan struct{})}
	if o.Folder != nil {
		l.file = disk.New(o.Folder, format(), o.Log)
		l.load(l.file.Read())
	}
	return l
}

func (l *Log) load(found disk.Found[snapshot]) {
	if found.Err != nil {
		l.o.Log.Warn("incidents of an earlier process cannot be read, their counts start from 0", "err", found.Err)
	}
	s := found.Value
	if found.Behind { // counts that are 0 stay, so that a scrape shows it
		for i := range s.devices {
			s.devices[i].Count = 0
		}
		for i := range s.hits {
			s.hits[i].Count = 0
		}
	}
	l.book.load(s)
	if l.said = l.book.last; !found.Behind {
		l.shown = l.book.version
	}
	l.publish() // a scrape must not see a count vanish and come back
}

// Happened takes an occurrence down, with those who hold the devices now. It waits for
// nobody and allocates nothing for what goes on happening, so that a storm of reports
// holds up nobody.
func (l *Log) Happened(o device.Occurrence) {
	holders, _ := l.o.Holders()
	now := time.Now()
	l.mu.Lock()
	l.book.happened(&o, &holders, now)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Look returns what is known, and a channel that is closed when something else is.
func (l *Log) Look() (Known, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known, l.changed
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
		if now.Sub(pruned) >= pruneEvery {
			pruned = now
			l.prune(now)
		}
		stored, board, holders, pods := l.turn(now)
		if !pause(ctx, timer, turnEvery) {
			l.turn(time.Now())
			return nil
		}
		timer.Reset(beatEvery)
		select {
		case <-ctx.Done():
			l.turn(time.Now())
			return nil
		case <-l.wake:
		case <-stored:
		case <-board:
		case <-holders:
		case <-pods:
		case <-timer.C:
		}
	}
}

// pause rests for a while, or until ctx is done, and tells which.
func pause(ctx context.Context, timer *time.Timer, d time.Duration) bool {
	timer.Reset(d)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// turn takes in what holds now, publishes what has changed by it, and returns what to wait
// for.
func (l *Log) turn(now time.Time) (stored, board, holders, pods <-chan struct{}) {
	statuses, board := l.o.Board()
	held, holders := l.o.Holders()
	fates, pods := l.o.Pods()
	l.mu.Lock()
	b := l.book
	b.heal(statuses, now)
	b.follow(&held, now)
	if fates != nil {
		b.learn(fates, now)
	}
	if !b.awaits() {
		pods = nil
	}
	news, stored := l.publish()
	l.mu.Unlock()
	for i := len(news) - 1; i >= 0; i-- {
		l.say(&news[i])
	}
	return stored, board, holders, pods
}

// publish shows what is known where it is other than before, and returns the incidents
// that are new in it. Incidents are shown at once, and counts when they are stored: what a
// scrape has shown must not fall when the process is killed. The caller holds mu.
func (l *Log) publish() (news []Incident, stored <-chan struct{}) {
	b, is := l.book, l.known
	changed := b.version != l.shown || is.Incidents == nil
	if changed {
		s := b.snapshot()
		is.Incidents, is.Devices, is.Hits = s.incidents, s.devices, s.hits
		if l.file != nil && b.version != l.shown {
			l.file.Save(s, b.urgent)
		}
		b.urgent, l.shown = false, b.version
	}
	if l.file != nil {
		var view disk.View[snapshot]
		view, stored = l.file.Look()
		changed = changed || view.Shown != l.counted || !sameErr(view.Err, is.Err)
		is.Kept, is.Err, is.Devices, is.Hits, l.counted = view.Err == nil, view.Err, nil, nil, view.Shown
		if view.Shown != nil {
			is.Devices, is.Hits = view.Shown.devices, view.Shown.hits
		}
	}
	if !changed {
		return nil, stored
	}
	l.known = is
	close(l.changed)
	l.changed = make(chan struct{})
	for i := len(b.entries) - 1; i >= 0 && b.entries[i].ID > l.said; i-- {
		news = append(news, b.entries[i].Incident)
	}
	l.said = b.last
	return news, stored
}

func sameErr(a, b error) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error())
}

// say logs an incident once, when it is new.
func (l *Log) say(i *Incident) {
	level := slog.LevelInfo
	if i.Condemned {
		level = slog.LevelWarn
	}
	holders := make([]string, len(i.Holders))
	for k, h := range i.Holders {
		holders[k] = h.Namespace + "/" + h.Pod + "/" + h.Container
	}
	l.o.Log.Log(context.Background(), level, "incident", "id", i.ID, "device", i.Device, "reason", i.Reason,
		"action", i.Action, "condemned", i.Condemned, "holders", holders, "nameless", i.Nameless)
}

func (l *Log) prune(now time.Time) {
	statuses, _ := l.o.Board()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.book.prune(func(id device.ID) bool {
		for _, s := range statuses {
			if s.ID == id {
				return true
			}
		}
		return statuses == nil // nobody can say that it is gone
	}, now)
}
