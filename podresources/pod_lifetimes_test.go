package podresources

import (
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// TestPendingEndsWithLastPossibleOwner checks that an allocation without an owner ends with the last possible owner, despite the checkpoint.
func TestPendingEndsWithLastPossibleOwner(t *testing.T) {
	allocated := func(c *Client) { c.OnAllocated(gpu, []device.AdvertisedID{"a"}) }
	for name, play := range map[string]func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile){
		"rejected after Allocate": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			allocated(c)
			time.Sleep(ownerLookupTimeout - ms)
			wantDevice(t, c.current(), "a", "pending")
		},
		"ended before List": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			allocated(c)
			time.Sleep(time.Second) // responses lacked the pod
			k.setPods(newPod("old", "b"), newPod("later", "c"))
			time.Sleep(ownerLookupTimeout - 2*time.Second)
			wantDevice(t, c.current(), "a", "pending")
		},
		"init container": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			k.setPods(newPod("old", "b"), newPod("new"))
			allocated(c)
			time.Sleep(5 * time.Hour)
			wantDevice(t, c.current(), "a", "pending")
			k.setPods(newPod("old", "b"), newPod("later"))
		},
		"init container, with earlier and later pods": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			k.setPods(newPod("old", "b"), newPod("before"))
			time.Sleep(maxAdmissionDelay + idleInterval)
			k.setPods(newPod("old", "b"), newPod("before"), newPod("new"))
			allocated(c)
			time.Sleep(time.Second)
			k.setPods(newPod("old", "b"), newPod("before"), newPod("new"), newPod("after"))
			time.Sleep(5 * time.Hour)
			wantDevice(t, c.current(), "a", "pending")
			k.setPods(newPod("old", "b"), newPod("before"), newPod("after"))
		},
		"pod delayed by a different plugin": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			k.setPods(newPod("old", "b"), newPod("new"))
			c.ListAllocations(t.Context())
			time.Sleep(maxAdmissionDelay - ms)
			allocated(c)
			time.Sleep(time.Hour)
			wantDevice(t, c.current(), "a", "pending")
			k.setPods(newPod("old", "b"))
		},
		"init container, kubelet restart": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			k.setPods(newPod("old", "b"), newPod("new"))
			allocated(c)
			time.Sleep(time.Minute)
			k.stop()
			time.Sleep(time.Minute)
			wantDevice(t, c.current(), "a", "pending")
			k.setPods()
			k.start(0)
			time.Sleep(20 * time.Second)
			wantDevice(t, c.current(), "a", "pending")
			k.setPods(newPod("old", "b"))
			time.Sleep(20 * time.Second)
			wantDevice(t, c.current(), "a", "pending")
			k.setPods(newPod("old", "b"), newPod("new"))
			time.Sleep(time.Hour)
			wantDevice(t, c.current(), "a", "pending")
			k.setPods(newPod("old", "b"))
		},
		"init container of a pod that ends in an outage": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			k.setPods(newPod("old", "b"), newPod("new"))
			allocated(c)
			time.Sleep(time.Minute)
			k.stop()
			k.setPods(newPod("old", "b"))
			time.Sleep(time.Minute)
			k.start(0)
			time.Sleep(settleTimeout - time.Second)
			wantDevice(t, c.current(), "a", "pending") // the kubelet may not have read the pod yet
		},
		"init container of a pod first listed after a restart": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			allocated(c)
			k.stop()
			time.Sleep(time.Minute)
			k.start(0)
			time.Sleep(30 * time.Second)
			k.setPods(newPod("old", "b"), newPod("new"))
			time.Sleep(time.Hour)
			wantDevice(t, c.current(), "a", "pending")
			k.setPods(newPod("old", "b"))
		},
		"init container, with pods of the same second": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			allocated(c)
			f.writeIDs("a", "c")
			k.setPods(newPod("old", "b"), newPod("new"), newPod("next", "c"))
			time.Sleep(time.Hour)
			wantDevice(t, c.current(), "a", "pending")
			k.setPods(newPod("old", "b"), newPod("next", "c")) // may be the owner as well
			time.Sleep(time.Hour)
			wantDevice(t, c.current(), "a", "pending")
			k.setPods(newPod("old", "b"))
		},
		"next allocation of a different pod": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			k.setPods(newPod("old", "b"), newPod("new"))
			allocated(c)
			time.Sleep(time.Hour)
			allocated(c)
			k.setPods(newPod("old", "b"), newPod("next", "a"))
			time.Sleep(time.Minute)
			wantDevice(t, c.current(), "a", "allocated to next")
			k.setPods(newPod("old", "b"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, _ *kubeletLogBuffer) {
				f.writeIDs("a", "b") // the kubelet does not write again
				k.setPods(newPod("old", "b"))
				time.Sleep(2 * ownerLookupTimeout)
				play(t, k, c, f)
				time.Sleep(ownerLookupTimeout + idleInterval)
				wantDevice(t, c.current(), "a", "unallocated")
				wantDevice(t, c.current(), "b", "allocated to old")
			})
		})
	}
}

// TestEarlierAllocationEndsWithItsPods checks that all pods listed at the start may own allocations from before this process.
func TestEarlierAllocationEndsWithItsPods(t *testing.T) {
	f := newCheckpointFile(t)
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		c.options.CheckpointPath = f.path
		k.setPods(newPod("one"), newPod("two"))
		defer c.startRun(t)()
		time.Sleep(700 * ms)
		f.writeIDs("a")
		time.Sleep(time.Minute)
		k.setPods(newPod("two"), newPod("later"))
		time.Sleep(time.Hour)
		wantDevice(t, c.current(), "a", "pending")
		k.setPods(newPod("later"))
		time.Sleep(idleInterval)
		wantDevice(t, c.current(), "a", "unallocated")

		k.restart() // the checkpoint of the next kubelet follows below
		for begin := time.Now(); c.requestedAt().Before(begin.Add(settleTimeout)); {
			time.Sleep(100 * ms)
		}
		f.writeIDs("a")
		time.Sleep(time.Hour)
		wantDevice(t, c.current(), "a", "pending")
		k.setPods()
		time.Sleep(idleInterval)
		wantDevice(t, c.current(), "a", "unallocated")
	})
}

// requestedAt returns the time of the request for the newest response.
func (c *Client) requestedAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tracker.requestedAt
}
