package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

func noOptions() Options { return Options{} }

func TestKubeletWithoutPodsAPI(t *testing.T) {
	var log podsLogBuffer
	runScripted(t, Options{Log: log.log()}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		for range 100 {
			if ps, _ := c.Snapshot(); !errors.Is(ps.Err, ErrNoPodsAPI) || ps.Synced || ps.Len() > 0 {
				t.Fatalf("got pods %+v, want ErrNoPodsAPI", ps)
			}
			if err := errors.Join(c.Ready(), c.Alive()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if n := log.count("\n"); n != 0 {
			t.Errorf("log lines: got %d, want 0", n)
		}
		k.start(listThenStream(t, nil, runningPod("a", "1"))) // upgrade
		time.Sleep(socketPollInterval)
		wantPods(t, c, "a/1 Running", true)
	})
}

func TestNotReadyBeforeRun(t *testing.T) {
	c, err := New("/nowhere/pods-api.sock", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Ready() == nil || c.Alive() != nil {
		t.Error("Ready before Run: got no error, or Alive an error")
	}
}

func TestInitializingKubelet(t *testing.T) {
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
			t.Errorf("during initialization: got pods %+v, ready %v, want FailedPrecondition and ready", ps, c.Ready())
		}
		time.Sleep(30*time.Second + maxBackoff)
		wantPods(t, c, "a/1 Running", true)
		if n := k.watchCallCount(); n > 40 {
			t.Errorf("calls in a minute: got %d, want at most 40", n)
		}
	})
}

// TestOutage checks that the last known pods are kept in an outage, and that the Observer gets the changes after the outage.
func TestOutage(t *testing.T) {
	var log *podsLogBuffer
	var calls []string
	options := func() Options {
		log, calls = &podsLogBuffer{}, nil
		return Options{Log: log.log(), Observer: observerFuncs{
			added: func(namespace, pod string) { calls = append(calls, "+"+namespace+"/"+pod) },
			ended: func(p Pod) { calls = append(calls, "-"+p.Name+" "+p.Phase) },
		}}
	}
	runBothScripted(t, options, func(t *testing.T, k *scriptedPodsAPI, c *Client, pause time.Duration) {
		k.start(listThenStream(t, nil, runningPod("a", "1"), runningPod("b", "2")))
		time.Sleep(pause)
		wantPods(t, c, "a/1 Running, b/2 Running", true)
		k.stop()
		wantPods(t, c, "a/1 Running, b/2 Running", false)
		time.Sleep(time.Hour)
		wantPods(t, c, "a/1 Running, b/2 Running", false)
		if ps, _ := c.Snapshot(); ps.Err == nil || errors.Is(ps.Err, ErrNoPodsAPI) {
			t.Errorf("got pods that are %v old with error %v, want the error of the outage", time.Since(ps.updatedAt), ps.Err)
		}
		k.start(listThenStream(t, nil, endedPod("a", "1", "Failed", 137), runningPod("b", "3"))) // a StatefulSet recreated b
		time.Sleep(pause)
		wantPods(t, c, "a/1 Failed, b/3 Running", true)
		ps, _ := c.Snapshot()
		if p, _, ok := ps.ByContainer("id-3"); !ok || p.UID != "3" {
			t.Errorf("pod of the new container: got %+v, want UID 3", p)
		}
		if _, _, ok := ps.ByContainer("id-2"); ok {
			t.Error("ByContainer of the old container: got a pod, want none")
		}
		if got := strings.Join(calls, " "); got != "+team/a +team/b -b Running -a Failed +team/b" {
			t.Errorf("notifications: got %s", got)
		}
		if log.count("pods synced") != 2 || log.count("pods no longer synced") != 1 || log.count("\n") != 3 {
			t.Errorf("log: got %s", log.buffer.String())
		}
	})
}

// TestStreamEvents checks the pods after each event of a stream.
func TestStreamEvents(t *testing.T) {
	runBothScripted(t, noOptions, func(t *testing.T, k *scriptedPodsAPI, c *Client, pause time.Duration) {
		events := make(chan *api.WatchPodsEvent)
		k.start(listThenStream(t, events))
		time.Sleep(pause)
		wantPods(t, c, "", true)
		for _, step := range []struct {
			event     *api.WatchPodsEvent
			want      string
			unchanged bool
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
				if step.unchanged {
					t.Errorf("%s: unchanged pods were published", step.want)
				}
			default:
				if !step.unchanged {
					t.Errorf("%s: the change was not published", step.want)
				}
			}
		}
		close(events) // breaks the stream
		wantPods(t, c, "a/1 Running", false)
	})
}

// TestUndecodablePod checks that such a pod ends the stream, and that the next stream lists all pods.
func TestUndecodablePod(t *testing.T) {
	var log *podsLogBuffer
	options := func() Options {
		log = &podsLogBuffer{}
		return Options{Log: log.log()}
	}
	runBothScripted(t, options, func(t *testing.T, k *scriptedPodsAPI, c *Client, pause time.Duration) {
		events := make(chan *api.WatchPodsEvent)
		k.start(listThenStream(t, events, runningPod("a", "1")))
		time.Sleep(pause)
		events <- &api.WatchPodsEvent{Type: modified, Pod: []byte{0xff}}
		wantPods(t, c, "a/1 Running", false)
		time.Sleep(pause)
		wantPods(t, c, "a/1 Running", true)
		if n := k.watchCallCount(); n != 2 || log.count("\n") != 3 {
			t.Errorf("got %d streams and log %s, want 2 streams and 3 lines", n, log.buffer.String())
		}
	})
}

