package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

const (
	added    = api.EventType_ADDED
	modified = api.EventType_MODIFIED
	deleted  = api.EventType_DELETED
	complete = api.EventType_INITIAL_SYNC_COMPLETE
)

// runningPod is a pod "team/name" with one container, whose id is made of the uid.
func runningPod(name, uid string) Pod {
	return Pod{
		Namespace: "team", Name: name, UID: uid, Phase: "Running",
		Containers: []Container{{Name: "main", ID: "id-" + uid, State: ContainerState{Type: Running}}},
	}
}

// endedPod is how such a pod ended.
func endedPod(name, uid, phase string, exit int32) Pod {
	p := runningPod(name, uid)
	p.Phase = phase
	p.Containers[0].State = ContainerState{Type: Terminated, ExitCode: exit}
	return p
}

func newPodEvent(kind api.EventType, p Pod) *watchEvent { return &watchEvent{kind: kind, pod: p} }

// takeQueued takes what is to be told.
func (c *podCache) takeQueued() (arrived, ended string) {
	name := func(p *Pod) string { return p.Name + "/" + p.UID + " " + p.Phase }
	names := func(ps []*Pod) string {
		var all []string
		for _, p := range ps {
			all = append(all, name(p))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	arrived, ended = names(c.added), names(c.ended)
	c.added, c.ended = nil, nil
	return arrived, ended
}

// summary are the pods that there are.
func (ps *Pods) summary() string {
	var all []string
	for _, p := range ps.list {
		all = append(all, p.Name+"/"+p.UID+" "+p.Phase)
	}
	return strings.Join(all, ", ")
}

// TestWhatIsToldOfPods gives events to one that follows from the start, each with what
// is known after it and what is told of it.
func TestWhatIsToldOfPods(t *testing.T) {
	type step struct {
		event                *watchEvent // nil: a new stream begins
		pods, arrived, ended string
		unchanged, unsynced  bool
	}
	sync := &watchEvent{kind: complete}
	evicted := runningPod("a", "1")
	evicted.Phase = "Failed"
	tests := map[string][]step{
		"a pod's life": {
			{},
			{event: sync},
			{event: newPodEvent(added, Pod{Namespace: "team", Name: "a", UID: "1", Phase: "Pending"}), pods: "a/1 Pending", arrived: "a/1 Pending"},
			{event: newPodEvent(modified, runningPod("a", "1")), pods: "a/1 Running"},
			{event: newPodEvent(modified, runningPod("a", "1")), pods: "a/1 Running", unchanged: true},
			{event: newPodEvent(modified, endedPod("a", "1", "Failed", 1)), pods: "a/1 Failed", ended: "a/1 Failed"},
			{event: newPodEvent(deleted, Pod{Namespace: "team", Name: "a", UID: "1"}), pods: ""},
			{event: newPodEvent(deleted, Pod{Namespace: "team", Name: "a", UID: "1"}), pods: "", unchanged: true},
		},
		"the first pods": {
			{},
			{event: newPodEvent(added, runningPod("a", "1")), unchanged: true, unsynced: true},
			{event: newPodEvent(added, endedPod("b", "2", "Succeeded", 0)), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running, b/2 Succeeded", arrived: "a/1 Running", ended: "b/2 Succeeded"},
			{event: sync, pods: "a/1 Running, b/2 Succeeded", unchanged: true},
		},
		"what came and went in an outage": {
			{},
			{event: newPodEvent(added, runningPod("a", "1")), unchanged: true, unsynced: true},
			{event: newPodEvent(added, runningPod("b", "2")), unchanged: true, unsynced: true},
			{event: newPodEvent(added, runningPod("c", "3")), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running, b/2 Running, c/3 Running", arrived: "a/1 Running, b/2 Running, c/3 Running"},
			{pods: "a/1 Running, b/2 Running, c/3 Running"},
			{event: newPodEvent(added, endedPod("b", "2", "Failed", 1)), pods: "a/1 Running, b/2 Running, c/3 Running", unchanged: true},
			{event: newPodEvent(added, runningPod("c", "3")), pods: "a/1 Running, b/2 Running, c/3 Running", unchanged: true},
			{event: newPodEvent(added, runningPod("d", "4")), pods: "a/1 Running, b/2 Running, c/3 Running", unchanged: true},
			{event: sync, pods: "b/2 Failed, c/3 Running, d/4 Running", arrived: "d/4 Running", ended: "a/1 Running, b/2 Failed"},
		},
		"one that is over comes back with the next stream": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: newPodEvent(modified, endedPod("a", "1", "Succeeded", 0)), pods: "a/1 Succeeded", ended: "a/1 Succeeded"},
			{event: newPodEvent(deleted, Pod{UID: "1"})},
			{},
			{event: newPodEvent(added, endedPod("a", "1", "Succeeded", 0)), unchanged: true},
			{event: sync, pods: "a/1 Succeeded"},
			{event: newPodEvent(deleted, Pod{UID: "1"})},
		},
		"events that come late": {
			{},
			{event: newPodEvent(added, endedPod("a", "1-1", "Failed", 1)), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1-1 Failed", ended: "a/1-1 Failed"},
			{event: newPodEvent(modified, runningPod("a", "1-1")), pods: "a/1-1 Failed", unchanged: true},
			{event: newPodEvent(deleted, Pod{UID: "1-1"})},
			{event: newPodEvent(modified, runningPod("a", "1-1")), unchanged: true},
		},
		"changed before it was added": {
			{},
			{event: sync},
			{event: newPodEvent(modified, runningPod("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", unchanged: true},
		},
		"deleted while the first are listed": {
			{},
			{event: newPodEvent(added, runningPod("a", "1")), unchanged: true, unsynced: true},
			{event: newPodEvent(deleted, Pod{UID: "1"}), unchanged: true, unsynced: true},
			{event: sync},
		},
		"a static pod made again of the same manifest": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: newPodEvent(modified, endedPod("a", "1", "Failed", 143)), pods: "a/1 Failed", ended: "a/1 Failed"},
			{event: newPodEvent(deleted, Pod{UID: "1"})},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: newPodEvent(modified, endedPod("a", "1", "Failed", 143)), pods: "a/1 Failed", ended: "a/1 Failed"},
		},
		"a static pod made again before its status is forgotten": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: newPodEvent(deleted, Pod{UID: "1"}), ended: "a/1 Running"},
			{event: newPodEvent(modified, runningPod("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: newPodEvent(deleted, Pod{UID: "1"}), ended: "a/1 Running"},
		},
		"evicted": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: newPodEvent(modified, evicted), pods: "a/1 Failed"},
			{event: newPodEvent(modified, endedPod("a", "1", "Failed", 137)), pods: "a/1 Failed", ended: "a/1 Failed"},
			{event: newPodEvent(deleted, Pod{UID: "1"})},
		},
		"gone, and nobody said how": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: newPodEvent(deleted, Pod{UID: "1"}), ended: "a/1 Running"},
		},
		"a word that is not understood": {
			{},
			{event: sync},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: &watchEvent{kind: modified, err: errBroken}, pods: "a/1 Running", unsynced: true},
			{event: &watchEvent{kind: modified, err: errBroken}, pods: "a/1 Running", unsynced: true, unchanged: true},
			{event: newPodEvent(added, runningPod("b", "2")), pods: "a/1 Running, b/2 Running", arrived: "b/2 Running", unsynced: true},
			{pods: "a/1 Running, b/2 Running", unsynced: true},
			{event: newPodEvent(added, runningPod("b", "2")), pods: "a/1 Running, b/2 Running", unchanged: true, unsynced: true},
			{event: sync, pods: "b/2 Running", ended: "a/1 Running"},
		},
		"absence proves nothing where something was not understood": {
			{},
			{event: newPodEvent(added, runningPod("a", "1")), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running", arrived: "a/1 Running"},
			{pods: "a/1 Running"},
			{event: &watchEvent{err: errBroken}, pods: "a/1 Running", unsynced: true},
			{event: newPodEvent(added, runningPod("b", "2")), pods: "a/1 Running", unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running, b/2 Running", arrived: "b/2 Running", unsynced: true},
			{pods: "a/1 Running, b/2 Running", unsynced: true},
			{event: newPodEvent(added, runningPod("a", "1")), pods: "a/1 Running, b/2 Running", unchanged: true, unsynced: true},
			{event: newPodEvent(added, runningPod("b", "2")), pods: "a/1 Running, b/2 Running", unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running, b/2 Running"},
		},
		"events of a kind that there will be": {
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
					changed = k.apply(s.event)
				}
				arrived, ended := k.takeQueued()
				if got := k.pods.summary(); got != s.pods || arrived != s.arrived || ended != s.ended {
					t.Fatalf("after step %d there are %q, and %q arrived and %q ended; want %q, %q and %q", i, got, arrived, ended, s.pods, s.arrived, s.ended)
				}
				if changed == s.unchanged || k.pods.Synced == s.unsynced || i > 0 && s.unsynced && k.incompleteErr != nil && !errors.Is(k.pods.Err, errBroken) {
					t.Fatalf("after step %d: changed %t, synced %t, %v", i, changed, k.pods.Synced, k.pods.Err)
				}
			}
		})
	}
}

