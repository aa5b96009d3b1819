package podresources

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// runOutage runs a client on "node-a" after a kubelet restart in an outage of the API server: List contains only static pods. Before the
// restart, the pods one, two and three had a device each.
func runOutage(t *testing.T, test func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile)) {
	t.Helper()
	runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, _ *kubeletLogBuffer) {
		c.tracker.apiPods.nodeName = "node-a"
		f.writeEntries("a", "uid-one", "b", "uid-two", "s", "uid-static", "d", "uid-daemon")
		daemon := newPodWith("daemon-x7k2p", newContainer("main", "d"))
		k.setPods(newPod("one", "a"), newPod("two", "b"), daemon, newPod("three-node-a", "s"))
		time.Sleep(2 * idleInterval) // Run has read the checkpoint
		wantDevice(t, c.current(), "a", "allocated to one")
		k.setPods(newPod("three-node-a", "s"))
		k.restart()
		c.ListAllocations(t.Context())
		f.writeEntries("a", "uid-one", "b", "uid-two", "s", "uid-static", "d", "uid-daemon") // the plugin has registered
		test(t, k, c, f)
	})
}

// TestAPIOutageKeepsAllocations restarts the kubelet in an outage of the API server. Allocations in the checkpoint remain until API pods are
// listed again.
func TestAPIOutageKeepsAllocations(t *testing.T) {
	runOutage(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
		time.Sleep(time.Hour)
		h := c.current()
		for id, want := range map[device.ID]string{"a": "allocated to one", "b": "allocated to two", "d": "allocated to daemon-x7k2p", "s": "allocated to three-node-a", "x": "unallocated"} {
			wantDevice(t, h, id, want)
		}
		if !slices.ContainsFunc(h.Recent, func(s device.AllocationRecord) bool { return s.Owner == newOwner("one") && s.EndedAt.IsZero() }) {
			t.Errorf("a current owner is not in the history: %v", h.Recent)
		}

		// Restart the kubelet again, unnoticed for a while.
		k.stop()
		time.Sleep(2 * time.Minute)
		k.start(0)
		time.Sleep(time.Hour)
		wantDevice(t, c.current(), "a", "allocated to one")

		// The API server is back without "two". The kubelet releases the device without a write.
		k.setPods(newPod("three-node-a", "s"), newPodWith("daemon-x7k2p", newContainer("main", "d")))
		time.Sleep(idleInterval + ms)
		wantDevice(t, c.current(), "d", "allocated to daemon-x7k2p")
		wantDevice(t, c.current(), "a", "allocated to one")
		k.setPods(newPod("three-node-a", "s"), newPodWith("daemon-x7k2p", newContainer("main", "d")), newPod("one", "a"))
		time.Sleep(settleTimeout + idleInterval)
		wantDevice(t, c.current(), "a", "allocated to one")
		wantDevice(t, c.current(), "b", "unallocated")
		k.setPods(newPod("three-node-a", "s"), newPodWith("daemon-x7k2p", newContainer("main", "d")))
		time.Sleep(idleInterval + ms)
		wantDevice(t, c.current(), "a", "unallocated")
	})
}

// TestAPIOutageEndsAllocations covers the causes that end an allocation in an outage of the API server.
func TestAPIOutageEndsAllocations(t *testing.T) {
	for name, c := range map[string]struct {
		play func(k *scriptedKubelet, c *Client, f checkpointFile)
		want string
	}{
		"the checkpoint drops the entry": {func(_ *scriptedKubelet, _ *Client, f checkpointFile) {
			f.writeEntries("b", "uid-two", "s", "uid-static")
		}, "unallocated"},
		"the checkpoint has a different UID": {func(_ *scriptedKubelet, _ *Client, f checkpointFile) {
			f.writeEntries("a", "uid-new", "b", "uid-two", "s", "uid-static")
		}, "unallocated"},
		"a different pod is listed with the device": {func(k *scriptedKubelet, _ *Client, _ checkpointFile) {
			k.setPods(newPod("four-node-a", "a"), newPod("three-node-a", "s"))
		}, "allocated to four-node-a"},
		"the pod is listed without the device": {func(k *scriptedKubelet, _ *Client, _ checkpointFile) {
			k.setPods(newPod("one"), newPod("three-node-a", "s"))
		}, "unallocated"},
		"the Pods API ends the pod": {func(k *scriptedKubelet, c *Client, _ checkpointFile) {
			c.OnPodEnded("team", "one")
			k.restart() // a List of the old kubelet would still contain the pod
		}, "unallocated"},
	} {
		t.Run(name, func(t *testing.T) {
			runOutage(t, func(t *testing.T, k *scriptedKubelet, client *Client, f checkpointFile) {
				time.Sleep(5 * time.Minute)
				wantDevice(t, client.current(), "a", "allocated to one")
				c.play(k, client, f)
				time.Sleep(2 * idleInterval)
				wantDevice(t, client.current(), "a", c.want)
				wantDevice(t, client.current(), "b", "allocated to two")
			})
		})
	}
}

