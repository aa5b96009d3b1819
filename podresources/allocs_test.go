//go:build !race

package podresources

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const raceEnabled = false

// Limits of a scrape's memory allocations in the client, on a node with 110 pods of two containers and 8 devices. The race detector adds
// allocations, so the file is built only without -race.
const (
	maxDecodeAllocs = 0
	maxListAllocs   = 100
)

// TestAllocationsOfList limits the memory allocations of decoding and calling List.
func TestAllocationsOfList(t *testing.T) {
	for _, pods := range benchmarkPods {
		b, err := proto.Marshal(nodeResponse(pods, 8))
		if err != nil {
			t.Fatal(err)
		}
		a, l, now := newListResponse(), resourceTracker{}, time.Now()
		got := testing.AllocsPerRun(100, func() {
			if err := a.Read(b); err != nil || len(a.allocations) != 8 || len(a.resources.Claims) != 8 {
				t.Fatalf("allocations: %v, %v", a.allocations, err)
			}
			l.merge(&a.resources, a.pods, kubeletEpoch{now, now}, true) // the most expensive case: a young connection
		})
		t.Logf("Read of %d bytes: %v memory allocations", len(b), got)
		if got > maxDecodeAllocs {
			t.Errorf("Read: got %v memory allocations, want at most %v", got, maxDecodeAllocs)
		}
	}

	c := newTestClient(t, startKubeletProcess(t, 110), Options{})
	got := testing.AllocsPerRun(200, func() {
		if h := c.ListAllocations(t.Context()); h.Err != nil || len(h.All) != 8 {
			t.Fatalf("allocations: %v, %v", h.All, h.Err)
		}
	})
	t.Logf("ListAllocations: %v memory allocations", got)
	if got > maxListAllocs {
		t.Errorf("ListAllocations: got %v memory allocations, want at most %v", got, maxListAllocs)
	}
}

// TestAllocationsOfAllocatable checks that reading unchanged allocatable resources allocates no memory.
func TestAllocationsOfAllocatable(t *testing.T) {
	response := &api.AllocatableResourcesResponse{CpuIds: []int64{1, 2, 3}}
	for _, c := range nodeResponse(8, 8).PodResources {
		response.Devices = append(response.Devices, c.Containers[0].Devices...)
		response.Memory = append(response.Memory, c.Containers[0].Memory...)
	}
	b, err := proto.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	a, l := rawAllocatableResponse{newResourceRows(maxAllocatableIDs)}, resourceTracker{}
	if n := testing.AllocsPerRun(100, func() {
		if err := a.Read(b); err != nil || len(a.resources.Devices) != 8 {
			t.Fatalf("allocatable devices: %v, %v", a.resources.Devices, err)
		}
		replaceRows(&l.allocatable, &a.resources)
	}); n > 0 {
		t.Errorf("got %v memory allocations, want 0", n)
	}
}

var benchmarkPods = []int{110, 500}

func BenchmarkDecode(b *testing.B) {
	for _, pods := range benchmarkPods {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			response, err := proto.Marshal(nodeResponse(pods, 8))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(response)))
			a := newListResponse()
			for b.Loop() {
				if err := a.Read(response); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkListAllocations(b *testing.B) {
	for _, pods := range benchmarkPods {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			c := newTestClient(b, startKubeletProcess(b, pods), Options{})
			b.ReportAllocs()
			for b.Loop() {
				if h := c.ListAllocations(b.Context()); h.Err != nil {
					b.Fatal(h.Err)
				}
			}
		})
	}
}
