package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

const (
	added    = api.EventType_ADDED
	modified = api.EventType_MODIFIED
	deleted  = api.EventType_DELETED
	complete = api.EventType_INITIAL_SYNC_COMPLETE
)

// runningPod returns a pod "team/name" with a container "id-<uid>".
func runningPod(name, uid string) Pod {
	return Pod{
		Namespace: "team", Name: name, UID: uid, Phase: "Running",
		Containers: []Container{{Name: "main", ID: "id-" + uid, State: ContainerState{Type: Running}}},
	}
}

// endedPod returns the pod after its end.
func endedPod(name, uid, phase string, exit int32) Pod {
	p := runningPod(name, uid)
	p.Phase = phase
	p.Containers[0].State = ContainerState{Type: Terminated, ExitCode: exit}
	return p
}

func newPodEvent(kind api.EventType, p Pod) *watchEvent { return &watchEvent{kind: kind, pod: p} }

// takeQueued returns and clears the queued notifications.
func (c *podCache) takeQueued() (added, ended string) {
	name := func(p *Pod) string { return p.Name + "/" + p.UID + " " + p.Phase }
	names := func(ps []*Pod) string {
		var all []string
		for _, p := range ps {
			all = append(all, name(p))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	added, ended = names(c.added), names(c.ended)
	c.added, c.ended = nil, nil
	return added, ended
}

// summary returns the names, UIDs and phases of the pods.
func (ps *Pods) summary() string {
	var all []string
	for _, p := range ps.list {
		all = append(all, p.Name+"/"+p.UID+" "+p.Phase)
	}
	return strings.Join(all, ", ")
}

// TestPodCache applies sequences of events, and checks the pods and notifications after each event.
func TestPodCache(t *testing.T) {
	type step struct {
		event               *watchEvent // nil: start of a new stream
		pods, added, ended  string
		unchanged, unsynced bool
	}
	sync := &watchEvent{kind: complete}
	evicted := runningPod("a", "1")
	evicted.Phase = "Failed"
	tests := map[string][]step{
		"a pod's life": {
			{},
			{event: sync},
			{event: newPodEvent(added, Pod{Namespace: "team", Name: "a", UID: "1", Phase: "Pending"}), pods: "a/1 Pending", added: "a/1 Pending"},
			{event: newPodEvent(modified, runningPod("a", "1")), pods: "a/1 Running"},
			{event: newPodEvent(modified, runningPod("a", "1")), pods: "a/1 Running", unchanged: true},
			{event: newPodEvent(modified, endedPod("a", "1", "Failed", 1)), pods: "a/1 Failed", ended: "a/1 Failed"},
			{event: newPodEvent(deleted, Pod{Namespace: "team", Name: "a", UID: "1"}), pods: ""},
			{event: newPodEvent(deleted, Pod{Namespace: "team", Name: "a", UID: "1"}), pods: "", unchanged: true},
		},
		"initial list": {
			{},
			{event: newPodEvent(added, runningPod("a", "1")), unchanged: true, unsynced: true},
			{event: newPodEvent(added, endedPod("b", "2", "Succeeded", 0)), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running, b/2 Succeeded", added: "a/1 Running", ended: "b/2 Succeeded"},
			{event: sync, pods: "a/1 Running, b/2 Succeeded", unchanged: true},
		},
		"changes during an outage": {
			{},
			{event: newPodEvent(added, runningPod("a", "1")), unchanged: true, unsynced: true},
			{event: newPodEvent(added, runningPod("b", "2")), unchanged: true, unsynced: true},
			{event: newPodEvent(added, runningPod("c", "3")), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running, b/2 Running, c/3 Running", added: "a/1 Running, b/2 Running, c/3 Running"},
			{pods: "a/1 Running, b/2 Running, c/3 Running"},
			{event: newPodEvent(added, endedPod("b", "2", "Failed", 1)), pods: "a/1 Running, b/2 Running, c/3 Running", unchanged: true},
			{event: newPodEvent(added, runningPod("c", "3")), pods: "a/1 Running, b/2 Running, c/3 Running", unchanged: true},
			{event: newPodEvent(added, runningPod("d", "4")), pods: "a/1 Running, b/2 Running, c/3 Running", unchanged: true},
			{event: sync, pods: "b/2 Failed, c/3 Running, d/4 Running", added: "d/4 Running", ended: "a/1 Running, b/2 Failed"},
		},
		"the next stream lists an ended pod": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", added: "a/1 Running"},
			{event: newPodEvent(modified, endedPod("a", "1", "Succeeded", 0)), pods: "a/1 Succeeded", ended: "a/1 Succeeded"},
			{event: newPodEvent(deleted, Pod{UID: "1"})},
			{},
			{event: newPodEvent(added, endedPod("a", "1", "Succeeded", 0)), unchanged: true},
			{event: sync, pods: "a/1 Succeeded", ended: "a/1 Succeeded"},
			{event: newPodEvent(deleted, Pod{UID: "1"})},
		},
		"late events": {
			{},
			{event: newPodEvent(added, endedPod("a", "1-1", "Failed", 1)), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1-1 Failed", ended: "a/1-1 Failed"},
			{event: newPodEvent(modified, runningPod("a", "1-1")), pods: "a/1-1 Failed", unchanged: true},
			{event: newPodEvent(deleted, Pod{UID: "1-1"})},
			{event: newPodEvent(modified, runningPod("a", "1-1")), unchanged: true},
		},
		"MODIFIED before ADDED": {
			{},
			{event: sync},
			{event: newPodEvent(modified, runningPod("a", "1")), pods: "a/1 Running", added: "a/1 Running"},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", unchanged: true},
		},
		"DELETED during the initial list": {
			{},
			{event: newPodEvent(added, runningPod("a", "1")), unchanged: true, unsynced: true},
			{event: newPodEvent(deleted, Pod{UID: "1"}), unchanged: true, unsynced: true},
			{event: sync},
		},
		"static pod recreated from the same manifest": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", added: "a/1 Running"},
			{event: newPodEvent(modified, endedPod("a", "1", "Failed", 143)), pods: "a/1 Failed", ended: "a/1 Failed"},
			{event: newPodEvent(deleted, Pod{UID: "1"})},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", added: "a/1 Running"},
			{event: newPodEvent(modified, endedPod("a", "1", "Failed", 143)), pods: "a/1 Failed", ended: "a/1 Failed"},
		},
		"static pod recreated before DELETED": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", added: "a/1 Running"},
			{event: newPodEvent(deleted, Pod{UID: "1"}), ended: "a/1 Running"},
			{event: newPodEvent(modified, runningPod("a", "1")), pods: "a/1 Running", added: "a/1 Running"},
			{event: newPodEvent(deleted, Pod{UID: "1"}), ended: "a/1 Running"},
		},
		"eviction": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", added: "a/1 Running"},
			{event: newPodEvent(modified, evicted), pods: "a/1 Failed"},
			{event: newPodEvent(modified, endedPod("a", "1", "Failed", 137)), pods: "a/1 Failed", ended: "a/1 Failed"},
			{event: newPodEvent(deleted, Pod{UID: "1"})},
		},
		"deletion without a final state": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", added: "a/1 Running"},
			{event: newPodEvent(deleted, Pod{UID: "1"}), ended: "a/1 Running"},
		},
		"unknown kinds of events": {
			{},
			{event: sync},
			{event: &watchEvent{kind: 17}, unchanged: true},
			{event: &watchEvent{}, unchanged: true},
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			var k podCache
			for i, s := range steps {
				changed := false
				if s.event == nil {
					k.startSync()
					s.unchanged = true
					if i == 0 {
						s.unsynced = true
					}
				} else {
					var err error
					if changed, err = k.apply(s.event); err != nil {
						t.Fatal(err)
					}
				}
				added, ended := k.takeQueued()
				if got := k.pods.summary(); got != s.pods || added != s.added || ended != s.ended {
					t.Fatalf("step %d: got pods %q, added %q, ended %q; want %q, %q and %q", i, got, added, ended, s.pods, s.added, s.ended)
				}
				if changed == s.unchanged || k.pods.Synced == s.unsynced {
					t.Fatalf("step %d: got changed %t, synced %t, %v, want %t, %t", i, changed, k.pods.Synced, k.pods.Err, !s.unchanged, !s.unsynced)
				}
			}
		})
	}
}

