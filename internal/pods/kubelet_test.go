package pods_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pods/podpb"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/apiserver"
	"github.com/podgauge/podgauge/test/helpers/background"
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

// newFixture returns a fixture. configure returns the socket and the options of
// its client, except OnPodEnded.
func newFixture(
	t *testing.T, version kubelet.Version, configure func(n *kubeletFixture) (socket string, o pods.Options),
) *kubeletFixture {
	t.Helper()
	n := &kubeletFixture{Kubelet: background.Kubelet(t, kubelet.Options{Version: version}), t: t}
	background.Wait(t, n.Kubelet, func(s kubelet.KubeletState) bool { return s.PodsRead })
	socket, o := configure(n)
	o.Pods = &n.pods
	o.OnPodEnded = func(_, name string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.ended = append(n.ended, name)
	}
	var err error
	n.client, err = pods.New(socket, o)
	n.must(err)
	background.Run(t, n.client.Run)
	return n
}

// ofKubelet configures a client of the kubelet.
func ofKubelet(n *kubeletFixture) (string, pods.Options) {
	return n.PodsSocket(), pods.Options{Labels: []string{"app"}}
}

// ofAPIServer configures a client of an API server.
func ofAPIServer(s *apiserver.Server) func(n *kubeletFixture) (string, pods.Options) {
	return func(n *kubeletFixture) (string, pods.Options) {
		follower := &kubeapi.Follower{Client: s.Client(), Path: "/api/v1/pods"}
		return filepath.Join(n.t.TempDir(), "none"), pods.Options{Labels: []string{"app"}, APIServer: follower}
	}
}

// eachSource runs a test with a client of the kubelet, and with a client of an
// API server that has the kubelet's pods.
func eachSource(t *testing.T, test func(t *testing.T, n *kubeletFixture)) {
	t.Helper()
	t.Run("kubelet", func(t *testing.T) {
		t.Parallel()
		test(t, newFixture(t, kubelet.V137, ofKubelet))
	})
	t.Run("API server", func(t *testing.T) {
		t.Parallel()
		s := apiserver.Start(t)
		test(t, newFixture(t, kubelet.V137, func(n *kubeletFixture) (string, pods.Options) {
			background.Run(t, func(ctx context.Context) error { return n.bridge(ctx, s) })
			return ofAPIServer(s)(n)
		}))
	})
}

