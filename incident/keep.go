package incident

import (
	"context"
	"errors"
	"slices"
	"time"
)

// The store's paces.
const (
	// flushAfter is how long changes are gathered, to be written at once.
	flushAfter = 50 * time.Millisecond
	// A store that is another process' will be free soon, when a new version of this one is
	// rolled out; a disk takes longer.
	lockedEvery, failedEvery = time.Second, 10 * time.Second
)

var (
	errLocked = errors.New("the store of incidents is another process'")
	errSlow   = errors.New("the store of incidents does not answer")
)

// keep writes what the store does not have until ctx is done, and then a last time. It
// alone touches the disk.
func (l *Log) keep(ctx context.Context) {
	s := &store{path: l.o.Path, log: l.o.Log}
	defer s.close()
	for {
		if s.db == nil {
			if err := l.open(s); err != nil {
				wait := failedEvery
				if errors.Is(err, errLocked) {
					wait = lockedEvery
				}
				if !rest(ctx, wait) {
					return
				}
				continue
			}
		}
		last := false
		select {
		case <-l.write:
			last = !rest(ctx, flushAfter)
		case <-ctx.Done():
			last = true
		}
		if err := l.flush(s); err != nil {
			s.close() // what is on disk is to be seen, and checked
			l.answer(condition{err: err})
			last = last || !rest(ctx, failedEvery)
		}
		if last {
			return
		}
	}
}

// rest tells whether it has rested to the end.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	return pause(ctx, timer, d)
}

func (l *Log) open(s *store) error {
	found, err := s.open()
	if err == nil {
		l.mu.Lock()
		l.book.join(found)
		l.mu.Unlock()
		poke(l.write)
	}
	l.answer(condition{unread: errors.Is(err, errLocked), err: err})
	return err
}

// answer notes how the store is, and says so once.
func (l *Log) answer(is condition) {
	is.tried = true
	l.mu.Lock()
	was := l.store
	l.store = is
	close(l.written)
	l.written = make(chan struct{})
	l.mu.Unlock()
	poke(l.wake)
	switch {
	case is.err != nil && !sameErr(is.err, was.err):
		l.o.Log.Warn("incidents are kept in memory alone", "path", l.o.Path, "err", is.err)
	case is.err == nil && was.err != nil:
		l.o.Log.Info("incidents are kept on disk again", "path", l.o.Path)
	}
}

func (l *Log) condition() (is condition, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.store, l.written
}

// flush writes what the store does not have.
func (l *Log) flush(s *store) error {
	l.mu.Lock()
	w := l.book.batch()
	l.mu.Unlock()
	var err error
	if !w.empty() {
		err = s.write(w)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.book.confirm(w, err)
	if err == nil {
		l.synced = w.version
		close(l.written)
		l.written = make(chan struct{})
	}
	return err
}

// Sync waits until the store has what has happened so far, or returns why it has not.
// What it has survives a SIGKILL and a loss of power.
func (l *Log) Sync(ctx context.Context) error {
	if l.o.Path == "" {
		return nil
	}
	l.mu.Lock()
	version := l.book.version
	l.mu.Unlock()
	poke(l.write)
	for {
		l.mu.Lock()
		synced, store, changed := l.synced, l.store, l.written
		l.mu.Unlock()
		switch {
		case synced >= version:
			return nil
		case store.err != nil:
			return store.err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// batch is what is written in one transaction.
type batch struct {
	version   uint64
	incidents []Incident
	dropped   []uint64
	counts    []record
	forgotten []tallied

	entries []*entry // whose the incidents are
	tallies []*tally
}

func (w *batch) empty() bool {
	return len(w.incidents)+len(w.dropped)+len(w.counts)+len(w.forgotten) == 0
}

func (b *book) unwritten() bool {
	return len(b.dirty)+len(b.gone)+len(b.totals.dirty)+len(b.totals.gone)+len(b.hits.dirty)+len(b.hits.gone) > 0
}

// batch takes what is to be written. What becomes of it is for confirm.
func (b *book) batch() *batch {
	w := &batch{version: b.version, entries: b.dirty, dropped: b.gone}
	b.dirty, b.gone = nil, nil
	for _, e := range w.entries {
		e.dirty = false
		w.incidents = append(w.incidents, e.Incident)
	}
	for _, ts := range []*tallies{&b.totals, &b.hits} {
		for _, t := range ts.dirty {
			t.dirty = false
			w.counts = append(w.counts, t.record())
		}
		w.tallies, w.forgotten = append(w.tallies, ts.dirty...), append(w.forgotten, ts.gone...)
		ts.dirty, ts.gone = nil, nil
	}
	return w
}

// confirm takes in what became of a batch.
func (b *book) confirm(w *batch, err error) {
	if err != nil {
		b.retract(w)
		return
	}
	for _, e := range w.entries {
		if e.stored = true; !b.has(e) { // it was dropped meanwhile
			b.gone = append(b.gone, e.ID)
		}
	}
	for i, t := range w.tallies {
		t.stored, t.tried = w.counts[i].Count, 0
		if ts := b.talliesOf(t.what); !ts.has(t) {
			ts.gone = append(ts.gone, t.what)
		}
	}
}

// retract has what could not be written be written with the next batch.
func (b *book) retract(w *batch) {
	b.gone = append(b.gone, w.dropped...)
	for _, e := range w.entries {
		if b.has(e) {
			e.stored = true // or is not: it may have come to the disk
			b.touch(e)
		} else {
			b.gone = append(b.gone, e.ID)
		}
	}
	for i, t := range w.tallies {
		if ts := b.talliesOf(t.what); ts.has(t) {
			t.tried = w.counts[i].Count
			ts.touch(t)
		}
	}
	for _, what := range w.forgotten {
		ts := b.talliesOf(what)
		ts.gone = append(ts.gone, what)
	}
}

func (b *book) has(e *entry) bool {
	i, found := slices.BinarySearchFunc(b.entries, e.ID, byID)
	return found && b.entries[i] == e
}

// talliesOf are those that count such a thing.
func (b *book) talliesOf(what tallied) *tallies {
	if what.owner.Pod == "" {
		return &b.totals
	}
	return &b.hits
}
