package podresources_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/podresources"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted runs a test with an old kubelet and no own pod.
func scripted(t *testing.T, test func(k *scriptedKubelet)) {
	t.Helper()
	inBubble(t, longAgo, podresources.Options{}, test)
}

// TestOwnerLookup calls List until each id of an Allocate has an owner.
func TestOwnerLookup(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		defer k.run()()
		time.Sleep(15 * time.Second)
		begin := time.Now()
		k.allocate("a", "b")
		k.want("a", "pending")
		time.Sleep(100 * ms)
		k.setPods(newPod("one", "a"))
		time.Sleep(2 * time.Second)
		k.want("a", "one", "b", "pending")
		k.setPods(newPod("one", "a"), newPod("two", "b"))
		time.Sleep(7 * time.Second)
		k.want("b", "two")
		want := []time.Duration{50 * ms, 150 * ms, 350 * ms, 750 * ms, 1550 * ms, 3150 * ms}
		expect.EqualSlices(t, k.callsSince(begin), want, "List was called after")
	})
}

// TestNoListDuringAllocate pauses after Allocate: a List can make the kubelet
// allocate a device twice.
func TestNoListDuringAllocate(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		k.list()
		begin := time.Now()
		k.allocate("a")
		k.setPods(newPod("one", "a"))
		k.wantListed("a", "one")
		if calls := k.callsSince(begin.Add(ms)); len(calls) != 1 || calls[0] < 19*ms {
			t.Errorf("List was called %v after Allocate", calls)
		}
	})
}

// TestOwnPodIsNotListed is not ready if POD_NAME is no pod of the node.
func TestOwnPodIsNotListed(t *testing.T) {
	inBubble(t, longAgo, own, func(k *scriptedKubelet) {
		k.list()
		expect.Error(t, k.client.Ready(), ownPod, "without the own pod")
	})
}

// TestBurstOfAllocations allocates as fast as a kubelet admits pods: List is neither
// postponed nor called for each.
func TestBurstOfAllocations(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		defer k.run()()
		time.Sleep(15 * time.Second)
		begin := time.Now()
		for i := range 50 {
			k.allocate(device.AdvertisedID(strconv.Itoa(i)))
			time.Sleep(30 * ms)
		}
		if got := k.callsSince(begin); len(got) < 10 || len(got) > 51 || got[0] > 50*ms {
			t.Errorf("List calls in 1.5 s of allocations: got %v", got)
		}
	})
}

// TestAllocateEndsEarlierAllocation has a response from before the Allocate, which
// changes nothing.
func TestAllocateEndsEarlierAllocation(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		k.setPods(newPod("old", "a", "b"))
		k.wantListed("a", "old")
		_, changed := k.allocations.Get()
		release := make(chan struct{})
		k.set(func() { k.onList = func(context.Context) error { <-release; return nil } })
		result := make(chan allocation.Snapshot)
		go func() { result <- k.list() }()
		synctest.Wait() // the call is running
		time.Sleep(ms)
		k.allocate("a")
		<-changed
		k.want("a", "pending", "b", "old")
		close(release)
		expect.Equal(t, stateOf(<-result, "a"), "pending", "response from before the allocation")
		k.setPods(newPod("old", "b"), newPod("new", "a"))
		k.wantListed("a", "new")
	})
}

// TestHangingList keeps the deadlines of callers, also of a caller that waits for
// another.
func TestHangingList(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		k.setPods(newPod("one", "a"))
		at := k.list().At
		k.set(func() { k.onList = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } })
		var others sync.WaitGroup
		defer others.Wait()
		begin := time.Now()
		others.Go(func() {
			a := k.list()
			if took := time.Since(begin); took != 5*time.Second || status.Code(a.Err) != codes.DeadlineExceeded {
				t.Errorf("without a deadline: got %v after %s", a.Err, took)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		a := k.client.ListAllocations(ctx)
		if took := time.Since(begin); took != time.Second || !errors.Is(a.Err, context.DeadlineExceeded) {
			t.Errorf("with a deadline: got %v after %s", a.Err, took)
		}
		if stateOf(a, "a") != "one" || !a.At.Equal(at) {
			t.Errorf("allocations: got %v", a)
		}
		k.allocate("b") // the kubelet's Allocate does not wait
		expect.Equal(t, time.Since(begin), time.Second, "OnAllocated returned after")
		others.Wait()
		k.set(func() { k.onList = nil })
		if a := k.list(); a.Err != nil || !a.At.After(at) {
			t.Errorf("after the hang: got %v, %s", a.Err, a.At)
		}
	})
}

