package nvml

import (
	"sync"
	"sync/atomic"
	"time"
)

// asking counts the questions that are under way on goroutines of their own: those that
// hang are left behind, and each keeps the turn of its GPU.
type asking struct {
	calls sync.WaitGroup
	open  atomic.Int64 // as many, for who only wants to look
}

func (a *asking) begin(question func()) {
	a.open.Add(1)
	a.calls.Go(func() { // ends when the driver has answered; Close waits for it
		defer a.open.Add(-1)
		question()
	})
}

// inTime asks a question and waits for its answer for so long. One that comes later is
// given to late, if there is one. So one GPU that hangs does not hold up what concerns
// all of them.
func inTime[T any](a *asking, by time.Duration, question func() T, late func(T)) (answer T, ok bool) {
	answers, over := make(chan T), make(chan struct{})
	a.begin(func() {
		answer := question()
		select {
		case answers <- answer:
		case <-over:
			if late != nil {
				late(answer)
			}
		}
	})
	timer := time.NewTimer(by)
	defer timer.Stop()
	select {
	case answer = <-answers:
		return answer, true
	case <-timer.C:
		close(over)
		return answer, false
	}
}
