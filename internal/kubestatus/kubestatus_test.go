package kubestatus

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/test/helpers/apiserver"
	"github.com/podgauge/podgauge/test/helpers/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// testTimeout is the maximum wait for an event that takes milliseconds.
	testTimeout = 20 * time.Second
	nodeName    = "node-a"
	gpu         = "GPU-0000"
)

// fixture is an API server, and a node with values of a test.
type fixture struct {
	*apiserver.Server
	t     *testing.T
	state node.State
	log   program.Log
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Server: apiserver.Start(t), t: t}
	f.state.Driver.Set(device.Driver{State: device.DriverUp})
	return f
}

// run runs a component until the returned function or the end of the test.
func (f *fixture) run(c interface{ Run(context.Context) error }) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("Run: got error %v", err)
		}
	})
	f.t.Cleanup(stop)
	return stop
}

func (f *fixture) options() Options {
	return Options{APIServer: f.Client(), NodeName: nodeName, State: &f.state, Log: slog.New(slog.NewTextHandler(&f.log, nil))}
}

func (f *fixture) set(incidents ...incident.Incident) {
	f.state.Incidents.Set(incident.Snapshot{Incidents: incidents})
}

// wait waits until a condition returns no error.
func (f *fixture) wait(check func() error) {
	f.t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("%v\nlog: %s", err, f.log.String())
		}
	}
}

