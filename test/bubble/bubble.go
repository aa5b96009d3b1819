// Package bubble runs tests in the bubbles of testing/synctest, also beside the
// race detector.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

var bubbles struct {
	sync.Mutex

	running    int
	processors int // GOMAXPROCS without a running bubble
}

// Test is synctest.Test on one processor. On several processors, threads run
// the timers of a bubble concurrently in one context of the race detector, and
// the process ends with "ThreadSanitizer: CHECK failed" (golang/go#78156, open
// in Go 1.26).
func Test(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	enter()
	defer leave()
	synctest.Test(t, f)
}

// Run is Test in a subtest.
func Run(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { Test(t, f) })
}

func enter() {
	bubbles.Lock()
	defer bubbles.Unlock()
	if bubbles.running == 0 {
		bubbles.processors = runtime.GOMAXPROCS(1)
	}
	bubbles.running++
}

func leave() {
	bubbles.Lock()
	defer bubbles.Unlock()
	bubbles.running--
	if bubbles.running == 0 {
		runtime.GOMAXPROCS(bubbles.processors)
	}
}
