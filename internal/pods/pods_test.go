package pods_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pods/podpb"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"google.golang.org/protobuf/types/known/timestamppb"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// TestLookups compares the lookups with random pods, some of which share a
// name.
func TestLookups(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var all []*pods.Pod
		for uid := range random.IntN(40) {
			p := &pods.Pod{
				Namespace: "team", Name: fmt.Sprint("pod-", random.IntN(9)), UID: fmt.Sprint(uid), Phase: "Running",
				Created: time.Unix(int64(random.IntN(3)), 0),
			}
			if random.IntN(3) == 0 {
				p.Phase = "Failed"
			}
			for c := range random.IntN(3) {
				p.Containers = append(p.Containers, pods.Container{Name: fmt.Sprint("c", c), ID: fmt.Sprintf("%d-%d", uid, c)})
			}
			all = append(all, p)
		}
		ps := pods.NewPods(all...)
		if ps.Len() != len(all) {
			t.Fatalf("got %d pods, want %d", ps.Len(), len(all))
		}
		for _, p := range all {
			best, ok := ps.ByName(p.Namespace, p.Name)
			isOlder := best.Terminal() == p.Terminal() && best.Created.Before(p.Created)
			if !ok || best.Name != p.Name || isOlder || best.Terminal() && !p.Terminal() {
				t.Fatalf("ByName of %+v: got %+v", p, best)
			}
			for _, c := range p.Containers {
				if got, name, ok := ps.ByContainer(c.ID); !ok || got.UID != p.UID || name != c.Name {
					t.Fatalf("container %s: got %s of %s", c.ID, name, got.UID)
				}
			}
		}
		_, _, container := ps.ByContainer("")
		_, named := ps.ByName("other", "pod-1")
		if container || named {
			t.Fatal("lookups of no container and of another namespace: got one, want none")
		}
	}
}

// TestMeta checks that Meta never returns the metadata of another pod with the
// same name.
func TestMeta(t *testing.T) {
	old := newPod("a", "old", "Running")
	old.Metadata.Labels = map[string]string{"app": "web"}
	next := newPod("a", "next", "Running")
	next.Metadata.Labels = old.Metadata.Labels
	next.Metadata.CreationTimestamp = timestamppb.Now()
	runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
		events := make(chan *api.WatchPodsEvent)
		k.start(sendEvents(events))
		time.Sleep(pods.SocketInterval)
		wants := func(when, uid string) {
			t.Helper()
			synctest.Wait()
			ps, _ := k.pods.Get()
			if got := ps.Meta("team", "a"); got.UID != uid || (len(got.Labels) > 0) != (uid != "") {
				t.Errorf("%s: got %+v, want UID %q", when, got, uid)
			}
		}
		events <- newEvent(added, old)
		wants("during the initial list", "")
		events <- &api.WatchPodsEvent{Type: complete}
		wants("running", "old")
		old.Status.Phase = new("Failed")
		events <- newEvent(modified, old)
		wants("evicted, with running containers", "old")
		events <- newEvent(modified, newPod("a", "old", "Failed"))
		wants("ended", "")
		events <- newEvent(added, next)
		wants("next pod with the name", "next")
		events <- newEvent(deleted, old)
		wants("previous pod deleted", "next")
		close(events)
		wants("not synced", "")
	})
}

// formatTermination formats a termination as "<uid> <phase> <restarts>: <exit
// code> <reason>".
func formatTermination(f allocation.Termination, known bool) string {
	if !known {
		return "unknown"
	}
	end := "runs"
	if f.Ended {
		code := "?"
		if f.ExitCode != nil {
			code = fmt.Sprint(*f.ExitCode)
		}
		end = fmt.Sprintf("%s %s", code, f.Reason)
	}
	if f.PodEnded {
		end += ", ended"
	}
	return fmt.Sprintf("%s %s %d: %s", f.PodUID, f.PodPhase, f.Restarts, end)
}

