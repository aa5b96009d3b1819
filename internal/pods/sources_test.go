package pods

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/apiserver"
)

// Tests with both sources have a subtest for each source.
const (
	kubeletSource   = "kubelet"
	apiServerSource = "API server"
)

func forBothSources(t *testing.T, test func(t *testing.T, source string)) {
	t.Helper()
	for _, source := range []string{kubeletSource, apiServerSource} {
		t.Run(source, func(t *testing.T) { test(t, source) })
	}
}

// runBothScripted is runScripted for both sources. pause is longer than any backoff of the source.
func runBothScripted(t *testing.T, o func() Options, test func(t *testing.T, k *scriptedPodsAPI, c *Client, pause time.Duration)) {
	t.Helper()
	forBothSources(t, func(t *testing.T, source string) {
		runScriptedBy(t, source, o(), func(t *testing.T, k *scriptedPodsAPI, c *Client) {
			test(t, k, c, map[string]time.Duration{kubeletSource: socketPollInterval, apiServerSource: 2 * maxAPIServerBackoff}[source])
		})
	})
}

// Follow implements PodFollower. It sends the scripted events as the API server would.
func (k *scriptedPodsAPI) Follow(ctx context.Context, handle func(kubeapi.WatchEvent) error) error {
	conn, err := grpc.NewClient("passthrough:///kubelet", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return k.dial(ctx) }))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // of a test
	stream, err := api.NewPodsClient(conn).WatchPods(ctx, &api.WatchPodsRequest{})
	if err != nil {
		return err
	}
	if err := handle(kubeapi.WatchEvent{Type: kubeapi.ListStarted}); err != nil {
		return err
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := handle(apiEvent(k.t, e)); err != nil {
			return err
		}
	}
}

// apiEvent returns a kubelet's event as the API server's.
func apiEvent(t testing.TB, e *api.WatchPodsEvent) kubeapi.WatchEvent {
	if e.Type == complete {
		return kubeapi.WatchEvent{Type: kubeapi.ListEnded}
	}
	_, object := apiObject(t, e.Pod)
	return kubeapi.WatchEvent{Type: kubeapi.EventType(e.Type.String()), Object: []byte(object)}
}

// newFixture returns a fixture whose client has a source. The API server has the kubelet's pods.
func newFixture(t *testing.T, source string, labels ...string) *kubeletFixture {
	t.Helper()
	if source == kubeletSource {
		return newKubeletFixture(t, kubelet.V137, labels...)
	}
	s := apiserver.Start(t)
	n := newFixtureWith(t, kubelet.V137, func(n *kubeletFixture) (string, Options) {
		n.runInBackground(func(ctx context.Context) error { return n.bridge(ctx, s) })
		return filepath.Join(t.TempDir(), "none"), Options{Labels: labels, APIServer: &kubeapi.Follower{Client: s.Client(), Path: "/api/v1/pods"}}
	})
	return n
}

