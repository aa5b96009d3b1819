package pods

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

func TestAKubeletWithoutPodsAPI(t *testing.T) {
	var log podsLogBuffer
	runScripted(t, Options{Log: log.log()}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		for range 100 {
			if ps, _ := c.Snapshot(); !errors.Is(ps.Err, ErrNoPodsAPI) || ps.Synced || ps.Len() > 0 {
				t.Fatalf("the pods are %+v", ps)
			}
			if err := errors.Join(c.Ready(), c.Alive()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if n := log.count("\n"); n != 0 {
			t.Errorf("the log has %d lines", n)
		}
		k.start(listThenStream(t, nil, runningPod("a", "1"))) // it was upgraded
		time.Sleep(socketPollInterval)
		wantPods(t, c, "a/1 Running", true)
	})
}

func TestNotReadyBeforeTheFirstLook(t *testing.T) {
	c, err := New("/nowhere/pods-api.sock", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Ready() == nil || c.Alive() != nil {
		t.Error("it is ready before it runs")
	}
}

func TestUnimplementedIsAbsent(t *testing.T) {
	var log podsLogBuffer
	runScripted(t, Options{Log: log.log()}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		k.start(nil)
		time.Sleep(time.Hour)
		if ps, _ := c.Snapshot(); !errors.Is(ps.Err, ErrNoPodsAPI) || c.Ready() != nil || log.count("\n") != 0 {
			t.Errorf("the pods are %+v", ps)
		}
		k.stop()
		k.start(listThenStream(t, nil, runningPod("a", "1"))) // another socket: it is asked again
		time.Sleep(socketPollInterval)
		wantPods(t, c, "a/1 Running", true)
	})
}

func TestAKubeletThatInitializes(t *testing.T) {
	runScripted(t, Options{}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		began := time.Now()
		k.start(func(stream grpc.ServerStream) error {
			if time.Since(began) < time.Minute {
				return status.Error(codes.FailedPrecondition, "Kubelet is initializing")
			}
			return listThenStream(t, nil, runningPod("a", "1"))(stream)
		})
		time.Sleep(30 * time.Second)
		if ps, _ := c.Snapshot(); status.Code(ps.Err) != codes.FailedPrecondition || c.Ready() != nil {
			t.Errorf("meanwhile the pods are %+v, %v", ps, c.Ready())
		}
		time.Sleep(30*time.Second + maxBackoff)
		wantPods(t, c, "a/1 Running", true)
		if n := k.watchCallCount(); n > 40 {
			t.Errorf("it was asked %d times in a minute", n)
		}
	})
}

// TestAnOutage has the last pods stand, and tells of the difference that it made.
func TestAnOutage(t *testing.T) {
	var log podsLogBuffer
	var told []string
	observer := observerFuncs{
		added: func(namespace, pod string) { told = append(told, "+"+namespace+"/"+pod) },
		ended: func(p Pod) { told = append(told, "-"+p.Name+" "+p.Phase) },
	}
	runScripted(t, Options{Log: log.log(), Observer: observer}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		k.start(listThenStream(t, nil, runningPod("a", "1"), runningPod("b", "2")))
		time.Sleep(socketPollInterval)
		wantPods(t, c, "a/1 Running, b/2 Running", true)
		k.stop()
		wantPods(t, c, "a/1 Running, b/2 Running", false)
		time.Sleep(staleTimeout / 2)
		wantPods(t, c, "a/1 Running, b/2 Running", false)
		if ps, _ := c.Snapshot(); ps.Err == nil || errors.Is(ps.Err, ErrNoPodsAPI) || time.Since(ps.updatedAt) < staleTimeout/2 {
			t.Errorf("pods are %v old, %v", time.Since(ps.updatedAt), ps.Err)
		}
		k.start(listThenStream(t, nil, endedPod("a", "1", "Failed", 137), runningPod("b", "3"))) // a StatefulSet made b anew
		time.Sleep(maxBackoff)
		wantPods(t, c, "a/1 Failed, b/3 Running", true)
		ps, _ := c.Snapshot()
		if p, _, ok := ps.ByContainer("id-3"); !ok || p.UID != "3" {
			t.Errorf("the new container is %+v", p)
		}
		if _, _, ok := ps.ByContainer("id-2"); ok {
			t.Error("the old container is still there")
		}
		if got := strings.Join(told, " "); got != "+team/a +team/b -b Running -a Failed +team/b" {
			t.Errorf("told was %s", got)
		}
		if log.count("pods synced") != 2 || log.count("pods no longer synced") != 1 || log.count("\n") != 3 {
			t.Errorf("the log is %s", log.buffer.String())
		}
	})
}

