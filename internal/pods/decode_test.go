package pods_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pods/podpb"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// fixture returns a pod in Kubernetes' protobuf and JSON
// (test/e2e/podsfixture).
func fixture(t testing.TB, name string) (wire, text []byte) {
	t.Helper()
	wire, err := os.ReadFile(filepath.Join("testdata", name+".pb"))
	if err == nil {
		text, err = os.ReadFile(filepath.Join("testdata", name+".json"))
	}
	require.NoError(t, err)
	return wire, text
}

func fixtures(t testing.TB) (names []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.pb")
	if err != nil || len(files) < 12 {
		t.Fatalf("fixtures %v: %v", files, err)
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".pb"))
	}
	return names
}

// followerFunc is a pods.PodFollower.
type followerFunc func(ctx context.Context, handle func(kubeapi.WatchEvent) error) error

func (f followerFunc) Follow(ctx context.Context, handle func(kubeapi.WatchEvent) error) error {
	return f(ctx, handle)
}

// decodeJSON returns the pods after a list of objects by an API server.
func decodeJSON(t testing.TB, labels []string, objects ...[]byte) (ps pods.Pods, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var published pubsub.Value[pods.Pods]
	c, err := pods.New(filepath.Join(t.TempDir(), "none"), pods.Options{
		Labels: labels, Pods: &published,
		APIServer: followerFunc(func(_ context.Context, handle func(kubeapi.WatchEvent) error) error {
			defer cancel()
			err = handle(kubeapi.WatchEvent{Type: kubeapi.ListStarted})
			for _, object := range objects {
				if err == nil {
					err = handle(kubeapi.WatchEvent{Type: "ADDED", Object: object})
				}
			}
			if err == nil {
				err = handle(kubeapi.WatchEvent{Type: kubeapi.ListEnded})
			}
			return err
		}),
	})
	require.NoError(t, err)
	if runErr := c.Run(ctx); runErr != nil {
		t.Error(runErr)
	}
	ps, _ = published.Get()
	return ps, err
}

// TestDecodeFixtures decodes protobuf and JSON of the same objects, both
// marshaled by Kubernetes.
func TestDecodeFixtures(t *testing.T) {
	states := map[string]string{}
	for _, name := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			wire, text := fixture(t, name)
			p, err := pods.DecodePod(wire)
			require.NoError(t, err)
			ps, err := decodeJSON(t, []string{"*"}, text)
			if got, ok := ps.ByName(p.Namespace, p.Name); err != nil || !ok || !reflect.DeepEqual(got, p) {
				t.Errorf("got of JSON\n%+v, of protobuf\n%+v, %v", got, p, err)
			}
			states[name] = fmt.Sprintf("%s %s %t %t", p.Phase, p.Reason, p.Terminal(), p.Ended())
			for _, c := range p.Containers {
				states[name] += fmt.Sprintf(" %s:%d%s/%d%s", c.Name, c.State.ExitCode, c.State.Reason, c.LastState.ExitCode, c.LastState.Reason)
			}
		})
	}
	for name, want := range map[string]string{
		"training":  "Running  false false main:0/0 exporter:0/0 download:0Completed/0 proxy:0/255Error",
		"oomkilled": "Failed  true true main:137OOMKilled/0",
		"evicted":   "Failed Evicted true false main:0/0",
		"crashloop": "Running  false false main:0/1Error",
		"rejected":  "Failed UnexpectedAdmissionError true true",
	} {
		if states[name] != want {
			t.Errorf("%s: got %q, want %q", name, states[name], want)
		}
	}
	_, text := fixture(t, "training")
	ps, err := decodeJSON(t, []string{"team"}, text)
	p, _ := ps.ByName("team-a", "training-0")
	want := pods.Pod{
		Namespace: "team-a", Name: "training-0", UID: "7c0ffee5-0000-4000-8000-000000000001", Phase: "Running",
		Created: time.Date(2026, 9, 1, 8, 0, 0, 0, time.UTC).Local(),
		Labels:  []device.Label{{Name: "team", Value: "team-a"}}, Containers: p.Containers,
		Workload: &allocation.Workload{
			Controller: allocation.Controller{Kind: "ReplicaSet", Name: "owner"}, Labels: map[string]string{"team": "team-a"},
		},
	}
	if err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("training: got %+v, %v, want %+v", p, err, want)
	}
	if proxy := p.Containers[3]; proxy.Restarts != 1 || len(proxy.ID) != 64 || proxy.LastState.Finished.IsZero() {
		t.Errorf("sidecar: got %+v", proxy)
	}
}