func TestTermination(t *testing.T) {
	at := time.Unix(1<<30, 500)
	ended := func(after time.Duration, code int32, reason string) pods.ContainerState {
		finished := at.Add(after).Truncate(time.Second)
		return pods.ContainerState{Type: pods.Terminated, ExitCode: code, Reason: reason, Finished: finished}
	}
	none, running := pods.ContainerState{}, pods.ContainerState{Type: pods.Running}
	for name, test := range map[string]struct {
		phase, reason string
		state, last   pods.ContainerState
		restarts      int32
		want          string
	}{
		"running":                   {"Running", "", running, none, 0, "u Running 0: runs"},
		"ended before":              {"Running", "", running, ended(-time.Minute, 1, "Error"), 1, "u Running 1: runs"},
		"restarted":                 {"Running", "", running, ended(time.Second, 139, "Error"), 1, "u Running 1: 139 Error"},
		"in the same second":        {"Running", "", running, ended(0, 139, "Error"), 1, "u Running 1: 139 Error"},
		"waits for a restart":       {"Running", "", none, ended(time.Second, 139, "Error"), 1, "u Running 1: 139 Error"},
		"ended just before, waits":  {"Running", "", none, ended(-5*time.Second, 139, "Error"), 1, "u Running 1: 139 Error"},
		"ended long before, waits":  {"Running", "", none, ended(-time.Minute, 139, "Error"), 9, "u Running 9: runs"},
		"waits for the first start": {"Pending", "", none, none, 0, "u Pending 0: runs"},
		"pod failed":                {"Failed", "", ended(time.Second, 137, "OOMKilled"), none, 0, "u Failed 0: 137 OOMKilled, ended"},
		"pod failed long before":    {"Failed", "", ended(-time.Hour, 1, "Error"), none, 0, "u Failed 0: 1 Error, ended"},
		"evicted, still running":    {"Failed", "Evicted", running, none, 0, "u Failed 0: runs"},
		"evicted":                   {"Failed", "Evicted", ended(time.Second, 137, "Error"), none, 0, "u Failed 0: 137 Evicted, ended"},
		"pod succeeded":             {"Succeeded", "", ended(time.Hour, 0, "Completed"), none, 0, "u Succeeded 0: 0 Completed, ended"},
	} {
		t.Run(name, func(t *testing.T) {
			side := pods.Container{Name: "side", State: pods.ContainerState{Type: pods.Terminated, ExitCode: 99}}
			main := pods.Container{Name: "main", State: test.state, LastState: test.last, Restarts: test.restarts}
			ps := pods.NewPods(&pods.Pod{
				Namespace: "team", Name: "a", UID: "u", Phase: test.phase, Reason: test.reason,
				Containers: []pods.Container{side, main},
			})
			owner := allocation.Owner{Namespace: "team", Pod: "a", Container: "main"}
			a := allocation.Assignment{Owner: owner, Since: at.Add(-time.Minute), ObservedAt: at}
			expect.Equal(t, formatTermination(ps.Termination(a)), test.want, "by name")
			a.PodUID = "u"
			expect.Equal(t, formatTermination(ps.Termination(a)), test.want, "by UID")
		})
	}
}

