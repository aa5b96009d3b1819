package lib

import (
	"sync"
	"sync/atomic"
	"time"
)

// PendingCalls counts calls on separate goroutines. A hanging call keeps the
// lock of its GPU.
type PendingCalls struct {
	wg    sync.WaitGroup
	count atomic.Int64
}

// Wait waits until no call is under way.
func (p *PendingCalls) Wait() { p.wg.Wait() }

// Idle reports whether no call is under way.
func (p *PendingCalls) Idle() bool { return p.count.Load() == 0 }

// Start runs a call on a goroutine, which ends when the driver returns.
func (p *PendingCalls) Start(call func()) {
	p.count.Add(1)
	p.wg.Go(func() {
		defer p.count.Add(-1)
		call()
	})
}

// CallWithTimeout makes a call and waits for the result until the timeout;
// onLate, if set, gets a later result. So a hanging GPU does not delay calls
// about all GPUs.
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
	select {
	case result = <-results:
		return result, true
	case <-time.After(timeout):
		close(expired)
		return result, false
	}
}
