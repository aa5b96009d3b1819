package pods_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pods/podpb"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

func TestKubeletWithoutPodsAPI(t *testing.T) {
	runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
		for range 100 {
			if ps, _ := k.pods.Get(); !errors.Is(ps.Err, pods.ErrNoPodsAPI) || ps.Synced || ps.Len() > 0 {
				t.Fatalf("got pods %+v, want ErrNoPodsAPI", ps)
			}
			require.NoError(t, errors.Join(k.client.Ready(), k.client.Alive()))
			time.Sleep(time.Minute)
		}
		expect.Equal(t, k.log.Count("\n"), 0, "log lines")
		k.start(listThenStream(nil, newPod("a", "1", "Running"))) // upgrade
		time.Sleep(pods.SocketInterval)
		k.want("a/1 Running", true)
	})
}

// TestFallbackSocket checks that the fallback is used while no kubelet listens at its socket at the start of a stream.
func TestFallbackSocket(t *testing.T) {
	runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
		k.start(listThenStream(nil, newPod("a", "1", "Running")))
		require.NoError(t, os.Rename(k.socket, k.fallback))
		time.Sleep(pods.SocketInterval)
		k.want("a/1 Running", true)
		k.wantDialed(k.fallback)
		require.NoError(t, os.WriteFile(k.socket, nil, 0o600)) // an upgraded kubelet
		time.Sleep(pods.RenewInterval)
		k.want("a/1 Running", true)
		k.wantDialed(k.fallback, k.socket)
		require.NoError(t, os.WriteFile(k.socket, []byte("of a killed kubelet"), 0o600)) // before a downgrade
		time.Sleep(pods.RenewInterval)
		k.want("a/1 Running", true)
		k.wantDialed(k.fallback, k.socket, k.fallback)
	})
}

func TestNotReadyBeforeRun(t *testing.T) {
	c, err := pods.New("/nowhere/pods-api.sock", pods.Options{Pods: &pubsub.Value[pods.Pods]{}})
	require.NoError(t, err)
	if c.Ready() == nil || c.Alive() != nil {
		t.Error("Ready before Run: got no error, or Alive an error")
	}
}

// TestOutage checks that the last known pods are kept in an outage, and that
// the changes of the outage are known afterwards.
func TestOutage(t *testing.T) {
	runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
		k.start(listThenStream(nil, newPod("a", "1", "Running"), newPod("b", "2", "Running")))
		time.Sleep(pods.SocketInterval)
		k.want("a/1 Running, b/2 Running", true)
		time.Sleep(time.Minute)
		k.stop()
		time.Sleep(time.Hour)
		k.want("a/1 Running, b/2 Running", false)
		if ps, _ := k.pods.Get(); ps.Err == nil || errors.Is(ps.Err, pods.ErrNoPodsAPI) {
			t.Errorf("got error %v, want the error of the outage", ps.Err)
		}
		k.start(listThenStream(nil, newPod("a", "1", "Failed"), newPod("b", "3", "Running"))) // a StatefulSet recreated b
		time.Sleep(pods.SocketInterval)
		k.want("a/1 Failed, b/3 Running", true)
		ps, _ := k.pods.Get()
		if p, _, ok := ps.ByContainer("id-3"); !ok || p.UID != "3" {
			t.Errorf("pod of the new container: got %+v, want UID 3", p)
		}
		if _, _, ok := ps.ByContainer("id-2"); ok {
			t.Error("ByContainer of the old container: got a pod, want none")
		}
		if got := formatTermination(ps.Termination(allocation.Assignment{PodUID: "2"})); got != "2 Running 0: ? , ended" {
			t.Errorf("termination of the unlisted pod: got %q, want an end without an exit code", got)
		}
		expect.Equal(t, strings.Join(k.calls, " "), "+a +b -b -a +b", "added and ended pods")
		if k.log.Count("pods synced") != 2 || k.log.Count("pods no longer synced") != 1 || k.log.Count("\n") != 3 {
			t.Errorf("log: got %s", k.log.String())
		}
	})
}

