package podresources

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// remembering is a memory whose kubelet can be believed, at a time of the test's.
type remembering struct {
	memory
	now time.Time
}

func newRemembering() *remembering {
	return &remembering{memory: newMemory(), now: time.Unix(1<<30, 0)}
}

// hears takes an answer in that lists the holdings.
func (r *remembering) hears(held ...device.Holding) {
	a := newAnswer()
	a.held = held
	r.take(&a, link{connected: r.now.Add(-time.Hour), kubeletStart: r.now.Add(-time.Hour)}, r.now)
}

func (r *remembering) pods() (names []string) {
	for _, s := range r.recent.seen() {
		names = append(names, s.Owner.Pod)
	}
	return names
}

func holding(id device.OfferedID, pod string) device.Holding {
	return device.Holding{Resource: gpu, Offered: id, Owner: owner(pod)}
}

func TestHistoryKeepsTheLastEight(t *testing.T) {
	r := newRemembering()
	for i := range 12 {
		r.now = r.now.Add(time.Second)
		r.hears(holding("a", fmt.Sprintf("pod-%02d", 11-i)))
	}
	want := []string{"pod-00", "pod-01", "pod-02", "pod-03", "pod-04", "pod-05", "pod-06", "pod-07"}
	if got := r.pods(); !slices.Equal(got, want) {
		t.Errorf("the last holders are %q, want %q", got, want)
	}
	r.now = r.now.Add(time.Second)
	r.hears(holding("a", "pod-07")) // the oldest, seen again
	r.now = r.now.Add(time.Second)
	r.hears(holding("a", "pod-99"))
	want = []string{"pod-00", "pod-01", "pod-02", "pod-03", "pod-04", "pod-05", "pod-07", "pod-99"}
	if got := r.pods(); !slices.Equal(got, want) {
		t.Errorf("the last holders are %q, want %q", got, want)
	}
}

func TestHistoryKeepsForAnHour(t *testing.T) {
	r := newRemembering()
	start := r.now
	r.hears(holding("a", "one"), holding("b", "two"))
	r.now = start.Add(time.Minute)
	r.hears(holding("a", "one"))
	r.now = start.Add(time.Hour)
	r.hears()
	if got := r.pods(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("the last holders are %q", got)
	}
	r.now = r.now.Add(time.Millisecond)
	r.hears()
	if got := r.pods(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("after an hour the last holders are %q", got)
	}
	r.now = start.Add(time.Hour + time.Minute + time.Millisecond)
	r.hears()
	if got := r.pods(); got != nil || len(r.recent.byDevice) > 0 {
		t.Errorf("after an hour the last holders are %q, of %d devices", got, len(r.recent.byDevice))
	}
}

func TestHistoryHasAllHoldersOfNow(t *testing.T) {
	r := newRemembering()
	var now []device.Holding
	for i := range 12 { // replicas of one device
		now = append(now, holding(device.OfferedID(fmt.Sprintf("a::%d", i)), fmt.Sprintf("pod-%02d", i)))
	}
	r.hears(holding("a::0", "old"))
	r.now = r.now.Add(time.Second)
	r.hears(now...)
	if got := r.pods(); len(got) != 12 || slices.Contains(got, "old") {
		t.Errorf("of 12 holders %q are remembered", got)
	}
	r.now = r.now.Add(time.Second)
	r.hears(now[3], now[4])
	if got := r.pods(); len(got) != holdersKept || !slices.Contains(got, "pod-03") || !slices.Contains(got, "pod-04") {
		t.Errorf("of 12 holders, 2 of them of now, %q are remembered", got)
	}
}

func TestHistoryIsOrderedAndACopy(t *testing.T) {
	r := newRemembering()
	r.hears(holding("b", "two"), holding("a::1", "two"), holding("a", "one"), holding("a::2", "one"))
	first := r.recent.seen()
	want := []device.Seen{
		{Device: "a", Owner: owner("one"), First: r.now, Last: r.now},
		{Device: "a", Owner: owner("two"), First: r.now, Last: r.now},
		{Device: "b", Owner: owner("two"), First: r.now, Last: r.now},
	}
	if !slices.Equal(first, want) {
		t.Errorf("seen were %v, want %v", first, want)
	}
	r.now = r.now.Add(time.Second)
	r.hears(holding("a", "one"), holding("a", "zero"), holding("0", "four"))
	if !slices.Equal(first, want) {
		t.Error("what was published was written")
	}
	if got := r.pods(); !slices.Equal(got, []string{"four", "one", "two", "zero", "two"}) {
		t.Errorf("seen were %q", got)
	}
}

