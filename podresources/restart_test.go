package podresources_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/podresources"
	"github.com/podgauge/podgauge/test/helpers/require"
)

var own = podresources.Options{OwnPod: ownPod}

// TestRestart lists the pods of a restarted kubelet one after the other, with and
// without an own pod.
func TestRestart(t *testing.T) {
	for name, test := range map[string]struct {
		options podresources.Options
		over    time.Duration // from the first List with the own pod
	}{"own pod": {own, 10 * time.Second}, "no own pod": {podresources.Options{}, 60 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, longAgo, test.options, func(k *scriptedKubelet) {
				k.writeCheckpoint("s", "1", "a", "2", "b", "3", "freed", "4", "r", "5")
				podgauge, static := newPod(ownPod), newPod("static", "s")
				k.setPods(podgauge, static, newPod("one", "a"), newPod("two", "b"), newPod("freed", "freed"), newPod("left", "r"))
				k.wantListed("s", "static", "a", "one", "b", "two", "freed", "freed", "r", "left", "idle", "unallocated")

				k.restart()
				k.writeCheckpoint("s", "1", "a", "2", "b", "3", "r", "5")
				k.wantListed("s", "static", "a", "one", "b", "two", "freed", "unallocated", "idle", "unallocated")
				k.setPods(static)
				k.wantListed("s", "static", "a", "one", "b", "two")
				k.setPods(static, podgauge)
				k.wantListed("a", "one", "b", "two")
				k.setPods(static, podgauge, newPod("one", "a"), newPod("left"), newPod("next", "r"))
				k.wantListed("a", "one", "b", "two", "r", "next")
				k.setPods(static, podgauge, newPod("left"))
				k.wantListed("a", "unallocated", "b", "two", "r", "unallocated") // both were listed since the restart
				time.Sleep(test.over - ms)
				k.wantListed("b", "two")
				time.Sleep(ms)
				k.wantListed("s", "static", "b", "unallocated")
			})
		})
	}
}

// TestAPIOutage restarts the kubelet while the API server does not answer: only
// static pods are listed, until long after.
func TestAPIOutage(t *testing.T) {
	inBubble(t, longAgo, own, func(k *scriptedKubelet) {
		k.writeCheckpoint("a", "1", "b", "2", "s", "3")
		static, podgauge := newPod("static", "s"), newPod(ownPod)
		k.setPods(podgauge, static, newPod("one", "a"), newPod("two", "b"))
		defer k.run()()
		time.Sleep(time.Second)
		k.restart(static)
		k.writeCheckpoint("a", "1", "b", "2", "s", "3") // the plugin has registered
		time.Sleep(time.Hour)
		k.want("a", "one", "b", "two", "s", "static", "idle", "unallocated")
		k.restart(static)
		time.Sleep(time.Hour)
		k.want("a", "one", "b", "two", "s", "static")
		k.writeCheckpoint("b", "2", "s", "3")
		time.Sleep(10 * time.Second)
		k.want("a", "unallocated", "b", "two")
		k.setPods(static, podgauge) // two was deleted
		time.Sleep(9 * time.Second)
		k.want("b", "two")
		time.Sleep(4 * time.Second)
		k.want("b", "unallocated", "s", "static")
	})
}

// TestStart starts podgauge and the kubelet together: only listed devices are known.
func TestStart(t *testing.T) {
	for name, test := range map[string]struct {
		options podresources.Options
		age     time.Duration // of the kubelet
		known   time.Duration
	}{
		"young kubelet":              {own, 0, 10 * time.Second},
		"young kubelet, no own pod":  {podresources.Options{}, 0, 60 * time.Second},
		"kubelet of half a minute":   {podresources.Options{}, 30 * time.Second, 30 * time.Second},
		"old kubelet":                {own, time.Hour, 0},
		"old kubelet, no own pod":    {podresources.Options{}, time.Hour, 0},
		"a clock that was set later": {podresources.Options{}, -time.Hour, time.Hour + time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, test.age, test.options, func(k *scriptedKubelet) {
				k.want("a", "unknown", "b", "unknown")
				if test.age < time.Minute {
					k.wantListed("a", "unknown", "b", "unknown")
				}
				k.setPods(newPod("one", "a"), newPod(ownPod))
				if test.known > 0 {
					k.wantListed("a", "one", "b", "unknown")
					time.Sleep(test.known - ms)
					k.wantListed("a", "one", "b", "unknown")
					time.Sleep(ms)
				}
				k.wantListed("a", "one", "b", "unallocated")
			})
		})
	}
}

