package pods

import (
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// formatTermination says how a stay went on.
func formatTermination(f device.Termination, known bool) string {
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
		end += ", over"
	}
	return fmt.Sprintf("%s %s %d: %s", f.PodUID, f.PodPhase, f.Restarts, end)
}

func TestFate(t *testing.T) {
	at := time.Unix(1<<30, 500)
	ended := func(after time.Duration, code int32, reason string) ContainerState {
		return ContainerState{Type: Terminated, ExitCode: code, Reason: reason, Finished: at.Add(after).Truncate(time.Second)}
	}
	is := ContainerState{Type: Running}
	for name, test := range map[string]struct {
		phase, reason string
		state, last   ContainerState
		restarts      int32
		gone          bool
		want          string
	}{
		"it runs":                       {"Running", "", is, ContainerState{}, 0, false, "u Running 0: runs"},
		"it ran before":                 {"Running", "", is, ended(-time.Minute, 1, "Error"), 1, false, "u Running 1: runs"},
		"it was started again":          {"Running", "", is, ended(time.Second, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"in the same second":            {"Running", "", is, ended(0, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"it will be started again":      {"Running", "", ContainerState{}, ended(time.Second, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"it crashed just before":        {"Running", "", ContainerState{}, ended(-5*time.Second, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"it crashed long before":        {"Running", "", ContainerState{}, ended(-time.Minute, 139, "Error"), 9, false, "u Running 9: runs"},
		"it waits for its first start":  {"Pending", "", ContainerState{}, ContainerState{}, 0, false, "u Pending 0: runs"},
		"it is over":                    {"Failed", "", ended(time.Second, 137, "OOMKilled"), ContainerState{}, 0, false, "u Failed 0: 137 OOMKilled, over"},
		"it is over since long":         {"Failed", "", ended(-time.Hour, 1, "Error"), ContainerState{}, 0, false, "u Failed 0: 1 Error, over"},
		"it is evicted, and runs":       {"Failed", "Evicted", is, ContainerState{}, 0, false, "u Failed 0: runs"},
		"it is evicted":                 {"Failed", "Evicted", ended(time.Second, 137, "Error"), ContainerState{}, 0, false, "u Failed 0: 137 Evicted, over"},
		"it is gone":                    {"Failed", "", ended(time.Second, 2, "Error"), ContainerState{}, 0, true, "u Failed 0: 2 Error, over"},
		"it is gone, and nobody saw it": {"Running", "", is, ContainerState{}, 3, true, "u Running 3: ? , over"},
		"it succeeded":                  {"Succeeded", "", ended(time.Hour, 0, "Completed"), ContainerState{}, 0, false, "u Succeeded 0: 0 Completed, over"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Pod{Namespace: "team", Name: "a", UID: "u", Phase: test.phase, Reason: test.reason, Containers: []Container{
				{Name: "side", State: ContainerState{Type: Terminated, ExitCode: 99}},
				{Name: "main", State: test.state, LastState: test.last, Restarts: test.restarts},
			}}
			k := podCache{}
			k.pods.updatedAt = at
			k.apply(newPodEvent(added, p))
			if test.gone {
				k.apply(newPodEvent(deleted, p))
			}
			stay := device.Assignment{Owner: device.Owner{Namespace: "team", Pod: "a", Container: "main"}, Since: at.Add(-time.Minute), ObservedAt: at}
			if got := formatTermination(k.pods.Termination(stay)); got != test.want {
				t.Errorf("by name it is %q, want %q", got, test.want)
			}
			stay.PodUID = "u"
			if got := formatTermination(k.pods.Termination(stay)); got != test.want {
				t.Errorf("by uid it is %q, want %q", got, test.want)
			}
		})
	}
}

// A StatefulSet's pods have one name, one after the other.
func TestFateOfPodsOfOneName(t *testing.T) {
	now := time.Unix(1<<30, 0)
	create := func(uid string, at time.Time) Pod {
		p := runningPod("a", uid)
		p.Created = at
		return p
	}
	stay := func(since time.Duration) device.Assignment {
		return device.Assignment{Owner: device.Owner{Namespace: "team", Pod: "a", Container: "main"}, Since: now.Add(since), ObservedAt: now.Add(since)}
	}
	k := podCache{}
	want := func(since time.Duration, want string) {
		t.Helper()
		if f, _ := k.pods.Termination(stay(since)); f.PodUID != want {
			t.Errorf("whoever was there after %s is %q, want %q", since, f.PodUID, want)
		}
	}
	k.pods.updatedAt = now
	k.apply(newPodEvent(added, create("one", now)))
	want(time.Second, "one")
	want(-time.Second, "one") // clocks differ
	want(-time.Minute, "")
	k.pods.updatedAt = now.Add(10 * time.Second)
	k.apply(newPodEvent(deleted, create("one", now)))
	want(time.Second, "one")
	k.pods.updatedAt = now.Add(11 * time.Second)
	k.apply(newPodEvent(added, create("two", now.Add(11*time.Second))))
	want(time.Second, "one")
	want(12*time.Second, "two")
	if f, ok := k.pods.Termination(device.Assignment{PodUID: "one", Since: now.Add(time.Hour)}); !ok || !f.PodEnded {
		t.Error("a uid does not lead to the pod that is gone")
	}
	if _, ok := k.pods.Termination(device.Assignment{PodUID: "three", Owner: stay(0).Owner, Since: now}); ok {
		t.Error("another uid leads to a pod of the name")
	}
}

// What is gone is known for some minutes, and not too much of it.
func TestGoneArePutAway(t *testing.T) {
	k := podCache{}
	now := time.Unix(1<<30, 0)
	for i := range 2 * maxDeletedPods {
		k.pods.updatedAt = now.Add(time.Duration(i) * time.Second)
		p := runningPod(fmt.Sprint("pod-", i), fmt.Sprint("uid-", i))
		k.apply(newPodEvent(added, p))
		was := k.pods
		k.apply(newPodEvent(deleted, p))
		if len(was.deleted) != min(i, maxDeletedPods) {
			t.Fatalf("what was published has %d that are gone, after %d", len(was.deleted), i)
		}
	}
	k.pods.updatedAt = k.pods.updatedAt.Add(deletedRetention - 2*time.Second)
	k.apply(newPodEvent(added, runningPod("last", "last")))
	k.apply(newPodEvent(deleted, runningPod("last", "last")))
	if got := len(k.pods.deleted); got != 4 {
		t.Errorf("ten minutes later %d are known", got)
	}
}

// A pod that went while nobody followed is missing in the next stream.
func TestFateOfAPodThatANewStreamHasNot(t *testing.T) {
	k := podCache{}
	k.pods.updatedAt = time.Unix(1<<30, 0)
	k.apply(newPodEvent(added, runningPod("a", "u")))
	k.startSync()
	k.apply(newPodEvent(complete, Pod{}))
	got := formatTermination(k.pods.Termination(device.Assignment{PodUID: "u", Owner: device.Owner{Namespace: "team", Pod: "a", Container: "main"}}))
	if got != "u Running 0: ? , over" {
		t.Errorf("it is %q", got)
	}
}

func TestFatesOfPodsThatAreNotFollowed(t *testing.T) {
	c, err := New("unused", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if lookup, changed := c.TerminationLookup(); lookup != nil || changed == nil {
		t.Error("pods that nobody follows have fates")
	}
	c.cache.startSync()
	c.cache.apply(newPodEvent(complete, Pod{}))
	c.publish(true)
	if lookup, _ := c.TerminationLookup(); lookup == nil {
		t.Error("pods that are followed have none")
	}
}
