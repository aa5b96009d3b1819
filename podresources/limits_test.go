package podresources_test

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/podresources"
	"github.com/podgauge/podgauge/test/helpers/require"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// TestTooLargeResponse has responses that no node needs. Each is logged once with
// its size, calls pause, and the last owners stay.
func TestTooLargeResponse(t *testing.T) {
	const rows = 16385
	for name, pods := range map[string][]*api.PodResources{
		"message":   {newPod("two", strings.Repeat("b", 64<<20))},
		"long name": {newPodWith("two", newContainer(strings.Repeat("b", 513), "b"))},
		"CPU ids":   {newPodWith("two", &api.ContainerResources{CpuIds: make([]int64, 10<<20)})},
		"pods":      make([]*api.PodResources, 500_000),
		"claim rows": {newPodWith("two",
			addClaims(newContainer("main"), "many", numbered(rows, "nic.example.com/nic-%d")...))},
		"ids of own form": {newPod("two", numbered(rows, "GPU-%08x-0000-0000-0000-000000000000")...)},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range pods {
				pods[i] = cmp.Or(pods[i], &api.PodResources{})
			}
			inBubble(t, longAgo, podresources.Options{Devices: ownDevices(), ClaimedDevice: byName}, func(k *scriptedKubelet) {
				k.setPods(newPod("one", "a"))
				defer k.run()()
				time.Sleep(time.Second)
				k.setPods(pods...)
				begin := time.Now()
				for range 60 { // as frequent scrapes do
					time.Sleep(100 * ms)
					k.list()
				}
				if a := k.published(); a.Err == nil || stateOf(a, "a") != "one" {
					t.Errorf("got %v, owner %s", a.Err, stateOf(a, "a"))
				}
				if calls := len(k.callsSince(begin)); calls > 8 {
					t.Errorf("got %d calls in 6 s, want a pause", calls)
				}
				size := regexp.MustCompile(`\d{3,} (bytes|vs)|more devices`)
				if log := k.log.String(); strings.Count(log, "level=WARN") != 1 || !size.MatchString(log) {
					t.Errorf("log: got %s, want a warning with the size", log)
				}
				k.setPods(newPod("three", "a"))
				time.Sleep(6 * time.Second)
				k.want("a", "three")
			})
		})
	}
}

// TestManyAllocatableReplicas lists replicas of eight GPUs up to the kubelet's limit
// for a plugin and above, each with a NUMA node. List does not pause.
func TestManyAllocatableReplicas(t *testing.T) {
	for replicas, want := range map[int]bool{64: true, 7500: true, 30_000: false} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			response := &api.AllocatableResourcesResponse{}
			for i := range 8 * replicas {
				response.Devices = append(response.Devices, &api.ContainerDevices{
					ResourceName: gpu,
					DeviceIds:    []string{fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000::%d", i%8, i/8)},
					Topology:     &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(i % 2)}}},
				})
			}
			scripted(t, func(k *scriptedKubelet) {
				k.set(func() { k.allocatable = response })
				defer k.run()()
				time.Sleep(time.Second)
				a := k.published()
				if n := len(a.Resources.Allocatable.Devices); a.Resources.AllocatableKnown != want || want && n != 8*replicas {
					t.Errorf("got known %t, %d devices, log %s", a.Resources.AllocatableKnown, n, k.log.String())
				}
				require.NoError(t, k.list().Err)
			})
		})
	}
}

// TestForeignIDs lists a resource with 65,000 ids of 500 pods: the ids are counted
// and dropped. This node's devices stay, also before the first inventory.
func TestForeignIDs(t *testing.T) {
	const memory, uuid = "example.com/gpu-memory", "GPU-6f1a6f7c-0e4a-4f55-9a6e-7b4f3c2d1e00"
	podsOf := func(ids int) (pods []*api.PodResources) {
		for i := range 500 {
			c := &api.ContainerResources{Name: "main"}
			for n := i; n < ids; n += 500 {
				id := fmt.Sprint("memory-", n)
				c.Devices = append(c.Devices, &api.ContainerDevices{ResourceName: memory, DeviceIds: []string{id}})
			}
			pods = append(pods, newPodWith(fmt.Sprint("pod-", i), c))
		}
		return append(pods, newPod("ours", "a::1"), newPod("early", uuid))
	}
	inBubble(t, longAgo, podresources.Options{Devices: ownDevices(), ClaimedDevice: byName}, func(k *scriptedKubelet) {
		for _, ids := range []int{65_000, 4096, 65_000} {
			k.setPods(podsOf(ids)...)
			a := k.list()
			want := 2
			if ids == 4096 {
				want += ids
			}
			dropped := a.Resources.Allocated.Dropped
			if len(a.All) != want || len(a.Resources.Allocated.Devices) != want || (len(dropped) == 1) != (want == 2) {
				t.Fatalf("%d ids: got %d allocations, dropped %v, %v", ids, len(a.All), dropped, a.Err)
			}
			if want == 2 && dropped[0] != (allocation.DroppedIDs{Resource: memory, IDs: ids}) {
				t.Errorf("%d ids: got %v", ids, dropped)
			}
			k.want("a", "ours", uuid, "early")
			if len(a.Recent) != 2 {
				t.Errorf("history: got %v", a.Recent)
			}
		}
	})
}