// TestResponsesAreMergedInOrder has concurrent callers, each of which gets a
// response to a request after its own call began.
func TestResponsesAreMergedInOrder(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		var requests atomic.Int64
		k.set(func() {
			k.onList = func(context.Context) error {
				n := requests.Add(1)
				time.Sleep(rand.N(100 * ms))
				k.setPods(newPod(strconv.FormatInt(n, 10), "a"))
				return nil
			}
		})
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for range 20 {
					before := requests.Load()
					n, err := strconv.ParseInt(stateOf(k.list(), "a"), 10, 64)
					if err != nil || n < before {
						t.Errorf("response: got %d, %v, want at least %d", n, err, before)
					}
				}
			})
		}
		callers.Wait()
	})
}

// TestRejectedCalls pauses after a rejection, longer each time.
func TestRejectedCalls(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		k.setPods(newPod("one", "a"))
		k.list()
		time.Sleep(ms)
		k.set(func() {
			k.onList = func(context.Context) error {
				return status.Error(codes.ResourceExhausted, "rejected by rate limit")
			}
		})
		begin := time.Now()
		for time.Since(begin) < 20*time.Second {
			time.Sleep(10 * ms)
			if a := k.list(); status.Code(a.Err) != codes.ResourceExhausted || stateOf(a, "a") != "one" {
				t.Fatalf("got %v, owner %s", a.Err, stateOf(a, "a"))
			}
		}
		want := []time.Duration{
			10 * ms, 110 * ms, 310 * ms, 710 * ms, 1510 * ms, 3110 * ms, 6310 * ms, 11310 * ms, 16310 * ms,
		}
		expect.EqualSlices(t, k.callsSince(begin), want, "List was called after")
		k.set(func() { k.onList = nil })
		time.Sleep(5 * time.Second)
		if a := k.list(); a.Err != nil {
			t.Error(a.Err)
		}
	})
}

// TestOutage logs each outage once, and keeps the owners.
func TestOutage(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		k.setPods(newPod("one", "a"))
		defer k.run()()
		for round := range 2 {
			time.Sleep(5 * time.Second)
			k.stop()
			time.Sleep(30 * time.Second)
			k.want("a", "one")
			if a := k.published(); a.Err == nil || a.Resources.AllocatableKnown {
				t.Errorf("in the outage: got %v, allocatable known %t", a.Err, a.Resources.AllocatableKnown)
			}
			expect.NoError(t, errors.Join(k.client.Ready(), k.client.Alive()), "in the outage")
			k.start(0)
			time.Sleep(2 * time.Second)
			k.want("a", "one")
			log := k.log.String()
			lost, back := strings.Count(log, "level=WARN"), strings.Count(log, "level=INFO")
			if lost != round+1 || back != round+1 {
				t.Errorf("log after %d outages: got\n%s", round+1, log)
			}
			if !k.published().Resources.AllocatableKnown {
				t.Error("allocatable devices are unknown after the outage")
			}
		}
	})
}

// TestLateKubelet is not ready before the first response, and finds the kubelet at
// the first call rather than at gRPC's next attempt.
func TestLateKubelet(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		k.stop()
		if k.client.Ready() == nil {
			t.Error("ready before the first call")
		}
		for range 20 {
			time.Sleep(100 * ms)
			k.list()
		}
		expect.Error(t, k.client.Ready(), "List pod resources at", "ready without a response")
		k.setPods(newPod("one", "a"))
		k.start(0)
		k.wantListed("a", "one")
		require.NoError(t, k.client.Ready())
	})
}