// TestStream applies sequences of events, and checks the pods, the calls for
// added and ended pods, and the publication after each event.
func TestStream(t *testing.T) {
	type step struct {
		kind       api.EventType
		pod        *podpb.Pod
		want       string
		calls      string
		unsynced   bool
		noNewValue bool
	}
	list := func(p *podpb.Pod) step { return step{kind: added, pod: p, unsynced: true, noNewValue: true} }
	sync := step{kind: complete}
	running, failed := newPod("a", "1", "Running"), newPod("a", "1", "Failed")
	for name, steps := range map[string][]step{
		"a pod's life": {
			sync,
			{kind: added, pod: newPod("a", "1", "Pending"), want: "a/1 Pending", calls: "+a"},
			{kind: modified, pod: running, want: "a/1 Running"},
			{kind: modified, pod: running, want: "a/1 Running", noNewValue: true},
			{kind: modified, pod: failed, want: "a/1 Failed", calls: "-a"},
			{kind: deleted, pod: running},
			{kind: deleted, pod: running, noNewValue: true},
		},
		"initial list": {
			list(running),
			list(newPod("b", "2", "Succeeded")),
			{kind: complete, want: "a/1 Running, b/2 Succeeded", calls: "-b +a"},
			{kind: complete, want: "a/1 Running, b/2 Succeeded", noNewValue: true},
		},
		"late events": {
			list(newPod("a", "1-1", "Failed")),
			{kind: complete, want: "a/1-1 Failed", calls: "-a"},
			{kind: modified, pod: newPod("a", "1-1", "Running"), want: "a/1-1 Failed", noNewValue: true},
			{kind: deleted, pod: newPod("a", "1-1", "Running")},
			{kind: modified, pod: newPod("a", "1-1", "Running"), noNewValue: true},
		},
		"MODIFIED before ADDED": {
			sync,
			{kind: modified, pod: running, want: "a/1 Running", calls: "+a"},
			{kind: added, pod: running, want: "a/1 Running", noNewValue: true},
		},
		"DELETED during the initial list": {
			list(running),
			{kind: deleted, pod: running, unsynced: true, noNewValue: true},
			sync,
		},
		"static pod recreated from the same manifest": {
			sync,
			{kind: added, pod: running, want: "a/1 Running", calls: "+a"},
			{kind: modified, pod: failed, want: "a/1 Failed", calls: "-a"},
			{kind: deleted, pod: running},
			{kind: added, pod: running, want: "a/1 Running", calls: "+a"},
			{kind: modified, pod: failed, want: "a/1 Failed", calls: "-a"},
		},
		"static pod recreated before DELETED": {
			sync,
			{kind: added, pod: running, want: "a/1 Running", calls: "+a"},
			{kind: deleted, pod: running, calls: "-a"},
			{kind: modified, pod: running, want: "a/1 Running", calls: "+a"},
			{kind: deleted, pod: running, calls: "-a"},
		},
		"eviction": {
			sync,
			{kind: added, pod: running, want: "a/1 Running", calls: "+a"},
			{kind: modified, pod: evicted("a", "1"), want: "a/1 Failed"},
			{kind: modified, pod: failed, want: "a/1 Failed", calls: "-a"},
			{kind: deleted, pod: running},
		},
		"a renamed pod": {
			sync,
			{kind: added, pod: running, want: "a/1 Running", calls: "+a"},
			{kind: modified, pod: newPod("b", "1", "Running"), want: "b/1 Running"},
		},
		"unknown kinds of events": {sync, {kind: 17, noNewValue: true}, {noNewValue: true}},
	} {
		t.Run(name, func(t *testing.T) {
			runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
				events := make(chan *api.WatchPodsEvent)
				k.start(sendEvents(events))
				time.Sleep(pods.SocketInterval)
				for i, s := range steps {
					before, changed := k.pods.Get()
					summaryBefore := summary(before)
					k.calls = nil
					events <- newEvent(s.kind, s.pod)
					k.want(s.want, !s.unsynced)
					expect.Equal(t, strings.Join(k.calls, " "), s.calls, "step", i, "added and ended pods")
					select {
					case <-changed:
						if s.noNewValue {
							t.Errorf("step %d: unchanged pods were published", i)
						}
					default:
						if !s.noNewValue {
							t.Errorf("step %d: the change was not published", i)
						}
					}
					if got := summary(before); got != summaryBefore {
						t.Errorf("step %d: published pods changed from %q to %q", i, summaryBefore, got)
					}
				}
				close(events) // breaks the stream
				k.want(steps[len(steps)-1].want, false)
			})
		})
	}
}

