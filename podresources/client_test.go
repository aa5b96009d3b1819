package podresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const ms = time.Millisecond

func TestRunLooksUpOwner(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		defer c.startRun(t)()
		time.Sleep(15 * time.Second)
		begin := time.Now()
		c.OnAllocated(gpu, []device.AdvertisedID{"a"})
		wantDevice(t, c.current(), "a", "pending")
		time.Sleep(20 * time.Second)
		want := []time.Duration{50 * ms, 150 * ms, 350 * ms, 750 * ms, 1550 * ms, 3150 * ms, 5150 * ms, 7150 * ms, 9150 * ms}
		got := k.listCallsSince(begin)
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Fatalf("List was called after %v, want %v", got, want)
		}
		if rest := got[len(want):]; len(rest) > 2 {
			t.Errorf("List was called after the lookup: %v", rest)
		}
	})
}

// TestNoListDuringAllocate checks allocateRecordDelay: a List during Allocate can make the kubelet allocate a device twice.
func TestNoListDuringAllocate(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		c.ListAllocations(t.Context())
		time.Sleep(time.Second)
		granted := time.Now()
		c.OnAllocated(gpu, []device.AdvertisedID{"a"})
		k.setPods(newPod("one", "a"))
		wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
		if after := k.listCallsSince(granted); len(after) != 1 || after[0] < allocateRecordDelay {
			t.Errorf("List was called %v after Allocate", after)
		}
		ctx, cancel := context.WithTimeout(t.Context(), allocateRecordDelay/2)
		defer cancel()
		c.OnAllocated(gpu, []device.AdvertisedID{"a"})
		begin := time.Now()
		c.ListAllocations(ctx)
		if took := time.Since(begin); took > allocateRecordDelay/2 {
			t.Errorf("a caller with a short deadline waited %s", took)
		}
	})
}

func TestRunStopsWhenOwnerIsKnown(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		defer c.startRun(t)()
		time.Sleep(15 * time.Second)
		begin := time.Now()
		c.OnAllocated(gpu, []device.AdvertisedID{"a", "b"})
		time.Sleep(100 * ms)
		k.setPods(newPod("one", "a"))
		time.Sleep(100 * ms) // List is called after 150 ms
		wantDevice(t, c.current(), "a", "allocated to one")
		wantDevice(t, c.current(), "b", "pending")
		k.setPods(newPod("one", "a"), newPod("two", "b"))
		time.Sleep(9 * time.Second)
		wantDevice(t, c.current(), "b", "allocated to two")
		if got, want := k.listCallsSince(begin), []time.Duration{50 * ms, 150 * ms, 350 * ms}; !slices.Equal(got, want) {
			t.Errorf("List was called after %v, want %v", got, want)
		}
	})
}

// TestBurstOfAllocationsPostponesNoList allocates as fast as a kubelet admits pods.
func TestBurstOfAllocationsPostponesNoList(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		defer c.startRun(t)()
		time.Sleep(15 * time.Second)
		begin := time.Now()
		for i := range 50 {
			c.OnAllocated(gpu, []device.AdvertisedID{device.AdvertisedID(strconv.Itoa(i))})
			time.Sleep(30 * ms)
		}
		got := k.listCallsSince(begin)
		if len(got) < 10 || got[0] > 50*ms {
			t.Errorf("List calls in 1.5 s of allocations: got %v", got)
		}
		if most := 1500/50 + 1; len(got) > most {
			t.Errorf("List calls: got %d", len(got))
		}
	})
}

func TestShortLivedPodIsRecorded(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		defer c.startRun(t)()
		time.Sleep(15 * time.Second)
		begin := time.Now()
		c.OnAllocated(gpu, []device.AdvertisedID{"a"})
		time.Sleep(20 * ms) // the kubelet records the allocation
		k.setPods(newPod("short", "a"))
		time.Sleep(2 * time.Second)
		k.setPods()
		time.Sleep(13 * time.Second)
		known := c.current()
		wantDevice(t, known, "a", "unallocated")
		if len(known.Recent) != 1 || known.Recent[0].Owner != newOwner("short") || known.Recent[0].LastSeen.Sub(begin) > 3*time.Second {
			t.Errorf("history: %v", known.Recent)
		}
	})
}