var errBroken = errors.New("broken")

// applyAll applies events and requires no error.
func (c *podCache) applyAll(t *testing.T, events ...*watchEvent) {
	t.Helper()
	for _, e := range events {
		if _, err := c.apply(e); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCacheLimits(t *testing.T) {
	var k podCache
	k.startSync()
	rejected := func(i int) Pod {
		return Pod{Namespace: "team", Name: fmt.Sprint("r", i), UID: fmt.Sprintf("r-%06d", i), Phase: "Failed", Created: time.Unix(int64(i), 0)}
	}
	k.applyAll(t, newPodEvent(added, runningPod("a", "1")))
	for i := range 2 * maxEndedPods {
		k.applyAll(t, newPodEvent(added, rejected(i)))
	}
	k.applyAll(t, &watchEvent{kind: complete})
	oldest, newest := k.pods.find(rejected(0).UID) != nil, k.pods.find(rejected(2*maxEndedPods-1).UID) != nil
	if k.pods.Len() != maxEndedPods+1 || oldest || !newest || !k.pods.Synced {
		t.Errorf("got %d pods, oldest %t, newest %t, error %v, want maxEndedPods+1 without the oldest", k.pods.Len(), oldest, newest, k.pods.Err)
	}
	for i := 2 * maxEndedPods; i < 3*maxEndedPods; i++ {
		k.applyAll(t, newPodEvent(added, rejected(i)))
	}
	if n := k.pods.Len(); n != maxEndedPods+1 {
		t.Errorf("got %d pods, want maxEndedPods+1", n)
	}
	if k.pods.find("1") == nil {
		t.Error("the running pod was dropped")
	}
	k.applyAll(t, newPodEvent(modified, endedPod("a", "1", "Failed", 137))) // older than the rejected pods
	if i := k.pods.findDeleted("1"); i < 0 || !k.pods.deleted[i].pod.Ended() {
		t.Error("the new end of the oldest pod was dropped")
	}
}

func TestTooManyPods(t *testing.T) {
	var k podCache
	k.startSync()
	for i := range maxPods {
		k.applyAll(t, newPodEvent(added, Pod{Namespace: "team", Name: "x", UID: fmt.Sprint(i), Phase: "Pending"}))
	}
	if _, err := k.apply(newPodEvent(added, runningPod("y", "one more"))); !errors.Is(err, errTooManyPods) {
		t.Errorf("above the limit in the list: got %v, want errTooManyPods", err)
	}
	k.applyAll(t, &watchEvent{kind: complete})
	if _, err := k.apply(newPodEvent(added, runningPod("y", "one more"))); k.pods.Len() != maxPods || !errors.Is(err, errTooManyPods) {
		t.Errorf("above the limit in the stream: got %d pods, error %v, want maxPods and errTooManyPods", k.pods.Len(), err)
	}
}

// TestTooLargePods has pods with more containers than memory, in a list and in a stream: further pods have no containers and labels.
// Deleted pods do not count.
func TestTooLargePods(t *testing.T) {
	var k podCache
	large := func(i int) *watchEvent {
		return newPodEvent(added, Pod{
			Namespace: "team", Name: "x", UID: fmt.Sprint(i), Phase: "Pending", Containers: make([]Container, maxContainers), Labels: []device.Label{{Name: "k"}},
		})
	}
	wantKept := func(when string, pods int) {
		t.Helper()
		bytes, whole := 0, 0
		for _, p := range k.pods.list {
			bytes += p.bytes()
			if len(p.Containers) > 0 && len(p.Labels) > 0 {
				whole++
			} else if len(p.Containers)+len(p.Labels) > 0 {
				t.Errorf("%s: got %d containers, %d labels, want none", when, len(p.Containers), len(p.Labels))
			}
		}
		if k.pods.Len() != pods || bytes > maxPodsBytes || whole < 25 || k.pods.find(fmt.Sprint(pods-1)).Containers != nil {
			t.Errorf("%s: got %d pods, %d with containers, %d bytes", when, k.pods.Len(), whole, bytes)
		}
	}
	k.startSync()
	for i := range 100 {
		k.applyAll(t, large(i))
	}
	k.applyAll(t, &watchEvent{kind: complete})
	wantKept("in the list", 100)
	for i := range 100 {
		k.applyAll(t, newPodEvent(deleted, Pod{UID: fmt.Sprint(i)}))
	}
	for i := range 200 {
		k.applyAll(t, large(i))
	}
	wantKept("in the stream", 200)
	update := large(0)
	update.pod.Phase = "Running"
	k.applyAll(t, update)
	if p := k.pods.find("0"); p.Phase != "Running" || len(p.Containers) != maxContainers || update.cut {
		t.Errorf("update of a kept pod: got phase %s, %d containers, cut %t", p.Phase, len(p.Containers), update.cut)
	}
}
