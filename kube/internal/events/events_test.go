package events_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/kube/internal/events"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	gpu       = "GPU-0000"
	failed    = "GPU 3 (GPU-0000) failed: Xid 79, GPU has fallen off the bus. Reboot the node."
	onNode    = "/node-a Warning GPUUnhealthy 1: " + failed
	onTrainer = "team/trainer Warning GPUUnhealthy 1: " + failed
)

// fixture is an API server, and a Reporter of node-a.
type fixture struct {
	*events.Reporter
	t      *testing.T
	client *fake.Clientset
	log    testlog.Buffer
}

// inBubble runs a test with time that passes at once.
func inBubble(t *testing.T, run func(t *testing.T, f *fixture)) {
	bubble.Test(t, func(t *testing.T) {
		f := &fixture{t: t, client: fake.NewClientset()}
		f.restart()
		run(t, f)
	})
}

func (f *fixture) restart() { f.Reporter = events.New(f.client, f.log.Logger()) }

// report reports incidents, newest first.
func (f *fixture) report(incidents ...incident.Incident) (next time.Duration) {
	f.t.Helper()
	next, err := f.Report(f.t.Context(), "node-a", &api.NodeResponse{Incidents: incidents})
	require.NoError(f.t, err)
	return next
}

// events returns the events of all namespaces by name.
func (f *fixture) events() map[string]*corev1.Event {
	f.t.Helper()
	gvr := corev1.SchemeGroupVersion.WithResource("events")
	object, err := f.client.Tracker().List(gvr, corev1.SchemeGroupVersion.WithKind("Event"), "")
	require.NoError(f.t, err)
	byName, list := map[string]*corev1.Event{}, object.(*corev1.EventList)
	for i := range list.Items {
		byName[list.Items[i].Namespace+"/"+list.Items[i].Name] = &list.Items[i]
	}
	return byName
}

// wantEvents compares all events: "namespace/object type reason count: message".
func (f *fixture) wantEvents(want ...string) {
	f.t.Helper()
	var got []string
	for _, e := range f.events() {
		got = append(got, fmt.Sprintf("%s/%s %s %s %d: %s",
			e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Type, e.Reason, e.Count, e.Message))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		f.t.Errorf("got events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// reject makes requests with a verb and namespace fail, until err returns nil.
func (f *fixture) reject(verb, namespace string, err func() error) {
	f.client.PrependReactor(verb, "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if namespace != "" && a.GetNamespace() != namespace {
			return false, nil, nil
		}
		failure := err()
		return failure != nil, nil, failure
	})
}

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "x", nil)
}

// xid79 returns an incident with affected pods of namespace team.
func xid79(id uint64, pods ...string) incident.Incident {
	now := time.Now()
	i := incident.Incident{
		ID: id, First: now, Last: now, Count: 1, Device: gpu, GPU: gpu, Index: 3,
		Reason: "xid_79", Xid: 79, Action: "reboot", MarkedUnhealthy: true,
	}
	for _, p := range pods {
		i.Affected = append(i.Affected, incident.AffectedContainer{
			Owner: allocation.Owner{Namespace: "team", Pod: p, Container: "main"}, UID: "uid-" + p, Since: now.Add(-time.Minute),
		})
	}
	return i
}

func TestEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		i := xid79(1, "trainer", "trainer", "side")
		expect.Equal(t, f.report(i), 0, "next call after")
		f.wantEvents(onNode, onTrainer, strings.Replace(onTrainer, "trainer", "side", 1))
		for name, e := range f.events() {
			want := map[string]types.UID{"node-a": "node-a", "trainer": "uid-trainer", "side": "uid-side"}[e.InvolvedObject.Name]
			if e.InvolvedObject.UID != want || e.Source.Host != "node-a" || e.Source.Component != "podgauge" ||
				e.ReportingController != "podgauge" || e.InvolvedObject.APIVersion != "v1" || e.Namespace != cmp.Or(e.InvolvedObject.Namespace, "default") {
				t.Errorf("%s: got %+v", name, e)
			}
		}
		time.Sleep(time.Minute)
		f.report(i)
		if n := len(f.client.Actions()); n != 5 {
			t.Errorf("got %d requests, want one for each event and pod", n)
		}
		recovered := time.Now()
		i.Count, i.Last, i.RecoveredAt = 7, time.Now(), &recovered
		f.report(i)
		f.wantEvents(strings.Replace(onNode, "1:", "7:", 1), strings.Replace(onTrainer, "1:", "7:", 1),
			"team/side Warning GPUUnhealthy 7: "+failed,
			"/node-a Normal GPURecovered 1: GPU 3 (GPU-0000) recovered after: Xid 79, GPU has fallen off the bus.")
		if e := f.events()["team/trainer.0000000000000001"]; !e.LastTimestamp.Time.Equal(i.Last) || !e.FirstTimestamp.Time.Equal(i.First) {
			t.Errorf("got times %s and %s", e.FirstTimestamp, e.LastTimestamp)
		}
	})
}

// TestWhichIncidents checks incidents without an event, and the other reasons of events.
func TestWhichIncidents(t *testing.T) {
	inBubble(t, func(_ *testing.T, f *fixture) {
		historical, harmless, old, suspect, retired := xid79(1, "a"), xid79(2, "b"), xid79(3, "c"), xid79(4, "d"), xid79(5, "e")
		historical.Historical = true
		harmless.MarkedUnhealthy, harmless.Action = false, ""
		old.Last = old.Last.Add(-11 * time.Minute)
		suspect.MarkedUnhealthy = false
		suspect.Affected = append(suspect.Affected, incident.AffectedContainer{
			Owner: allocation.Owner{Namespace: "team", Pod: "earlier"}, Last: suspect.First, // of an earlier event only
		})
		retired.Reason, retired.Action, retired.Note = "retired", "", "fan is loud\x1b"
		f.report(retired, suspect, old, harmless, historical)
		const taken = "GPU 3 (GPU-0000) was retired by an operator: fan is loud\uFFFD"
		f.wantEvents("/node-a Warning GPURetired 1: "+taken, "team/e Warning GPURetired 1: "+taken,
			"team/d Warning GPUError 1: "+strings.Replace(failed, "failed", "reported", 1))
	})
}

// TestPodUID checks the UID of pods that the incident does not name.
func TestPodUID(t *testing.T) {
	since := time.Unix(1_700_000_000, 0)
	pod := func(node string, created time.Time, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "team", Name: "trainer", UID: "uid-1", CreationTimestamp: metav1.NewTime(created), Annotations: annotations,
			},
			Spec: corev1.PodSpec{NodeName: node},
		}
	}
	for name, test := range map[string]struct {
		pod         *corev1.Pod
		known, want types.UID
	}{
		"the pod":               {pod("node-a", since.Add(9*time.Second), nil), "", "uid-1"},
		"a later pod":           {pod("node-a", since.Add(11*time.Second), nil), "", ""},
		"other node":            {pod("node-b", since, nil), "", ""},
		"static":                {pod("node-a", since.Add(time.Hour), map[string]string{"kubernetes.io/config.mirror": "hash"}), "", "hash"},
		"deleted":               {nil, "", ""},
		"known":                 {pod("node-a", since.Add(time.Hour), nil), "uid-1", "uid-1"},
		"known, and deleted":    {nil, "uid-1", "uid-1"},
		"known, of another pod": {pod("node-b", since, nil), "uid-0", "uid-0"},
		"known, on other node":  {pod("node-b", since, nil), "uid-1", "no event"},
	} {
		client := fake.NewClientset()
		if test.pod != nil {
			client = fake.NewClientset(test.pod)
		}
		f := &fixture{t: t, client: client}
		f.restart()
		i := xid79(1, "trainer")
		i.Affected[0].UID, i.Affected[0].Since = string(test.known), since
		f.report(i)
		got := types.UID("no event")
		if e := f.events()["team/trainer.0000000000000001"]; e != nil {
			got = e.InvolvedObject.UID
		}
		expect.Equal(t, got, test.want, name, "UID")
	}
}

