package podresources

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// TestAllocatedSinceLastResponse allocates between the last response and the end of the kubelet, without a call of OnAllocated. Only the
// checkpoint contains the allocation.
func TestAllocatedSinceLastResponse(t *testing.T) {
	for name, play := range map[string]func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile){
		"the kubelet stops": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			f.writeEntries("used", "old", "over", "gone", "new", "new")
			k.stop()
			wantDevice(t, c.ListAllocations(t.Context()), "new", "pending") // known from the first scrape on
			time.Sleep(time.Minute)
			wantDevice(t, c.current(), "new", "pending")
			k.setPods()
			k.start(0)
			wantDevice(t, c.ListAllocations(t.Context()), "new", "pending")
		},
		"the kubelet stops between calls": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			f.writeEntries("used", "old", "over", "gone", "new", "new")
			k.stop()
			time.Sleep(idleInterval + ms)
			wantDevice(t, c.current(), "new", "pending")
			k.start(0)
		},
		"the kubelet is restarted unnoticed": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			f.writeEntries("used", "old", "over", "gone", "new", "new")
			k.setPods()
			k.restart()
			f.writeEntries("new", "new", "used", "old", "over", "gone") // the plugin has registered
			wantDevice(t, c.ListAllocations(t.Context()), "new", "pending")
		},
		"the kubelet hangs": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			k.setOnList(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			time.Sleep(time.Minute)
			wantDevice(t, c.current(), "new", "unallocated")
			f.writeEntries("used", "old", "over", "gone", "new", "new")
			time.Sleep(callTimeout + outageInterval + ms)
			wantDevice(t, c.current(), "new", "pending")
			k.setOnList(nil)
		},
		"stale entry of an ended pod": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			f.writeEntries("used", "old", "over", "gone", "new", "ended")
			k.setPods(newPod("old", "used"), newPod("ended", "new"))
			time.Sleep(idleInterval)
			wantDevice(t, c.current(), "new", "allocated to ended")
			k.setPods(newPod("old", "used"))
			time.Sleep(2 * idleInterval)
			k.stop()
			wantDevice(t, c.ListAllocations(t.Context()), "new", "unallocated")
			k.start(0)
		},
		"stale entry of a new pod": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			f.writeEntries("used", "old", "over", "gone", "new", "new")
			c.ListAllocations(t.Context())
			time.Sleep(2 * idleInterval)
			wantDevice(t, c.current(), "new", "unallocated") // List lacks the allocation
			f.writeEntries("used", "old", "over", "gone", "new", "newer")
			k.stop()
			wantDevice(t, c.ListAllocations(t.Context()), "new", "pending")
			k.start(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCheckpointFile(t)
			f.writeEntries("used", "old", "over", "gone")
			runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
				f.t, c.options.CheckpointPath = t, f.path
				os.Chtimes(f.path, time.Now(), time.Now().Add(-time.Hour))
				k.setPods(newPod("old", "used"))
				defer c.startRun(t)()
				time.Sleep(time.Minute + 3*time.Second)
				wantDevice(t, c.current(), "new", "unallocated")
				play(t, k, c, f)

				checkOthers := func() {
					t.Helper()
					wantDevice(t, c.current(), "used", "allocated to old")
					wantDevice(t, c.current(), "over", "unallocated") // despite the checkpoint
				}
				checkOthers()
				time.Sleep(idleInterval)
				k.setPods(newPod("old", "used"), newPod("added", "new"))
				time.Sleep(idleInterval)
				wantDevice(t, c.current(), "new", "allocated to added")
				checkOthers()
				k.setPods(newPod("old", "used"))
				time.Sleep(idleInterval)
				wantDevice(t, c.current(), "new", "unallocated")
				checkOthers()
			})
		})
	}
}

// TestAllocationInOutageWithoutOwner checks that an allocation from an outage lasts until the kubelet is trusted, and longer if the pod is listed.
func TestAllocationInOutageWithoutOwner(t *testing.T) {
	for name, test := range map[string]struct {
		pods func(k *scriptedKubelet)
		want string
	}{
		"the pod is listed":         {func(k *scriptedKubelet) { k.setPods(newPod("old", "used"), newPod("init")) }, "pending"},
		"the pod has ended":         {func(k *scriptedKubelet) { k.setPods(newPod("old", "used")) }, "unallocated"},
		"the pod was added earlier": {func(k *scriptedKubelet) { k.setPods(newPod("old", "used"), newPod("before")) }, "unallocated"},
	} {
		t.Run(name, func(t *testing.T) {
			runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, _ *kubeletLogBuffer) {
				f.writeEntries("used", "old")
				k.setPods(newPod("old", "used"), newPod("before"))
				time.Sleep(time.Minute)
				f.writeEntries("used", "old", "new", "init")
				k.stop()
				test.pods(k)
				time.Sleep(time.Minute)
				k.start(0)
				time.Sleep(settleTimeout - outageInterval - connectTimeout)
				wantDevice(t, c.current(), "new", "pending")
				time.Sleep(time.Hour)
				wantDevice(t, c.current(), "new", test.want)
			})
		})
	}
}

// TestOutageWithoutCheckpoint documents a limit: without a readable checkpoint, a device counts as unallocated during the outage.
func TestOutageWithoutCheckpoint(t *testing.T) {
	runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, _ *kubeletLogBuffer) {
		f.writeContent("broken")
		k.stop()
		time.Sleep(time.Minute)
		wantDevice(t, c.current(), "new", "unallocated")
	})
}

// TestOutageAfterFirstResponse covers an outage without a checkpoint from before.
func TestOutageAfterFirstResponse(t *testing.T) {
	for name, test := range map[string]struct {
		age  time.Duration
		file func(f checkpointFile)
		want string
	}{
		"written before the response": {kubeletAgeInTests, func(checkpointFile) {}, "unallocated"},
		"written after":               {kubeletAgeInTests, func(f checkpointFile) { f.writeIDs("a") }, "pending"},
		"not settled":                 {0, func(f checkpointFile) { f.writeIDs("a") }, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCheckpointFile(t)
			runScripted(t, test.age, func(t *testing.T, k *scriptedKubelet, c *Client) {
				f.t, c.options.CheckpointPath = t, f.path
				f.writeIDs("a")
				time.Sleep(maxMtimeLag)
				c.ListAllocations(t.Context())
				time.Sleep(ms)
				test.file(f)
				k.stop()
				wantDevice(t, c.ListAllocations(t.Context()), "a", test.want)
			})
		})
	}
}

// TestSimulatedOutageAfterAdmission covers the same with the checkpoint of the simulated kubelet.
func TestSimulatedOutageAfterAdmission(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	startPlugin(t, k, gpu, healthyDevices("a")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	c.options.CheckpointPath = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(c.options.CheckpointPath, past, past); err != nil {
		t.Fatal(err)
	}
	wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated")
	c.refreshCheckpoint()
	runPod(t, k, gpuPod("one", 1))
	wantDevice(t, c.current(), "a", "unallocated") // no call since the admission
	release := make(chan struct{})
	k.SetFaults(kubelet.Faults{HoldStaticPods: release})
	var down device.Allocations
	if err := k.Restart(t.Context(), func() { down = c.ListAllocations(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	wantDevice(t, down, "a", "pending")
	h := c.ListAllocations(t.Context())
	if h.Err != nil {
		t.Error(h.Err)
	}
	wantDevice(t, h, "a", "pending") // no pod is listed yet
	close(release)
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
	wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
}