// TestUndecodablePod checks that such a pod ends the stream, and that the next
// stream lists all pods.
func TestUndecodablePod(t *testing.T) {
	withoutUID, withoutName, longName := newPod("b", "", "Running"), newPod("", "2", "Running"), newPod("b", "2", "Running")
	longName.Metadata.Name = new(strings.Repeat("x", pods.MaxNameBytes+1))
	for name, pod := range map[string][]byte{
		"no pod": nil, "invalid": {0xff}, "truncated": newEvent(added, newPod("b", "2", "Running")).Pod[:9],
		"no UID": newEvent(added, withoutUID).Pod, "no name": newEvent(added, withoutName).Pod, "long name": newEvent(added, longName).Pod,
	} {
		t.Run(name, func(t *testing.T) {
			runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
				events := make(chan *api.WatchPodsEvent)
				k.start(listThenStream(events, newPod("a", "1", "Running")))
				time.Sleep(pods.SocketInterval)
				events <- &api.WatchPodsEvent{Type: modified, Pod: pod}
				k.want("a/1 Running", false)
				time.Sleep(pods.SocketInterval)
				k.want("a/1 Running", true)
				if n := k.watchCallCount(); n != 2 || k.log.Count("\n") != 3 {
					t.Errorf("got %d streams and log %s, want 2 streams and 3 lines", n, k.log.String())
				}
			})
		})
	}
}

// TestFailingStreams checks that streams without a complete list are repeated
// with pauses, and logged once.
func TestFailingStreams(t *testing.T) {
	for name, c := range map[string]struct {
		watch    func(stream grpc.ServerStream) error
		duration time.Duration // of a stream
		want     string        // in the error
	}{
		"broken":       {func(grpc.ServerStream) error { return errBroken }, 0, "broken"},
		"initializing": {func(grpc.ServerStream) error { return status.Error(codes.FailedPrecondition, "initializing") }, 0, "initializing"},
		"undecodable after a long list": {func(stream grpc.ServerStream) error {
			time.Sleep(4 * time.Second)
			return stream.SendMsg(&api.WatchPodsEvent{Type: added, Pod: []byte{0xff}})
		}, 4 * time.Second, "cannot parse"},
		"incomplete": {func(stream grpc.ServerStream) error {
			err := stream.SendMsg(newEvent(added, newPod("a", "1", "Running")))
			<-stream.Context().Done()
			return err
		}, pods.SyncTimeout, "no complete list"},
	} {
		t.Run(name, func(t *testing.T) {
			runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
				k.start(c.watch)
				time.Sleep(time.Hour)
				k.want("", false)
				most := int(time.Hour/(c.duration+pods.MaxBackoff)) + 10
				if n := k.watchCallCount(); n > most || n < most/2 || k.log.Count("\n") != 1 {
					t.Errorf("got %d streams, want about %d; log, want one line: %s", n, most, k.log.String())
				}
				if ps, _ := k.pods.Get(); ps.Err == nil || !strings.Contains(ps.Err.Error(), c.want) {
					t.Errorf("got error %v, want %q", ps.Err, c.want)
				}
				require.NoError(t, errors.Join(k.client.Alive(), k.client.Ready()))
				k.start(listThenStream(nil, newPod("a", "1", "Running")))
				time.Sleep(pods.SyncTimeout + pods.MaxBackoff)
				k.want("a/1 Running", true)
			})
		})
	}
}

// TestStreamRenewal checks that the pods stay synced during a renewal.
func TestStreamRenewal(t *testing.T) {
	runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
		k.start(listThenStream(nil, newPod("a", "1", "Running")))
		time.Sleep(pods.SocketInterval)
		for range 3 * pods.RenewInterval / time.Second {
			time.Sleep(time.Second)
			k.want("a/1 Running", true)
			require.NoError(t, k.client.Alive())
		}
		expect.Equal(t, k.watchCallCount(), 4, "streams")
	})
}

// TestLargePod sends pods above and below the limit.
func TestLargePod(t *testing.T) {
	for size, want := range map[int]bool{3 << 20: true, 5 << 20: false} {
		runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
			large := newEvent(added, newPod("a", "1", "Running"))
			large.Pod = protowire.AppendTag(large.Pod, 2, protowire.BytesType) // the specification
			large.Pod = protowire.AppendBytes(large.Pod, make([]byte, size))
			k.start(func(stream grpc.ServerStream) error {
				if err := stream.SendMsg(large); err != nil {
					return err
				}
				return listThenStream(nil)(stream)
			})
			time.Sleep(pods.SocketInterval)
			k.want(map[bool]string{true: "a/1 Running"}[want], want)
			if ps, _ := k.pods.Get(); !want && status.Code(ps.Err) != codes.ResourceExhausted {
				t.Errorf("%d bytes: got %v, want ResourceExhausted", size, ps.Err)
			}
		})
	}
}

