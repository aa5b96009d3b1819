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

// outage runs a client on the node "node-a", whose kubelet was restarted while the API server
// is away: it lists its static pods only. Before that one, two and three had a device each.
func outage(t *testing.T, test func(t *testing.T, k *scripted, c *Client, f file)) {
	t.Helper()
	checkpointed(t, func(t *testing.T, k *scripted, c *Client, f file, _ *lines) {
		c.OnNode("Node-A")
		f.by("a", "uid-one", "b", "uid-two", "s", "uid-static", "d", "uid-daemon")
		daemon := podOf("daemon-x7k2p", container("main", "d"))
		k.says(pod("one", "a"), pod("two", "b"), daemon, pod("three-node-a", "s"))
		time.Sleep(2 * idleEvery) // Run has read the checkpoint
		wantState(t, c.known(), "a", "held by one")
		k.says(pod("three-node-a", "s"))
		k.restart()
		c.Owners(t.Context())
		f.by("a", "uid-one", "b", "uid-two", "s", "uid-static", "d", "uid-daemon") // the plugin has registered
		test(t, k, c, f)
	})
}

// TestAllocationsOutliveAnOutageOfTheAPIServer: while the kubelet lacks the API server's pods
// and its checkpoint has what they were allocated, they have it.
func TestAllocationsOutliveAnOutageOfTheAPIServer(t *testing.T) {
	outage(t, func(t *testing.T, k *scripted, c *Client, f file) {
		time.Sleep(time.Hour)
		h := c.known()
		for id, want := range map[device.ID]string{"a": "held by one", "b": "held by two", "d": "held by daemon-x7k2p", "s": "held by three-node-a", "x": "idle"} {
			wantState(t, h, id, want)
		}
		if !slices.ContainsFunc(h.Recent, func(s device.Seen) bool { return s.Owner == owner("one") && s.Ended.IsZero() }) {
			t.Errorf("who has a device is not among its last owners: %v", h.Recent)
		}

		// The kubelet is restarted once more, and podgauge does not see it for a while.
		k.stop()
		time.Sleep(2 * time.Minute)
		k.start(0)
		time.Sleep(time.Hour)
		wantState(t, c.known(), "a", "held by one")

		// The API server is back, where "two" was deleted. The kubelet frees what it had, and
		// writes nothing down.
		k.says(pod("three-node-a", "s"), podOf("daemon-x7k2p", container("main", "d")))
		time.Sleep(idleEvery + ms)
		wantState(t, c.known(), "d", "held by daemon-x7k2p")
		wantState(t, c.known(), "a", "held by one")
		k.says(pod("three-node-a", "s"), podOf("daemon-x7k2p", container("main", "d")), pod("one", "a"))
		time.Sleep(settleAfter + idleEvery)
		wantState(t, c.known(), "a", "held by one")
		wantState(t, c.known(), "b", "idle")
		k.says(pod("three-node-a", "s"), podOf("daemon-x7k2p", container("main", "d")))
		time.Sleep(idleEvery + ms)
		wantState(t, c.known(), "a", "idle")
	})
}

// TestAllocationsThatEndInAnOutageOfTheAPIServer: what ends one, the rest goes on.
func TestAllocationsThatEndInAnOutageOfTheAPIServer(t *testing.T) {
	for name, c := range map[string]struct {
		play func(k *scripted, c *Client, f file)
		want string
	}{
		"the checkpoint drops it":        {func(_ *scripted, _ *Client, f file) { f.by("b", "uid-two", "s", "uid-static") }, "idle"},
		"the checkpoint has another pod": {func(_ *scripted, _ *Client, f file) { f.by("a", "uid-new", "b", "uid-two", "s", "uid-static") }, "idle"},
		"another pod is listed with it":  {func(k *scripted, _ *Client, _ file) { k.says(pod("four-node-a", "a"), pod("three-node-a", "s")) }, "held by four-node-a"},
		"its pod is listed without it":   {func(k *scripted, _ *Client, _ file) { k.says(pod("one"), pod("three-node-a", "s")) }, "idle"},
		"the Pods API ends it": {func(k *scripted, c *Client, _ file) {
			c.Ended("team", "one")
			k.restart() // what it listed last, it would list until its own end
		}, "idle"},
	} {
		t.Run(name, func(t *testing.T) {
			outage(t, func(t *testing.T, k *scripted, client *Client, f file) {
				time.Sleep(5 * time.Minute)
				wantState(t, client.known(), "a", "held by one")
				c.play(k, client, f)
				time.Sleep(2 * idleEvery)
				wantState(t, client.known(), "a", c.want)
				wantState(t, client.known(), "b", "held by two")
			})
		})
	}
}