func TestAllocateEndsEarlierAllocation(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		k.setPods(newPod("old", "a", "b"))
		wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to old")
		_, changed := c.Snapshot()

		release := make(chan struct{})
		k.setOnList(func(context.Context) error { <-release; return nil })
		result := make(chan device.Allocations)
		go func() { result <- c.ListAllocations(t.Context()) }()
		synctest.Wait() // the call is running

		time.Sleep(time.Millisecond)
		c.OnAllocated(gpu, []device.AdvertisedID{"a"})
		select {
		case <-changed:
		default:
			t.Error("readers were not notified")
		}
		wantDevice(t, c.current(), "a", "pending")
		wantDevice(t, c.current(), "b", "allocated to old")
		close(release)
		wantDevice(t, <-result, "a", "pending") // a response from before the allocation changes nothing

		k.setPods(newPod("old", "b"), newPod("new", "a"))
		wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to new")
	})
}

func TestHangingListEndsAtDeadline(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		k.setPods(newPod("one", "a"))
		at := c.ListAllocations(t.Context()).At
		k.setOnList(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		for _, budget := range []time.Duration{300 * ms, 0} {
			ctx, want := t.Context(), callTimeout
			if budget > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, budget)
				defer cancel()
				want = budget
			}
			begin := time.Now()
			h := c.ListAllocations(ctx)
			if took := time.Since(begin); took != want {
				t.Errorf("took %s, want %s", took, want)
			}
			wantDevice(t, h, "a", "allocated to one")
			if status.Code(h.Err) != codes.DeadlineExceeded || !h.At.Equal(at) {
				t.Errorf("Err: %v, At: %s after the last response", h.Err, h.At.Sub(at))
			}
		}
		k.setOnList(nil)
		if h := c.ListAllocations(t.Context()); h.Err != nil || !h.At.After(at) {
			t.Errorf("after the hang: Err %v, At %s", h.Err, h.At.Sub(at))
		}
	})
}

// TestWaitingCallerKeepsOwnDeadline checks the deadline of a caller that waits for a hanging call.
func TestWaitingCallerKeepsOwnDeadline(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		k.setPods(newPod("one", "a"))
		c.ListAllocations(t.Context())
		k.setOnList(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		var others sync.WaitGroup
		defer others.Wait()
		others.Go(func() { c.ListAllocations(t.Context()) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		h := c.ListAllocations(ctx)
		if took := time.Since(begin); took != time.Second {
			t.Errorf("took %s", took)
		}
		wantDevice(t, h, "a", "allocated to one")
		if !errors.Is(h.Err, context.DeadlineExceeded) {
			t.Errorf("Err: got %v", h.Err)
		}
		c.OnAllocated(gpu, []device.AdvertisedID{"a"}) // the kubelet's Allocate does not wait either
		if took := time.Since(begin); took != time.Second {
			t.Errorf("OnAllocated took %s", took-time.Second)
		}
	})
}

func TestResponsesAreMergedInOrder(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		var requests, seen atomic.Int64
		k.setOnList(func(context.Context) error {
			n := requests.Add(1)
			// Concurrent responses would overtake each other.
			time.Sleep(rand.N(100 * ms))
			k.setPods(newPod(strconv.FormatInt(n, 10), "a"))
			return nil
		})
		var callers sync.WaitGroup
		defer callers.Wait()
		for range 8 {
			callers.Go(func() {
				for range 30 {
					time.Sleep(rand.N(150 * ms))
					before, calls := seen.Load(), requests.Load()
					_, o := c.ListAllocations(t.Context()).State("a")
					n, err := strconv.ParseInt(o.Pod, 10, 64)
					if err != nil || n < before || n < calls {
						t.Errorf("state %q, want at least %d (seen) and %d (requested)", o.Pod, before, calls)
					}
					for s := seen.Load(); s < n && !seen.CompareAndSwap(s, n); s = seen.Load() {
					}
				}
			})
		}
	})
}