// waitEvents waits for events with exactly these messages: "namespace/object type reason count: message".
func (f *fixture) waitEvents(want ...string) {
	f.t.Helper()
	f.wait(func() error {
		got := map[string]bool{}
		for _, e := range f.Events() {
			object := e["involvedObject"].(map[string]any)
			namespace, _ := object["namespace"].(string)
			got[fmt.Sprintf("%s/%v %v %v %v: %v", namespace, object["name"], e["type"], e["reason"], e["count"], e["message"])] = true
		}
		for _, w := range want {
			if !got[w] {
				return fmt.Errorf("events\n%v\nmissing %s", got, w)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("got %d events, want %d:\n%v", len(got), len(want), got)
		}
		return nil
	})
}

// xid79 returns an incident with affected pods of namespace team.
func xid79(id uint64, pods ...string) incident.Incident {
	now := time.Now()
	i := incident.Incident{
		ID: id, First: now, Last: now, Count: 1, Device: gpu, GPU: gpu, Index: 3,
		Reason: "xid_79", Xid: 79, Action: "reboot", MarkedUnhealthy: true,
	}
	for _, p := range pods {
		i.Affected = append(i.Affected, incident.AffectedContainer{
			Owner: allocation.Owner{Namespace: "team", Pod: p, Container: "main"}, UID: "uid-" + p, Since: now.Add(-time.Minute),
		})
	}
	return i
}

const failed = "GPU 3 (GPU-0000) failed: Xid 79, GPU has fallen off the bus. Reboot the node."

func TestEvents(t *testing.T) {
	f := newFixture(t)
	f.run(NewEvents(f.options()))
	i := xid79(1, "trainer", "trainer", "side")
	f.set(i)
	f.waitEvents("/node-a Warning GPUUnhealthy 1: "+failed, "team/trainer Warning GPUUnhealthy 1: "+failed, "team/side Warning GPUUnhealthy 1: "+failed)
	for key, e := range f.Events() {
		object := e["involvedObject"].(map[string]any)
		wantUID := map[any]string{"node-a": "node-a", "trainer": "uid-trainer", "side": "uid-side"}[object["name"]]
		if object["uid"] != wantUID || e["source"].(map[string]any)["host"] != nodeName {
			t.Errorf("%s: %v", key, e)
		}
	}
	i.Count, i.Last = 7, time.Now()
	recovered := time.Now()
	i.RecoveredAt = &recovered
	f.set(i)
	f.waitEvents("/node-a Warning GPUUnhealthy 7: "+failed, "team/trainer Warning GPUUnhealthy 7: "+failed, "team/side Warning GPUUnhealthy 7: "+failed,
		"/node-a Normal GPURecovered 1: GPU 3 (GPU-0000) recovered after: Xid 79, GPU has fallen off the bus.")
}

// TestEventsOfOtherIncidents checks that application Xids are reported only on their pods, and information and history not at all.
func TestEventsOfOtherIncidents(t *testing.T) {
	f := newFixture(t)
	f.run(NewEvents(f.options()))
	program := xid79(4, "trainer")
	program.Reason, program.Action, program.MarkedUnhealthy = "xid_31", "restart_app", false
	program.Device, program.Profile = "MIG-1", "1g.10gb"
	information := xid79(3, "trainer")
	information.Reason, information.Action, information.MarkedUnhealthy = "xid_43", "", false
	retired := xid79(5)
	retired.Reason, retired.Action, retired.Note = device.ReasonRetired, "", "noisy fan"
	historical := xid79(2)
	historical.Historical = true
	old := xid79(1, "trainer")
	old.Last = time.Now().Add(-eventWindow - time.Second)
	f.set(retired, program, information, historical, old)
	f.waitEvents("/node-a Warning GPURetired 1: GPU 3 (GPU-0000) was retired by an operator: noisy fan",
		"team/trainer Warning GPUError 1: MIG device 1g.10gb (MIG-1) of GPU 3 reported: Xid 31, memory page fault. Restart the application.")
}

// TestPodUID checks that the pod is read if neither the incident nor the Pods API has the UID.
func TestPodUID(t *testing.T) {
	since := time.Now().Add(-time.Minute)
	pod := func(uid, node string, created time.Time, annotations string) string {
		return fmt.Sprintf(`{"metadata":{"uid":%q,"creationTimestamp":%q,"annotations":{%s}},"spec":{"nodeName":%q}}`,
			uid, created.UTC().Format(time.RFC3339), annotations, node)
	}
	for _, test := range []struct {
		name, known, response, want string
	}{
		{"known", "known-uid", "", "known-uid"},
		{"read", "", pod("read-uid", nodeName, since.Add(-time.Hour), ""), "read-uid"},
		{"static pod", "", pod("mirror-uid", nodeName, time.Now(), `"kubernetes.io/config.mirror":"static-uid"`), "static-uid"},
		{"later pod", "", pod("later-uid", nodeName, time.Now(), ""), ""},
		{"other node", "", pod("other-uid", "node-b", since.Add(-time.Hour), ""), ""},
		{"deleted", "", "", ""},
	} {
		f := newFixture(t)
		f.state.Pods.Set(pods.NewPods(&pods.Pod{Namespace: "team", Name: "trainer", UID: test.known}))
		f.SetJSON("/api/v1/namespaces/team/pods/trainer", test.response)
		i := xid79(1, "trainer")
		i.Affected[0].UID, i.Affected[0].Since = "", since
		stop := f.run(NewEvents(f.options()))
		f.set(i)
		f.wait(func() error {
			for _, e := range f.Events() {
				object := e["involvedObject"].(map[string]any)
				if got, _ := object["uid"].(string); object["kind"] == "Pod" {
					if got != test.want {
						t.Errorf("%s: got UID %q, want %q", test.name, got, test.want)
					}
					return nil
				}
			}
			return fmt.Errorf("%s: no event", test.name)
		})
		stop()
	}
}

// TestRestart checks that events are not repeated after a restart of podgauge.
func TestRestart(t *testing.T) {
	f := newFixture(t)
	i := xid79(1, "trainer")
	f.set(i)
	want := []string{"/node-a Warning GPUUnhealthy 1: " + failed, "team/trainer Warning GPUUnhealthy 1: " + failed}
	stop := f.run(NewEvents(f.options()))
	f.waitEvents(want...)
	stop()
	i.Count = 2
	f.set(i)
	f.run(NewEvents(f.options()))
	f.waitEvents(strings.ReplaceAll(want[0], " 1:", " 2:"), strings.ReplaceAll(want[1], " 1:", " 2:"))
}

// TestOutage checks that incidents in an outage are reported afterwards, with a bounded rate of requests and one message.
func TestOutage(t *testing.T) {
	f := newFixture(t)
	f.run(NewEvents(f.options()))
	f.run(NewCondition(f.options()))
	f.Stop()
	f.state.Devices.Set([]device.Status{{Device: device.Device{ID: gpu, GPU: gpu, Index: 3}, Reason: "xid_79", Action: "reboot"}})
	f.set(xid79(1, "trainer"))
	f.wait(func() error {
		if strings.Count(f.log.String(), "cannot report") < 2 {
			return fmt.Errorf("no message")
		}
		return nil
	})
	f.Resume()
	f.waitEvents("/node-a Warning GPUUnhealthy 1: "+failed, "team/trainer Warning GPUUnhealthy 1: "+failed)
	f.waitCondition("True GPUsUnhealthy GPU 3 (GPU-0000): Xid 79, GPU has fallen off the bus. Reboot the node.")
	f.wait(func() error {
		if strings.Count(f.log.String(), "resumed") < 2 {
			return fmt.Errorf("no message after the outage")
		}
		return nil
	})
	if n := strings.Count(f.log.String(), "\n"); n != 4 {
		t.Errorf("log: got %s", f.log.String())
	}
}

// TestRejectedEvent checks that other events are sent if the API server rejects one, for example because a namespace is
// being deleted, and that rejected events, and events of an outage, count as dropped when they are too old.
func TestRejectedEvent(t *testing.T) {
	f := newFixture(t)
	f.Reject(func(_, path string) int {
		if strings.Contains(path, "/namespaces/team/") {
			return http.StatusForbidden
		}
		return 0
	})
	e := NewEvents(f.options())
	other := xid79(2, "a", "b")
	other.Index = 4
	for range 10 {
		e.report(t.Context(), []incident.Incident{other, xid79(1, "c")})
	}
	f.waitEvents("/node-a Warning GPUUnhealthy 1: "+failed, "/node-a Warning GPUUnhealthy 1: "+strings.Replace(failed, "GPU 3", "GPU 4", 1))
	if n := len(f.Requests()); n != 5 {
		t.Errorf("got %d requests, want one for each event: %q", n, f.Requests())
	}
	if log := f.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "403 Forbidden") {
		t.Errorf("log: got %s", log)
	}
	if n := e.Dropped(); n != 0 {
		t.Errorf("got %d events dropped at once", n)
	}
	f.Stop()
	e.report(t.Context(), []incident.Incident{xid79(3, "d"), other, xid79(1, "c")})
	e.update(nil, time.Now()) // all are too old
	if n := e.Dropped(); n != 5 {
		t.Errorf("got %d dropped events, want three of rejected pods and two of the outage", n)
	}
}