// TestAnOutageOfTheAPIServerWithoutACheckpoint: what the kubelet has written down last counts
// for a minute, and no longer.
func TestAnOutageOfTheAPIServerWithoutACheckpoint(t *testing.T) {
	outage(t, func(t *testing.T, _ *scripted, c *Client, f file) {
		time.Sleep(5 * time.Minute)
		f.is("broken")
		time.Sleep(settleAfter - 2*idleEvery)
		wantState(t, c.known(), "a", "held by one")
		time.Sleep(3 * idleEvery)
		wantState(t, c.known(), "a", "idle")
	})
}

// TestARestartWithTheAPIServer: a checkpoint keeps what is long over, so it keeps nothing where
// the kubelet has the API server's pods.
func TestARestartWithTheAPIServer(t *testing.T) {
	outage(t, func(t *testing.T, k *scripted, c *Client, _ file) {
		k.says(pod("three-node-a", "s"), podOf("daemon-x7k2p", container("main", "d")))
		time.Sleep(settleAfter + 2*idleEvery)
		wantState(t, c.known(), "a", "idle")
		wantState(t, c.known(), "d", "held by daemon-x7k2p")
	})
}

// TestAllOtherPodsAreDeletedInAnOutageOfTheAPIServer: podgauge's own pod, which has no device, is
// listed, and so ends the outage. A minute later the allocations end that only the checkpoint has.
func TestAllOtherPodsAreDeletedInAnOutageOfTheAPIServer(t *testing.T) {
	outage(t, func(t *testing.T, k *scripted, c *Client, _ file) {
		time.Sleep(time.Hour)
		wantState(t, c.known(), "a", "held by one")
		k.says(pod("three-node-a", "s"), pod("podgauge-x7k2p"))
		time.Sleep(settleAfter + 2*idleEvery)
		for id, want := range map[device.ID]string{"a": "idle", "b": "idle", "d": "idle", "s": "held by three-node-a"} {
			wantState(t, c.known(), id, want)
		}
	})
}

// TestClaimsOutliveAnOutageOfTheAPIServer: no file of the device manager has them.
func TestClaimsOutliveAnOutageOfTheAPIServer(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		c.OnNode("node-a")
		claiming(c, map[string]device.ID{"gpu-a": "a"})
		one := podOf("one", claims(container("main"), "mine", "gpu.nvidia.com/gpu-a"))
		k.says(one)
		c.Owners(t.Context())
		k.says(pod("static-node-a"))
		k.restart()
		for range 3 {
			h := c.Owners(t.Context())
			wantState(t, h, "a", "held by one")
			if len(h.Resources.Claims) != 1 {
				t.Errorf("claims are %v", h.Resources.Claims)
			}
			time.Sleep(time.Hour)
		}
		k.says(pod("static-node-a"), pod("two"))
		wantState(t, c.Owners(t.Context()), "a", "held by one")
		time.Sleep(settleAfter)
		wantState(t, c.Owners(t.Context()), "a", "idle")
	})
}

// TestTheSimulatedKubeletWithoutItsAPIServer: with the whole way through the simulated kubelet,
// which admits static pods meanwhile.
func TestTheSimulatedKubeletWithoutItsAPIServer(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	offers(t, k, gpu, healthy("a", "b")...)
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	c.OnNode("node-a")
	c.Checkpoint = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
	runs(t, k, podOn("one", 1))
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(c.Checkpoint, past, past); err != nil {
		t.Fatal(err)
	}
	of := held(c.Owners(t.Context()))
	c.readCheckpoint()
	rest := make(chan struct{})
	k.Trouble(kubelet.Trouble{HoldRest: rest})
	if err := k.Restart(t.Context(), kubelet.RestartOptions{}); err != nil {
		t.Fatal(err)
	}
	runs(t, k, kubelet.Pod{Name: "static", Static: true, Containers: []kubelet.Container{{Name: "main"}}})
	wantHeld(t, c.Owners(t.Context()), of...)
	if err := k.EndPod(podOn("one", 1)); err != nil { // the kubelet knows nothing of that
		t.Fatal(err)
	}
	wantHeld(t, c.Owners(t.Context()), of...)
	c.readCheckpoint()
	c.mu.Lock()
	m := c.memory
	m.asked = m.asked.Add(time.Hour)
	m.notedFor = m.asked
	for _, h := range m.held {
		if !m.stands(h, nil) {
			t.Errorf("an hour later %v is over", h)
		}
	}
	c.mu.Unlock()
	close(rest)
	await(t, k, func(s kubelet.State) bool { return s.PodsRead })
}
