package pods

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// TestLookups holds all lookups against a plain map, over any events, and that the
// pods of earlier stay as they were.
func TestLookups(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	var k podCache
	k.startSync()
	k.apply(&watchEvent{kind: complete})
	reference := map[string]Pod{}
	type moment struct {
		pods Pods
		want map[string]Pod
	}
	var earlier []moment
	for i := range 5000 {
		uid := fmt.Sprint(chance.IntN(40))
		p := runningPod(fmt.Sprint("pod-", uid[:1]), uid) // several share a name
		p.Created = time.Unix(int64(chance.IntN(3)), 0)
		p.Containers = nil
		for c := range chance.IntN(3) {
			p.Containers = append(p.Containers, Container{Name: fmt.Sprint("c", c), ID: fmt.Sprintf("%s-%d-%d", uid, c, chance.IntN(2))})
		}
		if chance.IntN(3) == 0 {
			k.apply(newPodEvent(deleted, p))
			delete(reference, uid)
		} else {
			k.apply(newPodEvent(added, p))
			reference[uid] = p
		}
		wantLookups(t, k.pods, reference)
		if i%100 == 0 {
			earlier = append(earlier, moment{k.pods, maps.Clone(reference)})
		}
	}
	for _, m := range earlier {
		wantLookups(t, m.pods, m.want)
	}
}

// What is said of a pod is never said of another one of its name.
func TestMeta(t *testing.T) {
	var k podCache
	wants := func(when, uid string) {
		t.Helper()
		if got := k.pods.Meta("n", "web-0"); got.UID != uid || (len(got.Labels) > 0) != (uid != "") {
			t.Errorf("%s it is %+v, want uid %q", when, got, uid)
		}
	}
	old := runningPod("web-0", "old")
	old.Namespace, old.Labels = "n", []device.Label{{Name: "app", Value: "web"}}
	k.startSync()
	k.apply(newPodEvent(added, old))
	wants("before all are listed", "")
	k.apply(&watchEvent{kind: complete})
	wants("while it runs", "old")
	old.Phase, old.Reason = "Failed", "Evicted"
	k.apply(newPodEvent(modified, old))
	wants("while an evicted pod's containers run", "old")
	for i := range old.Containers {
		old.Containers[i].State = ContainerState{Type: Terminated}
	}
	k.apply(newPodEvent(modified, old))
	wants("when it is over", "")
	next := runningPod("web-0", "next")
	next.Namespace, next.Labels = "n", old.Labels
	k.apply(newPodEvent(added, next))
	wants("with the next", "next")
	k.apply(newPodEvent(deleted, old))
	wants("when the old one is deleted", "next")
	k.apply(&watchEvent{err: errTooManyPods})
	wants("in doubt", "")
}

func wantLookups(t *testing.T, ps Pods, want map[string]Pod) {
	t.Helper()
	if ps.Len() != len(want) || !slices.IsSortedFunc(ps.list, compareNames) {
		t.Fatalf("there are %q, want %d", ps.summary(), len(want))
	}
	for uid, p := range want {
		if got := ps.find(uid); got == nil || !got.equal(&p) {
			t.Fatalf("pod %s: %+v, want %+v", uid, got, p)
		}
		best, ok := ps.ByName(p.Namespace, p.Name)
		if !ok || best.Name != p.Name || best.Created.Before(p.Created) {
			t.Fatalf("the pod of the name of %s of %v is %s of %v", uid, p.Created, best.UID, best.Created)
		}
		for _, c := range p.Containers {
			if got, name, ok := ps.ByContainer(c.ID); !ok || got.UID != uid || name != c.Name {
				t.Fatalf("container %s is %s of %s", c.ID, name, got.UID)
			}
		}
	}
	for _, uid := range []string{"", "x", "40"} {
		_, _, container := ps.ByContainer(uid)
		_, named := ps.ByName("team", uid)
		if ps.find(uid) != nil || container || named {
			t.Fatalf("there is a pod %q", uid)
		}
	}
}

func TestTheNameIsThatOfTheOneThatHasNotEnded(t *testing.T) {
	var k podCache
	k.startSync()
	old, young := runningPod("web-0", "1"), runningPod("web-0", "2")
	old.Created, young.Created = time.Unix(1, 0), time.Unix(2, 0)
	k.apply(newPodEvent(added, old))
	k.apply(newPodEvent(added, young))
	k.apply(&watchEvent{kind: complete})
	if p, _ := k.pods.ByName("team", "web-0"); p.UID != "2" {
		t.Errorf("of two that run it is %s", p.UID)
	}
	failed := endedPod("web-0", "2", "Failed", 1)
	failed.Created = young.Created
	k.apply(newPodEvent(modified, failed))
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
	var k podCache
	k.startSync()
	k.apply(&watchEvent{kind: complete})
	k.apply(newPodEvent(added, runningPod("a", "1")))
	k.apply(newPodEvent(modified, runningPod("b", "1")))
	if got := k.pods.summary(); got != "b/1 Running" || k.pods.Len() != 1 {
		t.Errorf("there are %q", got)
	}
	thief := runningPod("c", "2")
	thief.Containers[0].ID = "id-1"
	k.apply(newPodEvent(added, thief))
	if _, _, ok := k.pods.ByContainer("id-1"); !ok {
		t.Error("no pod has the container")
	}
	k.apply(newPodEvent(deleted, thief))
	if p, _, ok := k.pods.ByContainer("id-1"); !ok || p.UID != "1" {
		t.Errorf("the container is of %q", p.UID)
	}
}