// TestRestart checks that a restart repeats no event.
func TestRestart(t *testing.T) {
	inBubble(t, func(_ *testing.T, f *fixture) {
		i := xid79(1, "trainer")
		f.report(i)
		f.restart()
		f.report(i)
		f.wantEvents(onNode, onTrainer)
		f.restart()
		i.Count = 2
		f.report(i)
		f.wantEvents(strings.Replace(onNode, "1:", "2:", 1), strings.Replace(onTrainer, "1:", "2:", 1))
	})
}

// TestLateRecovery checks that a recovery is reported hours after the incident, without the incident.
func TestLateRecovery(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		i, earlier, recovered := xid79(1, "trainer"), xid79(2), time.Now()
		i.First, i.Last, i.RecoveredAt = i.First.Add(-3*time.Hour), i.Last.Add(-3*time.Hour), &recovered
		earlier.Last, earlier.RecoveredAt = i.Last, new(recovered.Add(-11*time.Minute))
		for range 2 {
			f.report(earlier, i)
			f.restart()
		}
		f.wantEvents("/node-a Normal GPURecovered 1: GPU 3 (GPU-0000) recovered after: Xid 79, GPU has fallen off the bus.")
		e := f.events()["default/node-a.0000000000000001.recovered"]
		if !e.FirstTimestamp.Time.Equal(recovered) || !e.LastTimestamp.Time.Equal(recovered) {
			t.Errorf("got %v", e)
		}
	})
}

// TestExpired checks that an event that the API server deleted is created again when the incident repeats.
func TestExpired(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		i := xid79(1)
		f.report(i)
		gvr := corev1.SchemeGroupVersion.WithResource("events")
		require.NoError(t, f.client.Tracker().Delete(gvr, "default", "node-a.0000000000000001"))
		i.Count, i.Last = 2, time.Now()
		next := f.report(i)
		time.Sleep(next)
		f.report(i)
		f.wantEvents(strings.Replace(onNode, "1:", "2:", 1))
	})
}

// TestOutage checks that a request without an answer ends a report, and the next one sends the events.
func TestOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		down := true
		f.reject("*", "", func() error {
			if down {
				return errors.New("connection refused")
			}
			return nil
		})
		response := &api.NodeResponse{Incidents: []incident.Incident{xid79(1, "trainer")}}
		for range 3 {
			if _, err := f.Report(t.Context(), "node-a", response); err == nil {
				t.Error("got no error")
			}
		}
		expect.Equal(t, len(f.client.Actions()), 3, "requests")
		down = false
		f.report(response.Incidents...)
		f.wantEvents(onNode, onTrainer)
		expect.Equal(t, f.Dropped(), 0, "dropped events")
	})
}

// TestRejectedEvent checks that a rejected event delays no other, is repeated, and counts as dropped when it is too old.
func TestRejectedEvent(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.reject("create", "team", forbidden)
		for range 10 {
			expect.Equal(t, f.report(xid79(2, "a", "b"), xid79(1, "c")), 30*time.Second, "next call after")
		}
		f.wantEvents(onNode, onNode)
		if n := len(f.client.Actions()); n != 8 {
			t.Errorf("got %d requests, want one for each event and pod", n)
		}
		if lines := f.log.Matching("event rejected"); len(lines) != 1 || !strings.Contains(lines[0], "forbidden") {
			t.Errorf("got log %q", lines)
		}
		time.Sleep(30 * time.Second)
		f.report(xid79(2, "a", "b"), xid79(1, "c"))
		if n := len(f.client.Actions()); n != 14 || f.Dropped() != 0 {
			t.Errorf("got %d requests, %d dropped", n, f.Dropped())
		}
		f.report() // too old
		expect.Equal(t, f.Dropped(), 3, "dropped events")
	})
}

