package podresources

import (
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// A pod that ends soon after the kubelet has come back is gone from the next answer: Run has
// looked, though nobody else asked, until those who stand were named.
func TestRunLooksForThoseWhoStand(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		stop := c.runs(t)
		defer stop()
		k.says(pod("one", "a"), pod("two", "b"))
		time.Sleep(ms) // Run's first question is over
		wantState(t, c.Owners(t.Context()), "a", "held by one")
		k.says()
		k.restart()
		wantState(t, c.Owners(t.Context()), "a", "held by one")
		time.Sleep(150 * ms)
		k.says(pod("one", "a"), pod("two", "b"))
		time.Sleep(400 * ms)
		k.says(pod("two", "b"))
		h := c.Owners(t.Context())
		wantState(t, h, "a", "idle")
		wantState(t, h, "b", "held by two")
	})
}

// All that stand are named: there is nothing more to look for.
func TestRunStopsLookingWhenAllWhoStandAreNamed(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		stop := c.runs(t)
		defer stop()
		k.says(pod("one", "a"))
		c.Owners(t.Context())
		k.restart()
		c.Owners(t.Context())
		time.Sleep(time.Second)
		rest := time.Now()
		time.Sleep(idleEvery - 2*time.Second)
		if asked := k.since(rest); len(asked) != 0 {
			t.Errorf("it was asked %v after all were named", asked)
		}
	})
}

// Whoever learns that there is a new kubelet says so, and it is asked soon, though nobody
// scrapes and no question has failed.
func TestAKubeletThatIsBackIsAskedSoon(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		stop := c.runs(t)
		defer stop()
		k.says(pod("one", "a"))
		c.Owners(t.Context())
		time.Sleep(time.Second)
		k.restart()
		c.Returned()
		time.Sleep(500 * ms)
		k.says()
		time.Sleep(500 * ms)
		// It has named the pod over its new connection, so that the next answer is believed.
		wantState(t, c.Owners(t.Context()), "a", "idle")
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
		checkpointed(t, func(t *testing.T, k *scripted, client *Client, f file, _ *lines) {
			f.has("a", "b")
			k.says(pod("one", "a"), pod("two", "b"))
			time.Sleep(2 * idleEvery) // Run has read it
			k.says(pod("two", "b"))
			k.restart()
			wantState(t, client.Owners(t.Context()), "a", "held by one")
			time.Sleep(time.Second)
			f.has(c.written...)
			time.Sleep(2 * lookSlowest)
			wantState(t, client.known(), "a", c.want)
			wantState(t, client.known(), "b", "held by two")
		})
	}
}

// Notes of before the restart say nothing of after it.
func TestOldNotesFreeNobody(t *testing.T) {
	checkpointed(t, func(t *testing.T, k *scripted, c *Client, f file, _ *lines) {
		f.has("a", "b")
		k.says(pod("one", "a"), pod("two", "b"))
		time.Sleep(2 * idleEvery)
		k.stop()
		f.has("b") // by whoever ended it: the kubelet of now has not begun
		time.Sleep(time.Second)
		k.says(pod("two", "b"))
		k.start(0)
		c.Owners(t.Context())
		time.Sleep(2 * lookSlowest)
		wantState(t, c.known(), "a", "held by one")
	})
}

// A pod of which the Pods API has said that it is over does not stand through a restart, nor
// while no kubelet answers; one that is listed under its name is another one.
func TestWhoIsSaidToHaveEndedDoesNotStand(t *testing.T) {
	for name, play := range map[string]func(t *testing.T, k *scripted, c *Client){
		"the kubelet is restarted": func(t *testing.T, k *scripted, c *Client) {
			c.Ended("team", "one")
			k.says()
			k.restart()
			wantState(t, c.Owners(t.Context()), "a", "idle")
			wantState(t, c.Owners(t.Context()), "b", "held by two")
		},
		"the kubelet is gone": func(t *testing.T, k *scripted, c *Client) {
			c.Ended("team", "one")
			k.stop()
			wantState(t, c.Owners(t.Context()), "a", "idle")
			wantState(t, c.Owners(t.Context()), "b", "held by two")
			k.start(0)
		},
		"it is told of after the restart": func(t *testing.T, k *scripted, c *Client) {
			k.says()
			k.restart()
			wantState(t, c.Owners(t.Context()), "a", "held by one")
			c.Ended("team", "one")
			wantState(t, c.known(), "a", "held by one")
			time.Sleep(ms)
			wantState(t, c.Owners(t.Context()), "a", "idle")
			wantState(t, c.Owners(t.Context()), "b", "held by two")
		},
		"the kubelet still lists it": func(t *testing.T, k *scripted, c *Client) {
			c.Ended("team", "one")
			time.Sleep(ms)
			wantState(t, c.Owners(t.Context()), "a", "held by one")
			k.stop() // it was another one of that name
			wantState(t, c.Owners(t.Context()), "a", "held by one")
			k.start(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
				k.says(pod("one", "a"), pod("two", "b"))
				wantState(t, c.Owners(t.Context()), "a", "held by one")
				play(t, k, c)
			})
		})
	}
}

// The next pod of the name, as a StatefulSet has it, has not ended with the one before, also
// where the kubelet has lists for nobody since.
func TestTheNextOfTheNameHasNotEnded(t *testing.T) {
	r := newRemembering()
	then := func() time.Time { r.now = r.now.Add(time.Second); return r.now }
	r.hears(holding("a", "one"))
	r.noteEnd(podName{"team", "one"}, then())
	r.allocated(gpu, []device.OfferedID{"a"}, then())
	r.name([]device.Holding{holding("a", "one")}, r.link, then())
	r.bury(then())
	wantState(t, device.Holders{Held: r.held, Settled: r.settled}, "a", "held by one")
}

// Nobody is remembered to have ended who holds nothing.
func TestWhoHoldsNothingNeedNotEnd(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.says(pod("one", "a"))
		c.Owners(t.Context())
		for range 1000 {
			c.Ended("team", "other")
		}
		if n := len(c.memory.ended); n != 0 {
			t.Errorf("%d are", n)
		}
	})
}
