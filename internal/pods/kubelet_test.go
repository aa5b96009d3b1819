package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// testTimeout is the maximum wait for an event that takes milliseconds.
const testTimeout = 20 * time.Second

// kubeletFixture is a running simulated kubelet with a running client.
type kubeletFixture struct {
	*kubelet.Kubelet
	t      *testing.T
	client *Client

	mu        sync.Mutex
	endedPods []Pod // guarded by mu
}

func newKubeletFixture(t *testing.T, version kubelet.Version, labels ...string) *kubeletFixture {
	t.Helper()
	return newFixtureWith(t, version, func(n *kubeletFixture) (string, Options) { return n.PodsSocket(), Options{Labels: labels} })
}

// newFixtureWith returns a fixture. configure returns the socket and the options of its client, except the Observer.
func newFixtureWith(t *testing.T, version kubelet.Version, configure func(n *kubeletFixture) (socket string, o Options)) *kubeletFixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "pods") // the paths of sockets are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &kubeletFixture{Kubelet: kubelet.New(kubelet.Options{Dir: dir, Version: version}), t: t}
	n.runInBackground(n.Run)
	n.waitKubelet(func(s kubelet.KubeletState) bool { return s.PodsRead && s.Serving })
	socket, o := configure(n)
	o.Observer = observerFuncs{ended: func(p Pod) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.endedPods = append(n.endedPods, p)
	}}
	n.client, err = New(socket, o)
	if err != nil {
		t.Fatal(err)
	}
	n.runInBackground(n.client.Run)
	return n
}

// runInBackground runs a function until the end of the test.
func (n *kubeletFixture) runInBackground(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Errorf("Run: %v", err)
		}
	})
}

func (n *kubeletFixture) waitKubelet(condition func(kubelet.KubeletState) bool) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), testTimeout)
	defer cancel()
	if err := n.Wait(ctx, condition); err != nil {
		n.t.Fatal(err)
	}
}

// waitPods waits until the pods meet a condition.
func (n *kubeletFixture) waitPods(what string, condition func(Pods) bool) Pods {
	n.t.Helper()
	timeout := time.After(testTimeout)
	for {
		ps, changed := n.client.Snapshot()
		if condition(ps) {
			return ps
		}
		select {
		case <-changed:
		case <-timeout:
			n.t.Fatalf("timeout waiting for %s: pods %q, synced %t, error %v", what, ps.summary(), ps.Synced, ps.Err)
		}
	}
}

func (n *kubeletFixture) runPod(p kubelet.PodSpec) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), testTimeout)
	defer cancel()
	if err := n.RunPod(ctx, p); err != nil {
		n.t.Fatal(err)
	}
}

// waitSynced waits until the client has the kubelet's version of a pod.
func (n *kubeletFixture) waitSynced(p kubelet.PodSpec) (now Pod) {
	n.t.Helper()
	n.waitPods("the pod", func(ps Pods) bool {
		want, err := n.Pod(p)
		if err != nil {
			return false
		}
		var ok bool
		now, ok = ps.ByName(want.Namespace, want.Name)
		if !ok || !ps.Synced || now.UID != want.UID || now.Phase != want.Phase {
			return false
		}
		for _, c := range want.Containers {
			pod, name, known := ps.ByContainer(c.ID)
			if c.ID != "" && (!known || pod.UID != want.UID || name != c.Name) {
				return false
			}
		}
		return true
	})
	return now
}

// lastEnded waits for OnPodEnded of a pod, which follows the publication of the pods.
func (n *kubeletFixture) lastEnded(uid string) Pod {
	n.t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		n.mu.Lock()
		ended := slices.Clone(n.endedPods)
		n.mu.Unlock()
		for _, p := range slices.Backward(ended) {
			if p.UID == uid {
				return p
			}
		}
		if time.Now().After(end) {
			n.t.Fatalf("timeout waiting for the end of pod %s", uid)
		}
	}
}

