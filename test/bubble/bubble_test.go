package bubble_test

import (
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/bubble"
)

// TestTimers crashes in some runs with synctest.Test, -race and two processors.
func TestTimers(t *testing.T) {
	for range 300 {
		bubble.Test(t, func(*testing.T) {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() { useTimers(i) })
			}
			wg.Wait()
		})
	}
}

// useTimers polls expired timers. The polling goroutine runs the timer, while the bubble runs the timers of other goroutines.
func useTimers(seed int) {
	for i := range 300 {
		timer := time.NewTimer(time.Duration(i%3 + seed%2))
		for range 2 {
			select {
			case <-timer.C:
			default:
			}
			time.Sleep(time.Duration(i%3 + 1))
		}
	}
}
