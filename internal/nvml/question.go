package nvml

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// How long a listing waits for answers, counted from the newest one: a driver may
// give them one after the other. A GPU that was never listed may have to be started up
// first, which takes seconds. Of one that is known there is enough to list, and what
// is overdue has had its time.
const (
	newGPUBy   = 4 * time.Second
	knownGPUBy = time.Second
	overdueBy  = 50 * time.Millisecond
)

// question is what a listing asks at one index. It has a goroutine of its own, since
// the answer may never come: then the GPU is listed without it, if it is known, and
// the question stays, and is not asked a second time. So a GPU that hangs costs one
// thread, and no listing.
type question struct {
	driver *driver
	by     time.Duration // how long it is waited for
	told   chan struct{} // closed when it is known what is at the index
	done   chan struct{} // closed when it was answered
	answer finding       // not written after told was closed
}

// finding is what is at an index.
type finding struct {
	handle nvml.Device // nil where it could not be had
	gpu    *gpu        // nil where err says why
	fresh  bool        // the GPU was not known
	err    error
	parts  *parts // how it is partitioned; nil where that cannot be told
	// errs are of its slices that cannot be told, one each.
	errs []string
}

func (q *question) answered() bool { return isClosed(q.done) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// ask has a question be under way at each index, and returns what was found by
// those that were answered in time. A GPU that has said who it is, and hangs as it is met,
// was found too: only what is listed can be found to be ill.
func (l *listing) ask(ctx context.Context, count int) map[int]finding {
	found, pending := map[int]finding{}, map[int]*question{}
	for i := range count {
		q := l.questions[i]
		switch {
		case q == nil:
			q = l.askAt(i)
		case !q.answered():
			q.by = overdueBy
		case q.driver != l.driver || !q.answer.fresh:
			q = l.askAt(i) // it is too late for that answer
		}
		l.questions[i], pending[i] = q, q
	}
	for newest := time.Now(); len(pending) > 0; {
		var by time.Duration
		for i, q := range pending {
			if !q.answered() {
				by = max(by, q.by)
				continue
			}
			newest = time.Now()
			if q.driver != l.driver { // handles of an earlier Init mean nothing any more
				q = l.askAt(i)
				l.questions[i], pending[i], by = q, q, max(by, q.by)
				continue
			}
			found[i] = q.answer
			delete(pending, i)
			delete(l.questions, i)
		}
		timer := time.NewTimer(by - time.Since(newest))
		select {
		case <-l.answered:
			timer.Stop()
			continue
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		break
	}
	for i, q := range pending {
		if q.driver == l.driver && isClosed(q.told) && ctx.Err() == nil {
			found[i] = q.answer
			delete(l.questions, i)
		}
	}
	return found
}

// askAt begins a question.
func (l *listing) askAt(index int) *question {
	q := &question{driver: l.driver, by: newGPUBy, told: make(chan struct{}), done: make(chan struct{})}
	if l.old.byIndex[index] != nil {
		q.by = knownGPUBy
	}
	old, answered, sysRoot := l.old, l.answered, l.options.SysRoot
	l.asking.begin(func() {
		q.answer = q.driver.look(index, old, sysRoot)
		if g := q.answer.gpu; q.answer.fresh && g != nil {
			g.turn.Lock() // whoever reads it waits until it was met
			close(q.told)
			g.meet()
			g.turn.Unlock()
		} else {
			close(q.told)
		}
		close(q.done)
		select {
		case answered <- struct{}{}:
		default: // somebody is told already
		}
	})
	return q
}

// look finds out what is at an index. One that is known is asked for nothing but how it
// is partitioned, and an answer that leaves that open changes nothing. While another
// call about the GPU is under way it waits, and costs no thread.
func (d *driver) look(index int, old *table, sysRoot string) (f finding) {
	before := old.byIndex[index]
	if before != nil {
		before.turn.Lock()
		defer before.turn.Unlock()
	}
	handle, ret := d.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		f.err = fmt.Errorf("get its handle: %w", answer(ret))
		return f
	}
	f.handle, f.gpu = handle, old.byHandle[handle]
	if f.gpu != nil && f.gpu != before { // it has moved
		if !f.gpu.turn.TryLock() { // to wait for two could be to wait for each other
			return f
		}
		defer f.gpu.turn.Unlock()
	}
	found, err := d.mig(handle)
	switch {
	case f.gpu != nil && err != nil:
		return f
	case err != nil: // it might be offered, and be sliced
		f.err = err
		return f
	case f.gpu == nil:
		f.fresh = true
		if f.gpu, f.err = d.describe(handle, sysRoot); f.err != nil {
			return f
		}
	}
	if found.absent.denied() {
		found = f.gpu.parts.Load().deniedAgain(time.Now())
	}
	f.parts = found
	if found.mig {
		d.partition(&f)
	}
	return f
}
