//go:build !race

package podresources

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const raced = false

// What a scrape may cost on the side of the client, on a node with 110 pods of
// two containers and 8 devices. The race detector allocates by itself, so this
// runs without.
const (
	mostDecodeAllocations = 0
	mostOwnersAllocations = 100
)

func TestListAllocations(t *testing.T) {
	for _, pods := range benchmarked {
		b, err := proto.Marshal(node(pods, 8))
		if err != nil {
			t.Fatal(err)
		}
		a, l, now := newAnswer(), ledger{}, time.Now()
		got := testing.AllocsPerRun(100, func() {
			if err := a.Read(b); err != nil || len(a.held) != 8 || len(a.given.claims) != 8 {
				t.Fatalf("held are %v: %v", a.held, err)
			}
			l.take(&a.given, a.pods, link{now, now}, true) // in the minute that costs most
		})
		t.Logf("decode of %d bytes: %v allocations", len(b), got)
		if got > mostDecodeAllocations {
			t.Errorf("decode makes %v allocations, at most %v are wanted", got, mostDecodeAllocations)
		}
	}

	c := clientOf(t, kubeletOf(t, 110), Trace{})
	got := testing.AllocsPerRun(200, func() {
		if h := c.Owners(t.Context()); h.Err != nil || len(h.Held) != 8 {
			t.Fatalf("held are %v: %v", h.Held, h.Err)
		}
	})
	t.Logf("Owners: %v allocations", got)
	if got > mostOwnersAllocations {
		t.Errorf("Owners makes %v allocations, at most %v are wanted", got, mostOwnersAllocations)
	}
}

// What is allocatable is asked for each second at most; where it is the same as before it
// costs nothing.
func TestAllocatableAllocations(t *testing.T) {
	answer := &api.AllocatableResourcesResponse{CpuIds: []int64{1, 2, 3}}
	for _, c := range node(8, 8).PodResources {
		answer.Devices = append(answer.Devices, c.Containers[0].Devices...)
		answer.Memory = append(answer.Memory, c.Containers[0].Memory...)
	}
	b, err := proto.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	a, l := newAllocatable(), ledger{}
	if n := testing.AllocsPerRun(100, func() {
		if err := a.Read(b); err != nil || len(a.given.devices) != 8 {
			t.Fatalf("allocatable are %v: %v", a.given.devices, err)
		}
		l.offer(&a.given)
	}); n > 0 {
		t.Errorf("%v allocations are made", n)
	}
}

var benchmarked = []int{110, 500}

func BenchmarkDecode(b *testing.B) {
	for _, pods := range benchmarked {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			answer, err := proto.Marshal(node(pods, 8))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(answer)))
			a := newAnswer()
			for b.Loop() {
				if err := a.Read(answer); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOwners(b *testing.B) {
	for _, pods := range benchmarked {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			c := clientOf(b, kubeletOf(b, pods), Trace{})
			b.ReportAllocs()
			for b.Loop() {
				if h := c.Owners(b.Context()); h.Err != nil {
					b.Fatal(h.Err)
				}
			}
		})
	}
}
