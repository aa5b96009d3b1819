package nvml

import (
	"sync"
	"sync/atomic"
	"time"
)

// pendingCalls counts the questions that are under way on goroutines of their own: those that
// hang are left behind, and each keeps the turn of its GPU.
type pendingCalls struct {
	wg    sync.WaitGroup
	count atomic.Int64 // as many, for who only wants to look
}

// wait waits until no call is under way.
func (p *pendingCalls) wait() { p.wg.Wait() }

// idle reports whether no call is under way.
func (p *pendingCalls) idle() bool { return p.count.Load() == 0 }

func (p *pendingCalls) start(call func()) {
	p.count.Add(1)
	p.wg.Go(func() { // ends when the driver has answered; Close waits for it
		defer p.count.Add(-1)
		call()
	})
}

// callWithTimeout asks a question and waits for its answer for so long. One that comes later is
// given to late, if there is one. So one GPU that hangs does not hold up what concerns
// all of them.
func callWithTimeout[T any](p *pendingCalls, timeout time.Duration, call func() T, onLate func(T)) (result T, ok bool) {
	results, expired := make(chan T), make(chan struct{})
	p.start(func() {
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