// TestEventRate checks the limit of events per object, and that dropped events are counted.
func TestEventRate(t *testing.T) {
	f := newFixture(t)
	e := NewEvents(f.options())
	var all []incident.Incident
	for id := range uint64(40) {
		all = append([]incident.Incident{xid79(id + 1)}, all...)
	}
	for range 3 * len(all) {
		e.report(t.Context(), all)
	}
	if n := len(f.Events()); n != eventBurst {
		t.Errorf("got %d events, want %d", n, eventBurst)
	}
	e.update(nil, time.Now())
	if len(e.reported) != 0 || len(e.limiters) != 1 {
		t.Errorf("got %d states and %d limiters, want none", len(e.reported), len(e.limiters))
	}
	if n := e.Dropped(); n != uint64(len(all)-eventBurst) {
		t.Errorf("got %d dropped events", n)
	}
}

// TestLateRecovery checks that a recovery is reported hours after the incident, without the incident, with the time of
// the recovery, also after a restart.
func TestLateRecovery(t *testing.T) {
	f := newFixture(t)
	i, recovered := xid79(1, "trainer"), time.Now()
	i.First, i.Last, i.RecoveredAt = i.First.Add(-3*time.Hour), i.Last.Add(-3*time.Hour), &recovered
	earlier := i
	earlier.ID, earlier.Index, earlier.RecoveredAt = 2, 5, new(recovered.Add(-eventWindow-time.Second))
	f.set(earlier, i)
	for requests := range 2 {
		stop := f.run(NewEvents(f.options()))
		f.waitEvents("/node-a Normal GPURecovered 1: GPU 3 (GPU-0000) recovered after: Xid 79, GPU has fallen off the bus.")
		f.wait(func() error { // the second process creates the event, and then updates it
			if n := len(f.Requests()); n < 1+2*requests {
				return fmt.Errorf("%d requests", n)
			}
			return nil
		})
		stop()
	}
	e := f.Events()["default/node-a.0000000000000001.recovered"]
	if want := recovered.UTC().Format(time.RFC3339); e["lastTimestamp"] != want || e["firstTimestamp"] != want {
		t.Errorf("got event %v, want time %s", e, want)
	}
}

// TestRequestDelay checks that the delay is longer after a rejection than in an outage, and at least the API server's Retry-After.
func TestRequestDelay(t *testing.T) {
	for _, test := range []struct {
		err      error
		min, max time.Duration
	}{
		{io.EOF, minBackoff / 2, minBackoff * 3 / 2},
		{&kubeapi.StatusError{Code: http.StatusServiceUnavailable}, minBackoff / 2, minBackoff * 3 / 2},
		{&kubeapi.StatusError{Code: http.StatusUnauthorized}, minBackoff / 2, minBackoff * 3 / 2}, // a new token follows
		{&kubeapi.StatusError{Code: http.StatusTooManyRequests, Delay: 5 * time.Second}, 5 * time.Second, 5 * time.Second},
		{&kubeapi.StatusError{Code: http.StatusTooManyRequests, Delay: time.Hour}, rejectedDelay, rejectedDelay},
		{&kubeapi.StatusError{Code: http.StatusForbidden}, rejectedDelay / 2, rejectedDelay * 3 / 2},
		{&kubeapi.StatusError{Code: http.StatusTeapot}, rejectedDelay / 2, rejectedDelay * 3 / 2}, // by an admission webhook
	} {
		state := newRequestState(slog.New(slog.DiscardHandler))
		if got := state.failed(test.err); got < test.min || got > test.max {
			t.Errorf("%v: got %s, want %s to %s", test.err, got, test.min, test.max)
		}
	}
}