func TestRejectedClientPauses(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		k.setPods(newPod("one", "a"))
		c.ListAllocations(t.Context())
		reject := func(context.Context) error { return status.Error(codes.ResourceExhausted, "rejected by rate limit") }
		callRepeatedly := func(d time.Duration) []time.Duration {
			time.Sleep(ms)
			begin := time.Now()
			for time.Since(begin) < d {
				time.Sleep(10 * ms)
				h := c.ListAllocations(t.Context())
				wantDevice(t, h, "a", "allocated to one")
				if h.Err == nil || status.Code(h.Err) != codes.ResourceExhausted {
					t.Fatalf("Err: got %v", h.Err)
				}
			}
			calls := k.listCallsSince(begin)
			for i := len(calls) - 1; i > 0; i-- {
				calls[i] -= calls[i-1]
			}
			return calls[1:]
		}
		k.setOnList(reject)
		want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms}
		if got := callRepeatedly(20 * time.Second); !slices.Equal(got, want) {
			t.Errorf("pauses between calls: got %v, want %v", got, want)
		}
		if err := c.confirmPod(t.Context(), podName{"team", "one"}); status.Code(err) != codes.ResourceExhausted || len(k.getCalls) != 0 {
			t.Errorf("Get was called in the pause: got %v, for %q", err, k.getCalls)
		}
		time.Sleep(maxBackoff)
		k.setOnList(nil)
		if h := c.ListAllocations(t.Context()); h.Err != nil {
			t.Fatal(h.Err)
		}
		k.setOnList(reject)
		if got := callRepeatedly(500 * ms); !slices.Equal(got, want[:2]) {
			t.Errorf("pauses between calls after a response: got %v, want %v", got, want[:2])
		}
	})
}

func TestOutageIsLoggedOnce(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		var log kubeletLogBuffer
		c.options.Log = log.log()
		stop := c.startRun(t)
		defer stop()
		k.setPods(newPod("one", "a"))
		var scrapes sync.WaitGroup
		defer scrapes.Wait()
		scrapes.Go(func() { // scrapes detect most outages first
			for range 200 {
				time.Sleep(300 * ms)
				c.ListAllocations(t.Context())
			}
		})
		for round := range 2 {
			time.Sleep(5 * time.Second)
			k.stop()
			time.Sleep(5 * time.Second)
			k.setOnList(func(context.Context) error { return status.Error(codes.ResourceExhausted, "rejected by rate limit") })
			k.start(0)
			time.Sleep(5 * time.Second)
			k.setOnList(nil)
			time.Sleep(10 * time.Second)
			logged := log.String()
			if lost, found := strings.Count(logged, "level=WARN"), strings.Count(logged, "level=INFO"); lost != round+1 || found != round+1 {
				t.Fatalf("log after %d outages: got\n%s", round+1, logged)
			}
			wantDevice(t, c.current(), "a", "allocated to one")
		}
	})
}

// TestYoungKubeletIsTrustedAfterAMinute starts client and kubelet together: only listed devices are known.
func TestYoungKubeletIsTrustedAfterAMinute(t *testing.T) {
	runScripted(t, 0, func(t *testing.T, k *scriptedKubelet, c *Client) {
		wantDevice(t, c.ListAllocations(t.Context()), "a", "unknown")
		k.setPods(newPod("one", "a"))
		h := c.ListAllocations(t.Context())
		wantDevice(t, h, "a", "allocated to one")
		wantDevice(t, h, "b", "unknown")
		time.Sleep(40 * time.Second)
		k.restart() // the minute starts again
		time.Sleep(settleTimeout - time.Millisecond)
		wantDevice(t, c.ListAllocations(t.Context()), "b", "unknown")
		_, changed := c.Snapshot()
		time.Sleep(time.Millisecond)
		wantDevice(t, c.ListAllocations(t.Context()), "b", "unallocated")
		select {
		case <-changed:
		default:
			t.Error("readers were not notified")
		}
		k.restart() // a settled client remains settled
		h = c.ListAllocations(t.Context())
		wantDevice(t, h, "a", "allocated to one")
		wantDevice(t, h, "b", "unallocated")
	})
}

func TestOldKubeletIsTrustedAtOnce(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		wantDevice(t, c.current(), "a", "unknown")
		wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated")
	})
}