// TestDecodeLimits has pods outside the API server's limits, and objects that
// are no pods.
func TestDecodeLimits(t *testing.T) {
	object := func(change func(*podpb.Pod)) []byte {
		p := newPod("p", "u", "Running")
		change(p)
		statuses := make([]map[string]any, len(p.Status.ContainerStatuses))
		for i, c := range p.Status.ContainerStatuses {
			statuses[i] = map[string]any{"name": c.GetName(), "containerID": c.GetContainerId()}
		}
		b, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"name": "p", "namespace": "team", "uid": "u", "labels": p.Metadata.Labels},
			"status":   map[string]any{"reason": p.Status.GetReason(), "containerStatuses": statuses},
		})
		require.NoError(t, err)
		return b
	}
	many := object(func(p *podpb.Pod) {
		p.Status.ContainerStatuses = slices.Repeat(p.Status.ContainerStatuses, pods.MaxContainers+1)
		p.Status.Reason = new(strings.Repeat("x", 1000))
		p.Metadata.Labels = map[string]string{strings.Repeat("x", pods.MaxNameBytes+1): "too long"}
		for i := range 100 {
			p.Metadata.Labels[fmt.Sprintf("%03d", i)] = strings.Repeat("x", 1000)
		}
	})
	ps, err := decodeJSON(t, []string{"*"}, many)
	p, _ := ps.ByName("team", "p")
	if err != nil || len(p.Labels) != pods.MaxLabels || p.Labels[63].Name != "063" ||
		len(p.Labels[0].Value) != pods.MaxNameBytes || len(p.Reason) != pods.MaxNameBytes {
		t.Errorf("got reason %s, %d labels, %v", p.Reason, len(p.Labels), err)
	}
	if len(p.Containers) != pods.MaxContainers {
		t.Errorf("got %d containers", len(p.Containers))
	}
	withoutRuntime := object(func(p *podpb.Pod) { p.Status.ContainerStatuses[0].ContainerId = new("abc") })
	if ps, err = decodeJSON(t, nil, withoutRuntime); err != nil {
		t.Error(err)
	}
	if _, name, ok := ps.ByContainer("abc"); !ok || name != "main" {
		t.Errorf("container id without a runtime: got %q", name)
	}
	for _, invalid := range []string{
		"", "null", "[]", `{"metadata":{"name":"p","uid":"u"}}`, `{"metadata":{"name":7,"namespace":"n","uid":"u"}}`,
	} {
		if _, err := decodeJSON(t, nil, []byte(invalid)); err == nil {
			t.Errorf("%q: got no error", invalid)
		}
	}
}

func TestLabels(t *testing.T) {
	_, text := fixture(t, "training")
	for allowed, want := range map[string]string{
		"": "", "team": "team", "tea": "", "teams": "", "app.kubernetes.io": "",
		"app.kubernetes.io/*": "app.kubernetes.io/name app.kubernetes.io/part-of",
	} {
		ps, err := decodeJSON(t, strings.Fields(allowed), text)
		require.NoError(t, err)
		p, _ := ps.ByName("team-a", "training-0")
		var names []string
		for _, l := range p.Labels {
			names = append(names, l.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("labels %q: got %q, want %q", allowed, got, want)
		}
	}
	for _, invalid := range []string{"", "a*b", "**", "*a"} {
		err := pods.ValidateLabels([]string{"team", invalid})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", invalid)) {
			t.Errorf("label %q: got %v, want an error with the label", invalid, err)
		}
	}
}

