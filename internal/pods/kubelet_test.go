package pods_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// testTimeout is the maximum wait for an event that takes milliseconds.
const testTimeout = 20 * time.Second

// kubeletFixture is a running simulated kubelet with a running client.
type kubeletFixture struct {
	*kubelet.Kubelet
	t      *testing.T
	client *pods.Client
	pods   pubsub.Value[pods.Pods] // of the client

	mu    sync.Mutex
	ended []string // names of OnPodEnded; guarded by mu
}

func newFixture(t *testing.T) *kubeletFixture {
	t.Helper()
	n := &kubeletFixture{Kubelet: background.Kubelet(t, kubelet.Options{Version: kubelet.V137}), t: t}
	background.Wait(t, n.Kubelet, func(s kubelet.KubeletState) bool { return s.PodsRead })
	var err error
	n.client, err = pods.New(n.PodsSocket(), pods.Options{
		Labels: []string{"app"}, Pods: &n.pods,
		OnPodEnded: func(_, name string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.ended = append(n.ended, name)
		},
	})
	require.NoError(n.t, err)
	background.Run(t, n.client.Run)
	return n
}

// waitPods waits until the pods meet a condition.
func (n *kubeletFixture) waitPods(what string, condition func(pods.Pods) bool) pods.Pods {
	n.t.Helper()
	timeout := time.After(testTimeout)
	for {
		ps, changed := n.pods.Get()
		if condition(ps) {
			return ps
		}
		select {
		case <-changed:
		case <-timeout:
			n.t.Fatalf("timeout waiting for %s: %d pods, synced %t, error %v", what, ps.Len(), ps.Synced, ps.Err)
		}
	}
}

// runPod runs a pod, and waits until the client has the kubelet's version.
func (n *kubeletFixture) runPod(spec kubelet.PodSpec) pods.Pod {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), testTimeout)
	defer cancel()
	require.NoError(n.t, n.RunPod(ctx, spec))
	return n.waitSynced(spec)
}

func (n *kubeletFixture) waitSynced(spec kubelet.PodSpec) (p pods.Pod) {
	n.t.Helper()
	n.waitPods("the pod", func(ps pods.Pods) bool {
		want, err := n.Pod(spec)
		if err != nil {
			return false
		}
		var ok bool
		p, ok = ps.ByName(want.Namespace, want.Name)
		isOld := func(c kubelet.PodContainerStatus) bool {
			pod, name, known := ps.ByContainer(c.ID)
			return c.ID != "" && (!known || pod.UID != want.UID || name != c.Name)
		}
		return ok && ps.Synced && p.UID == want.UID && p.Phase == want.Phase && !slices.ContainsFunc(want.Containers, isOld)
	})
	return p
}

// waitEnd waits for OnPodEnded, and returns the termination of a container.
func (n *kubeletFixture) waitEnd(p pods.Pod, container string) string {
	n.t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		n.mu.Lock()
		ended := slices.Contains(n.ended, p.Name)
		n.mu.Unlock()
		ps, _ := n.pods.Get()
		owner := allocation.Owner{Namespace: p.Namespace, Pod: p.Name, Container: container}
		got, known := ps.Termination(allocation.Assignment{PodUID: p.UID, Owner: owner})
		if ended && got.PodEnded {
			_, text, _ := strings.Cut(formatTermination(got, known), " ") // without the UID
			return text
		}
		if time.Now().After(end) {
			n.t.Fatalf("timeout waiting for the end of pod %s", p.Name)
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

func TestPods(t *testing.T) {
	t.Parallel()
	n := newFixture(t)
	first := simulatedPod("first", "main", "side")
	first.InitContainers = []kubelet.ContainerSpec{{Name: "setup"}, {Name: "proxy", Sidecar: true}}
	p := n.runPod(first)
	expect.EqualSlices(t, p.Labels, []device.Label{{Name: "app", Value: "first"}}, "labels")
	states := map[string]pods.ContainerStateType{}
	for _, c := range p.Containers {
		states[c.Name] = c.State.Type
	}
	if len(states) != 4 || states["setup"] != pods.Terminated || states["proxy"] != pods.Running {
		t.Errorf("containers: got %+v, want four, setup terminated and proxy running", p.Containers)
	}
	static := simulatedPod("static", "main")
	static.Static = true
	if p := n.runPod(static); len(p.UID) != 32 || p.Name != "static-node-a" || !p.Created.IsZero() {
		t.Errorf("static pod: got %+v, want static-node-a with a hash as UID", p)
	}
	require.NoError(n.t, n.DeletePod(first))
	n.waitPods("the deletion of a pod", func(ps pods.Pods) bool { return ps.Len() == 1 })
	expect.Equal(t, n.waitEnd(p, "main"), "Failed 0: 143 Error, ended", "deleted pod")
}

func TestPodEnds(t *testing.T) {
	t.Parallel()
	n := newFixture(t)
	spec := simulatedPod("trainer", "main", "side")
	p := n.runPod(spec)
	require.NoError(n.t, n.CrashContainer(t.Context(), spec, "main", kubelet.ContainerExit{Code: 1}))
	crashed := n.waitSynced(spec).Containers[0]
	last := crashed.LastState
	if crashed.Restarts != 1 || last.ExitCode != 1 || last.Reason != "Error" || crashed.State.Type != pods.Running {
		t.Errorf("after a crash: got %+v, want one restart with exit code 1", crashed)
	}
	killed := map[string]kubelet.ContainerExit{"main": {Code: 137, Reason: "OOMKilled"}}
	require.NoError(n.t, n.EndPodWith(spec, kubelet.PodEnd{Exits: killed}))
	expect.Equal(t, n.waitEnd(p, "main"), "Failed 1: 137 OOMKilled, ended", "ended pod")
	expect.Equal(t, n.waitEnd(p, "side"), "Failed 0: 0 Completed, ended", "other container")
	n.waitPods("the removal of the pod", func(ps pods.Pods) bool { return ps.Len() == 0 })
	spec = simulatedPod("evicted", "main")
	p = n.runPod(spec)
	require.NoError(n.t, n.EndPodWith(spec, kubelet.PodEnd{Reason: "Evicted", Exits: killed}))
	expect.Equal(t, n.waitEnd(p, "main"), "Failed 0: 137 Evicted, ended", "evicted pod")
}

// TestManyPods compares the pods of client and kubelet after many concurrent
// changes.
func TestManyPods(t *testing.T) {
	t.Parallel()
	n := newFixture(t)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 25 {
				spec := simulatedPod(fmt.Sprintf("pod-%d-%d", i, j), "main")
				err := n.RunPod(t.Context(), spec)
				switch j % 4 {
				case 0:
					err = errors.Join(err, n.DeletePod(spec))
				case 1:
					err = errors.Join(err, n.EndPod(spec))
				}
				expect.NoError(t, err)
			}
		})
	}
	all.Wait()
	isUnknown := func(ps pods.Pods) func(kubelet.PodStatus) bool {
		return func(want kubelet.PodStatus) bool {
			p, _ := ps.ByName(want.Namespace, want.Name)
			return want.Phase == "Running" && (p.UID != want.UID || p.Phase != want.Phase)
		}
	}
	n.waitPods("all running pods", func(ps pods.Pods) bool {
		return ps.Synced && !slices.ContainsFunc(n.State().Pods, isUnknown(ps))
	})
}