// What is told of a holding's begin and end is what incidents are attributed by.
func TestHistoryKnowsWhenAHoldingBeganAndEnded(t *testing.T) {
	r := newRemembering()
	start := r.now
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	want := func(when string, want ...device.Seen) {
		t.Helper()
		if got := r.recent.seen(); !slices.Equal(got, want) {
			t.Errorf("%s: seen were %v, want %v", when, got, want)
		}
	}
	one := device.Seen{Device: "a", Owner: owner("one"), First: at(1), Last: at(2)}
	r.hears()
	r.now = at(1)
	r.allocated(gpu, []device.OfferedID{"a"}, r.now)
	want("allocated")
	r.now = at(2)
	r.hears(holding("a", "one"))
	want("named a second after Allocate", one)
	r.now, one.Last = at(3), at(3)
	r.hears(holding("a", "one"))
	want("named again", one)
	r.now, one.Ended = at(5), at(5)
	r.hears()
	want("gone", one)
	r.now = at(6)
	r.hears()
	want("still gone", one)

	r.now = at(7)
	r.hears(holding("a", "one")) // another plugin's Allocate, of which nobody was told
	one = device.Seen{Device: "a", Owner: owner("one"), First: at(7), Last: at(7)}
	want("back by the same name", one)
	r.now, one.Ended = at(8), at(8)
	r.allocated(gpu, []device.OfferedID{"a"}, r.now)
	want("allocated to somebody else", one)
	r.now = at(9)
	r.hears(holding("a", "one")) // the StatefulSet's next
	one = device.Seen{Device: "a", Owner: owner("one"), First: at(8), Last: at(9)}
	want("allocated to another of the same name", one)

	// One that Get named is remembered, though no List ever had it.
	r.now = at(10)
	r.allocated(gpu, []device.OfferedID{"b"}, r.now)
	r.name([]device.Holding{holding("b", "short")}, r.link, at(11))
	r.now = at(12)
	r.hears(holding("a", "one"))
	one.Last = at(12)
	want("a short one", one, device.Seen{Device: "b", Owner: owner("short"), First: at(10), Last: at(11), Ended: at(12)})
}

// A device of several holders ends for each of them alone.
func TestHistoryOfReplicas(t *testing.T) {
	r := newRemembering()
	r.hears(holding("a::0", "one"), holding("a::1", "two"), holding("a::2", "two"))
	first := r.now
	r.now = r.now.Add(time.Second)
	r.hears(holding("a::1", "two"))
	want := []device.Seen{
		{Device: "a", Owner: owner("one"), First: first, Last: first, Ended: r.now},
		{Device: "a", Owner: owner("two"), First: first, Last: r.now},
	}
	if got := r.recent.seen(); !slices.Equal(got, want) {
		t.Errorf("seen were %v, want %v", got, want)
	}
}

// The same id under two resources is two allocations of one device.
func TestResourcesThatShareAnID(t *testing.T) {
	r := newRemembering()
	mig := device.Holding{Resource: "nvidia.com/mig", Offered: "a", Owner: owner("two")}
	r.hears(holding("a", "one"), mig)
	held := device.Holders{Held: r.held, Settled: r.settled}
	wantState(t, held, "a", "shared")
	if got := held.Rows("a"); !slices.Equal(got, []device.Holding{holding("a", "one"), mig}) {
		t.Errorf("the rows are %v", got)
	}
	if got := r.pods(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("the last holders are %q", got)
	}
	r.allocated(gpu, []device.OfferedID{"a"}, r.now)
	if got := r.held; !slices.Equal(got, []device.Holding{{Resource: gpu, Offered: "a"}, mig}) {
		t.Errorf("an allocation of one resource makes %v of them", got)
	}
}

// How long somebody is told of after his end is the caller's to say.
func TestHistoryIsKeptForAsLongAsIsWanted(t *testing.T) {
	for keep, want := range map[time.Duration]int{0: 1, 10 * time.Second: 0, 2 * time.Hour: 1} {
		bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
			if keep > 0 {
				c.KeepHolders(keep)
			}
			k.says(pod("one", "a"))
			c.Owners(t.Context())
			k.says()
			time.Sleep(30 * time.Second)
			if h := c.Owners(t.Context()); len(h.Recent) != want {
				t.Errorf("with %s, of half a minute ago is told %v", keep, h.Recent)
			}
		})
	}
}
