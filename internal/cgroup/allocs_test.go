//go:build !race

package cgroup

import "testing"

// TestOwnerAllocations checks that a collection without changes allocates no memory. The race detector allocates, so the test runs without it.
func TestOwnerAllocations(t *testing.T) {
	s, pids := newBenchFixture(t, 32)
	owners := benchOwners(32)
	s.addProcess(5, "0::/system.slice/nvidia-persistenced.service\n")
	l := s.newLocator()
	collect := func() {
		for _, pid := range pids {
			if _, ok := l.Owner(pid, owners); !ok {
				t.Fatalf("process %d: no owner", pid)
			}
		}
		s.wantOwner(l, 5, noOwner, train)
		l.Sweep()
	}
	collect()
	if got := testing.AllocsPerRun(100, collect); got > 0 {
		t.Errorf("allocations of a collection: got %v, want 0", got)
	}
}