func simulatedPod(name string, containers ...string) kubelet.PodSpec {
	p := kubelet.PodSpec{Namespace: "team", Name: name, Labels: map[string]string{"app": name, "secret": "no"}}
	for _, c := range containers {
		p.Containers = append(p.Containers, kubelet.ContainerSpec{Name: c})
	}
	return p
}

// container returns the container with a name.
func (p *Pod) container(name string) Container {
	i := slices.IndexFunc(p.Containers, func(c Container) bool { return c.Name == name })
	return p.Containers[i]
}

func TestPods(t *testing.T) { forBothSources(t, checkPods) }

func checkPods(t *testing.T, source string) {
	t.Parallel()
	n := newFixture(t, source, "app")
	first := simulatedPod("first", "main", "side")
	first.InitContainers = []kubelet.ContainerSpec{{Name: "setup"}, {Name: "proxy", Sidecar: true}}
	n.runPod(first)
	p := n.waitSynced(first)
	if !slices.Equal(p.Labels, []device.Label{{Name: "app", Value: "first"}}) {
		t.Errorf("labels: got %v, want app=first", p.Labels)
	}
	if len(p.Containers) != 4 || p.container("setup").State.Type != Terminated || p.container("proxy").State.Type != Running {
		t.Errorf("containers: got %+v, want four, setup terminated and proxy running", p.Containers)
	}
	static := simulatedPod("static", "main")
	static.Static = true
	n.runPod(static)
	if p := n.waitSynced(static); len(p.UID) != 32 || p.Name != "static-node-a" {
		t.Errorf("static pod: got %+v, want static-node-a with a hash as UID", p)
	}
	if err := n.DeletePod(first); err != nil {
		t.Fatal(err)
	}
	n.waitPods("the deletion of a pod", func(ps Pods) bool { return ps.Len() == 1 })
	if end := n.lastEnded(p.UID); end.Phase != "Failed" || end.container("main").State.ExitCode != 143 {
		t.Errorf("ended pod: got %+v, want Failed with exit code 143", end)
	}
}

func TestPodEnds(t *testing.T) { forBothSources(t, checkPodEnds) }

func checkPodEnds(t *testing.T, source string) {
	t.Parallel()
	n := newFixture(t, source)
	p := simulatedPod("trainer", "main", "side")
	n.runPod(p)
	uid := n.waitSynced(p).UID
	if err := n.CrashContainer(t.Context(), p, "main", kubelet.ContainerExit{Code: 1}); err != nil {
		t.Fatal(err)
	}
	crashed := n.waitSynced(p).Containers[0]
	if crashed.Restarts != 1 || crashed.LastState.ExitCode != 1 || crashed.LastState.Reason != "Error" || crashed.State.Type != Running {
		t.Errorf("after a crash: got %+v, want one restart with exit code 1", crashed)
	}
	err := n.EndPodWith(p, kubelet.PodEnd{Exits: map[string]kubelet.ContainerExit{"main": {Code: 137, Reason: "OOMKilled"}}})
	if err != nil {
		t.Fatal(err)
	}
	end := n.lastEnded(uid)
	if c := end.Containers[0]; end.Phase != "Failed" || c.State.Reason != "OOMKilled" || c.State.ExitCode != 137 || c.Restarts != 1 {
		t.Errorf("ended pod: got %+v, want OOMKilled", end)
	}
	if c := end.Containers[1]; c.State.Reason != "Completed" || c.State.ExitCode != 0 {
		t.Errorf("other container: got %+v, want Completed", c)
	}
	n.waitPods("the removal of the pod", func(ps Pods) bool { return ps.Len() == 0 })

	n.runPod(simulatedPod("evicted", "main"))
	evicted := n.waitSynced(simulatedPod("evicted", "main"))
	if err := n.EndPodWith(simulatedPod("evicted", "main"), kubelet.PodEnd{Reason: "Evicted", Exits: map[string]kubelet.ContainerExit{"main": {Code: 137}}}); err != nil {
		t.Fatal(err)
	}
	if end := n.lastEnded(evicted.UID); end.Reason != "Evicted" || end.Phase != "Failed" {
		t.Errorf("ended pod: got %+v, want Evicted", end)
	}
}

