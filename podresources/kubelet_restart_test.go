package podresources

import (
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// A pod that ends soon after the kubelet has come back is gone from the next answer: Run has
// looked, though nobody else asked, until those who stand were named.
func TestRunLooksForThoseWhoStand(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		stop := c.startRun(t)
		defer stop()
		k.setPods(newPod("one", "a"), newPod("two", "b"))
		time.Sleep(ms) // Run's first question is over
		wantDevice(t, c.ListAllocations(t.Context()), "a", "held by one")
		k.setPods()
		k.restart()
		wantDevice(t, c.ListAllocations(t.Context()), "a", "held by one")
		time.Sleep(150 * ms)
		k.setPods(newPod("one", "a"), newPod("two", "b"))
		time.Sleep(400 * ms)
		k.setPods(newPod("two", "b"))
		h := c.ListAllocations(t.Context())
		wantDevice(t, h, "a", "idle")
		wantDevice(t, h, "b", "held by two")
	})
}

// All that stand are named: there is nothing more to look for.
func TestRunStopsLookingWhenAllWhoStandAreNamed(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		stop := c.startRun(t)
		defer stop()
		k.setPods(newPod("one", "a"))
		c.ListAllocations(t.Context())
		k.restart()
		c.ListAllocations(t.Context())
		time.Sleep(time.Second)
		rest := time.Now()
		time.Sleep(idleInterval - 2*time.Second)
		if asked := k.listCallsSince(rest); len(asked) != 0 {
			t.Errorf("it was asked %v after all were named", asked)
		}
	})
}

// Whoever learns that there is a new kubelet says so, and it is asked soon, though nobody
// scrapes and no question has failed.
func TestAKubeletThatIsBackIsAskedSoon(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		stop := c.startRun(t)
		defer stop()
		k.setPods(newPod("one", "a"))
		c.ListAllocations(t.Context())
		time.Sleep(time.Second)
		k.restart()
		c.OnRegistered()
		time.Sleep(500 * ms)
		k.setPods()
		time.Sleep(500 * ms)
		// It has named the pod over its new connection, so that the next answer is believed.
		wantDevice(t, c.ListAllocations(t.Context()), "a", "idle")
	})
}

// A pod that ended while nobody could see it stands, until the kubelet has written down that it
// has nothing.
func TestWhomTheKubeletHasFreedStandsNoMore(t *testing.T) {
	for _, c := range []struct {
		written []string // after the restart
		want    string
	}{
		{[]string{"a", "b"}, "held by one"}, // as the kubelet found it, with what is long over
		{[]string{"b"}, "idle"},
	} {
		runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, client *Client, f checkpointFile, _ *kubeletLogBuffer) {
			f.writeIDs("a", "b")
			k.setPods(newPod("one", "a"), newPod("two", "b"))
			time.Sleep(2 * idleInterval) // Run has read it
			k.setPods(newPod("two", "b"))
			k.restart()
			wantDevice(t, client.ListAllocations(t.Context()), "a", "held by one")
			time.Sleep(time.Second)
			f.writeIDs(c.written...)
			time.Sleep(2 * maxRefreshDelay)
			wantDevice(t, client.current(), "a", c.want)
			wantDevice(t, client.current(), "b", "held by two")
		})
	}
}

// Notes of before the restart say nothing of after it.
func TestOldNotesFreeNobody(t *testing.T) {
	runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, _ *kubeletLogBuffer) {
		f.writeIDs("a", "b")
		k.setPods(newPod("one", "a"), newPod("two", "b"))
		time.Sleep(2 * idleInterval)
		k.stop()
		f.writeIDs("b") // by whoever ended it: the kubelet of now has not begun
		time.Sleep(time.Second)
		k.setPods(newPod("two", "b"))
		k.start(0)
		c.ListAllocations(t.Context())
		time.Sleep(2 * maxRefreshDelay)
		wantDevice(t, c.current(), "a", "held by one")
	})
}

// A pod of which the Pods API has said that it is over does not stand through a restart, nor
// while no kubelet answers; one that is listed under its name is another one.
func TestWhoIsSaidToHaveEndedDoesNotStand(t *testing.T) {
	for name, play := range map[string]func(t *testing.T, k *scriptedKubelet, c *Client){
		"the kubelet is restarted": func(t *testing.T, k *scriptedKubelet, c *Client) {
			c.OnPodEnded("team", "one")
			k.setPods()
			k.restart()
			wantDevice(t, c.ListAllocations(t.Context()), "a", "idle")
			wantDevice(t, c.ListAllocations(t.Context()), "b", "held by two")
		},
		"the kubelet is gone": func(t *testing.T, k *scriptedKubelet, c *Client) {
			c.OnPodEnded("team", "one")
			k.stop()
			wantDevice(t, c.ListAllocations(t.Context()), "a", "idle")
			wantDevice(t, c.ListAllocations(t.Context()), "b", "held by two")
			k.start(0)
		},
		"it is told of after the restart": func(t *testing.T, k *scriptedKubelet, c *Client) {
			k.setPods()
			k.restart()
			wantDevice(t, c.ListAllocations(t.Context()), "a", "held by one")
			c.OnPodEnded("team", "one")
			wantDevice(t, c.current(), "a", "held by one")
			time.Sleep(ms)
			wantDevice(t, c.ListAllocations(t.Context()), "a", "idle")
			wantDevice(t, c.ListAllocations(t.Context()), "b", "held by two")
		},
		"the kubelet still lists it": func(t *testing.T, k *scriptedKubelet, c *Client) {
			c.OnPodEnded("team", "one")
			time.Sleep(ms)
			wantDevice(t, c.ListAllocations(t.Context()), "a", "held by one")
			k.stop() // it was another one of that name
			wantDevice(t, c.ListAllocations(t.Context()), "a", "held by one")
			k.start(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
				k.setPods(newPod("one", "a"), newPod("two", "b"))
				wantDevice(t, c.ListAllocations(t.Context()), "a", "held by one")
				play(t, k, c)
			})
		})
	}
}

// The next pod of the name, as a StatefulSet has it, has not ended with the one before, also
// where the kubelet has lists for nobody since.
func TestTheNextOfTheNameHasNotEnded(t *testing.T) {
	r := newHistoryTracker()
	then := func() time.Time { r.now = r.now.Add(time.Second); return r.now }
	r.applyList(newAllocation("a", "one"))
	r.markPodEnded(podName{"team", "one"}, then())
	r.recordAllocate(gpu, []device.AdvertisedID{"a"}, then())
	r.confirmPod([]device.Allocation{newAllocation("a", "one")}, r.epoch, then())
	r.dropEndedPods(then())
	wantDevice(t, device.Allocations{All: r.allocations, Complete: r.settled}, "a", "held by one")
}

// Nobody is remembered to have ended who holds nothing.
func TestWhoHoldsNothingNeedNotEnd(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		k.setPods(newPod("one", "a"))
		c.ListAllocations(t.Context())
		for range 1000 {
			c.OnPodEnded("team", "other")
		}
		if n := len(c.tracker.endedPods); n != 0 {
			t.Errorf("%d are", n)
		}
	})
}
