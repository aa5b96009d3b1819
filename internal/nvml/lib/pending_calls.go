package lib

import (
	"sync"
	"sync/atomic"
	"time"
)

// PendingCalls counts the questions that are under way on goroutines of their own: those that
// hang are left behind, and each keeps the turn of its GPU.
type PendingCalls struct {
	wg    sync.WaitGroup
	count atomic.Int64 // as many, for who only wants to look
}

// Wait waits until no call is under way.
func (p *PendingCalls) Wait() { p.wg.Wait() }

// Idle reports whether no call is under way.
func (p *PendingCalls) Idle() bool { return p.count.Load() == 0 }

func (p *PendingCalls) Start(call func()) {
	p.count.Add(1)
	p.wg.Go(func() { // ends when the driver has answered; Close waits for it
		defer p.count.Add(-1)
		call()
	})
}

// CallWithTimeout asks a question and waits for its answer for so long. One that comes later is
// given to late, if there is one. So one GPU that hangs does not hold up what concerns
// all of them.
func CallWithTimeout[T any](p *PendingCalls, timeout time.Duration, call func() T, onLate func(T)) (result T, ok bool) {
	results, expired := make(chan T), make(chan struct{})
	p.Start(func() {
		result := call()
		select {
		case results <- result:
		case <-expired:
			if onLate != nil {
				onLate(result)
			}
		}
	})
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case result = <-results:
		return result, true
	case <-timer.C:
		close(expired)
		return result, false
	}
}
