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

// running is a pod "team/name" with one container, whose id is made of the uid.
func running(name, uid string) Pod {
	return Pod{
		Namespace: "team", Name: name, UID: uid, Phase: "Running",
		Containers: []Container{{Name: "main", ID: "id-" + uid, State: State{Status: Running}}},
	}
}

// over is how such a pod ended.
func over(name, uid, phase string, exit int32) Pod {
	p := running(name, uid)
	p.Phase = phase
	p.Containers[0].State = State{Status: Terminated, ExitCode: exit}
	return p
}

func of(kind api.EventType, p Pod) *event { return &event{kind: kind, pod: p} }

// told takes what is to be told.
func (k *known) told() (arrived, ended string) {
	name := func(p *Pod) string { return p.Name + "/" + p.UID + " " + p.Phase }
	names := func(ps []*Pod) string {
		var all []string
		for _, p := range ps {
			all = append(all, name(p))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	arrived, ended = names(k.arrived), names(k.ended)
	k.arrived, k.ended = nil, nil
	return arrived, ended
}

// names are the pods that there are.
func (ps *Pods) names() string {
	var all []string
	for p := range ps.All() {
		all = append(all, p.Name+"/"+p.UID+" "+p.Phase)
	}
	return strings.Join(all, ", ")
}

// TestWhatIsToldOfPods gives events to one that follows from the start, each with what
// is known after it and what is told of it.
func TestWhatIsToldOfPods(t *testing.T) {
	type step struct {
		event                *event // nil: a new stream begins
		pods, arrived, ended string
		unchanged, unsynced  bool
	}
	sync := &event{kind: complete}
	evicted := running("a", "1")
	evicted.Phase = "Failed"
	tests := map[string][]step{
		"a pod's life": {
			{},
			{event: sync},
			{event: of(added, Pod{Namespace: "team", Name: "a", UID: "1", Phase: "Pending"}), pods: "a/1 Pending", arrived: "a/1 Pending"},
			{event: of(modified, running("a", "1")), pods: "a/1 Running"},
			{event: of(modified, running("a", "1")), pods: "a/1 Running", unchanged: true},
			{event: of(modified, over("a", "1", "Failed", 1)), pods: "a/1 Failed", ended: "a/1 Failed"},
			{event: of(deleted, Pod{Namespace: "team", Name: "a", UID: "1"}), pods: ""},
			{event: of(deleted, Pod{Namespace: "team", Name: "a", UID: "1"}), pods: "", unchanged: true},
		},
		"the first pods": {
			{},
			{event: of(added, running("a", "1")), unchanged: true, unsynced: true},
			{event: of(added, over("b", "2", "Succeeded", 0)), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running, b/2 Succeeded", arrived: "a/1 Running", ended: "b/2 Succeeded"},
			{event: sync, pods: "a/1 Running, b/2 Succeeded", unchanged: true},
		},
		"what came and went in an outage": {
			{},
			{event: of(added, running("a", "1")), unchanged: true, unsynced: true},
			{event: of(added, running("b", "2")), unchanged: true, unsynced: true},
			{event: of(added, running("c", "3")), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running, b/2 Running, c/3 Running", arrived: "a/1 Running, b/2 Running, c/3 Running"},
			{pods: "a/1 Running, b/2 Running, c/3 Running"},
			{event: of(added, over("b", "2", "Failed", 1)), pods: "a/1 Running, b/2 Running, c/3 Running", unchanged: true},
			{event: of(added, running("c", "3")), pods: "a/1 Running, b/2 Running, c/3 Running", unchanged: true},
			{event: of(added, running("d", "4")), pods: "a/1 Running, b/2 Running, c/3 Running", unchanged: true},
			{event: sync, pods: "b/2 Failed, c/3 Running, d/4 Running", arrived: "d/4 Running", ended: "a/1 Running, b/2 Failed"},
		},
		"one that is over comes back with the next stream": {
			{},
			{event: sync},
			{event: of(added, running("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: of(modified, over("a", "1", "Succeeded", 0)), pods: "a/1 Succeeded", ended: "a/1 Succeeded"},
			{event: of(deleted, Pod{UID: "1"})},
			{},
			{event: of(added, over("a", "1", "Succeeded", 0)), unchanged: true},
			{event: sync, pods: "a/1 Succeeded"},
			{event: of(deleted, Pod{UID: "1"})},
		},
		"events that come late": {
			{},
			{event: of(added, over("a", "1-1", "Failed", 1)), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1-1 Failed", ended: "a/1-1 Failed"},
			{event: of(modified, running("a", "1-1")), pods: "a/1-1 Failed", unchanged: true},
			{event: of(deleted, Pod{UID: "1-1"})},
			{event: of(modified, running("a", "1-1")), unchanged: true},
		},
		"changed before it was added": {
			{},
			{event: sync},
			{event: of(modified, running("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: of(added, running("a", "1")), pods: "a/1 Running", unchanged: true},
		},
		"deleted while the first are listed": {
			{},
			{event: of(added, running("a", "1")), unchanged: true, unsynced: true},
			{event: of(deleted, Pod{UID: "1"}), unchanged: true, unsynced: true},
			{event: sync},
		},
		"a static pod made again of the same manifest": {
			{},
			{event: sync},
			{event: of(added, running("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: of(modified, over("a", "1", "Failed", 143)), pods: "a/1 Failed", ended: "a/1 Failed"},
			{event: of(deleted, Pod{UID: "1"})},
			{event: of(added, running("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: of(modified, over("a", "1", "Failed", 143)), pods: "a/1 Failed", ended: "a/1 Failed"},
		},
		"a static pod made again before its status is forgotten": {
			{},
			{event: sync},
			{event: of(added, running("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: of(deleted, Pod{UID: "1"}), ended: "a/1 Running"},
			{event: of(modified, running("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: of(deleted, Pod{UID: "1"}), ended: "a/1 Running"},
		},
		"evicted": {
			{},
			{event: sync},
			{event: of(added, running("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: of(modified, evicted), pods: "a/1 Failed"},
			{event: of(modified, over("a", "1", "Failed", 137)), pods: "a/1 Failed", ended: "a/1 Failed"},
			{event: of(deleted, Pod{UID: "1"})},
		},
		"gone, and nobody said how": {
			{},
			{event: sync},
			{event: of(added, running("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: of(deleted, Pod{UID: "1"}), ended: "a/1 Running"},
		},
		"a word that is not understood": {
			{},
			{event: sync},
			{event: of(added, running("a", "1")), pods: "a/1 Running", arrived: "a/1 Running"},
			{event: &event{kind: modified, err: errBroken}, pods: "a/1 Running", unsynced: true},
			{event: &event{kind: modified, err: errBroken}, pods: "a/1 Running", unsynced: true, unchanged: true},
			{event: of(added, running("b", "2")), pods: "a/1 Running, b/2 Running", arrived: "b/2 Running", unsynced: true},
			{pods: "a/1 Running, b/2 Running", unsynced: true},
			{event: of(added, running("b", "2")), pods: "a/1 Running, b/2 Running", unchanged: true, unsynced: true},
			{event: sync, pods: "b/2 Running", ended: "a/1 Running"},
		},
		"absence proves nothing where something was not understood": {
			{},
			{event: of(added, running("a", "1")), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running", arrived: "a/1 Running"},
			{pods: "a/1 Running"},
			{event: &event{err: errBroken}, pods: "a/1 Running", unsynced: true},
			{event: of(added, running("b", "2")), pods: "a/1 Running", unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running, b/2 Running", arrived: "b/2 Running", unsynced: true},
			{pods: "a/1 Running, b/2 Running", unsynced: true},
			{event: of(added, running("a", "1")), pods: "a/1 Running, b/2 Running", unchanged: true, unsynced: true},
			{event: of(added, running("b", "2")), pods: "a/1 Running, b/2 Running", unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Running, b/2 Running"},
		},
		"events of a kind that there will be": {
			{},
			{event: sync},
			{event: &event{kind: 17}, unchanged: true},
			{event: &event{}, unchanged: true},
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			var k known
			for i, s := range steps {
				changed := false
				if s.event == nil {
					k.begin()
					s.unchanged = true
					if i == 0 {
						s.unsynced = true
					}
				} else {
					changed = k.take(s.event)
				}
				arrived, ended := k.told()
				if got := k.pods.names(); got != s.pods || arrived != s.arrived || ended != s.ended {
					t.Fatalf("after step %d there are %q, and %q arrived and %q ended; want %q, %q and %q", i, got, arrived, ended, s.pods, s.arrived, s.ended)
				}
				if changed == s.unchanged || k.pods.Synced == s.unsynced || i > 0 && s.unsynced && k.doubt != nil && !errors.Is(k.pods.Err, errBroken) {
					t.Fatalf("after step %d: changed %t, synced %t, %v", i, changed, k.pods.Synced, k.pods.Err)
				}
			}
		})
	}
}

var errBroken = errors.New("broken")

func TestRememberedIsBounded(t *testing.T) {
	var k known
	k.begin()
	rejected := func(i int) Pod {
		return Pod{Namespace: "team", Name: fmt.Sprint("r", i), UID: fmt.Sprintf("r-%06d", i), Phase: "Failed", Created: time.Unix(int64(i), 0)}
	}
	k.take(of(added, running("a", "1")))
	for i := range 2 * mostEnded {
		k.take(of(added, rejected(i)))
	}
	k.take(&event{kind: complete})
	_, oldest := k.pods.ByUID(rejected(0).UID)
	_, newest := k.pods.ByUID(rejected(2*mostEnded - 1).UID)
	if k.pods.Len() != mostEnded+1 || oldest || !newest || !k.pods.Synced {
		t.Errorf("%d are kept, the oldest %t, the newest %t, %v", k.pods.Len(), oldest, newest, k.pods.Err)
	}
	for i := 2 * mostEnded; i < 2*mostEnded+2*mostOver; i++ {
		k.take(of(added, rejected(i)))
	}
	if n, m := k.pods.Len(), len(k.over.set); n != mostEnded+1 || m != mostOver || len(k.over.order) != mostOver {
		t.Errorf("%d are kept, and the end of %d", n, m)
	}
	if _, ok := k.pods.ByUID("1"); !ok {
		t.Error("the one that runs is not kept")
	}
}

func TestTooManyPods(t *testing.T) {
	var k known
	k.begin()
	for i := range mostPods + 1 {
		k.take(of(added, Pod{Namespace: "team", Name: "x", UID: fmt.Sprint(i), Phase: "Pending"}))
	}
	k.take(&event{kind: complete})
	if k.pods.Len() != mostPods || k.pods.Synced || !errors.Is(k.pods.Err, errTooMany) {
		t.Errorf("%d are kept, synced %t, %v", k.pods.Len(), k.pods.Synced, k.pods.Err)
	}
	k.begin()
	for i := range mostPods {
		k.take(of(added, Pod{Namespace: "team", Name: "x", UID: fmt.Sprint(i), Phase: "Pending"}))
	}
	if k.take(&event{kind: complete}); !k.pods.Synced {
		t.Errorf("with as many as may be: %v", k.pods.Err)
	}
	if k.take(of(added, running("y", "one more"))); k.pods.Len() != mostPods || k.pods.Synced || !errors.Is(k.pods.Err, errTooMany) {
		t.Errorf("%d are kept, synced %t, %v", k.pods.Len(), k.pods.Synced, k.pods.Err)
	}
}
