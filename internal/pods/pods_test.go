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

// TestLookups compares all lookups with a map after random events, and checks that published pods never change.
func TestLookups(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var k podCache
	k.startSync()
	k.apply(&watchEvent{kind: complete})
	reference := map[string]Pod{}
	type published struct {
		pods Pods
		want map[string]Pod
	}
	var earlier []published
	for i := range 5000 {
		uid := fmt.Sprint(random.IntN(40))
		p := runningPod(fmt.Sprint("pod-", uid[:1]), uid) // some pods share a name
		p.Created = time.Unix(int64(random.IntN(3)), 0)
		p.Containers = nil
		for c := range random.IntN(3) {
			p.Containers = append(p.Containers, Container{Name: fmt.Sprint("c", c), ID: fmt.Sprintf("%s-%d-%d", uid, c, random.IntN(2))})
		}
		if random.IntN(3) == 0 {
			k.apply(newPodEvent(deleted, p))
			delete(reference, uid)
		} else {
			k.apply(newPodEvent(added, p))
			reference[uid] = p
		}
		wantLookups(t, k.pods, reference)
		if i%100 == 0 {
			earlier = append(earlier, published{k.pods, maps.Clone(reference)})
		}
	}
	for _, m := range earlier {
		wantLookups(t, m.pods, m.want)
	}
}

// TestMeta checks that Meta never returns the metadata of another pod with the same name.
func TestMeta(t *testing.T) {
	var k podCache
	wants := func(when, uid string) {
		t.Helper()
		if got := k.pods.Meta("n", "web-0"); got.UID != uid || (len(got.Labels) > 0) != (uid != "") {
			t.Errorf("%s: got %+v, want UID %q", when, got, uid)
		}
	}
	old := runningPod("web-0", "old")
	old.Namespace, old.Labels = "n", []device.Label{{Name: "app", Value: "web"}}
	k.startSync()
	k.apply(newPodEvent(added, old))
	wants("during the initial list", "")
	k.apply(&watchEvent{kind: complete})
	wants("running", "old")
	old.Phase, old.Reason = "Failed", "Evicted"
	k.apply(newPodEvent(modified, old))
	wants("evicted, with running containers", "old")
	for i := range old.Containers {
		old.Containers[i].State = ContainerState{Type: Terminated}
	}
	k.apply(newPodEvent(modified, old))
	wants("ended", "")
	next := runningPod("web-0", "next")
	next.Namespace, next.Labels = "n", old.Labels
	k.apply(newPodEvent(added, next))
	wants("next pod with the name", "next")
	k.apply(newPodEvent(deleted, old))
	wants("previous pod deleted", "next")
	k.pods.Synced = false
	wants("not synced", "")
}

func wantLookups(t *testing.T, ps Pods, want map[string]Pod) {
	t.Helper()
	if ps.Len() != len(want) || !slices.IsSortedFunc(ps.list, compareNames) {
		t.Fatalf("got pods %q, want %d", ps.summary(), len(want))
	}
	for uid, p := range want {
		if got := ps.find(uid); got == nil || !got.equal(&p) {
			t.Fatalf("pod %s: got %+v, want %+v", uid, got, p)
		}
		best, ok := ps.ByName(p.Namespace, p.Name)
		if !ok || best.Name != p.Name || best.Created.Before(p.Created) {
			t.Fatalf("ByName of %s, created %v: got %s, created %v", uid, p.Created, best.UID, best.Created)
		}
		for _, c := range p.Containers {
			if got, name, ok := ps.ByContainer(c.ID); !ok || got.UID != uid || name != c.Name {
				t.Fatalf("container %s: got %s of %s", c.ID, name, got.UID)
			}
		}
	}
	for _, uid := range []string{"", "x", "40"} {
		_, _, container := ps.ByContainer(uid)
		_, named := ps.ByName("team", uid)
		if ps.find(uid) != nil || container || named {
			t.Fatalf("lookups of pod %q: got one, want none", uid)
		}
	}
}

func TestByNamePrecedence(t *testing.T) {
	var k podCache
	k.startSync()
	old, recent := runningPod("web-0", "1"), runningPod("web-0", "2")
	old.Created, recent.Created = time.Unix(1, 0), time.Unix(2, 0)
	k.apply(newPodEvent(added, old))
	k.apply(newPodEvent(added, recent))
	k.apply(&watchEvent{kind: complete})
	if p, _ := k.pods.ByName("team", "web-0"); p.UID != "2" {
		t.Errorf("two running pods: got %s, want 2", p.UID)
	}
	failed := endedPod("web-0", "2", "Failed", 1)
	failed.Created = recent.Created
	k.apply(newPodEvent(modified, failed))
	if p, _ := k.pods.ByName("team", "web-0"); p.UID != "1" {
		t.Errorf("running and failed pod: got %s, want 1", p.UID)
	}
	if _, ok := k.pods.ByName("other", "web-0"); ok {
		t.Error("ByName in another namespace: got a pod, want none")
	}
}

// TestInconsistentPods renames a pod, and adds a container to two pods.
func TestInconsistentPods(t *testing.T) {
	var k podCache
	k.startSync()
	k.apply(&watchEvent{kind: complete})
	k.apply(newPodEvent(added, runningPod("a", "1")))
	k.apply(newPodEvent(modified, runningPod("b", "1")))
	if got := k.pods.summary(); got != "b/1 Running" || k.pods.Len() != 1 {
		t.Errorf("got pods %q, want b/1", got)
	}
	second := runningPod("c", "2")
	second.Containers[0].ID = "id-1"
	k.apply(newPodEvent(added, second))
	if _, _, ok := k.pods.ByContainer("id-1"); !ok {
		t.Error("ByContainer: got none, want the container")
	}
	k.apply(newPodEvent(deleted, second))
	if p, _, ok := k.pods.ByContainer("id-1"); !ok || p.UID != "1" {
		t.Errorf("pod of the container: got %q, want 1", p.UID)
	}
}