func TestRestartRetainsAllocations(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		all := []string{"static", "moved", "replaced", "left", "lost"}
		for _, name := range all {
			k.pods = append(k.pods, newPod(name, "gpu-"+name))
		}
		at := c.ListAllocations(t.Context()).At
		check := func(want map[string]string) {
			t.Helper()
			h := c.ListAllocations(t.Context())
			for _, name := range all {
				w := "allocated to " + name
				if other, ok := want[name]; ok {
					w = other
				}
				wantDevice(t, h, device.ID("gpu-"+name), w)
			}
		}
		k.stop()
		time.Sleep(3 * time.Second)
		check(nil)
		if h := c.current(); h.Err == nil || !h.At.Equal(at) {
			t.Errorf("in the outage: Err %v, At %s after the last response", h.Err, h.At.Sub(at))
		}
		k.setPods()
		k.start(0)
		check(nil)
		k.setPods(newPod("static", "gpu-static"))
		check(nil)
		k.setPods(newPod("static", "gpu-static"), newPod("moved", "gpu-replaced"), newPod("left"))
		want := map[string]string{"moved": "unallocated", "replaced": "allocated to moved", "left": "unallocated"}
		check(want)
		k.setPods() // a confirmed allocation would be listed again
		want["static"], want["replaced"] = "unallocated", "unallocated"
		check(want)
		time.Sleep(settleTimeout)
		want["lost"] = "unallocated"
		check(want)
	})
}

// TestConfirmedAllocationEndsAtOnce covers the call that opens the connection: the request is older than the connection.
func TestConfirmedAllocationEndsAtOnce(t *testing.T) {
	for _, age := range []time.Duration{0, time.Hour} {
		t.Run(age.String(), func(t *testing.T) {
			runScripted(t, age, func(t *testing.T, k *scriptedKubelet, c *Client) {
				k.setPods(newPod("one", "a"), newPod("two", "b"))
				k.dialDelay = 30 * ms
				wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
				k.setPods(newPod("two", "b"))
				h := c.ListAllocations(t.Context())
				wantDevice(t, h, "a", map[bool]string{true: "unknown", false: "unallocated"}[age == 0])
				wantDevice(t, h, "b", "allocated to two")
			})
		})
	}
}

// TestRunNoticesRestartWithoutScrapes covers a response of the old kubelet that arrives after the restart.
func TestRunNoticesRestartWithoutScrapes(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		defer c.startRun(t)()
		k.setPods(newPod("one", "a"))
		time.Sleep(11 * time.Second)
		wantDevice(t, c.current(), "a", "allocated to one")
		k.setPods()
		k.restart()
		time.Sleep(idleInterval + outageInterval) // the first empty responses
		wantDevice(t, c.current(), "a", "allocated to one")
		k.setPods(newPod("two", "a"))
		time.Sleep(idleInterval)
		wantDevice(t, c.current(), "a", "allocated to two")
		if err := c.current().Err; err != nil {
			t.Error(err)
		}
	})
}

func TestRunFindsLateKubelet(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		k.stop()
		if c.Ready() == nil {
			t.Error("ready before the first call")
		}
		defer c.startRun(t)()
		time.Sleep(30 * time.Second)
		if err := c.Ready(); err == nil || !strings.Contains(err.Error(), "List pod resources at") {
			t.Errorf("ready without a response, or without the reason: got %v", err)
		}
		k.setPods(newPod("one", "a"))
		k.start(0)
		time.Sleep(outageInterval + connectTimeout)
		wantDevice(t, c.current(), "a", "allocated to one")
		k.stop()
		time.Sleep(30 * time.Second)
		if err := c.Ready(); err != nil || c.current().Err == nil {
			t.Errorf("in a later outage: got %v, want ready", err)
		}
		if err := c.Alive(); err != nil {
			t.Error(err)
		}
	})
}

// TestFirstCallFindsRecoveredKubelet checks that the next call reconnects, rather than gRPC's next attempt.
func TestFirstCallFindsRecoveredKubelet(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		k.setPods(newPod("one", "a"))
		k.stop()
		for range 20 {
			time.Sleep(100 * ms)
			if c.ListAllocations(t.Context()).Err == nil {
				t.Fatal("no error without a kubelet")
			}
		}
		k.start(0)
		if h := c.ListAllocations(t.Context()); h.Err != nil {
			t.Error(h.Err)
		}
	})
}