func TestAnOutageThatLastsMakesPodsForgotten(t *testing.T) {
	runScripted(t, Options{}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		k.start(listThenStream(t, nil, runningPod("a", "1")))
		time.Sleep(socketPollInterval)
		wantPods(t, c, "a/1 Running", true)
		k.stop()
		_, changed := c.Snapshot()
		time.Sleep(staleTimeout + 2*maxBackoff)
		wantPods(t, c, "", false)
		select {
		case <-changed:
		default:
			t.Error("nobody was told")
		}
	})
}

// TestChanges follows a stream event by event.
func TestChanges(t *testing.T) {
	runScripted(t, Options{}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		events := make(chan *api.WatchPodsEvent)
		k.start(listThenStream(t, events))
		time.Sleep(socketPollInterval)
		wantPods(t, c, "", true)
		for _, step := range []struct {
			event   *api.WatchPodsEvent
			want    string
			silence bool
		}{
			{newWatchEvent(added, runningPod("a", "1")), "a/1 Running", false},
			{newWatchEvent(modified, runningPod("b", "2")), "a/1 Running, b/2 Running", false},
			{newWatchEvent(modified, runningPod("b", "2")), "a/1 Running, b/2 Running", true},
			{newWatchEvent(modified, endedPod("b", "2", "Failed", 1)), "a/1 Running, b/2 Failed", false},
			{newWatchEvent(deleted, Pod{Namespace: "team", Name: "b", UID: "2"}), "a/1 Running", false},
		} {
			_, changed := c.Snapshot()
			events <- step.event
			wantPods(t, c, step.want, true)
			select {
			case <-changed:
				if step.silence {
					t.Errorf("%s: told of nothing new", step.want)
				}
			default:
				if !step.silence {
					t.Errorf("%s: nobody was told", step.want)
				}
			}
		}
		close(events) // the stream breaks
		wantPods(t, c, "a/1 Running", false)
	})
}

// TestABrokenPod costs itself, and certainty until a stream has said everything.
func TestABrokenPod(t *testing.T) {
	var log podsLogBuffer
	runScripted(t, Options{Log: log.log()}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		events := make(chan *api.WatchPodsEvent)
		k.start(listThenStream(t, events, runningPod("a", "1")))
		time.Sleep(socketPollInterval)
		events <- &api.WatchPodsEvent{Type: modified, Pod: []byte{0xff}}
		wantPods(t, c, "a/1 Running", false)
		events <- &api.WatchPodsEvent{Type: modified, Pod: []byte{0xff}}
		events <- newWatchEvent(added, runningPod("b", "2"))
		wantPods(t, c, "a/1 Running, b/2 Running", false)
		if n := k.watchCallCount(); n != 1 {
			t.Errorf("for it there were %d streams", n)
		}
		time.Sleep(incompleteRenewInterval)
		wantPods(t, c, "a/1 Running", true) // the kubelet says that b is not
		if n := k.watchCallCount(); n != 2 {
			t.Errorf("after it there were %d streams", n)
		}
		if log.count("level=WARN") != 1 || log.count("\n") != 3 {
			t.Errorf("the log is %s", log.buffer.String())
		}
	})
}

