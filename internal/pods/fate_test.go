package pods

import (
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// fate says how a stay went on.
func fate(f device.Fate, known bool) string {
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
	if f.Over {
		end += ", over"
	}
	return fmt.Sprintf("%s %s %d: %s", f.UID, f.Phase, f.Restarts, end)
}

func TestFate(t *testing.T) {
	at := time.Unix(1<<30, 500)
	ended := func(after time.Duration, code int32, reason string) State {
		return State{Status: Terminated, ExitCode: code, Reason: reason, Finished: at.Add(after).Truncate(time.Second)}
	}
	is := State{Status: Running, Started: at.Add(-time.Hour)}
	for name, test := range map[string]struct {
		phase, reason string
		state, last   State
		restarts      int32
		gone          bool
		want          string
	}{
		"it runs":                       {"Running", "", is, State{}, 0, false, "u Running 0: runs"},
		"it ran before":                 {"Running", "", is, ended(-time.Minute, 1, "Error"), 1, false, "u Running 1: runs"},
		"it was started again":          {"Running", "", is, ended(time.Second, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"in the same second":            {"Running", "", is, ended(0, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"it will be started again":      {"Running", "", State{}, ended(time.Second, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"it crashed just before":        {"Running", "", State{}, ended(-5*time.Second, 139, "Error"), 1, false, "u Running 1: 139 Error"},
		"it crashed long before":        {"Running", "", State{}, ended(-time.Minute, 139, "Error"), 9, false, "u Running 9: runs"},
		"it waits for its first start":  {"Pending", "", State{}, State{}, 0, false, "u Pending 0: runs"},
		"it is over":                    {"Failed", "", ended(time.Second, 137, "OOMKilled"), State{}, 0, false, "u Failed 0: 137 OOMKilled, over"},
		"it is over since long":         {"Failed", "", ended(-time.Hour, 1, "Error"), State{}, 0, false, "u Failed 0: 1 Error, over"},
		"it is evicted, and runs":       {"Failed", "Evicted", is, State{}, 0, false, "u Failed 0: runs"},
		"it is evicted":                 {"Failed", "Evicted", ended(time.Second, 137, "Error"), State{}, 0, false, "u Failed 0: 137 Evicted, over"},
		"it is gone":                    {"Failed", "", ended(time.Second, 2, "Error"), State{}, 0, true, "u Failed 0: 2 Error, over"},
		"it is gone, and nobody saw it": {"Running", "", is, State{}, 3, true, "u Running 3: ? , over"},
		"it succeeded":                  {"Succeeded", "", ended(time.Hour, 0, "Completed"), State{}, 0, false, "u Succeeded 0: 0 Completed, over"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Pod{Namespace: "team", Name: "a", UID: "u", Phase: test.phase, Reason: test.reason, Containers: []Container{
				{Name: "side", State: State{Status: Terminated, ExitCode: 99}},
				{Name: "main", State: test.state, Last: test.last, Restarts: test.restarts},
			}}
			k := known{}
			k.pods.At = at
			k.take(of(added, p))
			if test.gone {
				k.take(of(deleted, p))
			}
			stay := device.Stay{Owner: device.Owner{Namespace: "team", Pod: "a", Container: "main"}, Since: at.Add(-time.Minute), At: at}
			if got := fate(k.pods.Fate(stay)); got != test.want {
				t.Errorf("by name it is %q, want %q", got, test.want)
			}
			stay.UID = "u"
			if got := fate(k.pods.Fate(stay)); got != test.want {
				t.Errorf("by uid it is %q, want %q", got, test.want)
			}
		})
	}
}

// A StatefulSet's pods have one name, one after the other.
func TestFateOfPodsOfOneName(t *testing.T) {
	now := time.Unix(1<<30, 0)
	create := func(uid string, at time.Time) Pod {
		p := running("a", uid)
		p.Created = at
		return p
	}
	stay := func(since time.Duration) device.Stay {
		return device.Stay{Owner: device.Owner{Namespace: "team", Pod: "a", Container: "main"}, Since: now.Add(since), At: now.Add(since)}
	}
	k := known{}
	want := func(since time.Duration, want string) {
		t.Helper()
		if f, _ := k.pods.Fate(stay(since)); f.UID != want {
			t.Errorf("whoever was there after %s is %q, want %q", since, f.UID, want)
		}
	}
	k.pods.At = now
	k.take(of(added, create("one", now)))
	want(time.Second, "one")
	want(-time.Second, "one") // clocks differ
	want(-time.Minute, "")
	k.pods.At = now.Add(10 * time.Second)
	k.take(of(deleted, create("one", now)))
	want(time.Second, "one")
	k.pods.At = now.Add(11 * time.Second)
	k.take(of(added, create("two", now.Add(11*time.Second))))
	want(time.Second, "one")
	want(12*time.Second, "two")
	if f, ok := k.pods.Fate(device.Stay{UID: "one", Since: now.Add(time.Hour)}); !ok || !f.Over {
		t.Error("a uid does not lead to the pod that is gone")
	}
	if _, ok := k.pods.Fate(device.Stay{UID: "three", Owner: stay(0).Owner, Since: now}); ok {
		t.Error("another uid leads to a pod of the name")
	}
}

// What is gone is known for some minutes, and not too much of it.
func TestGoneArePutAway(t *testing.T) {
	k := known{}
	now := time.Unix(1<<30, 0)
	for i := range 2 * mostGone {
		k.pods.At = now.Add(time.Duration(i) * time.Second)
		p := running(fmt.Sprint("pod-", i), fmt.Sprint("uid-", i))
		k.take(of(added, p))
		was := k.pods
		k.take(of(deleted, p))
		if len(was.gone) != min(i, mostGone) {
			t.Fatalf("what was published has %d that are gone, after %d", len(was.gone), i)
		}
	}
	k.pods.At = k.pods.At.Add(goneFor - 2*time.Second)
	k.take(of(added, running("last", "last")))
	k.take(of(deleted, running("last", "last")))
	if got := len(k.pods.gone); got != 4 {
		t.Errorf("ten minutes later %d are known", got)
	}
}

// A pod that went while nobody followed is missing in the next stream.
func TestFateOfAPodThatANewStreamHasNot(t *testing.T) {
	k := known{}
	k.pods.At = time.Unix(1<<30, 0)
	k.take(of(added, running("a", "u")))
	k.begin()
	k.take(of(complete, Pod{}))
	got := fate(k.pods.Fate(device.Stay{UID: "u", Owner: device.Owner{Namespace: "team", Pod: "a", Container: "main"}}))
	if got != "u Running 0: ? , over" {
		t.Errorf("it is %q", got)
	}
}

func TestFatesOfPodsThatAreNotFollowed(t *testing.T) {
	c, err := New("unused", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if fates, changed := c.Fates(); fates != nil || changed == nil {
		t.Error("pods that nobody follows have fates")
	}
	c.known.begin()
	c.known.take(of(complete, Pod{}))
	c.publish(true)
	if fates, _ := c.Fates(); fates == nil {
		t.Error("pods that are followed have none")
	}
}
