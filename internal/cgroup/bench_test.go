package cgroup

import (
	"fmt"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

const benchPodCount = 55 // of two containers

// newBenchFixture returns a node with n processes, spread over the containers.
func newBenchFixture(t testing.TB, processes int) (s *procFixture, pids []uint32) {
	s = newProcFixture(t)
	for i, o := range benchOwners(2 * benchPodCount) {
		s.addLogLink(o, benchContainerID(i))
		s.addPodDirs(o, benchPodUID(i/2), o.Container)
	}
	for i := range processes {
		pid := uint32(1000 + i)
		c := i % (2 * benchPodCount)
		s.addProcess(pid, fmt.Sprintf("0::/../../kubepods-burstable-pod%s.slice/cri-containerd-%s.scope\n", strings.ReplaceAll(benchPodUID(c/2), "-", "_"), benchContainerID(c)))
		pids = append(pids, pid)
	}
	return s, pids
}

func benchContainerID(i int) string { return fmt.Sprintf("%064x", i) }
func benchPodUID(i int) string      { return fmt.Sprintf("%08x-0000-4000-8000-000000000000", i) }

// benchOwners returns the first n containers.
func benchOwners(n int) (owners []device.Owner) {
	for i := range n {
		owners = append(owners, device.Owner{Namespace: "ml", Pod: fmt.Sprintf("train-%d", i/2), Container: fmt.Sprintf("c-%d", i%2)})
	}
	return owners
}

func BenchmarkOwnerCached(b *testing.B) {
	s, pids := newBenchFixture(b, 32)
	owners := benchOwners(32)
	l := s.newLocator()
	b.ReportAllocs()
	for b.Loop() {
		for _, pid := range pids {
			if _, ok := l.Owner(pid, owners); !ok {
				b.Fatalf("process %d: no owner", pid)
			}
		}
		l.Sweep()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(pids)), "ns/process")
}

// BenchmarkOwnerReal is BenchmarkOwnerCached with a file of the real /proc.
func BenchmarkOwnerReal(b *testing.B) {
	s := newProcFixture(b)
	s.addLogLink(train, idA)
	s.addLiveProcess(5, cgroupFileA)
	l := s.newLocator()
	owners := []device.Owner{train}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := l.Owner(5, owners); !ok {
			b.Fatal("process 5: no owner")
		}
	}
}

// BenchmarkOwnerCold resolves all processes of a node for the first time.
func BenchmarkOwnerCold(b *testing.B) {
	for _, n := range []int{32, 5000} {
		b.Run(fmt.Sprintf("processes=%d", n), func(b *testing.B) {
			s, pids := newBenchFixture(b, n)
			owners := benchOwners(32)
			b.ReportAllocs()
			for b.Loop() {
				l := s.newLocator()
				found := 0
				for _, pid := range pids {
					if _, ok := l.Owner(pid, owners); ok {
						found++
					}
				}
				if found < len(owners) {
					b.Fatalf("got %d processes with an owner", found)
				}
				for range maxIdleCollections + 1 {
					l.Sweep()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(pids)), "ns/process")
		})
	}
}
