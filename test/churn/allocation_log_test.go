package churn

import (
	"slices"
	"testing"
	"time"
)

// testTime is a time of the tests, in seconds.
func testTime(seconds float64) time.Time {
	return time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

func testSpan(from, to float64) Span { return Span{testTime(from), testTime(to)} }

func containerKey(pod string) ContainerKey { return ContainerKey{"default", pod, "main"} }

// listing is an answer that was asked for then and came a tenth of a second later: "a=one" is a
// device and a pod.
func listing(asked float64, whole bool, held ...DeviceOwner) KubeletListing {
	return KubeletListing{Span: testSpan(asked, asked+.1), Allocated: held, Complete: whole}
}

func deviceOwner(device, pod string) DeviceOwner { return DeviceOwner{device, containerKey(pod)} }

func TestRecord(t *testing.T) {
	one, two := deviceOwner("a", "one"), deviceOwner("b", "two")
	for _, c := range []struct {
		what    string
		answers []KubeletListing
		want    []AllocationPeriod
		outages []Span
	}{
		{"a holding begins and ends between two answers", []KubeletListing{
			listing(1, true), listing(2, true, one), listing(3, true, one), listing(4, true),
		}, []AllocationPeriod{{Device: "a", Container: containerKey("one"), Start: testSpan(1, 2.1), End: testSpan(3, 4.1)}}, nil},
		{
			"what lasts has no end",
			[]KubeletListing{listing(1, true, one)},
			[]AllocationPeriod{{Device: "a", Container: containerKey("one"), Start: testSpan(0, 1.1), End: testSpan(1, 99)}},
			nil,
		},
		{"one that comes back is another", []KubeletListing{listing(1, true, one), listing(2, true), listing(3, true, one), listing(4, true)}, []AllocationPeriod{
			{Device: "a", Container: containerKey("one"), Start: testSpan(0, 1.1), End: testSpan(1, 2.1)},
			{Device: "a", Container: containerKey("one"), Start: testSpan(2, 3.1), End: testSpan(3, 4.1)},
		}, nil},
		{"a kubelet that was just started ends nothing", []KubeletListing{
			listing(1, true, one, two), listing(2, false), listing(3, false, one), listing(4, true, one),
		}, []AllocationPeriod{
			{Device: "a", Container: containerKey("one"), Start: testSpan(0, 1.1), End: testSpan(4, 99)},
			{Device: "b", Container: containerKey("two"), Start: testSpan(0, 1.1), End: testSpan(1, 4.1)},
		}, []Span{testSpan(1, 4.1)}},
		{"two at the same time", []KubeletListing{listing(1, true, one), listing(2, true, one, deviceOwner("a", "two")), listing(3, true, deviceOwner("a", "two"))}, []AllocationPeriod{
			{Device: "a", Container: containerKey("one"), Start: testSpan(0, 1.1), End: testSpan(2, 3.1)},
			{Device: "a", Container: containerKey("two"), Start: testSpan(1, 2.1), End: testSpan(3, 99)},
		}, nil},
		{"an outage that lasts", []KubeletListing{listing(1, true), listing(2, false)}, nil, []Span{testSpan(1, 99)}},
	} {
		r := NewAllocationLog(testTime(0))
		for _, a := range c.answers {
			r.Add(a)
		}
		if got := r.Allocations(testTime(99)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
		if got := r.Outages(testTime(99)); !slices.Equal(got, c.outages) {
			t.Errorf("%s: the outages are %v, want %v", c.what, got, c.outages)
		}
	}
}

func TestRecordOfAPod(t *testing.T) {
	r := NewAllocationLog(testTime(0))
	r.PodCreated("default", "one", testTime(.5))
	r.Add(listing(1, true, deviceOwner("a", "one"), deviceOwner("b", "one"), deviceOwner("c", "two")))
	if n := r.DeviceCount("default", "one"); n != 2 {
		t.Errorf("it has %d devices", n)
	}
	for _, h := range r.Allocations(testTime(2)) {
		if want := h.Container == containerKey("one"); h.Created.Equal(testTime(.5)) != want {
			t.Errorf("%v was placed %s", h, h.Created)
		}
	}
	if !r.LastComplete().Equal(testTime(1)) {
		t.Errorf("the newest whole answer was asked for %s", r.LastComplete())
	}
}
