package pods_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pods/podpb"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// fixture returns a pod in Kubernetes' protobuf (test/e2e/podsfixture).
func fixture(t testing.TB, name string) []byte {
	t.Helper()
	return []byte(testfile.Read(t, filepath.Join("testdata", name+".pb")))
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

// TestDecodeFixtures decodes objects marshaled by Kubernetes.
func TestDecodeFixtures(t *testing.T) {
	states := map[string]string{}
	for _, name := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			p, err := pods.DecodePod(fixture(t, name))
			require.NoError(t, err)
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
		expect.Equal(t, states[name], want, name)
	}
	p, err := pods.DecodePod(fixture(t, "training"), "team")
	want := pods.Pod{
		Namespace: "team-a", Name: "training-0", UID: "7c0ffee5-0000-4000-8000-000000000001", Phase: "Running",
		Created: time.Date(2026, 9, 1, 8, 0, 0, 0, time.UTC).Local(),
		Labels:  []device.Label{{Name: "team", Value: "team-a"}}, Containers: p.Containers,
		Workload: &allocation.Workload{
			Controller: allocation.Controller{Kind: "ReplicaSet", Name: "owner"}, Labels: map[string]string{"team": "team-a"},
		},
	}
	require.NoError(t, err)
	expect.DeepEqual(t, p, want, "training")
	if proxy := p.Containers[3]; proxy.Restarts != 1 || len(proxy.ID) != 64 || proxy.LastState.Finished.IsZero() {
		t.Errorf("sidecar: got %+v", proxy)
	}
}

// TestDecodeLimits has a pod outside the API server's limits.
func TestDecodeLimits(t *testing.T) {
	many := newPod("p", "u", "Running")
	many.Status.ContainerStatuses = slices.Repeat(many.Status.ContainerStatuses, pods.MaxContainers+1)
	many.Status.Reason = new(strings.Repeat("x", 1000))
	many.Metadata.Labels = map[string]string{strings.Repeat("x", pods.MaxNameBytes+1): "too long"}
	for i := range 100 {
		many.Metadata.Labels[fmt.Sprintf("%03d", i)] = strings.Repeat("x", 1000)
	}
	p, err := pods.DecodePod(newEvent(added, many).Pod, "*")
	if err != nil || len(p.Labels) != pods.MaxLabels || p.Labels[63].Name != "063" ||
		len(p.Labels[0].Value) != pods.MaxNameBytes || len(p.Reason) != pods.MaxNameBytes {
		t.Errorf("got reason %s, %d labels, %v", p.Reason, len(p.Labels), err)
	}
	expect.Equal(t, len(p.Containers), pods.MaxContainers, "containers")
	withoutRuntime := newPod("p", "u", "Running")
	withoutRuntime.Status.ContainerStatuses[0].ContainerId = new("abc")
	if p, err = pods.DecodePod(newEvent(added, withoutRuntime).Pod); err != nil || p.Containers[0].ID != "abc" {
		t.Errorf("container id without a runtime: got %+v, %v", p, err)
	}
}

// TestMirrorPod checks that the API server's object of a static pod has the static pod's UID.
func TestMirrorPod(t *testing.T) {
	mirror := newPod("p", "00000000-0000-4000-8000-000000000001", "Running")
	mirror.Metadata.CreationTimestamp = timestamppb.Now()
	mirror.Metadata.Annotations = map[string]string{"kubernetes.io/config.mirror": "0123456789abcdef"}
	p, err := pods.DecodePod(newEvent(added, mirror).Pod)
	if err != nil || p.UID != "0123456789abcdef" || !p.Created.IsZero() {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestLabels(t *testing.T) {
	for allowed, want := range map[string]string{
		"": "", "team": "team", "tea": "", "teams": "", "app.kubernetes.io": "",
		"app.kubernetes.io/*": "app.kubernetes.io/name app.kubernetes.io/part-of",
	} {
		p, err := pods.DecodePod(fixture(t, "training"), strings.Fields(allowed)...)
		require.NoError(t, err)
		var names []string
		for _, l := range p.Labels {
			names = append(names, l.Name)
		}
		expect.Equal(t, strings.Join(names, " "), want, "labels", allowed)
	}
	for _, invalid := range []string{"", "a*b", "**", "*a"} {
		err := pods.ValidateLabels([]string{"team", invalid})
		expect.Error(t, err, fmt.Sprintf("%q", invalid), "label", invalid)
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
		decoded, err := pods.DecodePod(newEvent(added, p).Pod, "team/*")
		require.NoError(t, err)
		ps := pods.NewPods(&decoded)
		meta := ps.Meta(decoded.Namespace, "p")
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
		expect.Equal(t, fmt.Sprintf("%s %s %d", controller, all, len(meta.Labels)), c.want, name)
		if got, _ := ps.Termination(allocation.Assignment{Owner: allocation.Owner{Namespace: decoded.Namespace, Pod: "p"}, PodUID: "u"}); !got.Workload.Equal(meta.Workload) {
			t.Errorf("%s: got %+v of the termination", name, got.Workload)
		}
	}
}

// FuzzDecode checks that a kubelet's pod is decoded with names and within the
// limits, or rejected.
func FuzzDecode(f *testing.F) {
	for _, name := range fixtures(f) {
		f.Add(fixture(f, name))
	}
	f.Add([]byte{0xff})
	labeled := newPod("a", "1", "Running")
	labeled.Metadata.Labels = map[string]string{"k": "a\xffb"}
	f.Add(newEvent(added, labeled).Pod)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := pods.DecodePod(b, "*")
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