// TestRestartWithoutCheckpoint keeps owners until the end of the restart.
func TestRestartWithoutCheckpoint(t *testing.T) {
	inBubble(t, longAgo, own, func(k *scriptedKubelet) {
		k.setPods(newPod(ownPod), newPod("one", "a"))
		k.wantListed("a", "one")
		k.restart(newPod(ownPod))
		k.wantListed("a", "one")
		time.Sleep(10 * time.Second)
		k.wantListed("a", "unallocated")
	})
}

// TestRestartKeepsResources keeps CPUs, memory and claims of unlisted pods.
func TestRestartKeepsResources(t *testing.T) {
	rich := func(name string) *api.PodResources {
		c := addClaims(newContainer("main", "id-"+name), "claim", "gpu.nvidia.com/of-"+name)
		c.CpuIds = []int64{1}
		c.Memory = []*api.ContainerMemory{{MemoryType: "memory", Size: 1}}
		c.Devices[0].Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}}
		return newPodWith(name, c)
	}
	options := podresources.Options{OwnPod: ownPod, Devices: ownDevices(), ClaimedDevice: func(c allocation.Claim) (device.ID, bool) {
		return device.ID(c.Device), true
	}}
	inBubble(t, longAgo, options, func(k *scriptedKubelet) {
		podgauge := newPod(ownPod)
		want := func(pods ...string) {
			t.Helper()
			a := k.list()
			r := a.Resources.Allocated
			for kind, got := range map[string]int{
				"devices": len(r.Devices), "CPUs": len(r.CPUs), "memory": len(r.Memory), "claims": len(r.Claims),
			} {
				if got != len(pods) {
					t.Errorf("%s: got %d, want those of %q", kind, got, pods)
				}
			}
			for i, pod := range pods {
				if stateOf(a, device.ID("of-"+pod)) != pod || r.CPUs[i].Pod != pod || r.Devices[i].Pod != pod ||
					len(r.Devices[i].NUMANodes) != 1 {
					t.Errorf("resources of %s: got %+v", pod, r)
				}
			}
		}
		k.setPods(podgauge, rich("one"), rich("two"))
		want("one", "two")
		k.restart()
		want("one", "two")
		k.setPods(newPod("one"))
		want("two")
		k.setPods(newPod("one"), rich("two"), podgauge)
		want("two")
		k.setPods(podgauge)
		want()
		k.restart()
		want()
	})
}

// TestPodEnds calls List soon after the Pods API reports the end of a pod with a
// device.
func TestPodEnds(t *testing.T) {
	inBubble(t, longAgo, podresources.Options{}, func(k *scriptedKubelet) {
		k.setPods(newPod("one", "a"))
		defer k.run()()
		time.Sleep(15 * time.Second)
		k.setPods()
		k.client.OnPodEnded("team", "other")
		time.Sleep(time.Second)
		k.want("a", "one")
		k.client.OnPodEnded("team", "one")
		time.Sleep(time.Second)
		k.want("a", "unallocated")
	})
}

// runWithCheckpoint runs a client for a minute before the test.
func runWithCheckpoint(t *testing.T, test func(k *scriptedKubelet)) {
	t.Helper()
	inBubble(t, longAgo, own, func(k *scriptedKubelet) {
		k.writeCheckpoint("used", "old", "over", "gone")
		k.setPods(newPod(ownPod), newPod("old", "used"))
		defer k.run()()
		time.Sleep(time.Minute)
		k.want("used", "old", "over", "unallocated", "a", "unallocated")
		test(k)
	})
}

// TestRejectedPod ends an allocation whose pod was rejected after Allocate: the
// checkpoint lacks the device, or no listed pod is young enough.
func TestRejectedPod(t *testing.T) {
	for name, entries := range map[string][]string{"dropped": {"b", "b"}, "stale": {"a", "a", "b", "b"}} {
		t.Run(name, func(t *testing.T) {
			runWithCheckpoint(t, func(k *scriptedKubelet) {
				k.allocate("a")
				k.writeCheckpoint(entries...)
				time.Sleep(9 * time.Second)
				k.want("a", "pending")
				time.Sleep(3 * time.Second)
				k.want("a", "unallocated", "used", "old")
			})
		})
	}
}

