//go:build !race

package containers

import "testing"

// TestOwnerAllocations pins that a flight in which nothing changed makes nothing. The
// race detector allocates by itself, so this runs without.
func TestOwnerAllocations(t *testing.T) {
	s, pids := bigStage(t, 32)
	holders := benchHolders(32)
	s.process(5, "0::/system.slice/nvidia-persistenced.service\n")
	l := s.locator()
	flight := func() {
		for _, pid := range pids {
			if _, ok := l.Owner(pid, holders); !ok {
				t.Fatalf("process %d is nobody's", pid)
			}
		}
		s.is(l, 5, nobody, train)
		l.Sweep()
	}
	flight()
	if got := testing.AllocsPerRun(100, flight); got > 0 {
		t.Errorf("a flight makes %v allocations", got)
	}
}