func TestRunFetchesAllocatable(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		defer c.startRun(t)()
		synctest.Wait()
		if c.allocatableCounts() == nil {
			t.Error("GetAllocatableResources was not called at once")
		}
		time.Sleep(time.Minute)
		before := k.allocatableCallCount()
		for range 20 {
			c.OnAllocated(gpu, []device.AdvertisedID{"a"})
			time.Sleep(100 * ms)
		}
		if n := k.allocatableCallCount() - before; n > 3 {
			t.Errorf("calls in two seconds of lookups: got %d", n)
		}
		time.Sleep(time.Minute)
		if n := k.allocatableCallCount() - before; n < 6 {
			t.Errorf("calls in a minute: got %d", n)
		}
	})
}

// TestListSentFetchesAllocatable checks that device lists cause a limited number of calls.
func TestListSentFetchesAllocatable(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		defer c.startRun(t)()
		synctest.Wait()
		k.setAllocatable(&api.AllocatableResourcesResponse{Devices: []*api.ContainerDevices{{ResourceName: gpu, DeviceIds: []string{"a"}}}})
		c.OnListSent() // right after a call
		time.Sleep(allocatableInterval + minRefreshDelay)
		synctest.Wait()
		if n := c.allocatableCounts()[gpu]; n != 1 {
			t.Errorf("got %d allocatable devices, want 1", n)
		}
		time.Sleep(time.Minute)
		before := k.allocatableCallCount()
		for range 10 {
			c.OnListSent()
			time.Sleep(100 * ms)
		}
		time.Sleep(2 * allocatableInterval)
		if n := k.allocatableCallCount() - before; n < 2 || n > 3 {
			t.Errorf("calls after ten device lists in a second: got %d", n)
		}
	})
}

// TestAllocatableIsUnknownAfterFailure checks that resources from before an outage are dropped: they would look like current values.
func TestAllocatableIsUnknownAfterFailure(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		defer c.startRun(t)()
		time.Sleep(time.Second)
		for range 2 {
			if c.allocatableCounts() == nil {
				t.Error("after a response, allocatable devices are unknown")
			}
			k.stop()
			if h := c.ListAllocations(t.Context()); h.Err == nil || c.allocatableCounts() != nil {
				t.Errorf("in the outage (%v) allocatable devices are %v, want unknown", h.Err, c.allocatableCounts())
			}
			k.start(0)
			time.Sleep(outageInterval + 3*minRefreshDelay) // Run has noticed both
		}
		k.mu.Lock()
		k.allocatableErr = errBroken
		k.mu.Unlock()
		time.Sleep(2 * idleInterval)
		if got := c.allocatableCounts(); got != nil || c.current().Err != nil {
			t.Errorf("after an error allocatable devices are %v, want unknown", got)
		}
	})
}

func TestRunEndsAtOnce(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		var log kubeletLogBuffer
		c.options.Log = log.log()
		stop := c.startRun(t)
		k.setOnList(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		c.OnAllocated(gpu, []device.AdvertisedID{"a"})
		time.Sleep(200 * ms)
		begin := time.Now()
		stop()
		if took := time.Since(begin); took != 0 {
			t.Errorf("took %s", took)
		}
		if logged := log.String(); logged != "" {
			t.Errorf("the end of Run was logged as an outage:\n%s", logged)
		}
		if h := c.ListAllocations(t.Context()); h.Err == nil {
			t.Error("no error on a closed connection")
		}
	})
}