// bridge copies the kubelet's pods to the API server, and ignores late events of deleted pods.
func (n *kubeletFixture) bridge(ctx context.Context, s *apiserver.Server) error {
	ended := map[string]bool{}
	for ctx.Err() == nil {
		_ = n.bridgeStream(ctx, s, ended)
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

func (n *kubeletFixture) bridgeStream(ctx context.Context, s *apiserver.Server, ended map[string]bool) error {
	conn, err := grpc.NewClient("unix:"+n.PodsSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // of a test
	stream, err := api.NewPodsClient(conn).WatchPods(ctx, &api.WatchPodsRequest{})
	for err == nil {
		var e *api.WatchPodsEvent
		if e, err = stream.Recv(); err != nil || e.Type == complete {
			continue
		}
		uid, object := apiObject(n.t, e.Pod)
		switch {
		case e.Type == deleted:
			s.Delete("pods", uid)
			ended[uid] = true
		case !ended[uid]:
			s.Set("pods", uid, object)
		}
	}
	return err
}

// apiObject returns the API server's JSON of a kubelet's pod, and the kubelet's UID. A static pod has a mirror pod with another UID.
func apiObject(t testing.TB, pod []byte) (uid, object string) {
	e := newEvent(t, "*")
	if err := e.Read(eventBytes(t, added, pod)); err != nil {
		return "", "{}"
	}
	p := e.pod
	metadata := map[string]any{"namespace": p.Namespace, "name": p.Name, "uid": p.UID, "creationTimestamp": nil}
	if !p.Created.IsZero() {
		metadata["creationTimestamp"] = p.Created
	}
	labels := map[string]string{}
	for _, l := range p.Labels {
		labels[l.Name] = l.Value
	}
	metadata["labels"] = labels
	if len(p.UID) == 32 && !strings.Contains(p.UID, "-") { // static: a hash
		metadata["uid"], metadata["creationTimestamp"] = "00000000-mirror-"+p.UID, time.Now()
		metadata["annotations"] = map[string]string{"kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": p.UID}
	}
	var containers []any
	for _, c := range p.Containers {
		containers = append(containers, map[string]any{
			"name": c.Name, "containerID": "containerd://" + c.ID, "restartCount": c.Restarts, "state": apiState(c.State), "lastState": apiState(c.LastState),
		})
	}
	text, err := json.Marshal(map[string]any{
		"metadata": metadata, "status": map[string]any{"phase": p.Phase, "reason": p.Reason, "containerStatuses": containers},
	})
	if err != nil {
		t.Error(err)
	}
	return p.UID, string(text)
}

func apiState(s ContainerState) map[string]any {
	switch s.Type {
	case Running:
		return map[string]any{"running": map[string]any{}}
	case Terminated:
		return map[string]any{"terminated": map[string]any{"exitCode": s.ExitCode, "reason": s.Reason, "finishedAt": s.Finished}}
	}
	return map[string]any{}
}

// TestAPIServerOutage stops the API server for a while. The pods are kept, and changes during the outage are not lost.
func TestAPIServerOutage(t *testing.T) {
	t.Parallel()
	for name, expired := range map[string]bool{"events kept": false, "events expired": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apiserver.Start(t)
			set := func(uid string, e *api.WatchPodsEvent) { s.Set("pods", uid, string(apiEvent(t, e).Object)) }
			set("1-", newWatchEvent(added, runningPod("a", "1-")))
			n := newFixtureWith(t, kubelet.V136, func(*kubeletFixture) (string, Options) {
				return filepath.Join(t.TempDir(), "none"), Options{APIServer: &kubeapi.Follower{Client: s.Client(), Path: "/api/v1/pods"}}
			})
			n.waitPods("the pod", func(ps Pods) bool { return ps.Synced && ps.Len() == 1 })
			set("2-", newWatchEvent(added, runningPod("b", "2-")))
			n.waitPods("the watch", func(ps Pods) bool { return ps.Synced && ps.Len() == 2 })
			s.Stop()
			n.waitPods("the outage", func(ps Pods) bool { return !ps.Synced && ps.Len() == 2 && ps.Err != nil })
			set("1-", newWatchEvent(modified, endedPod("a", "1-", "Failed", 137)))
			s.Delete("pods", "1-")
			if expired {
				s.Compact()
			}
			s.Resume()
			n.waitPods("the deletion", func(ps Pods) bool { return ps.Synced && ps.Len() == 1 })
			if end := n.lastEnded("1-"); !expired && end.Phase != "Failed" {
				t.Errorf("ended pod: got %+v, want Failed", end)
			}
		})
	}
}

// TestKubeletPrecedence checks that the kubelet's Pods API is used as soon as the kubelet has it.
func TestKubeletPrecedence(t *testing.T) {
	t.Parallel()
	s := apiserver.Start(t)
	n := newFixtureWith(t, kubelet.V137, func(n *kubeletFixture) (string, Options) {
		return n.PodsSocket(), Options{APIServer: &kubeapi.Follower{Client: s.Client(), Path: "/api/v1/pods"}}
	})
	n.runPod(simulatedPod("one", "main"))
	n.waitSynced(simulatedPod("one", "main"))
	if requests := s.Requests(); len(requests) > 0 {
		t.Errorf("requests to the API server: got %q, want none", requests)
	}
	if _, err := os.Stat(n.PodsSocket()); err != nil {
		t.Error(err)
	}
}

// TestHungAPIServer checks that readiness does not wait for the API server.
func TestHungAPIServer(t *testing.T) {
	t.Parallel()
	s := apiserver.Start(t)
	s.Reject(func(string, string) int { return -1 })
	n := newFixtureWith(t, kubelet.V136, func(*kubeletFixture) (string, Options) {
		return filepath.Join(t.TempDir(), "none"), Options{APIServer: &kubeapi.Follower{Client: s.Client(), Path: "/api/v1/pods"}}
	})
	n.waitPods("the error", func(ps Pods) bool { return errors.Is(ps.Err, errNotListed) })
	if err := errors.Join(n.client.Ready(), n.client.Alive()); err != nil {
		t.Error(err)
	}
}
