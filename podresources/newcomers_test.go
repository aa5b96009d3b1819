package podresources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// asks are the questions since a time: how often List was asked, and whom Get was about.
func (k *scripted) asks(from time.Time) string {
	lists := len(k.since(from))
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprintf("%d lists, %v", lists, k.got)
}

// quiet runs a client until it has nothing to look for, and has just asked for a List.
func quiet(t *testing.T, c *Client) (stop func()) {
	stop = c.runs(t)
	time.Sleep(15 * time.Second)
	c.Owners(t.Context())
	time.Sleep(time.Millisecond)
	return stop
}

// A pod of which one has been told is asked about by itself, and nobody is listed.
func TestANewcomerIsAskedAbout(t *testing.T) {
	for _, early := range []time.Duration{5 * time.Second, 0, -20 * ms, -80 * ms} {
		t.Run(fmt.Sprint("told ", early, " before"), func(t *testing.T) {
			bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
				k.says(pod("old", "b"))
				defer quiet(t, c)()
				if early > 0 {
					c.Arrived("team", "new")
					time.Sleep(early)
					if got := k.asks(time.Now()); got != "0 lists, []" {
						t.Errorf("before it is allocated anything there are %s", got)
					}
				}
				begin := time.Now()
				c.Allocated(gpu, []device.OfferedID{"a"})
				k.says(pod("old"), pod("new", "a")) // of which old has nothing any more
				_, changed := c.Look()
				if early <= 0 {
					time.Sleep(-early)
					c.Arrived("team", "new")
				}
				<-changed
				if took := time.Since(begin); took > max(50*ms, 50*ms-early) {
					t.Errorf("its name took %s", took)
				}
				wantState(t, c.known(), "a", "held by new")
				want, other := "0 lists, [new]", "held by old" // of whom nobody has asked
				if early < -50*ms {                            // too late: a List was asked
					want, other = "1 lists, []", "idle"
				}
				wantState(t, c.known(), "b", other)
				time.Sleep(4 * time.Second)
				if got := k.asks(begin); got != want {
					t.Errorf("there are %s, want %s", got, want)
				}
				time.Sleep(10 * time.Second) // the end of a holding is noticed no later
				wantState(t, c.known(), "b", "idle")
				wantState(t, c.known(), "a", "held by new")
			})
		})
	}
}

// One who is told of and is not the one that is waited for costs two questions, and keeps
// nobody from being found.
func TestANewcomerWhoIsNotTheOne(t *testing.T) {
	for name, change := range map[string]struct {
		arrive []string
		get    error
		want   string
	}{
		"it has nothing":                {[]string{"other"}, nil, "1 lists, [other other]"},
		"it is gone":                    {[]string{"gone"}, nil, "1 lists, [gone gone]"},
		"one of two":                    {[]string{"other", "new"}, nil, "0 lists, [other new]"},
		"too many":                      {[]string{"1", "2", "3", "new"}, nil, "1 lists, []"},
		"a kubelet of 1.26":             {[]string{"new"}, status.Error(codes.Unimplemented, "unknown method Get for service v1.PodResourcesLister"), "1 lists, [new]"},
		"a kubelet with the gate off":   {[]string{"new"}, errors.New("PodResources API Get method disabled"), "1 lists, [new]"},
		"a kubelet that refuses":        {[]string{"new"}, status.Error(codes.ResourceExhausted, "rejected by rate limit"), "1 lists, [new]"},
		"a kubelet that says something": {[]string{"new"}, status.Error(codes.Internal, "something"), "1 lists, [new]"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
				k.says(pod("other"), pod("new"))
				k.fails(change.get)
				defer quiet(t, c)()
				for _, p := range change.arrive {
					c.Arrived("team", p)
				}
				begin := time.Now()
				c.Allocated(gpu, []device.OfferedID{"a"})
				k.says(pod("other"), pod("new", "a"))
				_, changed := c.Look()
				<-changed
				wantState(t, c.known(), "a", "held by new")
				if got := k.asks(begin); got != change.want {
					t.Errorf("there are %s, want %s", got, change.want)
				}
				time.Sleep(4 * time.Second)
				if took := k.asks(begin); took != change.want {
					t.Errorf("later there are %s", took)
				}
			})
		})
	}
}

// A kubelet without Get is asked for it once in its life.
func TestGetIsNotAskedForTwice(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.fails(status.Error(codes.Unimplemented, "unknown method Get"))
		defer quiet(t, c)()
		var pods []*api.PodResources
		arrives := func(name string) {
			c.Arrived("team", name)
			c.Allocated(gpu, []device.OfferedID{device.OfferedID(name)})
			pods = append(pods, pod(name, name))
			k.says(pods...)
			time.Sleep(time.Second)
			wantState(t, c.known(), device.ID(name), "held by "+name)
		}
		begin := time.Now()
		arrives("a")
		arrives("b")
		arrives("c")
		if got := k.asks(begin); got != "3 lists, [a]" {
			t.Errorf("there are %s", got)
		}
		k.restart()
		k.fails(nil)
		c.Owners(t.Context())
		begin = time.Now().Add(1)
		arrives("d")
		if got := k.asks(begin); got != "0 lists, [a d]" {
			t.Errorf("of its successor there are %s", got)
		}
	})
}

// Many who come and hold nothing, while an init container's device waits for a name that
// nobody will say: there are no more Lists than without them, and not many Gets.
func TestNewcomersWithNothing(t *testing.T) {
	lists := func(arrive bool) (n int) {
		bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
			k.says(pod("init"))
			defer quiet(t, c)()
			begin := time.Now()
			c.Allocated(gpu, []device.OfferedID{"a"})
			for i := range 100 {
				if arrive {
					c.Arrived("team", fmt.Sprint(i))
				}
				time.Sleep(90 * ms)
			}
			n = len(k.since(begin))
			k.mu.Lock()
			defer k.mu.Unlock()
			if most := newcomerAsks * 100; len(k.got) > most || arrive && len(k.got) < 50 {
				t.Errorf("Get was asked %d times", len(k.got))
			}
			for _, name := range k.got {
				if count := len(slices.DeleteFunc(slices.Clone(k.got), func(other string) bool { return other != name })); count > newcomerAsks {
					t.Errorf("Get was asked about %s %d times", name, count)
				}
			}
		})
		return n
	}
	without, with := lists(false), lists(true)
	if without < 8 || with > without {
		t.Errorf("with newcomers there are %d lists, without %d", with, without)
	}
}

// What Get says over a connection that no List has come over yet is nobody's name: the
// kubelet is another one.
func TestANewcomerOfARestartedKubelet(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.says(pod("old", "b"))
		c.Owners(t.Context())
		c.Allocated(gpu, []device.OfferedID{"a"})
		k.says(pod("new", "a", "b"))
		if err := c.askNewcomer(t.Context(), podName{"team", "new"}); err != nil {
			t.Fatal(err)
		}
		wantState(t, c.known(), "a", "held by new")
		wantState(t, c.known(), "b", "held by old") // it is not Get's to take away
		c.Allocated(gpu, []device.OfferedID{"c"})
		k.says(pod("newer", "c"))
		k.restart()
		if err := c.askNewcomer(t.Context(), podName{"team", "newer"}); err != nil {
			t.Fatal(err)
		}
		wantState(t, c.known(), "c", "unnamed")
		wantState(t, c.Owners(t.Context()), "c", "held by newer")
	})
}

// fails has Get answer with an error from now on.
func (k *scripted) fails(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.get = func(context.Context) error { return err }
}