// TestRunEndsAtOnce ends Run during a call.
func TestRunEndsAtOnce(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		k.set(func() { k.onList = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } })
		stop := k.run()
		time.Sleep(200 * ms)
		begin := time.Now()
		stop()
		if took := time.Since(begin); took != 0 || k.log.String() != "" {
			t.Errorf("took %s, log %s", took, k.log.String())
		}
	})
}

// TestAllocatable calls GetAllocatableResources at intervals, and soon after a
// device list.
func TestAllocatable(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		count := func() (calls int) {
			k.set(func() { calls = k.allocatableCalls })
			return calls
		}
		defer k.run()()
		time.Sleep(ms)
		if !k.published().Resources.AllocatableKnown {
			t.Error("GetAllocatableResources was not called at once")
		}
		k.set(func() {
			k.allocatable = &api.AllocatableResourcesResponse{CpuIds: []int64{3, 2}, Devices: newContainer("", "a").Devices}
		})
		k.client.OnListSent()
		time.Sleep(1100 * ms)
		r := k.published().Resources.Allocatable
		if len(r.Devices) != 1 || r.Devices[0].ID != "a" || len(r.CPUs) != 1 || !slices.Equal(r.CPUs[0].CPUs, []int64{2, 3}) {
			t.Errorf("allocatable resources: got %+v", r)
		}
		time.Sleep(time.Minute)
		before := count()
		for range 20 {
			k.client.OnListSent()
			k.allocate("a")
			time.Sleep(100 * ms)
		}
		if n := count() - before; n < 1 || n > 3 {
			t.Errorf("calls in two seconds of device lists: got %d", n)
		}
		k.set(func() { k.allocatableErr = errBroken })
		time.Sleep(20 * time.Second)
		if a := k.published(); a.Err != nil || a.Resources.AllocatableKnown {
			t.Errorf("after an error: got %v, allocatable known %t", a.Err, a.Resources.AllocatableKnown)
		}
	})
}

// TestGet looks up the owner of a new pod with Get, and with List if Get does not
// name the owner.
func TestGet(t *testing.T) {
	for name, test := range map[string]struct {
		added []string
		err   error
		want  string
		ended string
	}{
		"pod":                 {added: []string{"new"}, want: "0 Lists, Get of [new]"},
		"end of a pod":        {added: []string{"new"}, ended: "other", want: "1 Lists, Get of []"},
		"rejected pod":        {added: []string{"gone"}, ended: "gone", want: "1 Lists, Get of []"},
		"second of two pods":  {added: []string{"other", "new"}, want: "0 Lists, Get of [other new]"},
		"pod without devices": {added: []string{"other"}, want: "1 Lists, Get of [other]"},
		"deleted pod":         {added: []string{"gone"}, want: "1 Lists, Get of [gone]"},
		"too many pods":       {added: []string{"1", "2", "3", "new"}, want: "1 Lists, Get of []"},
		"kubelet 1.26":        {added: []string{"new"}, err: status.Error(codes.Unimplemented, "Get"), want: "1 Lists, Get of [new]"},
		"rejected call":       {added: []string{"new"}, err: status.Error(codes.ResourceExhausted, "Get"), want: "1 Lists, Get of [new]"},
		"no pod":              {want: "1 Lists, Get of []"},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(k *scriptedKubelet) {
				k.setPods(newPod("other", "b"), newPod("new"))
				k.set(func() { k.getErr = test.err })
				defer k.run()()
				time.Sleep(15 * time.Second)
				k.list()
				time.Sleep(ms)
				for _, pod := range test.added {
					k.client.OnPodAdded("team", pod)
				}
				begin := time.Now()
				k.allocate("a")
				k.setPods(newPod("other"), newPod("new", "a"))
				if test.ended != "" {
					k.client.OnPodEnded("team", test.ended)
				}
				time.Sleep(100 * ms)
				k.want("a", "new")
				time.Sleep(3900 * ms)
				expect.Equal(t, fmt.Sprintf("%d Lists, Get of %v", len(k.callsSince(begin)), k.getCalls), test.want)
				if strings.HasPrefix(test.want, "0") {
					k.want("b", "other") // Get ends no allocation
				}
				time.Sleep(10 * time.Second)
				k.want("a", "new", "b", "unallocated")
			})
		})
	}
}

