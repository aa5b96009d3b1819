package podresources

import (
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// What is allocated and never named is over with the last pod that may have it,
// whatever the kubelet's notes still have.
func TestAnAllocationEndsWithTheLastPodThatMayHaveIt(t *testing.T) {
	allocated := func(c *Client) { c.Allocated(gpu, []device.OfferedID{"a"}) }
	for name, play := range map[string]func(t *testing.T, k *scripted, c *Client, f file){
		"turned away after Allocate": func(t *testing.T, k *scripted, c *Client, f file) {
			allocated(c)
			time.Sleep(lookFor - ms)
			wantState(t, c.known(), "a", "unnamed")
		},
		"gone before anybody saw it": func(t *testing.T, k *scripted, c *Client, f file) {
			allocated(c)
			time.Sleep(time.Second) // without it there were answers
			k.says(pod("old", "b"), pod("later", "c"))
			time.Sleep(lookFor - 2*time.Second)
			wantState(t, c.known(), "a", "unnamed")
		},
		"an init container's": func(t *testing.T, k *scripted, c *Client, f file) {
			k.says(pod("old", "b"), pod("new"))
			allocated(c)
			time.Sleep(5 * time.Hour)
			wantState(t, c.known(), "a", "unnamed")
			k.says(pod("old", "b"), pod("later"))
		},
		"an init container's, and others came before and after": func(t *testing.T, k *scripted, c *Client, f file) {
			k.says(pod("old", "b"), pod("before"))
			time.Sleep(admittedWithin + idleEvery)
			k.says(pod("old", "b"), pod("before"), pod("new"))
			allocated(c)
			time.Sleep(time.Second)
			k.says(pod("old", "b"), pod("before"), pod("new"), pod("after"))
			time.Sleep(5 * time.Hour)
			wantState(t, c.known(), "a", "unnamed")
			k.says(pod("old", "b"), pod("before"), pod("after"))
		},
		"of a pod that another plugin kept waiting": func(t *testing.T, k *scripted, c *Client, f file) {
			k.says(pod("old", "b"), pod("new"))
			c.Owners(t.Context())
			time.Sleep(admittedWithin - ms)
			allocated(c)
			time.Sleep(time.Hour)
			wantState(t, c.known(), "a", "unnamed")
			k.says(pod("old", "b"))
		},
		"an init container's, and the kubelet is restarted": func(t *testing.T, k *scripted, c *Client, f file) {
			k.says(pod("old", "b"), pod("new"))
			allocated(c)
			time.Sleep(time.Minute)
			k.stop()
			time.Sleep(time.Minute)
			wantState(t, c.known(), "a", "unnamed")
			k.says()
			k.start(0)
			time.Sleep(20 * time.Second)
			wantState(t, c.known(), "a", "unnamed")
			k.says(pod("old", "b"))
			time.Sleep(20 * time.Second)
			wantState(t, c.known(), "a", "unnamed")
			k.says(pod("old", "b"), pod("new"))
			time.Sleep(time.Hour)
			wantState(t, c.known(), "a", "unnamed")
			k.says(pod("old", "b"))
		},
		"an init container's, whose pod ends while no kubelet runs": func(t *testing.T, k *scripted, c *Client, f file) {
			k.says(pod("old", "b"), pod("new"))
			allocated(c)
			time.Sleep(time.Minute)
			k.stop()
			k.says(pod("old", "b"))
			time.Sleep(time.Minute)
			k.start(0)
			time.Sleep(settleAfter - time.Second)
			wantState(t, c.known(), "a", "unnamed") // it may not have been read yet
		},
		"an init container's, whose pod is first listed by the next kubelet": func(t *testing.T, k *scripted, c *Client, f file) {
			allocated(c)
			k.stop()
			time.Sleep(time.Minute)
			k.start(0)
			time.Sleep(30 * time.Second)
			k.says(pod("old", "b"), pod("new"))
			time.Sleep(time.Hour)
			wantState(t, c.known(), "a", "unnamed")
			k.says(pod("old", "b"))
		},
		"turned away among others that came in the same second": func(t *testing.T, k *scripted, c *Client, f file) {
			allocated(c)
			f.has("a", "c")
			k.says(pod("old", "b"), pod("next", "c"))
			time.Sleep(lookFor - ms)
			wantState(t, c.known(), "a", "unnamed")
		},
		"an init container's among others that came in the same second": func(t *testing.T, k *scripted, c *Client, f file) {
			allocated(c)
			f.has("a", "c")
			k.says(pod("old", "b"), pod("new"), pod("next", "c"))
			time.Sleep(time.Hour)
			wantState(t, c.known(), "a", "unnamed")
			k.says(pod("old", "b"), pod("next", "c"))
		},
		"an init container's of a pod that has others": func(t *testing.T, k *scripted, c *Client, f file) {
			allocated(c)
			f.by("a", "pod", "c", "pod")
			k.says(pod("old", "b"), pod("new", "c"))
			time.Sleep(time.Hour)
			wantState(t, c.known(), "a", "unnamed")
			k.says(pod("old", "b"))
		},
		"written down late": func(t *testing.T, k *scripted, c *Client, f file) {
			f.by("a", "before", "c", "gone")
			time.Sleep(stampedLate + ms)
			allocated(c)
			c.Allocated(gpu, []device.OfferedID{"c"})
			k.says(pod("old", "b"), pod("new", "c"))
			time.Sleep(time.Hour) // another plugin hangs meanwhile
			wantState(t, c.known(), "a", "unnamed")
			f.by("a", "pod", "c", "pod")
			time.Sleep(time.Hour)
			wantState(t, c.known(), "a", "unnamed")
			k.says(pod("old", "b"))
		},
		"another's next": func(t *testing.T, k *scripted, c *Client, f file) {
			k.says(pod("old", "b"), pod("new"))
			allocated(c)
			time.Sleep(time.Hour)
			allocated(c)
			k.says(pod("old", "b"), pod("next", "a"))
			time.Sleep(time.Minute)
			wantState(t, c.known(), "a", "held by next")
			k.says(pod("old", "b"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkpointed(t, func(t *testing.T, k *scripted, c *Client, f file, _ *lines) {
				f.has("a", "b") // and the kubelet does not write again
				k.says(pod("old", "b"))
				time.Sleep(2 * lookFor)
				play(t, k, c, f)
				time.Sleep(lookFor + idleEvery)
				wantState(t, c.known(), "a", "idle")
				wantState(t, c.known(), "b", "held by old")
			})
		})
	}
}

// Of what an earlier process was told nobody knows who came for it: all that were
// there when this one began may have it.
func TestAnAllocationOfAnEarlierProcessEndsWithThePodsOfItsTime(t *testing.T) {
	f := newFile(t)
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		c.Checkpoint = f.path
		k.says(pod("one"), pod("two"))
		defer c.runs(t)()
		time.Sleep(700 * ms)
		f.has("a")
		time.Sleep(time.Minute)
		k.says(pod("two"), pod("later"))
		time.Sleep(time.Hour)
		wantState(t, c.known(), "a", "unnamed")
		k.says(pod("later"))
		time.Sleep(idleEvery)
		wantState(t, c.known(), "a", "idle")

		k.restart() // and what the next kubelet writes when it has read its pods
		for begin := time.Now(); c.asOf().Before(begin.Add(settleAfter)); {
			time.Sleep(100 * ms)
		}
		f.has("a")
		time.Sleep(time.Hour)
		wantState(t, c.known(), "a", "unnamed")
		k.says()
		time.Sleep(idleEvery)
		wantState(t, c.known(), "a", "idle")
	})
}

// asOf is when the newest answer was asked for.
func (c *Client) asOf() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory.asked
}

func TestWhoAreOthers(t *testing.T) {
	now := time.Unix(1<<30, 0)
	a, p := allocation{gpu, "a"}, podName{"team", "p"}
	for name, test := range map[string]struct {
		noted, pods string // UIDs: of the allocation, and of the pod
		written     time.Time
		want        bool
	}{
		"another":                             {"u", "v", now, true},
		"the same":                            {"u", "u", now, false},
		"an allocation of nobody known":       {"", "v", now, false},
		"a pod that holds nothing":            {"u", "", now, false},
		"notes of before":                     {"u", "v", now.Add(-stampedLate - 1), false},
		"notes of now, stamped with the tick": {"u", "v", now.Add(-stampedLate), true},
	} {
		t.Run(name, func(t *testing.T) {
			n := notes{allocated: map[allocation]string{a: test.noted}, written: test.written}
			if got := n.others(a, span{now, now}, map[podName]string{p: test.pods})(p); got != test.want {
				t.Errorf("it is known to be another: %t", got)
			}
		})
	}
}
