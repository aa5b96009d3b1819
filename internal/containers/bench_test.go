package containers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

const benchPods = 55 // of two containers

// bigStage is a node with so many processes, of all containers in turn.
func bigStage(t testing.TB, processes int) (s *stage, pids []uint32) {
	s = newStage(t)
	for i, o := range benchHolders(2 * benchPods) {
		s.log(o, id(i))
		s.folders(o, podID(i/2), o.Container)
	}
	for i := range processes {
		pid := uint32(1000 + i)
		c := i % (2 * benchPods)
		s.process(pid, fmt.Sprintf("0::/../../kubepods-burstable-pod%s.slice/cri-containerd-%s.scope\n", strings.ReplaceAll(podID(c/2), "-", "_"), id(c)))
		pids = append(pids, pid)
	}
	return s, pids
}

func id(i int) string    { return fmt.Sprintf("%064x", i) }
func podID(i int) string { return fmt.Sprintf("%08x-0000-4000-8000-000000000000", i) }

// benchHolders are the first so many containers.
func benchHolders(n int) (holders []device.Owner) {
	for i := range n {
		holders = append(holders, device.Owner{Namespace: "ml", Pod: fmt.Sprintf("train-%d", i/2), Container: fmt.Sprintf("c-%d", i%2)})
	}
	return holders
}

func BenchmarkOwnerCached(b *testing.B) {
	s, pids := bigStage(b, 32)
	holders := benchHolders(32)
	l := s.locator()
	b.ReportAllocs()
	for b.Loop() {
		for _, pid := range pids {
			if _, ok := l.Owner(pid, holders); !ok {
				b.Fatalf("process %d is nobody's", pid)
			}
		}
		l.Sweep()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(pids)), "ns/process")
}

// BenchmarkOwnerReal is as cached with a file of the real /proc.
func BenchmarkOwnerReal(b *testing.B) {
	s := newStage(b)
	s.log(train, idA)
	s.alive(5, inOne)
	l := s.locator()
	holders := []device.Owner{train}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := l.Owner(5, holders); !ok {
			b.Fatal("process 5 is nobody's")
		}
	}
}

// BenchmarkOwnerCold looks up processes for the first time, on a node with so many.
func BenchmarkOwnerCold(b *testing.B) {
	for _, n := range []int{32, 5000} {
		b.Run(fmt.Sprintf("processes=%d", n), func(b *testing.B) {
			s, pids := bigStage(b, n)
			holders := benchHolders(32)
			b.ReportAllocs()
			for b.Loop() {
				l := s.locator()
				found := 0
				for _, pid := range pids {
					if _, ok := l.Owner(pid, holders); ok {
						found++
					}
				}
				if found < len(holders) {
					b.Fatalf("%d processes are found", found)
				}
				for range patience + 1 {
					l.Sweep()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(pids)), "ns/process")
		})
	}
}
