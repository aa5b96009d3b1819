package churn

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

func TestParse(t *testing.T) {
	const text = `# TYPE nvidia_gpu_allocated gauge
nvidia_gpu_allocated{container="main",gpu="0",mig_uuid="",namespace="default",pod="one",uuid="GPU-0"} 1
nvidia_gpu_allocated{container="",gpu="1",mig_uuid="",namespace="",pod="",uuid="GPU-1"} 1
nvidia_gpu_allocated{container="",gpu="2",mig_uuid="",namespace="",pod="",uuid="GPU-2"} 0
nvidia_gpu_allocated{container="",gpu="4",mig_uuid="MIG-1",namespace="",pod="",uuid="GPU-4"} 0
# TYPE nvidia_gpu_energy_joules_total counter
nvidia_gpu_energy_joules_total{container="main",gpu="0",mig_uuid="",namespace="default",pod="one",uuid="GPU-0"} 12.5
# TYPE nvidia_gpu_up gauge
nvidia_gpu_up{container="",gpu="3",mig_uuid="",namespace="",pod="",uuid="GPU-3"} 1
# TYPE nvidia_gpu_allocation_info gauge
nvidia_gpu_allocation_info{container="main",device_id="GPU-1",mig_uuid="",namespace="default",pod="two",resource="nvidia.com/gpu",uuid="GPU-1"} 1
nvidia_gpu_allocation_info{container="main",device_id="GPU-1",mig_uuid="",namespace="default",pod="three",resource="nvidia.com/gpu",uuid="GPU-1"} 1
# TYPE nvidia_gpu_allocation_last_seen_timestamp_seconds gauge
nvidia_gpu_allocation_last_seen_timestamp_seconds{container="main",mig_uuid="",namespace="default",pod="past",uuid="GPU-2"} 1700000000
# TYPE podgauge_resource_allocation_info gauge
podgauge_resource_allocation_info{container="main",device_id="GPU-5::1",namespace="default",numa_node="",pod="four",resource="nvidia.com/gpu"} 1
# TYPE podgauge_kubelet_up gauge
podgauge_kubelet_up 1
# TYPE podgauge_collection_begin_timestamp_seconds gauge
podgauge_collection_begin_timestamp_seconds 1700000000.25
# TYPE podgauge_collection_end_timestamp_seconds gauge
podgauge_collection_end_timestamp_seconds 1700000000.5
`
	got, err := Parse(strings.NewReader(text))
	require.NoError(t, err)
	one := containerKey("one")
	want := MetricsSnapshot{
		Span: Span{time.Unix(1700000000, 25e7), time.Unix(1700000000, 5e8)}, KubeletUp: true,
		Devices: map[string]ShownDevice{
			"GPU-0": {State: StateNamed, Owner: one, Owners: []ContainerKey{one}, AttributedJoules: 12.5, EnergyOwner: one, HasEnergy: true},
			"GPU-1": {State: StateUnnamed, Owners: []ContainerKey{containerKey("two"), containerKey("three")}},
			"GPU-2": {State: StateIdle},
			"GPU-3": {},
			"MIG-1": {State: StateIdle},
			"GPU-5": {Owners: []ContainerKey{containerKey("four")}},
		},
	}
	expect.DeepEqual(t, got, want)
	for _, broken := range []string{"", "podgauge_kubelet_up 1\n", "nvidia_gpu_allocated{"} {
		if _, err := Parse(strings.NewReader(broken)); err == nil {
			t.Errorf("Parse(%q): got no error", broken)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
		expect.EqualSlices(t, log.Allocations(testTime(99)), c.want, c.name, "allocations")
		expect.EqualSlices(t, log.Outages(testTime(99)), c.outages, c.name, "outages")
	}
}

func TestAllocationLogOfPod(t *testing.T) {
	log := NewAllocationLog(testTime(0))
	log.PodCreated("default", "one", testTime(.5))
	log.Add(listing(1, true, deviceOwner("a", "one"), deviceOwner("b", "one"), deviceOwner("c", "two")))
	expect.Equal(t, log.DeviceCount("default", "one"), 2, "devices of the pod")
	for _, p := range log.Allocations(testTime(2)) {
		if want := p.Container == containerKey("one"); p.Created.Equal(testTime(.5)) != want {
			t.Errorf("%v: creation time is %s, want the time of PodCreated: %t", p, p.Created, want)
		}
	}
	if !log.LastComplete().Equal(testTime(1)) {
		t.Errorf("newest complete list: got %s, want %s", log.LastComplete(), testTime(1))
	}
}