func TestEventName(t *testing.T) {
	for _, test := range []struct{ pod, want string }{
		{"trainer", "trainer.00000000000000ff"},
		{strings.Repeat("a", 300), strings.Repeat("a", 236) + ".00000000000000ff"},
		{strings.Repeat("a", 235) + "-b", strings.Repeat("a", 235) + ".00000000000000ff"},
	} {
		if got := eventName(255, eventKey{name: test.pod}); got != test.want {
			t.Errorf("%s: got %s", test.pod, got)
		}
	}
}

// waitCondition waits for "status reason message".
func (f *fixture) waitCondition(want string) (c map[string]any) {
	f.t.Helper()
	f.wait(func() error {
		c = f.Conditions()[ConditionType]
		if got := fmt.Sprintf("%v %v %v", c["status"], c["reason"], c["message"]); got != want {
			return fmt.Errorf("condition %s, want %s", got, want)
		}
		return nil
	})
	return c
}

func TestCondition(t *testing.T) {
	f := newFixture(t)
	const before = "2026-01-02T03:04:05Z"
	f.SetCondition(map[string]any{"type": ConditionType, "status": "False", "lastHeartbeatTime": before, "lastTransitionTime": before})
	stop := f.run(NewCondition(f.options()))
	healthy := device.Status{Device: device.Device{ID: gpu, GPU: gpu, Index: 3}, Healthy: true}
	f.state.Devices.Set([]device.Status{healthy})
	c := f.waitCondition("False GPUsHealthy 1 GPU healthy.")
	if c["lastHeartbeatTime"] == before || c["lastTransitionTime"] != before {
		t.Errorf("after a restart: got %v, want a new heartbeat and no transition", c)
	}
	unhealthy := healthy
	unhealthy.Healthy, unhealthy.Reason, unhealthy.Action = false, "xid_79", "reboot"
	mig := unhealthy
	mig.ID, mig.Profile = "MIG-1", "1g.10gb"
	own := mig
	own.ID, own.Reason = "MIG-2", "not_responding"
	f.state.Devices.Set([]device.Status{unhealthy, mig, own})
	const fallen = "GPU 3 (GPU-0000): Xid 79, GPU has fallen off the bus. Reboot the node."
	c = f.waitCondition("True GPUsUnhealthy " + fallen + " MIG device 1g.10gb (MIG-2) of GPU 3: A call to the GPU hangs. Reboot the node.")
	if c["lastTransitionTime"] == before {
		t.Errorf("got no transition: %v", c)
	}
	stop()
	f.state.Driver.Set(device.Driver{State: device.DriverAbsent})
	f.state.Devices.Set([]device.Status{})
	f.run(NewCondition(f.options()))
	f.waitCondition("Unknown DriverNotReady The driver is not ready.")
}

// TestConditionOfMissingGPUs checks that an expected GPU that the driver does not list is a fault, unless the driver is not ready.
func TestConditionOfMissingGPUs(t *testing.T) {
	up, absent := device.Driver{State: device.DriverUp}, device.Driver{State: device.DriverAbsent}
	healthy := []device.Status{{Device: device.Device{ID: gpu, GPU: gpu}, Healthy: true}}
	for _, test := range []struct {
		statuses []device.Status
		driver   device.Driver
		expected int
		want     string
	}{
		{healthy, up, 0, "False 1 GPU healthy."},
		{healthy, up, 1, "False 1 GPU healthy."},
		{healthy, up, 3, "True 2 of 3 expected GPUs missing."},
		{[]device.Status{}, absent, 3, "Unknown The driver is not ready."},
	} {
		c := conditionOf(test.statuses, test.driver, test.expected)
		if got := c.Status + " " + c.Message; got != test.want {
			t.Errorf("%d of %d GPUs: got %s, want %s", len(test.statuses), test.expected, got, test.want)
		}
	}
}
