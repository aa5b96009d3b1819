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

// Beside another device plugin nobody tells of allocations. What was allocated
// between the last answer and the kubelet's end is in its checkpoint alone.
func TestAllocatedSinceTheLastAnswer(t *testing.T) {
	for name, play := range map[string]func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile){
		"the kubelet goes": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			f.writeEntries("held", "old", "over", "gone", "new", "new")
			k.stop()
			wantDevice(t, c.ListAllocations(t.Context()), "new", "unnamed") // the first scrape says so
			time.Sleep(time.Minute)
			wantDevice(t, c.current(), "new", "unnamed")
			k.setPods()
			k.start(0)
			wantDevice(t, c.ListAllocations(t.Context()), "new", "unnamed")
		},
		"the kubelet goes while nobody asks": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			f.writeEntries("held", "old", "over", "gone", "new", "new")
			k.stop()
			time.Sleep(idleInterval + ms)
			wantDevice(t, c.current(), "new", "unnamed")
			k.start(0)
		},
		"the kubelet is restarted unnoticed": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			f.writeEntries("held", "old", "over", "gone", "new", "new")
			k.setPods()
			k.restart()
			f.writeEntries("new", "new", "held", "old", "over", "gone") // the plugin has registered
			wantDevice(t, c.ListAllocations(t.Context()), "new", "unnamed")
		},
		"the kubelet hangs": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			k.setOnList(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			time.Sleep(time.Minute)
			wantDevice(t, c.current(), "new", "idle")
			f.writeEntries("held", "old", "over", "gone", "new", "new")
			time.Sleep(callTimeout + outageInterval + ms)
			wantDevice(t, c.current(), "new", "unnamed")
			k.setOnList(nil)
		},
		"what came and went is written down still": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			f.writeEntries("held", "old", "over", "gone", "new", "went")
			k.setPods(newPod("old", "held"), newPod("went", "new"))
			time.Sleep(idleInterval)
			wantDevice(t, c.current(), "new", "held by went")
			k.setPods(newPod("old", "held"))
			time.Sleep(2 * idleInterval)
			k.stop()
			wantDevice(t, c.ListAllocations(t.Context()), "new", "idle")
			k.start(0)
		},
		"what was over is another's": func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
			f.writeEntries("held", "old", "over", "gone", "new", "new")
			c.ListAllocations(t.Context())
			time.Sleep(2 * idleInterval)
			wantDevice(t, c.current(), "new", "idle") // List does not have it
			f.writeEntries("held", "old", "over", "gone", "new", "newer")
			k.stop()
			wantDevice(t, c.ListAllocations(t.Context()), "new", "unnamed")
			k.start(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCheckpointFile(t)
			f.writeEntries("held", "old", "over", "gone")
			runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
				f.t, c.options.CheckpointPath = t, f.path
				os.Chtimes(f.path, time.Now(), time.Now().Add(-time.Hour))
				k.setPods(newPod("old", "held"))
				defer c.startRun(t)()
				time.Sleep(time.Minute + 3*time.Second)
				wantDevice(t, c.current(), "new", "idle")
				play(t, k, c, f)

				steady := func() {
					t.Helper()
					wantDevice(t, c.current(), "held", "held by old")
					wantDevice(t, c.current(), "over", "idle") // whenever it is written down
				}
				steady()
				time.Sleep(idleInterval)
				k.setPods(newPod("old", "held"), newPod("came", "new"))
				time.Sleep(idleInterval)
				wantDevice(t, c.current(), "new", "held by came")
				steady()
				k.setPods(newPod("old", "held"))
				time.Sleep(idleInterval)
				wantDevice(t, c.current(), "new", "idle")
				steady()
			})
		})
	}
}

// Until the next kubelet is to be believed, an allocation of the outage stays. It
// goes on where its pod is there, and is over where it is not.
func TestAnAllocationOfAnOutageThatIsNeverNamed(t *testing.T) {
	for name, test := range map[string]struct {
		pods func(k *scriptedKubelet)
		want string
	}{
		"its pod is there":    {func(k *scriptedKubelet) { k.setPods(newPod("old", "held"), newPod("init")) }, "unnamed"},
		"its pod has ended":   {func(k *scriptedKubelet) { k.setPods(newPod("old", "held")) }, "idle"},
		"its pod came before": {func(k *scriptedKubelet) { k.setPods(newPod("old", "held"), newPod("before")) }, "idle"},
	} {
		t.Run(name, func(t *testing.T) {
			runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, _ *kubeletLogBuffer) {
				f.writeEntries("held", "old")
				k.setPods(newPod("old", "held"), newPod("before"))
				time.Sleep(time.Minute)
				f.writeEntries("held", "old", "new", "init")
				k.stop()
				test.pods(k)
				time.Sleep(time.Minute)
				k.start(0)
				time.Sleep(settleTimeout - outageInterval - connectTimeout)
				wantDevice(t, c.current(), "new", "unnamed")
				time.Sleep(time.Hour)
				wantDevice(t, c.current(), "new", test.want)
			})
		})
	}
}

// What cannot be had: where the checkpoint cannot be read, an idle device stays
// idle through the outage.
func TestAnOutageWithoutACheckpoint(t *testing.T) {
	runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, _ *kubeletLogBuffer) {
		f.writeContent("broken")
		k.stop()
		time.Sleep(time.Minute)
		wantDevice(t, c.current(), "new", "idle")
	})
}

// The first notes that are read are those of the outage.
func TestAnOutageAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		age  time.Duration
		file func(f checkpointFile)
		want string
	}{
		"written before the answer": {kubeletAgeInTests, func(checkpointFile) {}, "idle"},
		"written after it":          {kubeletAgeInTests, func(f checkpointFile) { f.writeIDs("a") }, "unnamed"},
		"nothing is called idle":    {0, func(f checkpointFile) { f.writeIDs("a") }, "unknown"},
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

// The same with the simulated kubelet's own checkpoint.
func TestTheSimulatedKubeletEndsAfterAnAdmission(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	startPlugin(t, k, gpu, healthyDevices("a")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	c.options.CheckpointPath = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(c.options.CheckpointPath, past, past); err != nil {
		t.Fatal(err)
	}
	wantDevice(t, c.ListAllocations(t.Context()), "a", "idle")
	c.refreshCheckpoint()
	runPod(t, k, gpuPod("one", 1))
	wantDevice(t, c.current(), "a", "idle") // nobody has asked since
	hold := make(chan struct{})
	k.SetFaults(kubelet.Faults{HoldStaticPods: hold})
	var down device.Allocations
	if err := k.Restart(t.Context(), kubelet.RestartOptions{While: func() { down = c.ListAllocations(t.Context()) }}); err != nil {
		t.Fatal(err)
	}
	wantDevice(t, down, "a", "unnamed")
	h := c.ListAllocations(t.Context())
	if h.Err != nil {
		t.Error(h.Err)
	}
	wantDevice(t, h, "a", "unnamed") // it lists nobody yet
	close(hold)
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
	wantDevice(t, c.ListAllocations(t.Context()), "a", "held by one")
}
