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

// runOutage runs a client on the node "node-a", whose kubelet was restarted while the API server
// is away: it lists its static pods only. Before that one, two and three had a device each.
func runOutage(t *testing.T, test func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile)) {
	t.Helper()
	runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, _ *kubeletLogBuffer) {
		c.tracker.apiPods.nodeName = "node-a"
		f.writeEntries("a", "uid-one", "b", "uid-two", "s", "uid-static", "d", "uid-daemon")
		daemon := newPodWith("daemon-x7k2p", newContainer("main", "d"))
		k.setPods(newPod("one", "a"), newPod("two", "b"), daemon, newPod("three-node-a", "s"))
		time.Sleep(2 * idleInterval) // Run has read the checkpoint
		wantDevice(t, c.current(), "a", "held by one")
		k.setPods(newPod("three-node-a", "s"))
		k.restart()
		c.ListAllocations(t.Context())
		f.writeEntries("a", "uid-one", "b", "uid-two", "s", "uid-static", "d", "uid-daemon") // the plugin has registered
		test(t, k, c, f)
	})
}

// TestAllocationsOutliveAnOutageOfTheAPIServer: while the kubelet lacks the API server's pods
// and its checkpoint has what they were allocated, they have it.
func TestAllocationsOutliveAnOutageOfTheAPIServer(t *testing.T) {
	runOutage(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile) {
		time.Sleep(time.Hour)
		h := c.current()
		for id, want := range map[device.ID]string{"a": "held by one", "b": "held by two", "d": "held by daemon-x7k2p", "s": "held by three-node-a", "x": "idle"} {
			wantDevice(t, h, id, want)
		}
		if !slices.ContainsFunc(h.Recent, func(s device.AllocationRecord) bool { return s.Owner == newOwner("one") && s.EndedAt.IsZero() }) {
			t.Errorf("who has a device is not among its last owners: %v", h.Recent)
		}

		// The kubelet is restarted once more, and podgauge does not see it for a while.
		k.stop()
		time.Sleep(2 * time.Minute)
		k.start(0)
		time.Sleep(time.Hour)
		wantDevice(t, c.current(), "a", "held by one")

		// The API server is back, where "two" was deleted. The kubelet frees what it had, and
		// writes nothing down.
		k.setPods(newPod("three-node-a", "s"), newPodWith("daemon-x7k2p", newContainer("main", "d")))
		time.Sleep(idleInterval + ms)
		wantDevice(t, c.current(), "d", "held by daemon-x7k2p")
		wantDevice(t, c.current(), "a", "held by one")
		k.setPods(newPod("three-node-a", "s"), newPodWith("daemon-x7k2p", newContainer("main", "d")), newPod("one", "a"))
		time.Sleep(settleTimeout + idleInterval)
		wantDevice(t, c.current(), "a", "held by one")
		wantDevice(t, c.current(), "b", "idle")
		k.setPods(newPod("three-node-a", "s"), newPodWith("daemon-x7k2p", newContainer("main", "d")))
		time.Sleep(idleInterval + ms)
		wantDevice(t, c.current(), "a", "idle")
	})
}

// TestAllocationsThatEndInAnOutageOfTheAPIServer: what ends one, the rest goes on.
func TestAllocationsThatEndInAnOutageOfTheAPIServer(t *testing.T) {
	for name, c := range map[string]struct {
		play func(k *scriptedKubelet, c *Client, f checkpointFile)
		want string
	}{
		"the checkpoint drops it": {func(_ *scriptedKubelet, _ *Client, f checkpointFile) {
			f.writeEntries("b", "uid-two", "s", "uid-static")
		}, "idle"},
		"the checkpoint has another pod": {func(_ *scriptedKubelet, _ *Client, f checkpointFile) {
			f.writeEntries("a", "uid-new", "b", "uid-two", "s", "uid-static")
		}, "idle"},
		"another pod is listed with it": {func(k *scriptedKubelet, _ *Client, _ checkpointFile) {
			k.setPods(newPod("four-node-a", "a"), newPod("three-node-a", "s"))
		}, "held by four-node-a"},
		"its pod is listed without it": {func(k *scriptedKubelet, _ *Client, _ checkpointFile) {
			k.setPods(newPod("one"), newPod("three-node-a", "s"))
		}, "idle"},
		"the Pods API ends it": {func(k *scriptedKubelet, c *Client, _ checkpointFile) {
			c.OnPodEnded("team", "one")
			k.restart() // what it listed last, it would list until its own end
		}, "idle"},
	} {
		t.Run(name, func(t *testing.T) {
			runOutage(t, func(t *testing.T, k *scriptedKubelet, client *Client, f checkpointFile) {
				time.Sleep(5 * time.Minute)
				wantDevice(t, client.current(), "a", "held by one")
				c.play(k, client, f)
				time.Sleep(2 * idleInterval)
				wantDevice(t, client.current(), "a", c.want)
				wantDevice(t, client.current(), "b", "held by two")
			})
		})
	}
}