// bridge copies the kubelet's pods to the API server, and ignores late events
// of deleted pods.
func (n *kubeletFixture) bridge(ctx context.Context, s *apiserver.Server) error {
	conn, err := grpc.NewClient("unix:"+n.PodsSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // of a test
	stream, err := api.NewPodsClient(conn).WatchPods(ctx, &api.WatchPodsRequest{})
	ended := map[string]bool{}
	for err == nil {
		var e *api.WatchPodsEvent
		if e, err = stream.Recv(); err != nil || e.Type == complete {
			continue
		}
		var p podpb.Pod
		if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(e.Pod, &p); err != nil {
			return err
		}
		uid := p.Metadata.GetUid()
		switch {
		case e.Type == deleted:
			s.Delete("pods", uid)
			ended[uid] = true
		case !ended[uid]:
			s.Set("pods", uid, jsonOf(&p))
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// jsonOf returns the API server's object of a pod. A static pod has a mirror
// pod with another UID.
func jsonOf(p *podpb.Pod) string {
	if uid := p.Metadata.GetUid(); len(uid) == 32 { // a hash
		p.Metadata.Uid = new("00000000-mirror-" + uid)
		p.Metadata.CreationTimestamp = timestamppb.Now()
		p.Metadata.Annotations = map[string]string{"kubernetes.io/config.mirror": uid}
	}
	b, _ := protojson.Marshal(p) // a valid message
	return string(b)
}

func (n *kubeletFixture) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
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
	n.must(n.RunPod(ctx, spec))
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
	eachSource(t, func(t *testing.T, n *kubeletFixture) {
		first := simulatedPod("first", "main", "side")
		first.InitContainers = []kubelet.ContainerSpec{{Name: "setup"}, {Name: "proxy", Sidecar: true}}
		p := n.runPod(first)
		if !slices.Equal(p.Labels, []device.Label{{Name: "app", Value: "first"}}) {
			t.Errorf("labels: got %v, want app=first", p.Labels)
		}
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
		n.must(n.DeletePod(first))
		n.waitPods("the deletion of a pod", func(ps pods.Pods) bool { return ps.Len() == 1 })
		if got := n.waitEnd(p, "main"); got != "Failed 0: 143 Error, ended" {
			t.Errorf("deleted pod: got %s", got)
		}
	})
}

func TestPodEnds(t *testing.T) {
	eachSource(t, func(t *testing.T, n *kubeletFixture) {
		spec := simulatedPod("trainer", "main", "side")
		p := n.runPod(spec)
		n.must(n.CrashContainer(t.Context(), spec, "main", kubelet.ContainerExit{Code: 1}))
		crashed := n.waitSynced(spec).Containers[0]
		last := crashed.LastState
		if crashed.Restarts != 1 || last.ExitCode != 1 || last.Reason != "Error" || crashed.State.Type != pods.Running {
			t.Errorf("after a crash: got %+v, want one restart with exit code 1", crashed)
		}
		killed := map[string]kubelet.ContainerExit{"main": {Code: 137, Reason: "OOMKilled"}}
		n.must(n.EndPodWith(spec, kubelet.PodEnd{Exits: killed}))
		if got := n.waitEnd(p, "main"); got != "Failed 1: 137 OOMKilled, ended" {
			t.Errorf("ended pod: got %s", got)
		}
		if got := n.waitEnd(p, "side"); got != "Failed 0: 0 Completed, ended" {
			t.Errorf("other container: got %s", got)
		}
		n.waitPods("the removal of the pod", func(ps pods.Pods) bool { return ps.Len() == 0 })
		spec = simulatedPod("evicted", "main")
		p = n.runPod(spec)
		n.must(n.EndPodWith(spec, kubelet.PodEnd{Reason: "Evicted", Exits: killed}))
		if got := n.waitEnd(p, "main"); got != "Failed 0: 137 Evicted, ended" {
			t.Errorf("evicted pod: got %s", got)
		}
	})
}

// TestManyPods compares the pods of client and kubelet after many concurrent
// changes.
func TestManyPods(t *testing.T) {
	eachSource(t, func(t *testing.T, n *kubeletFixture) {
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
					if err != nil {
						t.Error(err)
					}
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
	})
}

// TestAPIServerOutage stops the API server for a while. The pods are kept, and
// changes during the outage are not lost.
func TestAPIServerOutage(t *testing.T) {
	t.Parallel()
	for name, expired := range map[string]bool{"events kept": false, "events expired": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apiserver.Start(t)
			s.Set("pods", "1-", jsonOf(newPod("a", "1-", "Running")))
			n := newFixture(t, kubelet.V136, ofAPIServer(s))
			n.waitPods("the pod", func(ps pods.Pods) bool { return ps.Synced && ps.Len() == 1 })
			s.Set("pods", "2-", jsonOf(newPod("b", "2-", "Running")))
			ps := n.waitPods("the watch", func(ps pods.Pods) bool { return ps.Synced && ps.Len() == 2 })
			a, _ := ps.ByName("team", "a")
			s.Stop()
			n.waitPods("the outage", func(ps pods.Pods) bool { return !ps.Synced && ps.Len() == 2 && ps.Err != nil })
			s.Set("pods", "1-", jsonOf(newPod("a", "1-", "Failed")))
			s.Delete("pods", "1-")
			if expired {
				s.Compact()
			}
			s.Resume()
			n.waitPods("the deletion", func(ps pods.Pods) bool { return ps.Synced && ps.Len() == 1 })
			want := "Failed 0: 137 , ended"
			if expired {
				want = "Running 0: ? , ended"
			}
			if got := n.waitEnd(a, "main"); got != want {
				t.Errorf("ended pod: got %s, want %s", got, want)
			}
		})
	}
}

// TestKubeletPrecedence checks that the kubelet's Pods API is used as soon as
// the kubelet has it.
func TestKubeletPrecedence(t *testing.T) {
	t.Parallel()
	s := apiserver.Start(t)
	n := newFixture(t, kubelet.V137, func(n *kubeletFixture) (string, pods.Options) {
		_, o := ofAPIServer(s)(n)
		return n.PodsSocket(), o
	})
	n.runPod(simulatedPod("one", "main"))
	if requests := s.Requests(); len(requests) > 0 {
		t.Errorf("requests to the API server: got %q, want none", requests)
	}
}

// TestHungAPIServer checks that readiness does not wait for the API server.
func TestHungAPIServer(t *testing.T) {
	t.Parallel()
	s := apiserver.Start(t)
	s.Reject(func(string, string) int { return -1 })
	n := newFixture(t, kubelet.V136, ofAPIServer(s))
	n.waitPods("the error", func(ps pods.Pods) bool {
		return ps.Err != nil && strings.Contains(ps.Err.Error(), "has not listed the pods yet")
	})
	if err := errors.Join(n.client.Ready(), n.client.Alive()); err != nil {
		t.Error(err)
	}
}