// TestAPIOutageWithoutCheckpoint breaks the checkpoint: the last readable one counts for settleTimeout.
func TestAPIOutageWithoutCheckpoint(t *testing.T) {
	runOutage(t, func(t *testing.T, _ *scriptedKubelet, c *Client, f checkpointFile) {
		time.Sleep(5 * time.Minute)
		f.writeContent("broken")
		time.Sleep(settleTimeout - 2*idleInterval)
		wantDevice(t, c.current(), "a", "allocated to one")
		time.Sleep(3 * idleInterval)
		wantDevice(t, c.current(), "a", "unallocated")
	})
}

// TestRestartWithAPIServer checks that retained allocations end after settleTimeout: with API pods listed, the checkpoint alone retains none.
func TestRestartWithAPIServer(t *testing.T) {
	runOutage(t, func(t *testing.T, k *scriptedKubelet, c *Client, _ checkpointFile) {
		k.setPods(newPod("three-node-a", "s"), newPodWith("daemon-x7k2p", newContainer("main", "d")))
		time.Sleep(settleTimeout + 2*idleInterval)
		wantDevice(t, c.current(), "a", "unallocated")
		wantDevice(t, c.current(), "d", "allocated to daemon-x7k2p")
	})
}

// TestAPIOutageEndsWithOwnPod lists only podgauge's own pod after the outage. Allocations known only from the checkpoint end a minute later.
func TestAPIOutageEndsWithOwnPod(t *testing.T) {
	runOutage(t, func(t *testing.T, k *scriptedKubelet, c *Client, _ checkpointFile) {
		time.Sleep(time.Hour)
		wantDevice(t, c.current(), "a", "allocated to one")
		k.setPods(newPod("three-node-a", "s"), newPod("podgauge-x7k2p"))
		time.Sleep(settleTimeout + 2*idleInterval)
		for id, want := range map[device.ID]string{"a": "unallocated", "b": "unallocated", "d": "unallocated", "s": "allocated to three-node-a"} {
			wantDevice(t, c.current(), id, want)
		}
	})
}

// TestAPIOutageKeepsClaims checks that claims, which the checkpoint lacks, are retained.
func TestAPIOutageKeepsClaims(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		c.tracker.apiPods.nodeName = "node-a"
		resolveClaims(c, map[string]device.ID{"gpu-a": "a"})
		one := newPodWith("one", addClaims(newContainer("main"), "mine", "gpu.nvidia.com/gpu-a"))
		k.setPods(one)
		c.ListAllocations(t.Context())
		k.setPods(newPod("static-node-a"))
		k.restart()
		for range 3 {
			h := c.ListAllocations(t.Context())
			wantDevice(t, h, "a", "allocated to one")
			if len(h.Resources.Allocated.Claims) != 1 {
				t.Errorf("claims: got %v", h.Resources.Allocated.Claims)
			}
			time.Sleep(time.Hour)
		}
		k.setPods(newPod("static-node-a"), newPod("two"))
		wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
		time.Sleep(settleTimeout)
		wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated")
	})
}

// TestSimulatedAPIOutage covers the outage on the simulated kubelet, with static pods admitted during the outage.
func TestSimulatedAPIOutage(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	startPlugin(t, k, gpu, healthyDevices("a", "b")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	c.tracker.apiPods.nodeName = "node-a"
	c.options.CheckpointPath = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
	runPod(t, k, gpuPod("one", 1))
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(c.options.CheckpointPath, past, past); err != nil {
		t.Fatal(err)
	}
	of := formatAllocations(c.ListAllocations(t.Context()))
	c.refreshCheckpoint()
	rest := make(chan struct{})
	k.SetFaults(kubelet.Faults{HoldAPIPods: rest})
	if err := k.Restart(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	runPod(t, k, kubelet.PodSpec{Name: "static", Static: true, Containers: []kubelet.ContainerSpec{{Name: "main"}}})
	wantAllocations(t, c.ListAllocations(t.Context()), of...)
	if err := k.EndPod(gpuPod("one", 1)); err != nil { // unknown to the kubelet
		t.Fatal(err)
	}
	wantAllocations(t, c.ListAllocations(t.Context()), of...)
	c.refreshCheckpoint()
	c.mu.Lock()
	m := c.tracker
	m.requestedAt = m.requestedAt.Add(time.Hour)
	m.checkpointAsOf = m.requestedAt
	for _, h := range m.allocations {
		if !m.outlasts(h, retained, nil) {
			t.Errorf("an hour later: got ended allocation %v", h)
		}
	}
	c.mu.Unlock()
	close(rest)
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
}
