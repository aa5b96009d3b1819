//go:build !race

package cgroup

import "testing"

// TestOwnerAllocations pins that a flight in which nothing changed makes nothing. The
// race detector allocates by itself, so this runs without.
func TestOwnerAllocations(t *testing.T) {
	s, pids := newBenchFixture(t, 32)
	owners := benchOwners(32)
	s.addProcess(5, "0::/system.slice/nvidia-persistenced.service\n")
	l := s.newLocator()
	flight := func() {
		for _, pid := range pids {
			if _, ok := l.Owner(pid, owners); !ok {
				t.Fatalf("process %d is nobody's", pid)
			}
		}
		s.wantOwner(l, 5, noOwner, train)
		l.Sweep()
	}
	flight()
	if got := testing.AllocsPerRun(100, flight); got > 0 {
		t.Errorf("a flight makes %v allocations", got)
	}
}