// TestInitContainer keeps an allocation that List never names until the checkpoint
// drops the entry, or the pod ends.
func TestInitContainer(t *testing.T) {
	runWithCheckpoint(t, func(k *scriptedKubelet) {
		k.allocate("a", "b")
		k.writeCheckpoint("a", "new", "b", "new", "used", "old")
		k.setPods(newPod(ownPod), newPod("old", "used"), newPod("new"))
		time.Sleep(5 * time.Hour)
		k.want("a", "pending", "b", "pending")
		k.writeCheckpoint("a", "new", "used", "old")
		time.Sleep(10 * time.Second)
		k.want("a", "pending", "b", "unallocated")
		k.setPods(newPod(ownPod), newPod("old", "used"), newPod("new", "a")) // the next container
		time.Sleep(10 * time.Second)
		k.want("a", "new")
		k.setPods(newPod(ownPod), newPod("old", "used"))
		time.Sleep(10 * time.Second)
		k.want("a", "unallocated")
	})
}

// TestUnreadableCheckpoint keeps an allocation as long as a pod may be the owner,
// and logs a warning.
func TestUnreadableCheckpoint(t *testing.T) {
	for name, spoil := range map[string]func(k *scriptedKubelet) error{
		"none":      func(k *scriptedKubelet) error { return os.Remove(k.checkpoint) },
		"malformed": func(k *scriptedKubelet) error { k.writeFile(`{"Data":{"PodDev`); return nil },
		"other form": func(k *scriptedKubelet) error {
			k.writeFile(`{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":["a"]}]}}`)
			return nil
		},
		"too large": func(k *scriptedKubelet) error { return os.Truncate(k.checkpoint, 1<<30) },
	} {
		t.Run(name, func(t *testing.T) {
			runWithCheckpoint(t, func(k *scriptedKubelet) {
				require.NoError(t, spoil(k))
				k.allocate("a")
				k.setPods(newPod(ownPod), newPod("old", "used"), newPod("new"))
				time.Sleep(time.Hour)
				k.want("a", "pending", "used", "old", "b", "unallocated")
				if log := k.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, k.checkpoint) {
					t.Errorf("log: got\n%s", log)
				}
				k.writeCheckpoint("used", "old")
				time.Sleep(10 * time.Second)
				k.want("a", "unallocated")
			})
		})
	}
}

// TestAllocatedUnseen allocates after the last List before the kubelet stops,
// beside another device plugin: only the checkpoint has the allocation.
func TestAllocatedUnseen(t *testing.T) {
	entries := []string{"used", "old", "over", "gone", "a", "new"}
	for name, play := range map[string]func(k *scriptedKubelet){
		"the kubelet stops": func(k *scriptedKubelet) {
			k.stop()
			k.wantListed("a", "pending")
			time.Sleep(time.Minute)
			k.want("a", "pending")
			k.setPods()
			k.start(0)
			k.wantListed("a", "pending")
		},
		"the kubelet restarts": func(k *scriptedKubelet) {
			k.restart()
			k.writeCheckpoint(entries...) // the plugin has registered
			k.wantListed("a", "pending")
		},
		"the kubelet hangs": func(k *scriptedKubelet) {
			k.set(func() { k.onList = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } })
			time.Sleep(20 * time.Second)
			k.want("a", "pending")
			k.set(func() { k.onList = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			runWithCheckpoint(t, func(k *scriptedKubelet) {
				k.list()
				time.Sleep(20 * ms)
				k.writeCheckpoint(entries...)
				pods := k.pods
				play(k)
				k.want("used", "old", "over", "unallocated")
				k.setPods(append(pods, newPod("new", "a"))...)
				k.wantListed("a", "new")
				time.Sleep(time.Minute)
				k.want("a", "new", "used", "old", "over", "unallocated")
			})
		})
	}
}

// TestForeignCheckpointEntries ignores devices of other plugins in the checkpoint.
func TestForeignCheckpointEntries(t *testing.T) {
	inBubble(t, longAgo, podresources.Options{Devices: ownDevices()}, func(k *scriptedKubelet) {
		k.list()
		time.Sleep(time.Second)
		k.writeCheckpoint("a", "1", "nic-1", "1")
		k.stop()
		k.wantListed("a", "pending", "nic-1", "unallocated")
	})
}
