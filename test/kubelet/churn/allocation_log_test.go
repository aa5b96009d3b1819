package churn

import (
	"slices"
	"testing"
	"time"
)

// testTime returns a time, in seconds after the start of a test.
func testTime(seconds float64) time.Time {
	return time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

func testSpan(from, to float64) Span { return Span{testTime(from), testTime(to)} }

func containerKey(pod string) ContainerKey { return ContainerKey{"default", pod, "main"} }

// listing returns a list that took 100 ms.
func listing(requested float64, complete bool, allocated ...DeviceOwner) KubeletListing {
	return KubeletListing{Span: testSpan(requested, requested+.1), Allocated: allocated, Complete: complete}
}

func deviceOwner(device, pod string) DeviceOwner { return DeviceOwner{device, containerKey(pod)} }

func TestAllocationLog(t *testing.T) {
	one, two := deviceOwner("a", "one"), deviceOwner("b", "two")
	for _, c := range []struct {
		name     string
		listings []KubeletListing
		want     []AllocationPeriod
		outages  []Span
	}{
		{"a period starts and ends between two lists", []KubeletListing{
			listing(1, true), listing(2, true, one), listing(3, true, one), listing(4, true),
		}, []AllocationPeriod{{Device: "a", Container: containerKey("one"), Start: testSpan(1, 2.1), End: testSpan(3, 4.1)}}, nil},
		{
			"an open period lasts until the end",
			[]KubeletListing{listing(1, true, one)},
			[]AllocationPeriod{{Device: "a", Container: containerKey("one"), Start: testSpan(0, 1.1), End: testSpan(1, 99)}},
			nil,
		},
		{"a repeated allocation is a new period", []KubeletListing{listing(1, true, one), listing(2, true), listing(3, true, one), listing(4, true)}, []AllocationPeriod{
			{Device: "a", Container: containerKey("one"), Start: testSpan(0, 1.1), End: testSpan(1, 2.1)},
			{Device: "a", Container: containerKey("one"), Start: testSpan(2, 3.1), End: testSpan(3, 4.1)},
		}, nil},
		{"an incomplete list ends no period", []KubeletListing{
			listing(1, true, one, two), listing(2, false), listing(3, false, one), listing(4, true, one),
		}, []AllocationPeriod{
			{Device: "a", Container: containerKey("one"), Start: testSpan(0, 1.1), End: testSpan(4, 99)},
			{Device: "b", Container: containerKey("two"), Start: testSpan(0, 1.1), End: testSpan(1, 4.1)},
		}, []Span{testSpan(1, 4.1)}},
		{"two containers at the same time", []KubeletListing{listing(1, true, one), listing(2, true, one, deviceOwner("a", "two")), listing(3, true, deviceOwner("a", "two"))}, []AllocationPeriod{
			{Device: "a", Container: containerKey("one"), Start: testSpan(0, 1.1), End: testSpan(2, 3.1)},
			{Device: "a", Container: containerKey("two"), Start: testSpan(1, 2.1), End: testSpan(3, 99)},
		}, nil},
		{"an outage without an end", []KubeletListing{listing(1, true), listing(2, false)}, nil, []Span{testSpan(1, 99)}},
	} {
		log := NewAllocationLog(testTime(0))
		for _, list := range c.listings {
			log.Add(list)
		}
		if got := log.Allocations(testTime(99)); !slices.Equal(got, c.want) {
			t.Errorf("%s: allocations: got %v, want %v", c.name, got, c.want)
		}
		if got := log.Outages(testTime(99)); !slices.Equal(got, c.outages) {
			t.Errorf("%s: outages: got %v, want %v", c.name, got, c.outages)
		}
	}
}

func TestAllocationLogOfPod(t *testing.T) {
	log := NewAllocationLog(testTime(0))
	log.PodCreated("default", "one", testTime(.5))
	log.Add(listing(1, true, deviceOwner("a", "one"), deviceOwner("b", "one"), deviceOwner("c", "two")))
	if n := log.DeviceCount("default", "one"); n != 2 {
		t.Errorf("devices of the pod: got %d, want 2", n)
	}
	for _, p := range log.Allocations(testTime(2)) {
		if want := p.Container == containerKey("one"); p.Created.Equal(testTime(.5)) != want {
			t.Errorf("%v: creation time is %s, want the time of PodCreated: %t", p, p.Created, want)
		}
	}
	if !log.LastComplete().Equal(testTime(1)) {
		t.Errorf("newest complete list: got %s, want %s", log.LastComplete(), testTime(1))
	}
}
