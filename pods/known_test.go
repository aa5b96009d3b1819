package pods

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
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
			{event: of(added, over("a", "1", "Failed", 1)), unchanged: true, unsynced: true},
			{event: sync, pods: "a/1 Failed", ended: "a/1 Failed"},
			{event: of(modified, running("a", "1")), pods: "a/1 Failed", unchanged: true},
			{event: of(deleted, Pod{UID: "1"})},
			{event: of(modified, running("a", "1")), unchanged: true},
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

// TestLookups holds all lookups against a plain map, over any events, and that the
// pods of earlier stay as they were.
func TestLookups(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	var k known
	k.begin()
	k.take(&event{kind: complete})
	reference := map[string]Pod{}
	type moment struct {
		pods Pods
		want map[string]Pod
	}
	var earlier []moment
	for i := range 5000 {
		uid := fmt.Sprint(chance.IntN(40))
		p := running(fmt.Sprint("pod-", uid[:1]), uid) // several share a name
		p.Created = time.Unix(int64(chance.IntN(3)), 0)
		p.Containers = nil
		for c := range chance.IntN(3) {
			p.Containers = append(p.Containers, Container{Name: fmt.Sprint("c", c), ID: fmt.Sprintf("%s-%d-%d", uid, c, chance.IntN(2))})
		}
		if chance.IntN(3) == 0 {
			k.take(of(deleted, p))
			delete(reference, uid)
		} else {
			k.take(of(added, p))
			reference[uid] = p
		}
		agrees(t, k.pods, reference)
		if i%100 == 0 {
			earlier = append(earlier, moment{k.pods, maps.Clone(reference)})
		}
	}
	for _, m := range earlier {
		agrees(t, m.pods, m.want)
	}
}

func agrees(t *testing.T, ps Pods, want map[string]Pod) {
	t.Helper()
	if ps.Len() != len(want) || len(ps.byName) != len(want) || !slices.IsSortedFunc(ps.byName, compareNames) {
		t.Fatalf("there are %q, want %d", ps.names(), len(want))
	}
	ids := 0
	for uid, p := range want {
		got, ok := ps.ByUID(uid)
		if !ok || !got.equal(&p) {
			t.Fatalf("pod %s is %+v, want %+v", uid, got, p)
		}
		best, ok := ps.ByName(p.Namespace, p.Name)
		if !ok || best.Name != p.Name || best.Created.Before(p.Created) {
			t.Fatalf("the pod of the name of %s of %v is %s of %v", uid, p.Created, best.UID, best.Created)
		}
		for _, c := range p.Containers {
			ids++
			if got, name, ok := ps.ByContainer(c.ID); !ok || got.UID != uid || name != c.Name {
				t.Fatalf("container %s is %s of %s", c.ID, name, got.UID)
			}
		}
	}
	if n := len(ps.byContainer.all()); n != ids {
		t.Fatalf("%d containers are known, want %d", n, ids)
	}
	for _, uid := range []string{"", "x", "40"} {
		_, there := ps.ByUID(uid)
		_, _, container := ps.ByContainer(uid)
		_, named := ps.ByName("team", uid)
		if there || container || named {
			t.Fatalf("there is a pod %q", uid)
		}
	}
}

func (c containers) all() (refs []containerRef) {
	for _, bucket := range c.buckets {
		refs = append(refs, bucket...)
	}
	return refs
}

func TestTheNameIsThatOfTheOneThatHasNotEnded(t *testing.T) {
	var k known
	k.begin()
	old, young := running("web-0", "1"), running("web-0", "2")
	old.Created, young.Created = time.Unix(1, 0), time.Unix(2, 0)
	k.take(of(added, old))
	k.take(of(added, young))
	k.take(&event{kind: complete})
	if p, _ := k.pods.ByName("team", "web-0"); p.UID != "2" {
		t.Errorf("of two that run it is %s", p.UID)
	}
	failed := over("web-0", "2", "Failed", 1)
	failed.Created = young.Created
	k.take(of(modified, failed))
	if p, _ := k.pods.ByName("team", "web-0"); p.UID != "1" {
		t.Errorf("of one that runs and one that has failed it is %s", p.UID)
	}
	if _, ok := k.pods.ByName("other", "web-0"); ok {
		t.Error("it is in every namespace")
	}
}

// A pod that has another name under its uid, and two of one container: nobody's work
// but a liar's.
func TestLies(t *testing.T) {
	var k known
	k.begin()
	k.take(&event{kind: complete})
	k.take(of(added, running("a", "1")))
	k.take(of(modified, running("b", "1")))
	if got := k.pods.names(); got != "b/1 Running" || k.pods.Len() != 1 {
		t.Errorf("there are %q", got)
	}
	thief := running("c", "2")
	thief.Containers[0].ID = "id-1"
	k.take(of(added, thief))
	if _, _, ok := k.pods.ByContainer("id-1"); !ok || len(k.pods.byContainer.all()) != 2 {
		t.Errorf("the containers are %v", k.pods.byContainer.all())
	}
	k.take(of(deleted, thief))
	if p, _, ok := k.pods.ByContainer("id-1"); !ok || p.UID != "1" {
		t.Errorf("the container is of %q", p.UID)
	}
}

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