// TestTooLargeResponse has responses that no node needs. Each is logged once with its size, and the last owners stay.
func TestTooLargeResponse(t *testing.T) {
	many := func(n int, format string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return all
	}
	for name, pods := range map[string][]*api.PodResources{
		"message":          {newPod("two", strings.Repeat("b", 64<<20))},
		"claim rows":       {newPodWith("two", addClaims(newContainer("main"), "many", many(maxOwnedRows+2, "nic.example.com/nic-%d")...))},
		"CDI names":        {newPodWith("two", addClaims(newContainer("main"), "many", many(maxRows+2, "nic.example.com/nic-%d")...))},
		"ids of own form":  {newPod("two", many(maxOwnedRows+2, "GPU-%08x-0000-0000-0000-000000000000")...)},
		"names of foreign": {newPodWith("two", &api.ContainerResources{Name: "main", Devices: foreignResources(maxRows + 2)})},
		"CPU ids":          {newPodWith("two", &api.ContainerResources{Name: "main", CpuIds: make([]int64, maxRows+1)})},
		"pods":             make([]*api.PodResources, maxOwnedRows+1),
		"long name":        {newPodWith("two", newContainer(strings.Repeat("b", maxNameBytes+1), "b"))},
	} {
		t.Run(name, func(t *testing.T) {
			runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
				var log kubeletLogBuffer
				c.options.Log = log.log()
				c.options.Devices = claimIndex(func(device.Claim) (device.ID, bool) { return "", false })
				k.setPods(newPod("one", "a"))
				defer c.startRun(t)()
				time.Sleep(time.Second)
				for i := range pods {
					pods[i] = cmp.Or(pods[i], &api.PodResources{})
				}
				k.setPods(pods...)
				for range 3 {
					if err := c.ListAllocations(t.Context()).Err; err == nil {
						t.Error("Err: got nil")
					}
					wantDevice(t, c.current(), "a", "allocated to one")
					time.Sleep(3 * time.Second)
				}
				begin := time.Now()
				for range 20 { // as frequent scrapes do
					c.ListAllocations(t.Context())
					time.Sleep(100 * ms)
				}
				if calls := len(k.listCallsSince(begin)); calls > 3 {
					t.Errorf("got %d calls in 2 s, want a pause", calls)
				}
				if logged := log.String(); strings.Count(logged, "level=WARN") != 1 || !regexp.MustCompile(`\d{3,} (bytes|vs)`).MatchString(logged) {
					t.Errorf("got log %s, want one warning with the size", logged)
				}
				k.setPods(newPod("three", "a"))
				time.Sleep(maxBackoff)
				wantDevice(t, c.current(), "a", "allocated to three")
			})
		})
	}
}

// TestManyAllocatableReplicas lists replicas of eight GPUs up to the kubelet's limit for a plugin, each with a NUMA node as the kubelet does.
func TestManyAllocatableReplicas(t *testing.T) {
	for replicas, want := range map[int]bool{1200: true, 7500: true, 12000: false} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			response := &api.AllocatableResourcesResponse{}
			for i := range 8 * replicas {
				response.Devices = append(response.Devices, &api.ContainerDevices{
					ResourceName: gpu, DeviceIds: []string{fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000::%d", i%8, i/8)},
					Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(i % 2)}}},
				})
			}
			runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
				var log kubeletLogBuffer
				c.options.Log = log.log()
				k.setAllocatable(response)
				defer c.startRun(t)()
				time.Sleep(time.Second)
				r := c.current().Resources
				if n := len(r.Allocatable.Devices); r.AllocatableKnown != want || want && n != 8*replicas {
					t.Errorf("got known %t, %d devices, log %s; want known %t", r.AllocatableKnown, n, log.String(), want)
				}
			})
		})
	}
}

// foreignResources returns one device each of many resources.
func foreignResources(n int) (all []*api.ContainerDevices) {
	for i := range n {
		all = append(all, &api.ContainerDevices{ResourceName: fmt.Sprint("example.com/", i), DeviceIds: []string{"x"}})
	}
	return all
}

// TestTooLargeAllocatable lets GetAllocatableResources alone fail. Each outage is logged once, and List does not pause.
func TestTooLargeAllocatable(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		var log kubeletLogBuffer
		c.options.Log = log.log()
		k.setPods(newPod("one", "a"))
		k.setAllocatable(&api.AllocatableResourcesResponse{Devices: []*api.ContainerDevices{{ResourceName: gpu, DeviceIds: []string{strings.Repeat("b", 64<<20)}}}})
		defer c.startRun(t)()
		for range 100 {
			time.Sleep(700 * ms)
			if err := c.ListAllocations(t.Context()).Err; err != nil {
				t.Fatalf("List: %v", err)
			}
		}
		if c.current().Resources.AllocatableKnown || strings.Count(log.String(), "level=WARN") != 1 {
			t.Errorf("got allocatable resources %+v and log %s, want none and one warning", c.current().Resources.Allocatable, log.String())
		}
		k.setAllocatable(&api.AllocatableResourcesResponse{})
		time.Sleep(2 * idleInterval)
		if !c.current().Resources.AllocatableKnown {
			t.Error("allocatable resources unknown after a response")
		}
	})
}