// TestEventRate checks the limit of events per object.
func TestEventRate(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		var all []incident.Incident
		for id := range uint64(40) {
			all = append([]incident.Incident{xid79(id + 1)}, all...)
		}
		next := f.report(all...)
		for range 3 {
			f.report(all...)
		}
		if n := len(f.events()); n != 25 || next != 30*time.Second {
			t.Errorf("got %d events, and the next call after %s", n, next)
		}
		time.Sleep(5*time.Minute + time.Second)
		f.report(all...)
		expect.Equal(t, len(f.events()), 26, "events after five minutes")
		f.report()
		expect.Equal(t, f.Dropped(), 14, "dropped events")
		expect.NoError(t, f.Forget(t.Context(), "node-a"))
		f.report(xid79(41)) // the limit is forgotten, too
		expect.Equal(t, len(f.events()), 27, "events")
	})
}

// TestNodeEventRate checks the limit of events of a node that names ever more pods and resources.
func TestNodeEventRate(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		var pods []string
		for i := range 300 {
			pods = append(pods, fmt.Sprint("pod-", i))
		}
		f.report(xid79(1, pods...))
		expect.Equal(t, len(f.events()), 200, "events")
		resources := make([]api.ResourceJSON, 1000)
		for i := range resources {
			resources[i] = api.ResourceJSON{Name: fmt.Sprint("r-", i), Waiting: true}
		}
		if _, err := f.Report(t.Context(), "node-b", &api.NodeResponse{Resources: resources}); err != nil || len(f.events()) != 232 {
			t.Errorf("got %d events, error %v", len(f.events()), err)
		}
	})
}

// TestEventNames checks that the names of events are valid for each name of a pod.
func TestEventNames(t *testing.T) {
	for pod, want := range map[string]string{
		"trainer":                       "trainer.00000000000000ff",
		strings.Repeat("a", 300):        strings.Repeat("a", 236) + ".00000000000000ff",
		strings.Repeat("a", 235) + "-b": strings.Repeat("a", 235) + ".00000000000000ff",
	} {
		f := &fixture{t: t, client: fake.NewClientset()}
		f.restart()
		f.report(xid79(255, pod))
		if f.events()["team/"+want] == nil {
			t.Errorf("%s: got events %v", pod, f.events())
		}
	}
}

// TestWaiting checks the event of a resource that waits for another device plugin: once an hour, also over restarts.
func TestWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		report := func(resources ...api.ResourceJSON) time.Duration {
			t.Helper()
			next, err := f.Report(t.Context(), "node-a", &api.NodeResponse{Resources: resources})
			require.NoError(t, err)
			return next
		}
		waiting := api.ResourceJSON{Name: "nvidia.com/gpu", Waiting: true}
		expect.Equal(t, report(waiting, api.ResourceJSON{Name: "nvidia.com/mig-1g.10gb"}), time.Hour,
			"next call after")
		const want = "/node-a Warning GPUPluginWaiting 1: podgauge waits: another device plugin serves nvidia.com/gpu. " +
			"Remove the other plugin, or start podgauge with --take-over."
		f.wantEvents(want)
		time.Sleep(20 * time.Minute)
		if next := report(waiting); next != 40*time.Minute || len(f.client.Actions()) != 1 {
			t.Errorf("got %d requests, and the next call after %s", len(f.client.Actions()), next)
		}
		f.restart()
		report(waiting)
		f.wantEvents(want)
		if report() != 0 {
			t.Error("a resource that is served wants a call")
		}
		report(waiting) // waits again
		expect.Equal(t, len(f.client.Actions()), 3, "requests")
	})
}