func TestAPodThatStaysBroken(t *testing.T) {
	var log podsLogBuffer
	runScripted(t, Options{Log: log.log()}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		k.start(func(stream grpc.ServerStream) error {
			if err := sendEvents(t, stream, &api.WatchPodsEvent{Type: added, Pod: []byte{0xff}}); err != nil {
				return err
			}
			return listThenStream(t, nil, runningPod("a", "1"))(stream)
		})
		time.Sleep(time.Hour)
		wantPods(t, c, "a/1 Running", false)
		if n := k.watchCallCount(); n < 59 || n > 61 {
			t.Errorf("in an hour there were %d streams", n)
		}
		if n := log.count("\n"); n != 1 {
			t.Errorf("the log has %d lines", n)
		}
	})
}

// TestStreamsAreRenewed, and nobody notices.
func TestStreamsAreRenewed(t *testing.T) {
	runScripted(t, Options{}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		k.start(listThenStream(t, nil, runningPod("a", "1")))
		time.Sleep(socketPollInterval)
		wantPods(t, c, "a/1 Running", true)
		for range 3 * renewInterval / time.Second {
			time.Sleep(time.Second)
			wantPods(t, c, "a/1 Running", true)
			if err := c.Alive(); err != nil {
				t.Fatal(err)
			}
		}
		if n := k.watchCallCount(); n != 4 {
			t.Errorf("there were %d streams", n)
		}
	})
}

func TestAKubeletThatDoesNotFinishItsList(t *testing.T) {
	runScripted(t, Options{}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		k.start(func(stream grpc.ServerStream) error {
			if err := sendEvents(t, stream, newWatchEvent(added, runningPod("a", "1"))); err != nil {
				return err
			}
			<-stream.Context().Done()
			return stream.Context().Err()
		})
		time.Sleep(socketPollInterval + 4*syncTimeout)
		if ps, _ := c.Snapshot(); !errors.Is(ps.Err, errSyncTimeout) || ps.Len() > 0 {
			t.Errorf("the pods are %+v", ps)
		}
		if n := k.watchCallCount(); n != 4 {
			t.Errorf("it was asked %d times", n)
		}
	})
}

func TestAKubeletThatEndsEveryStream(t *testing.T) {
	var log podsLogBuffer
	runScripted(t, Options{Log: log.log()}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		k.start(func(grpc.ServerStream) error { return errBroken })
		time.Sleep(time.Hour)
		if n := k.watchCallCount(); n > int(time.Hour/maxBackoff)+10 {
			t.Errorf("in an hour it was asked %d times", n)
		}
		if n := log.count("\n"); n != 1 {
			t.Errorf("the log has %d lines", n)
		}
		if err := errors.Join(c.Alive(), c.Ready()); err != nil {
			t.Error(err)
		}
	})
}

// TestGreatPods are beyond gRPC's own limit.
func TestGreatPods(t *testing.T) {
	runScripted(t, Options{}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		great := newWatchEvent(added, runningPod("a", "1"))
		great.Pod = append(great.Pod, message(2, text(2, strings.Repeat("x", 8<<20)))...)
		k.start(func(stream grpc.ServerStream) error {
			if err := sendEvents(t, stream, great); err != nil {
				return err
			}
			return listThenStream(t, nil)(stream)
		})
		time.Sleep(socketPollInterval)
		wantPods(t, c, "a/1 Running", true)
	})
}

// TestTheTraceSeesWhatItIsToldOf looks from within.
func TestTheTraceSeesWhatItIsToldOf(t *testing.T) {
	var c *Client
	var saw []string
	look := func() string {
		ps, _ := c.Snapshot()
		return fmt.Sprintf("%s %t", ps.summary(), ps.Synced)
	}
	observer := observerFuncs{added: func(string, string) { saw = append(saw, look()) }, ended: func(Pod) { saw = append(saw, look()) }}
	runScripted(t, Options{Observer: observer}, func(t *testing.T, k *scriptedPodsAPI, running1 *Client) {
		c = running1
		events := make(chan *api.WatchPodsEvent)
		k.start(listThenStream(t, events, runningPod("a", "1")))
		time.Sleep(socketPollInterval)
		events <- newWatchEvent(deleted, runningPod("a", "1"))
		wantPods(t, c, "", true)
		if got := strings.Join(saw, "; "); got != "a/1 Running true;  true" {
			t.Errorf("it saw %q", got)
		}
	})
}