// TestNameReuse recreates a pod, as a StatefulSet does.
func TestNameReuse(t *testing.T) { forBothSources(t, checkNameReuse) }

func checkNameReuse(t *testing.T, source string) {
	t.Parallel()
	n := newFixture(t, source)
	p := simulatedPod("web-0", "main")
	seen := map[string]bool{}
	for range 20 {
		n.runPod(p)
		seen[n.waitSynced(p).UID] = true
		if err := n.DeletePod(p); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 20 {
		t.Errorf("got %d UIDs, want 20", len(seen))
	}
	for uid := range seen {
		n.lastEnded(uid)
	}
	n.waitPods("the removal of all pods", func(ps Pods) bool { return ps.Len() == 0 && ps.Synced })
}

func TestKubeletRestart(t *testing.T) {
	t.Parallel()
	n := newKubeletFixture(t, kubelet.V137)
	n.runPod(simulatedPod("kept", "main"))
	n.runPod(simulatedPod("removed", "main"))
	kept, removed := n.waitSynced(simulatedPod("kept", "main")), n.waitSynced(simulatedPod("removed", "main"))
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		err := n.Restart(ctx, func() {
			ps := n.waitPods("the outage", func(ps Pods) bool { return !ps.Synced })
			if ps.find(kept.UID) == nil || ps.Err == nil {
				t.Errorf("during the outage: got pods %q, error %v, want the last pods and an error", ps.summary(), ps.Err)
			}
			_ = n.DeletePod(simulatedPod("removed", "main"))
		})
		if err != nil {
			t.Fatal(err)
		}
		n.waitPods("the next sync", func(ps Pods) bool {
			p := ps.find(kept.UID)
			return ps.Synced && p != nil && p.equal(&kept) && ps.Len() == 1
		})
	}
	n.lastEnded(removed.UID)
}

func TestPermissionDenied(t *testing.T) {
	t.Parallel()
	n := newKubeletFixture(t, kubelet.V137)
	n.waitPods("the first pods", func(ps Pods) bool { return ps.Synced })
	n.SetFaults(kubelet.Faults{PodsErr: status.Error(codes.PermissionDenied, "no")})
	if err := n.Restart(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	n.waitPods("the error", func(ps Pods) bool { return status.Code(ps.Err) == codes.PermissionDenied })
	n.SetFaults(kubelet.Faults{})
	n.waitPods("recovery", func(ps Pods) bool { return ps.Synced })
}

func TestOlderKubelet(t *testing.T) {
	t.Parallel()
	n := newKubeletFixture(t, kubelet.V136)
	n.runPod(simulatedPod("one", "main"))
	n.waitPods("ErrNoPodsAPI", func(ps Pods) bool { return errors.Is(ps.Err, ErrNoPodsAPI) })
	if err := n.client.Ready(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(n.PodsSocket()); err == nil {
		t.Error("Pods API socket of the older kubelet: want none")
	}
}

// TestManyPods compares the pods of client and kubelet after many concurrent changes.
func TestManyPods(t *testing.T) { forBothSources(t, checkManyPods) }

func checkManyPods(t *testing.T, source string) {
	t.Parallel()
	n := newFixture(t, source)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 25 {
				p := simulatedPod(fmt.Sprintf("pod-%d-%d", i, j), "main")
				if err := n.RunPod(t.Context(), p); err != nil {
					t.Error(err)
				}
				switch j % 4 {
				case 0:
					if err := n.DeletePod(p); err != nil {
						t.Error(err)
					}
				case 1:
					if err := n.EndPod(p); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	want := map[string]string{}
	for _, p := range n.State().Pods {
		if p.Phase == "Running" {
			want[p.UID] = p.Name
		}
	}
	n.waitPods("all running pods", func(ps Pods) bool {
		running := 0
		for _, p := range ps.list {
			if p.Phase == "Running" && want[p.UID] == p.Name {
				running++
			}
		}
		return ps.Synced && running == len(want)
	})
}