func TestPermanentlyUndecodablePod(t *testing.T) {
	var log podsLogBuffer
	runScripted(t, Options{Log: log.log()}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		k.start(func(stream grpc.ServerStream) error {
			time.Sleep(2 * maxBackoff) // a long list
			return sendEvents(t, stream, &api.WatchPodsEvent{Type: added, Pod: []byte{0xff}})
		})
		time.Sleep(time.Hour)
		wantPods(t, c, "", false)
		if n, maxStreams := k.watchCallCount(), int(time.Hour/(3*maxBackoff))+5; n > maxStreams || log.count("\n") != 1 {
			t.Errorf("got %d streams, want at most %d; log, want one line: %s", n, maxStreams, log.buffer.String())
		}
	})
}

// TestStreamRenewal checks that the pods stay synced during a renewal.
func TestStreamRenewal(t *testing.T) {
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
			t.Errorf("got %d streams, want 4", n)
		}
	})
}

func TestIncompleteList(t *testing.T) {
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
			t.Errorf("got pods %+v, want errSyncTimeout and no pods", ps)
		}
		if n := k.watchCallCount(); n != 4 {
			t.Errorf("got %d calls, want 4", n)
		}
	})
}

func TestKubeletEndsEveryStream(t *testing.T) {
	var log podsLogBuffer
	runScripted(t, Options{Log: log.log()}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
		k.start(func(grpc.ServerStream) error { return errBroken })
		time.Sleep(time.Hour)
		if n := k.watchCallCount(); n > int(time.Hour/maxBackoff)+10 {
			t.Errorf("calls in an hour: got %d", n)
		}
		if n := log.count("\n"); n != 1 {
			t.Errorf("log lines: got %d, want 1", n)
		}
		if err := errors.Join(c.Alive(), c.Ready()); err != nil {
			t.Error(err)
		}
	})
}

// TestLargePod sends pods above and below the limit.
func TestLargePod(t *testing.T) {
	for size, want := range map[int]bool{3 << 20: true, 5 << 20: false} {
		runScripted(t, Options{}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
			large := newWatchEvent(added, runningPod("a", "1"))
			large.Pod = append(large.Pod, message(2, text(2, strings.Repeat("x", size)))...)
			k.start(func(stream grpc.ServerStream) error {
				if err := sendEvents(t, stream, large); err != nil {
					return err
				}
				return listThenStream(t, nil)(stream)
			})
			time.Sleep(socketPollInterval)
			wantPods(t, c, map[bool]string{true: "a/1 Running"}[want], want)
			if ps, _ := c.Snapshot(); !want && status.Code(ps.Err) != codes.ResourceExhausted {
				t.Errorf("%d bytes: got %v, want ResourceExhausted", size, ps.Err)
			}
		})
	}
}

// TestHugePods lists pods with more containers than are decoded, and more pods with containers than are kept. Other pods are followed on,
// and a single message is logged.
func TestHugePods(t *testing.T) {
	for name, test := range map[string]struct{ pods, containers int }{"containers": {1, 5 * maxContainers}, "pods": {60, maxContainers}} {
		t.Run(name, func(t *testing.T) {
			var log podsLogBuffer
			runScripted(t, Options{Log: log.log()}, func(t *testing.T, k *scriptedPodsAPI, c *Client) {
				list := []Pod{runningPod("a", "1")}
				for i := range test.pods {
					huge := runningPod("huge", fmt.Sprint("huge-", i))
					huge.Containers = slices.Repeat(huge.Containers, test.containers)
					list = append(list, huge)
				}
				events := make(chan *api.WatchPodsEvent)
				k.start(listThenStream(t, events, list...))
				time.Sleep(2 * socketPollInterval)
				if ps, _ := c.Snapshot(); !ps.Synced {
					t.Fatalf("not synced: %v", ps.Err)
				}
				events <- newWatchEvent(added, list[1]) // not new
				events <- newWatchEvent(added, runningPod("b", "2"))
				synctest.Wait()
				ps, _ := c.Snapshot()
				b, found := ps.ByName("team", "b")
				if !ps.Synced || ps.Len() != 2+test.pods || !found {
					t.Fatalf("got synced %t, %d pods, %+v, error %v", ps.Synced, ps.Len(), b, ps.Err)
				}
				if n := log.count("level=WARN"); n != 1 || log.count("no longer synced") > 0 || k.watchCallCount() != 1 {
					t.Errorf("got %d streams and log, want one warning:\n%s", k.watchCallCount(), log.buffer.String())
				}
			})
		})
	}
}

// TestObserverSeesPublishedPods calls Snapshot from the Observer.
func TestObserverSeesPublishedPods(t *testing.T) {
	var c *Client
	var seen []string
	snapshot := func() string {
		ps, _ := c.Snapshot()
		return fmt.Sprintf("%s %t", ps.summary(), ps.Synced)
	}
	observer := observerFuncs{added: func(string, string) { seen = append(seen, snapshot()) }, ended: func(Pod) { seen = append(seen, snapshot()) }}
	runScripted(t, Options{Observer: observer}, func(t *testing.T, k *scriptedPodsAPI, running1 *Client) {
		c = running1
		events := make(chan *api.WatchPodsEvent)
		k.start(listThenStream(t, events, runningPod("a", "1")))
		time.Sleep(socketPollInterval)
		events <- newWatchEvent(deleted, runningPod("a", "1"))
		wantPods(t, c, "", true)
		if got := strings.Join(seen, "; "); got != "a/1 Running true;  true" {
			t.Errorf("pods in the Observer: got %q", got)
		}
	})
}