// TestNoGet adds pods on kubelets with and without Get: without Get, a single call
// until the kubelet's restart.
func TestNoGet(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"kubelet 1.26":     {status.Error(codes.Unimplemented, "Get"), "[1] [1 3]"},
		"feature gate off": {errors.New("PodResources API Get method disabled"), "[1] [1 3]"},
		"rejected call":    {status.Error(codes.ResourceExhausted, "Get"), "[1 2] [1 2 3 4]"},
		"deleted pod":      {nil, "[1 2] [1 2 3 4]"},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(k *scriptedKubelet) {
				k.set(func() { k.getErr = test.err })
				defer k.run()()
				add := func(pod string) {
					time.Sleep(15 * time.Second)
					k.client.OnPodAdded("team", pod)
					k.allocate("a")
					time.Sleep(30 * ms)
					k.setPods(newPod("next", "a"))
					time.Sleep(100 * ms)
					k.want("a", "next")
				}
				add("1")
				add("2")
				got := fmt.Sprint(k.getCalls)
				k.restart()
				add("3")
				add("4")
				if got += fmt.Sprint(" ", k.getCalls); got != test.want {
					t.Errorf("calls of Get before and after a restart: got %s, want %s", got, test.want)
				}
			})
		})
	}
}

// TestHistory covers the times that incidents use, and the limits of the history.
func TestHistory(t *testing.T) {
	inBubble(t, longAgo, podresources.Options{OwnerRetention: 2 * time.Hour}, func(k *scriptedKubelet) {
		start := time.Now()
		at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
		want := func(event string, want ...allocation.Record) {
			t.Helper()
			expect.EqualSlices(t, k.published().Recent, want, event)
			time.Sleep(time.Second)
		}
		list := func(pods ...*api.PodResources) {
			k.setPods(pods...)
			k.list()
		}
		list()
		want("nothing")
		k.allocate("a") // at 1
		want("allocated")
		list(newPod("one", "a"))
		one := allocation.Record{Device: "a", Owner: newOwner("one"), FirstSeen: at(1), LastSeen: at(2)}
		want("listed", one)
		list(newPod("one", "a"))
		one.LastSeen = at(3)
		want("listed again", one)
		list()
		one.EndedAt = at(4)
		want("ended", one)
		list(newPod("one", "a"))
		one = allocation.Record{Device: "a", Owner: newOwner("one"), FirstSeen: at(5), LastSeen: at(5)}
		want("listed with the same name", one)
		k.allocate("a") // at 6
		one.EndedAt = at(6)
		want("allocated to another pod", one)
		list(newPod("one", "a"), newPod("two", "a::1"))
		one = allocation.Record{Device: "a", Owner: newOwner("one"), FirstSeen: at(6), LastSeen: at(7)}
		two := allocation.Record{Device: "a", Owner: newOwner("two"), FirstSeen: at(7), LastSeen: at(7)}
		want("another pod of the same name, and a replica", one, two)

		var replicas []*api.PodResources
		for i := range 12 {
			replicas = append(replicas, newPod(fmt.Sprint("pod-", i), fmt.Sprint("a::", i)))
		}
		list(replicas...)
		expect.Equal(t, len(k.published().Recent), 12, "current owners")
		list(replicas[:2]...)
		expect.Equal(t, len(k.published().Recent), 8, "owners of a device")
		time.Sleep(2*time.Hour + time.Second)
		list()
		expect.Equal(t, len(k.published().Recent), 0, "after the retention owners")
	})
}
