package incident

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/podgauge/podgauge/device"
)

// Paces.
const (
	// turnEvery bounds how often what is known is published, however much happens.
	turnEvery = 100 * time.Millisecond
	// pruneEvery is how often what is too old is looked for.
	pruneEvery = time.Minute
	// openBy is how long the first look at the store may take. Then all goes on without it.
	openBy = time.Second
	// beatEvery is the pace of a loop that has nothing to do.
	beatEvery = 10 * time.Second
)

// Options of a Log. A func that is nil knows nothing.
type Options struct {
	// Path is the file of the store; its folder is made. Empty: nothing outlives the
	// process.
	Path string
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
	o Options

	wake  chan struct{} // has Run turn
	write chan struct{} // has keep write

	mu sync.Mutex
	// All below are guarded by mu.
	book    *book
	known   Known         // what was published last
	changed chan struct{} // closed when something else is
	said    uint64        // the newest incident that is in the log already
	store   condition
	synced  uint64        // the book's version that the store has
	written chan struct{} // closed when the store is in another condition, or has more
}

// condition is how the store is.
type condition struct {
	tried  bool  // it was looked at
	unread bool  // what it has is to come: it is another process', or slow to answer
	err    error // why it does not work; nil where there is none
}

// New makes a Log that knows nothing yet.
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
	return &Log{
		o: o, book: newBook(o), wake: make(chan struct{}, 1), write: make(chan struct{}, 1),
		changed: make(chan struct{}), written: make(chan struct{}), store: condition{tried: o.Path == ""},
	}
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
	poke(l.wake)
	poke(l.write)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Look returns what is known, and a channel that is closed when something else is.
func (l *Log) Look() (Known, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known, l.changed
}

// Ready says so while the store was not looked at yet. One that is another's, or does not
// work, is no reason not to be ready.
func (l *Log) Ready() error {
	if store, _ := l.condition(); !store.tried {
		return errors.New("the store of incidents was not looked at yet")
	}
	return nil
}

// Run publishes what happened, follows how it goes on, and keeps it in the store, until ctx
// is done. What is known then is written before it returns.
func (l *Log) Run(ctx context.Context) error {
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var keeper sync.WaitGroup
	defer keeper.Wait()
	defer stop()
	if l.o.Path != "" {
		keeper.Go(func() { l.keep(keeping) })
	}
	l.awaitStore(ctx)
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
		board, holders, pods := l.turn(now)
		if !pause(ctx, timer, turnEvery) {
			return nil
		}
		timer.Reset(beatEvery)
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
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

// awaitStore waits for what the store has, so that the first that is published is whole:
// a counter that is published twice, without and with it, would seem to have jumped.
func (l *Log) awaitStore(ctx context.Context) {
	deadline := time.NewTimer(openBy)
	defer deadline.Stop()
	for {
		store, answered := l.condition()
		if store.tried {
			return
		}
		select {
		case <-answered:
		case <-deadline.C:
			l.answer(condition{unread: true, err: errSlow})
		case <-ctx.Done():
			return
		}
	}
}

// turn takes in what holds now, publishes what has changed by it, and returns what to wait
// for.
func (l *Log) turn(now time.Time) (board, holders, pods <-chan struct{}) {
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
	if b.unwritten() {
		poke(l.write)
	}
	news := l.publish()
	l.mu.Unlock()
	for i := len(news) - 1; i >= 0; i-- {
		l.say(&news[i])
	}
	return board, holders, pods
}

// publish shows what is known where it is other than before, and returns the incidents
// that are new in it. The caller holds mu.
func (l *Log) publish() (news []Incident) {
	b := l.book
	kept := l.o.Path != "" && l.store.err == nil
	if b.shown == b.version && l.known.Kept == kept && sameErr(l.known.Err, l.store.err) && l.known.Incidents != nil {
		return nil
	}
	is := Known{Kept: kept, Err: l.store.err, Incidents: l.known.Incidents, Devices: l.known.Devices, Hits: l.known.Hits}
	if b.shown != b.version || is.Incidents == nil {
		is.Incidents = b.incidents()
	}
	is.Devices, is.Hits = nil, nil
	if !l.store.unread {
		is.Devices, is.Hits = b.counts(), b.hitRows()
	}
	b.shown, l.known = b.version, is
	close(l.changed)
	l.changed = make(chan struct{})
	for i := len(b.entries) - 1; i >= 0 && b.entries[i].ID > l.said; i-- {
		if e := b.entries[i]; !e.earlier {
			news = append(news, e.Incident)
		}
	}
	l.said = b.last
	return news
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
