package podresources

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// callsSince formats the number of Lists and the pods of Get since a time.
func (k *scriptedKubelet) callsSince(from time.Time) string {
	lists := len(k.listCallsSince(from))
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprintf("%d lists, %v", lists, k.getCalls)
}

// runUntilIdle runs a client until no lookup is pending and a List was just called.
func runUntilIdle(t *testing.T, c *Client) (stop func()) {
	stop = c.startRun(t)
	time.Sleep(15 * time.Second)
	c.ListAllocations(t.Context())
	time.Sleep(time.Millisecond)
	return stop
}

// TestGetReplacesList checks that an added pod causes a Get instead of a List.
func TestGetReplacesList(t *testing.T) {
	for _, early := range []time.Duration{5 * time.Second, 0, -20 * ms, -80 * ms} {
		t.Run(fmt.Sprint("added ", early, " before"), func(t *testing.T) {
			runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
				k.setPods(newPod("old", "b"))
				defer runUntilIdle(t, c)()
				if early > 0 {
					c.OnPodAdded("team", "new")
					time.Sleep(early)
					if got := k.callsSince(time.Now()); got != "0 lists, []" {
						t.Errorf("calls before Allocate: got %s", got)
					}
				}
				begin := time.Now()
				c.OnAllocated(gpu, []device.AdvertisedID{"a"})
				k.setPods(newPod("old"), newPod("new", "a")) // old no longer has a device
				_, changed := c.Snapshot()
				if early <= 0 {
					time.Sleep(-early)
					c.OnPodAdded("team", "new")
				}
				<-changed
				if took := time.Since(begin); took > max(50*ms, 50*ms-early) {
					t.Errorf("owner lookup: got %s", took)
				}
				wantDevice(t, c.current(), "a", "allocated to new")
				want, other := "0 lists, [new]", "allocated to old" // not listed since
				if early < -50*ms {                                 // too late: List was called
					want, other = "1 lists, []", "unallocated"
				}
				wantDevice(t, c.current(), "b", other)
				time.Sleep(4 * time.Second)
				if got := k.callsSince(begin); got != want {
					t.Errorf("calls: got %s, want %s", got, want)
				}
				time.Sleep(10 * time.Second) // the end of an allocation is noticed by then
				wantDevice(t, c.current(), "b", "unallocated")
				wantDevice(t, c.current(), "a", "allocated to new")
			})
		})
	}
}

// TestGetOfDifferentPod covers pods without the device and a kubelet without Get: List finds the owner.
func TestGetOfDifferentPod(t *testing.T) {
	for name, change := range map[string]struct {
		arrive []string
		get    error
		want   string
	}{
		"pod without devices": {[]string{"other"}, nil, "1 lists, [other]"},
		"deleted pod":         {[]string{"gone"}, nil, "1 lists, [gone]"},
		"second of two pods":  {[]string{"other", "new"}, nil, "0 lists, [other new]"},
		"too many pods":       {[]string{"1", "2", "3", "new"}, nil, "1 lists, []"},
		"kubelet 1.26":        {[]string{"new"}, status.Error(codes.Unimplemented, "unknown method Get for service v1.PodResourcesLister"), "1 lists, [new]"},
		"feature gate off":    {[]string{"new"}, errors.New("PodResources API Get method disabled"), "1 lists, [new]"},
		"rejected call":       {[]string{"new"}, status.Error(codes.ResourceExhausted, "rejected by rate limit"), "1 lists, [new]"},
		"other error":         {[]string{"new"}, status.Error(codes.Internal, "something"), "1 lists, [new]"},
	} {
		t.Run(name, func(t *testing.T) {
			runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
				k.setPods(newPod("other"), newPod("new"))
				k.setGetError(change.get)
				defer runUntilIdle(t, c)()
				for _, p := range change.arrive {
					c.OnPodAdded("team", p)
				}
				begin := time.Now()
				c.OnAllocated(gpu, []device.AdvertisedID{"a"})
				k.setPods(newPod("other"), newPod("new", "a"))
				_, changed := c.Snapshot()
				<-changed
				wantDevice(t, c.current(), "a", "allocated to new")
				if got := k.callsSince(begin); got != change.want {
					t.Errorf("calls: got %s, want %s", got, change.want)
				}
				time.Sleep(4 * time.Second)
				if took := k.callsSince(begin); took != change.want {
					t.Errorf("later calls: got %s", took)
				}
			})
		})
	}
}

// TestGetAfterRestart checks that Get is ignored on a connection without a List: the kubelet may be new.
func TestGetAfterRestart(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		k.setPods(newPod("old", "b"))
		c.ListAllocations(t.Context())
		c.OnAllocated(gpu, []device.AdvertisedID{"a"})
		k.setPods(newPod("new", "a", "b"))
		if err := c.confirmPod(t.Context(), podName{"team", "new"}); err != nil {
			t.Fatal(err)
		}
		wantDevice(t, c.current(), "a", "allocated to new")
		wantDevice(t, c.current(), "b", "allocated to old") // Get ends no allocation
		c.OnAllocated(gpu, []device.AdvertisedID{"c"})
		k.setPods(newPod("newer", "c"))
		k.restart()
		if err := c.confirmPod(t.Context(), podName{"team", "newer"}); err != nil {
			t.Fatal(err)
		}
		wantDevice(t, c.current(), "c", "pending")
		wantDevice(t, c.ListAllocations(t.Context()), "c", "allocated to newer")
	})
}

// setGetError sets the error of all later calls of Get.
func (k *scriptedKubelet) setGetError(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.onGet = func(context.Context) error { return err }
}