// TestHugePods lists pods with more containers than are decoded, and more pods
// with containers than are kept. Other pods are followed on, and a single
// message is logged.
func TestHugePods(t *testing.T) {
	for name, test := range map[string]struct{ pods, containers, most int }{
		"containers": {1, 5 * pods.MaxContainers, pods.MaxContainers},
		"pods":       {60, pods.MaxContainers, 31 * pods.MaxContainers},
	} {
		t.Run(name, func(t *testing.T) {
			runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
				list := []*podpb.Pod{newPod("a", "1", "Running")}
				for i := range test.pods {
					huge := newPod(fmt.Sprint("huge-", i), fmt.Sprint("huge-", i), "Running")
					huge.Status.ContainerStatuses = slices.Repeat(huge.Status.ContainerStatuses, test.containers)
					list = append(list, huge)
				}
				events := make(chan *api.WatchPodsEvent)
				k.start(listThenStream(events, list...))
				time.Sleep(2 * pods.SocketInterval)
				events <- newEvent(added, list[1]) // not new
				events <- newEvent(added, newPod("b", "2", "Running"))
				synctest.Wait()
				ps, _ := k.pods.Get()
				if _, found := ps.ByName("team", "b"); !ps.Synced || ps.Len() != 2+test.pods || !found {
					t.Fatalf("got synced %t, %d pods, error %v", ps.Synced, ps.Len(), ps.Err)
				}
				containers := 0
				for i := range test.pods {
					huge, _ := ps.ByName("team", fmt.Sprint("huge-", i))
					containers += len(huge.Containers)
				}
				if containers == 0 || containers > test.most {
					t.Errorf("got %d containers, want at most %d", containers, test.most)
				}
				if n := k.log.Count("level=WARN"); n != 1 || k.log.Count("no longer synced") > 0 || k.watchCallCount() != 1 {
					t.Errorf("got %d streams and log, want one warning:\n%s", k.watchCallCount(), k.log.String())
				}
			})
		})
	}
}

func TestTooManyPods(t *testing.T) {
	runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
		list := make([]*podpb.Pod, pods.MaxPods+1)
		for i := range list {
			list[i] = newPod("x", fmt.Sprint(i), "Pending")
		}
		k.start(listThenStream(nil, list...))
		time.Sleep(pods.SocketInterval)
		synctest.Wait()
		if ps, _ := k.pods.Get(); ps.Synced || ps.Err == nil || !strings.Contains(ps.Err.Error(), "more than 16384 pods") {
			t.Errorf("got synced %t, %v", ps.Synced, ps.Err)
		}
		k.start(listThenStream(nil, list[1:]...))
		time.Sleep(2 * pods.SocketInterval)
		synctest.Wait()
		if ps, _ := k.pods.Get(); !ps.Synced || ps.Len() != pods.MaxPods {
			t.Errorf("got synced %t, %d pods, %v", ps.Synced, ps.Len(), ps.Err)
		}
	})
}

// TestEndedPods rejects pods all the time, some of them in the same second: the
// newest are kept, and every running pod.
func TestEndedPods(t *testing.T) {
	runScripted(t, func(t *testing.T, k *scriptedPodsAPI) {
		rejected := func(i int) *podpb.Pod {
			p := newPod(fmt.Sprint("rejected-", i), fmt.Sprint("rejected-", i), "Failed")
			p.Metadata.CreationTimestamp = timestamppb.New(time.Unix(int64(i/100), 0))
			return p
		}
		wants := func(when string, newest int) {
			t.Helper()
			synctest.Wait()
			ps, _ := k.pods.Get()
			_, keptOldest := ps.ByName("team", "rejected-0")
			_, keptNewest := ps.ByName("team", fmt.Sprint("rejected-", newest))
			running, _ := ps.ByName("team", "a")
			if ps.Len() != pods.MaxEndedPods+1 || keptOldest || !keptNewest || len(running.Containers) != 1 {
				t.Errorf("%s: got %d pods, the oldest %t, the newest %t, and %+v, error %v",
					when, ps.Len(), keptOldest, keptNewest, running, ps.Err)
			}
		}
		list := []*podpb.Pod{newPod("a", "1", "Running")} // created before the others
		for i := range 2 * pods.MaxEndedPods {
			list = append(list, rejected(i))
		}
		events := make(chan *api.WatchPodsEvent)
		k.start(listThenStream(events, list...))
		time.Sleep(pods.SocketInterval)
		wants("listed", 2*pods.MaxEndedPods-1)
		for i := 2 * pods.MaxEndedPods; i < 3*pods.MaxEndedPods; i++ {
			events <- newEvent(added, rejected(i))
		}
		wants("added", 3*pods.MaxEndedPods-1)
		events <- newEvent(modified, newPod("a", "1", "Failed"))
		synctest.Wait()
		ps, _ := k.pods.Get()
		main := allocation.Assignment{PodUID: "1", Owner: allocation.Owner{Container: "main"}}
		expect.Equal(t, formatTermination(ps.Termination(main)), "1 Failed 0: 137 , ended", "new end of the oldest pod")
	})
}