// TestWorkload checks that a pod keeps its controller, the names of its jobs
// and the labels on the allowlist, within limits, and that only the last are
// metadata for metrics.
func TestWorkload(t *testing.T) {
	jobSet := map[string]string{"batch.kubernetes.io/job-name": "train-0", "jobset.sigs.k8s.io/jobset-name": "train"}
	long := map[string]string{"ray.io/cluster": "ray"}
	for i := range 30 {
		long[fmt.Sprintf("team/%02d", i)] = strings.Repeat("x", 63)
	}
	for name, c := range map[string]struct {
		owners []*podpb.OwnerReference
		labels map[string]string
		want   string // controller, labels, and labels for metrics
	}{
		"none": {want: "- map[] 0"},
		"job": {
			owners: []*podpb.OwnerReference{{Kind: new("Queue"), Name: new("q")}, {Kind: new("Job"), Name: new("train-0"), Controller: new(true)}},
			labels: jobSet, want: "Job/train-0 map[batch.kubernetes.io/job-name:train-0 jobset.sigs.k8s.io/jobset-name:train] 0",
		},
		"allowlist":   {labels: map[string]string{"team/a": "b", "secret": "c"}, want: "- map[team/a:b] 1"},
		"long labels": {labels: long, want: "- map[ray.io/cluster:ray team/00:x… 13 more] 30"},
	} {
		p := newPod("p", "u", "Running")
		p.Metadata.OwnerReferences, p.Metadata.Labels = c.owners, c.labels
		var references []map[string]any
		for _, o := range c.owners {
			references = append(references, map[string]any{"kind": o.GetKind(), "name": o.GetName(), "controller": o.GetController(), "apiVersion": "v1"})
		}
		text, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"name": "p", "namespace": "team", "uid": "u", "labels": c.labels, "ownerReferences": references,
		}})
		require.NoError(t, err)
		ps, err := decodeJSON(t, []string{"team/*"}, text)
		require.NoError(t, err)
		meta := ps.Meta("team", "p")
		if wire, err := pods.DecodePod(newEvent(added, p).Pod); err != nil || name == "job" && !wire.Workload.Equal(meta.Workload) {
			t.Errorf("%s: got of protobuf %+v, %v", name, wire.Workload, err)
		}
		w, controller := meta.Workload, "-"
		if w == nil {
			w = &allocation.Workload{}
		}
		if w.Controller.Name != "" {
			controller = w.Controller.Kind + "/" + w.Controller.Name
		}
		all := fmt.Sprint(w.Labels)
		if len(w.Labels) > 2 {
			all = fmt.Sprintf("map[ray.io/cluster:%s team/00:%.1s… %d more]", w.Labels["ray.io/cluster"], w.Labels["team/00"], len(w.Labels)-2)
		}
		if got := fmt.Sprintf("%s %s %d", controller, all, len(meta.Labels)); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
		if got, _ := ps.Termination(allocation.Assignment{Owner: allocation.Owner{Namespace: "team", Pod: "p"}, PodUID: "u"}); !got.Workload.Equal(meta.Workload) {
			t.Errorf("%s: got %+v of the termination", name, got.Workload)
		}
	}
}

// FuzzDecode checks that a kubelet's pod is decoded with names and within the
// limits, or rejected.
func FuzzDecode(f *testing.F) {
	for _, name := range fixtures(f) {
		wire, _ := fixture(f, name)
		f.Add(wire)
	}
	f.Add([]byte{0xff})
	labeled := newPod("a", "1", "Running")
	labeled.Metadata.Labels = map[string]string{"k": "a\xffb"}
	f.Add(newEvent(added, labeled).Pod)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := pods.DecodePod(b)
		if err != nil {
			return
		}
		if p.Name == "" || p.Namespace == "" || p.UID == "" {
			t.Fatalf("got a pod without a name: %+v", p)
		}
		sorted := slices.IsSortedFunc(p.Labels, func(a, b device.Label) int { return strings.Compare(a.Name, b.Name) })
		if len(p.Labels) > pods.MaxLabels || len(p.Containers) > pods.MaxContainers || !sorted {
			t.Fatalf("labels: got %v, want them sorted and limited", p.Labels)
		}
		if p.Workload != nil && len(p.Workload.Labels) > 512 {
			t.Fatalf("workload: got %v, want it limited", p.Workload)
		}
	})
}
