package podresources

import (
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// TestRunConfirmsRetained checks that Run lists often after a restart, to notice the end of a pod early.
func TestRunConfirmsRetained(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		stop := c.startRun(t)
		defer stop()
		k.setPods(newPod("one", "a"), newPod("two", "b"))
		time.Sleep(ms) // Run's first call has returned
		wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
		k.setPods()
		k.restart()
		wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
		time.Sleep(150 * ms)
		k.setPods(newPod("one", "a"), newPod("two", "b"))
		time.Sleep(400 * ms)
		k.setPods(newPod("two", "b"))
		h := c.ListAllocations(t.Context())
		wantDevice(t, h, "a", "unallocated")
		wantDevice(t, h, "b", "allocated to two")
	})
}

func TestRunStopsWhenAllAreConfirmed(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		stop := c.startRun(t)
		defer stop()
		k.setPods(newPod("one", "a"))
		c.ListAllocations(t.Context())
		k.restart()
		c.ListAllocations(t.Context())
		time.Sleep(time.Second)
		rest := time.Now()
		time.Sleep(idleInterval - 2*time.Second)
		if calls := k.listCallsSince(rest); len(calls) != 0 {
			t.Errorf("List was called %v after all were confirmed", calls)
		}
	})
}

// TestOnRegisteredCallsKubelet checks that a registration causes a List, without scrapes or failed calls.
func TestOnRegisteredCallsKubelet(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		stop := c.startRun(t)
		defer stop()
		k.setPods(newPod("one", "a"))
		c.ListAllocations(t.Context())
		time.Sleep(time.Second)
		k.restart()
		c.OnRegistered()
		time.Sleep(500 * ms)
		k.setPods()
		time.Sleep(500 * ms)
		// The pod was confirmed on the new connection, so the next List counts.
		wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated")
	})
}

// TestCheckpointEndsRetained checks that a retained allocation ends when the new kubelet drops the checkpoint entry.
func TestCheckpointEndsRetained(t *testing.T) {
	for _, c := range []struct {
		written []string // ids in the checkpoint after the restart
		want    string
	}{
		{[]string{"a", "b"}, "allocated to one"}, // copied from the old checkpoint, with stale entries
		{[]string{"b"}, "unallocated"},
	} {
		runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, client *Client, f checkpointFile, _ *kubeletLogBuffer) {
			f.writeIDs("a", "b")
			k.setPods(newPod("one", "a"), newPod("two", "b"))
			time.Sleep(2 * idleInterval) // Run has read the checkpoint
			k.setPods(newPod("two", "b"))
			k.restart()
			wantDevice(t, client.ListAllocations(t.Context()), "a", "allocated to one")
			time.Sleep(time.Second)
			f.writeIDs(c.written...)
			time.Sleep(2 * maxRefreshDelay)
			wantDevice(t, client.current(), "a", c.want)
			wantDevice(t, client.current(), "b", "allocated to two")
		})
	}
}

// TestOldCheckpointEndsNone checks that a checkpoint from before the restart is ignored.
func TestOldCheckpointEndsNone(t *testing.T) {
	runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, _ *kubeletLogBuffer) {
		f.writeIDs("a", "b")
		k.setPods(newPod("one", "a"), newPod("two", "b"))
		time.Sleep(2 * idleInterval)
		k.stop()
		f.writeIDs("b") // before the current kubelet started
		time.Sleep(time.Second)
		k.setPods(newPod("two", "b"))
		k.start(0)
		c.ListAllocations(t.Context())
		time.Sleep(2 * maxRefreshDelay)
		wantDevice(t, c.current(), "a", "allocated to one")
	})
}

// TestEndedPodIsNotRetained ends a pod by the Pods API. In an outage or after a restart, its allocations are only retained if a later List
// contains the pod.
func TestEndedPodIsNotRetained(t *testing.T) {
	for name, play := range map[string]func(t *testing.T, k *scriptedKubelet, c *Client){
		"the kubelet is restarted": func(t *testing.T, k *scriptedKubelet, c *Client) {
			c.OnPodEnded("team", "one")
			k.setPods()
			k.restart()
			wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated")
			wantDevice(t, c.ListAllocations(t.Context()), "b", "allocated to two")
		},
		"the kubelet is down": func(t *testing.T, k *scriptedKubelet, c *Client) {
			c.OnPodEnded("team", "one")
			k.stop()
			wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated")
			wantDevice(t, c.ListAllocations(t.Context()), "b", "allocated to two")
			k.start(0)
		},
		"the end is reported after the restart": func(t *testing.T, k *scriptedKubelet, c *Client) {
			k.setPods()
			k.restart()
			wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
			c.OnPodEnded("team", "one")
			wantDevice(t, c.current(), "a", "allocated to one")
			time.Sleep(ms)
			wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated")
			wantDevice(t, c.ListAllocations(t.Context()), "b", "allocated to two")
		},
		"the kubelet still lists the pod": func(t *testing.T, k *scriptedKubelet, c *Client) {
			c.OnPodEnded("team", "one")
			time.Sleep(ms)
			wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
			k.stop() // a new pod of the same name
			wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
			k.start(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
				k.setPods(newPod("one", "a"), newPod("two", "b"))
				wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
				play(t, k, c)
			})
		})
	}
}

// TestNextPodOfSameNameHasNotEnded covers Get for a later pod of the same name, as of a StatefulSet.
func TestNextPodOfSameNameHasNotEnded(t *testing.T) {
	r := newHistoryTracker()
	then := func() time.Time { r.now = r.now.Add(time.Second); return r.now }
	r.applyList(newAllocation("a", "one"))
	r.markPodEnded(podName{"team", "one"}, then())
	r.recordAllocate(gpu, []device.AdvertisedID{"a"}, then())
	r.confirmPod([]device.Allocation{newAllocation("a", "one")}, r.epoch, then())
	r.dropEndedPods(then())
	wantDevice(t, device.Allocations{All: r.allocations, Complete: r.settled}, "a", "allocated to one")
}

func TestEndedPodsWithoutAllocationsAreNotKept(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		k.setPods(newPod("one", "a"))
		c.ListAllocations(t.Context())
		for range 1000 {
			c.OnPodEnded("team", "other")
		}
		if n := len(c.tracker.endedPods); n != 0 {
			t.Errorf("got %d ended pods, want none", n)
		}
	})
}
