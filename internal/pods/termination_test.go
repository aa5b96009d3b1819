package pods

import (
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// formatTermination formats a termination as "<uid> <phase> <restarts>: <exit code> <reason>".
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
		end += ", ended"
	}
	return fmt.Sprintf("%s %s %d: %s", f.PodUID, f.PodPhase, f.Restarts, end)
}

func TestTermination(t *testing.T) {
	at := time.Unix(1<<30, 500)
	ended := func(after time.Duration, code int32, reason string) ContainerState {
		return ContainerState{Type: Terminated, ExitCode: code, Reason: reason, Finished: at.Add(after).Truncate(time.Second)}
	}
	running := ContainerState{Type: Running}
	for name, test := range map[string]struct {
		phase, reason string
		state, last   ContainerState
		restarts      int32
		deleted       bool
		want          string
	}{
		"running":                   {"Running", "", running, ContainerState{}, 0, false, "u Running 0: runs"},
		"ended before":              {"Running", "", running, ended(-time.Minute, 1, "Error"), 1, false, "u Running 1: runs"},
		"restarted":                 {"Running", "", running, ended(time.Second, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"in the same second":        {"Running", "", running, ended(0, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"waits for a restart":       {"Running", "", ContainerState{}, ended(time.Second, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"ended just before, waits":  {"Running", "", ContainerState{}, ended(-5*time.Second, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"ended long before, waits":  {"Running", "", ContainerState{}, ended(-time.Minute, 139, "Error"), 9, false, "u Running 9: runs"},
		"waits for the first start": {"Pending", "", ContainerState{}, ContainerState{}, 0, false, "u Pending 0: runs"},
		"pod failed":                {"Failed", "", ended(time.Second, 137, "OOMKilled"), ContainerState{}, 0, false, "u Failed 0: 137 OOMKilled, ended"},
		"pod failed long before":    {"Failed", "", ended(-time.Hour, 1, "Error"), ContainerState{}, 0, false, "u Failed 0: 1 Error, ended"},
		"evicted, still running":    {"Failed", "Evicted", running, ContainerState{}, 0, false, "u Failed 0: runs"},
		"evicted":                   {"Failed", "Evicted", ended(time.Second, 137, "Error"), ContainerState{}, 0, false, "u Failed 0: 137 Evicted, ended"},
		"deleted after the end":     {"Failed", "", ended(time.Second, 2, "Error"), ContainerState{}, 0, true, "u Failed 0: 2 Error, ended"},
		"deleted without an end":    {"Running", "", running, ContainerState{}, 3, true, "u Running 3: ? , ended"},
		"pod succeeded":             {"Succeeded", "", ended(time.Hour, 0, "Completed"), ContainerState{}, 0, false, "u Succeeded 0: 0 Completed, ended"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Pod{Namespace: "team", Name: "a", UID: "u", Phase: test.phase, Reason: test.reason, Containers: []Container{
				{Name: "side", State: ContainerState{Type: Terminated, ExitCode: 99}},
				{Name: "main", State: test.state, LastState: test.last, Restarts: test.restarts},
			}}
			k := podCache{}
			k.pods.updatedAt = at
			k.apply(newPodEvent(added, p))
			if test.deleted {
				k.apply(newPodEvent(deleted, p))
			}
			a := device.Assignment{Owner: device.Owner{Namespace: "team", Pod: "a", Container: "main"}, Since: at.Add(-time.Minute), ObservedAt: at}
			if got := formatTermination(k.pods.Termination(a)); got != test.want {
				t.Errorf("by name: got %q, want %q", got, test.want)
			}
			a.PodUID = "u"
			if got := formatTermination(k.pods.Termination(a)); got != test.want {
				t.Errorf("by UID: got %q, want %q", got, test.want)
			}
		})
	}
}

// TestTerminationOfReusedName recreates a pod, as a StatefulSet does.
func TestTerminationOfReusedName(t *testing.T) {
	now := time.Unix(1<<30, 0)
	create := func(uid string, at time.Time) Pod {
		p := runningPod("a", uid)
		p.Created = at
		return p
	}
	assignment := func(since time.Duration) device.Assignment {
		return device.Assignment{Owner: device.Owner{Namespace: "team", Pod: "a", Container: "main"}, Since: now.Add(since), ObservedAt: now.Add(since)}
	}
	k := podCache{}
	want := func(since time.Duration, want string) {
		t.Helper()
		if f, _ := k.pods.Termination(assignment(since)); f.PodUID != want {
			t.Errorf("assigned after %s: got %q, want %q", since, f.PodUID, want)
		}
	}
	k.pods.updatedAt = now
	k.apply(newPodEvent(added, create("one", now)))
	want(time.Second, "one")
	want(-time.Second, "one") // within the clock skew
	want(-time.Minute, "")
	k.pods.updatedAt = now.Add(10 * time.Second)
	k.apply(newPodEvent(deleted, create("one", now)))
	want(time.Second, "one")
	k.pods.updatedAt = now.Add(11 * time.Second)
	k.apply(newPodEvent(added, create("two", now.Add(11*time.Second))))
	want(time.Second, "one")
	want(12*time.Second, "two")
	if f, ok := k.pods.Termination(device.Assignment{PodUID: "one", Since: now.Add(time.Hour)}); !ok || !f.PodEnded {
		t.Error("Termination of a deleted pod by UID: got none")
	}
	if _, ok := k.pods.Termination(device.Assignment{PodUID: "three", Owner: assignment(0).Owner, Since: now}); ok {
		t.Error("Termination by an unknown UID: got a pod of the same name")
	}
}

// TestDeletedPodLimits checks the retention and the number of deleted pods.
func TestDeletedPodLimits(t *testing.T) {
	k := podCache{}
	now := time.Unix(1<<30, 0)
	for i := range 2 * maxDeletedPods {
		k.pods.updatedAt = now.Add(time.Duration(i) * time.Second)
		p := runningPod(fmt.Sprint("pod-", i), fmt.Sprint("uid-", i))
		k.apply(newPodEvent(added, p))
		was := k.pods
		k.apply(newPodEvent(deleted, p))
		if len(was.deleted) != min(i, maxDeletedPods) {
			t.Fatalf("got %d deleted pods after %d deletions", len(was.deleted), i)
		}
	}
	k.pods.updatedAt = k.pods.updatedAt.Add(deletedRetention - 2*time.Second)
	k.apply(newPodEvent(added, runningPod("last", "last")))
	k.apply(newPodEvent(deleted, runningPod("last", "last")))
	if got := len(k.pods.deleted); got != 4 {
		t.Errorf("deleted pods after ten minutes: got %d, want 4", got)
	}
}

// TestTerminationAfterOutage checks a pod that the next stream does not list.
func TestTerminationAfterOutage(t *testing.T) {
	k := podCache{}
	k.pods.updatedAt = time.Unix(1<<30, 0)
	k.apply(newPodEvent(added, runningPod("a", "u")))
	k.startSync()
	k.apply(newPodEvent(complete, Pod{}))
	got := formatTermination(k.pods.Termination(device.Assignment{PodUID: "u", Owner: device.Owner{Namespace: "team", Pod: "a", Container: "main"}}))
	if got != "u Running 0: ? , ended" {
		t.Errorf("termination: got %q, want an end without an exit code", got)
	}
}