// TestAnOutageOfTheAPIServerWithoutACheckpoint: what the kubelet has written down last counts
// for a minute, and no longer.
func TestAnOutageOfTheAPIServerWithoutACheckpoint(t *testing.T) {
	runOutage(t, func(t *testing.T, _ *scriptedKubelet, c *Client, f checkpointFile) {
		time.Sleep(5 * time.Minute)
		f.writeContent("broken")
		time.Sleep(settleTimeout - 2*idleInterval)
		wantDevice(t, c.current(), "a", "held by one")
		time.Sleep(3 * idleInterval)
		wantDevice(t, c.current(), "a", "idle")
	})
}

// TestARestartWithTheAPIServer: a checkpoint keeps what is long over, so it keeps nothing where
// the kubelet has the API server's pods.
func TestARestartWithTheAPIServer(t *testing.T) {
	runOutage(t, func(t *testing.T, k *scriptedKubelet, c *Client, _ checkpointFile) {
		k.setPods(newPod("three-node-a", "s"), newPodWith("daemon-x7k2p", newContainer("main", "d")))
		time.Sleep(settleTimeout + 2*idleInterval)
		wantDevice(t, c.current(), "a", "idle")
		wantDevice(t, c.current(), "d", "held by daemon-x7k2p")
	})
}

// TestAllOtherPodsAreDeletedInAnOutageOfTheAPIServer: podgauge's own pod, which has no device, is
// listed, and so ends the outage. A minute later the allocations end that only the checkpoint has.
func TestAllOtherPodsAreDeletedInAnOutageOfTheAPIServer(t *testing.T) {
	runOutage(t, func(t *testing.T, k *scriptedKubelet, c *Client, _ checkpointFile) {
		time.Sleep(time.Hour)
		wantDevice(t, c.current(), "a", "held by one")
		k.setPods(newPod("three-node-a", "s"), newPod("podgauge-x7k2p"))
		time.Sleep(settleTimeout + 2*idleInterval)
		for id, want := range map[device.ID]string{"a": "idle", "b": "idle", "d": "idle", "s": "held by three-node-a"} {
			wantDevice(t, c.current(), id, want)
		}
	})
}

// TestClaimsOutliveAnOutageOfTheAPIServer: no file of the device manager has them.
func TestClaimsOutliveAnOutageOfTheAPIServer(t *testing.T) {
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
			wantDevice(t, h, "a", "held by one")
			if len(h.Resources.Claims) != 1 {
				t.Errorf("claims are %v", h.Resources.Claims)
			}
			time.Sleep(time.Hour)
		}
		k.setPods(newPod("static-node-a"), newPod("two"))
		wantDevice(t, c.ListAllocations(t.Context()), "a", "held by one")
		time.Sleep(settleTimeout)
		wantDevice(t, c.ListAllocations(t.Context()), "a", "idle")
	})
}

// TestTheSimulatedKubeletWithoutItsAPIServer: with the whole way through the simulated kubelet,
// which admits static pods meanwhile.
func TestTheSimulatedKubeletWithoutItsAPIServer(t *testing.T) {
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
	if err := k.Restart(t.Context(), kubelet.RestartOptions{}); err != nil {
		t.Fatal(err)
	}
	runPod(t, k, kubelet.PodSpec{Name: "static", Static: true, Containers: []kubelet.ContainerSpec{{Name: "main"}}})
	wantAllocations(t, c.ListAllocations(t.Context()), of...)
	if err := k.EndPod(gpuPod("one", 1)); err != nil { // the kubelet knows nothing of that
		t.Fatal(err)
	}
	wantAllocations(t, c.ListAllocations(t.Context()), of...)
	c.refreshCheckpoint()
	c.mu.Lock()
	m := c.tracker
	m.requestedAt = m.requestedAt.Add(time.Hour)
	m.checkpointAsOf = m.requestedAt
	for _, h := range m.allocations {
		if confirmed.after(reconnected).after(m.listEvent(h, nil)) == absent {
			t.Errorf("an hour later %v is over", h)
		}
	}
	c.mu.Unlock()
	close(rest)
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
}
