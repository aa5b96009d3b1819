package podresources_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/podresources"
	"github.com/podgauge/podgauge/test/helpers/require"
)

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
