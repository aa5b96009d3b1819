package churn

import (
	"slices"
	"testing"
	"time"
)

// at is a time of the tests, in seconds.
func at(seconds float64) time.Time {
	return time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

func between(from, to float64) Span { return Span{at(from), at(to)} }

func owner(pod string) Owner { return Owner{"default", pod, "main"} }

// says is an answer that was asked for then and came a tenth of a second later: "a=one" is a
// device and a pod.
func says(asked float64, whole bool, held ...Held) Answer {
	return Answer{Span: between(asked, asked+.1), Held: held, Whole: whole}
}

func has(device, pod string) Held { return Held{device, owner(pod)} }

func TestRecord(t *testing.T) {
	one, two := has("a", "one"), has("b", "two")
	for _, c := range []struct {
		what    string
		answers []Answer
		want    []Holding
		outages []Span
	}{
		{"a holding begins and ends between two answers", []Answer{
			says(1, true), says(2, true, one), says(3, true, one), says(4, true),
		}, []Holding{{Device: "a", Owner: owner("one"), Since: between(1, 2.1), Until: between(3, 4.1)}}, nil},
		{
			"what lasts has no end",
			[]Answer{says(1, true, one)},
			[]Holding{{Device: "a", Owner: owner("one"), Since: between(0, 1.1), Until: between(1, 99)}},
			nil,
		},
		{"one that comes back is another", []Answer{says(1, true, one), says(2, true), says(3, true, one), says(4, true)}, []Holding{
			{Device: "a", Owner: owner("one"), Since: between(0, 1.1), Until: between(1, 2.1)},
			{Device: "a", Owner: owner("one"), Since: between(2, 3.1), Until: between(3, 4.1)},
		}, nil},
		{"a kubelet that was just started ends nothing", []Answer{
			says(1, true, one, two), says(2, false), says(3, false, one), says(4, true, one),
		}, []Holding{
			{Device: "a", Owner: owner("one"), Since: between(0, 1.1), Until: between(4, 99)},
			{Device: "b", Owner: owner("two"), Since: between(0, 1.1), Until: between(1, 4.1)},
		}, []Span{between(1, 4.1)}},
		{"two at the same time", []Answer{says(1, true, one), says(2, true, one, has("a", "two")), says(3, true, has("a", "two"))}, []Holding{
			{Device: "a", Owner: owner("one"), Since: between(0, 1.1), Until: between(2, 3.1)},
			{Device: "a", Owner: owner("two"), Since: between(1, 2.1), Until: between(3, 99)},
		}, nil},
		{"an outage that lasts", []Answer{says(1, true), says(2, false)}, nil, []Span{between(1, 99)}},
	} {
		r := NewRecord(at(0))
		for _, a := range c.answers {
			r.Heard(a)
		}
		if got := r.Holdings(at(99)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
		if got := r.Outages(at(99)); !slices.Equal(got, c.outages) {
			t.Errorf("%s: the outages are %v, want %v", c.what, got, c.outages)
		}
	}
}

func TestRecordOfAPod(t *testing.T) {
	r := NewRecord(at(0))
	r.Place("default", "one", at(.5))
	r.Heard(says(1, true, has("a", "one"), has("b", "one"), has("c", "two")))
	if n := r.Devices("default", "one"); n != 2 {
		t.Errorf("it has %d devices", n)
	}
	for _, h := range r.Holdings(at(2)) {
		if want := h.Owner == owner("one"); h.Placed.Equal(at(.5)) != want {
			t.Errorf("%v was placed %s", h, h.Placed)
		}
	}
	if !r.Whole().Equal(at(1)) {
		t.Errorf("the newest whole answer was asked for %s", r.Whole())
	}
}