// TestTerminationOfDeletedPods recreates a pod, as a StatefulSet does, and
// deletes more pods than are kept.
func TestTerminationOfDeletedPods(t *testing.T) {
	runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
		events := make(chan *api.WatchPodsEvent)
		k.start(listThenStream(events))
		time.Sleep(pods.SocketInterval)
		now := time.Now().Truncate(time.Second)
		create := func(uid string) {
			p := newPod("a", uid, "Running")
			p.Metadata.CreationTimestamp = timestamppb.Now()
			events <- newEvent(added, p)
		}
		remove := func(uid string) { events <- newEvent(deleted, newPod("a", uid, "Running")) }
		termination := func(a allocation.Assignment) string {
			synctest.Wait()
			ps, _ := k.pods.Get()
			return formatTermination(ps.Termination(a))
		}
		want := func(since time.Duration, want string) {
			t.Helper()
			owner := allocation.Owner{Namespace: "team", Pod: "a", Container: "main"}
			a := allocation.Assignment{Owner: owner, Since: now.Add(since), ObservedAt: now.Add(since)}
			expect.Equal(t, termination(a), want, "assigned after", since)
		}
		create("one")
		want(time.Second, "one Running 0: runs")
		want(-time.Second, "one Running 0: runs") // within the clock skew
		want(-time.Minute, "unknown")
		time.Sleep(10 * time.Second)
		remove("one")
		want(time.Second, "one Running 0: ? , ended")
		time.Sleep(time.Second)
		create("two")
		want(time.Second, "one Running 0: ? , ended")
		want(12*time.Second, "two Running 0: runs")
		expect.Equal(t, termination(allocation.Assignment{PodUID: "three", Since: now}), "unknown", "by an unknown UID")
		time.Sleep(time.Minute)
		events <- newEvent(modified, newPod("a", "two", "Failed"))
		remove("two")
		want(12*time.Second, "two Failed 0: 137 , ended")

		known := func() (uids []int) {
			for i := range 2 * pods.MaxDeletedPods {
				if termination(allocation.Assignment{PodUID: fmt.Sprint(i)}) != "unknown" {
					uids = append(uids, i)
				}
			}
			return uids
		}
		for i := range 2 * pods.MaxDeletedPods {
			create(fmt.Sprint(i))
			remove(fmt.Sprint(i))
		}
		if got := known(); len(got) != pods.MaxDeletedPods || slices.Max(got) != 2*pods.MaxDeletedPods-1 {
			t.Errorf("got %d deleted pods, want the newest %d", len(got), pods.MaxDeletedPods)
		}
		time.Sleep(pods.DeletedInterval + time.Second)
		create("last")
		remove("last")
		if got := known(); len(got) > 0 {
			t.Errorf("after ten minutes: got %d deleted pods", len(got))
		}
	})
}

// TestOldEndInTheFirstStream checks that an old pod's end is known, although
// newer ended pods fill the limit.
func TestOldEndInTheFirstStream(t *testing.T) {
	runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
		listed := []*podpb.Pod{newPod("a", "1", "Failed")}
		for i := range pods.MaxEndedPods {
			listed = append(listed, newPod("rejected", fmt.Sprint("rejected-", i), "Failed"))
			listed[i+1].Metadata.CreationTimestamp = timestamppb.Now()
		}
		k.start(listThenStream(nil, listed...))
		time.Sleep(2 * pods.SocketInterval)
		ps, _ := k.pods.Get()
		got := formatTermination(ps.Termination(allocation.Assignment{PodUID: "1", Owner: allocation.Owner{Container: "main"}}))
		expect.Equal(t, got, "1 Failed 0: 137 , ended")
	})
}

// TestEndsAcrossStreams repeats the stream of a node with many rejected pods: the
// ends of a deleted pod and of an old pod stay known.
func TestEndsAcrossStreams(t *testing.T) {
	runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
		rejected := make([]*podpb.Pod, 2*pods.MaxEndedPods)
		for i := range rejected {
			rejected[i] = newPod("rejected", fmt.Sprint("rejected-", i), "Failed")
			rejected[i].Metadata.CreationTimestamp = timestamppb.Now()
		}
		wants := func(when string) {
			t.Helper()
			synctest.Wait()
			ps, _ := k.pods.Get()
			for uid, want := range map[string]string{"1": "1 Failed 0: 137 , ended", "2": "2 Running 0: ? , ended"} {
				a := allocation.Assignment{PodUID: uid, Owner: allocation.Owner{Container: "main"}}
				if got := formatTermination(ps.Termination(a)); got != want || !ps.Synced {
					t.Errorf("%s: got %q, synced %t, want %q", when, got, ps.Synced, want)
				}
			}
		}
		events := make(chan *api.WatchPodsEvent)
		k.start(listThenStream(events, append(rejected, newPod("a", "1", "Running"), newPod("b", "2", "Running"))...))
		time.Sleep(pods.SocketInterval)
		events <- newEvent(modified, newPod("a", "1", "Failed"))
		events <- newEvent(deleted, newPod("b", "2", "Running"))
		wants("first stream")
		k.start(listThenStream(nil, append(rejected, newPod("a", "1", "Failed"))...))
		time.Sleep(2 * pods.SocketInterval)
		wants("second stream")
	})
}