var errBroken = errors.New("broken")

func TestRememberedIsBounded(t *testing.T) {
	var k podCache
	k.startSync()
	rejected := func(i int) Pod {
		return Pod{Namespace: "team", Name: fmt.Sprint("r", i), UID: fmt.Sprintf("r-%06d", i), Phase: "Failed", Created: time.Unix(int64(i), 0)}
	}
	k.apply(newPodEvent(added, runningPod("a", "1")))
	for i := range 2 * maxEndedPods {
		k.apply(newPodEvent(added, rejected(i)))
	}
	k.apply(&watchEvent{kind: complete})
	oldest, newest := k.pods.find(rejected(0).UID) != nil, k.pods.find(rejected(2*maxEndedPods-1).UID) != nil
	if k.pods.Len() != maxEndedPods+1 || oldest || !newest || !k.pods.Synced {
		t.Errorf("%d are kept, the oldest %t, the newest %t, %v", k.pods.Len(), oldest, newest, k.pods.Err)
	}
	for i := 2 * maxEndedPods; i < 2*maxEndedPods+2*maxEndedUIDs; i++ {
		k.apply(newPodEvent(added, rejected(i)))
	}
	if n, m := k.pods.Len(), len(k.endedUIDs); n != maxEndedPods+1 || m != maxEndedUIDs {
		t.Errorf("%d are kept, and the end of %d", n, m)
	}
	if k.pods.find("1") == nil {
		t.Error("the one that runs is not kept")
	}
}

func TestTooManyPods(t *testing.T) {
	var k podCache
	k.startSync()
	for i := range maxPods + 1 {
		k.apply(newPodEvent(added, Pod{Namespace: "team", Name: "x", UID: fmt.Sprint(i), Phase: "Pending"}))
	}
	k.apply(&watchEvent{kind: complete})
	if k.pods.Len() != maxPods || k.pods.Synced || !errors.Is(k.pods.Err, errTooManyPods) {
		t.Errorf("%d are kept, synced %t, %v", k.pods.Len(), k.pods.Synced, k.pods.Err)
	}
	k.startSync()
	for i := range maxPods {
		k.apply(newPodEvent(added, Pod{Namespace: "team", Name: "x", UID: fmt.Sprint(i), Phase: "Pending"}))
	}
	if k.apply(&watchEvent{kind: complete}); !k.pods.Synced {
		t.Errorf("with as many as may be: %v", k.pods.Err)
	}
	if k.apply(newPodEvent(added, runningPod("y", "one more"))); k.pods.Len() != maxPods || k.pods.Synced || !errors.Is(k.pods.Err, errTooManyPods) {
		t.Errorf("%d are kept, synced %t, %v", k.pods.Len(), k.pods.Synced, k.pods.Err)
	}
}
