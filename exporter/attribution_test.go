package exporter

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

// counterReading returns a reading at Allocate with the energy of GPU-0.
func counterReading(joules float64) device.Reading {
	return device.Reading{GPU: "GPU-0", Samples: []device.Sample{
		{Device: "GPU-0", Metric: powerRow, Value: 1}, {Device: "GPU-1", Metric: energyRow, Value: 2}, {Device: "GPU-0", Metric: energyRow, Value: joules},
	}}
}

// TestAttributionSums checks on random histories of a device that all owners' counters and the pending energy sum up to the increase of the
// device's counter. No counter falls, and late, reordered or failed readings at Allocate lose nothing.
func TestAttributionSums(t *testing.T) {
	type allocate struct {
		event uint64
		raw   float64 // at Allocate
	}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := newAttribution(testMetrics)
		ids := []device.ID{"GPU-0"}
		d := l.countersOf("GPU-0")
		raw := r.Float64() * 1e6
		l.add("GPU-0", energyRow, raw, device.Unallocated, device.Owner{})
		begin, before := raw, 0.0 // value at the first reading, and increase before the driver was reloaded
		shown := map[device.Owner]float64{}
		var allocates []allocate
		for range 200 {
			state := device.AllocationState(r.IntN(5))
			owner := device.Owner{}
			if state == device.Allocated {
				owner.Pod = string(rune('a' + r.IntN(3)))
			}
			last := d.counters[0].lastRaw
			if r.IntN(3) > 0 {
				l.beginCollection()
			}
			switch event := r.IntN(20); {
			case event == 0 && last > 10 && len(allocates) == 0: // the driver is reloaded
				before += last - begin
				begin, last, raw = 0, 0, r.Float64()*10
				l.beginCollection()
			case event < 5:
				allocates = append(allocates, allocate{l.beginAllocate(ids), raw})
			case event < 10 && len(allocates) > 0:
				i := r.IntN(len(allocates))
				reading := counterReading(allocates[i].raw + r.Float64()*(raw-allocates[i].raw))
				if r.IntN(4) == 0 {
					reading = device.Reading{Err: errors.New("stalled")}
				}
				l.addAllocateReading(allocates[i].event, ids, reading)
				allocates = slices.Delete(allocates, i, i+1)
			default:
				raw += r.Float64() * 100
			}
			got := l.add("GPU-0", energyRow, raw, state, owner)
			if got < shown[owner] {
				t.Fatalf("seed %d: counter of %q fell from %f to %f", seed, owner.Pod, shown[owner], got)
			}
			shown[owner] = got
			if d.counters[0].lastRaw < last {
				t.Fatalf("seed %d: a reading of %f J was added after one of %f J", seed, d.counters[0].lastRaw, last)
			}
			sum := d.counters[0].pending + d.unattributed.sums[0]
			for _, a := range d.owners {
				sum += a.sums[0]
			}
			if want := before + d.counters[0].lastRaw - begin; math.Abs(sum-want) > 1e-6 {
				t.Fatalf("seed %d: sum of the counters: got %f, want %f", seed, sum, want)
			}
		}
	}
}

// TestLateAllocateReading covers readings at Allocate that arrive after later collections or readings.
func TestLateAllocateReading(t *testing.T) {
	l := newAttribution(testMetrics)
	ids := []device.ID{"GPU-0"}
	a, b, c := device.Owner{Pod: "a"}, device.Owner{Pod: "b"}, device.Owner{Pod: "c"}
	collect := func(raw float64, state device.AllocationState, owner device.Owner, want float64) {
		t.Helper()
		l.beginCollection()
		if sum := l.add("GPU-0", energyRow, raw, state, owner); sum != want {
			t.Errorf("at %v J: counter of %q: got %v J, want %v", raw, owner.Pod, sum, want)
		}
	}
	collect(100, device.Allocated, a, 0)
	ofB := l.beginAllocate(ids)
	collect(130, device.AllocatedOwnerUnknown, device.Owner{}, 0)
	collect(150, device.Allocated, b, 20)
	l.addAllocateReading(ofB, ids, counterReading(110)) // before the collections
	collect(170, device.Allocated, b, 40)
	rejected, ofC := l.beginAllocate(ids), l.beginAllocate(ids)
	l.addAllocateReading(ofC, ids, counterReading(200))
	l.addAllocateReading(rejected, ids, counterReading(190))
	collect(210, device.Allocated, c, 10)
	collect(210, device.Allocated, b, 70)
	collect(210, device.Allocated, a, 30)
}

// TestAttributionIsBounded checks that a device keeps the counters of eight owners. A recent owner's counter continues after a return, any
// other restarts at 0.
func TestAttributionIsBounded(t *testing.T) {
	l := newAttribution(testMetrics)
	raw := 100.0
	l.add("GPU-0", energyRow, raw, device.Unallocated, device.Owner{})
	pod := func(n int) device.Owner { return device.Owner{Namespace: "n", Pod: fmt.Sprint(n), Container: "c"} }
	const pods = 3600
	for n := range pods {
		l.add("GPU-0", energyRow, raw, device.Allocated, pod(n))
		raw += 10
		l.add("GPU-0", energyRow, raw, device.Unallocated, device.Owner{})
		raw++
	}
	d := l.devices["GPU-0"]
	if len(l.devices) != 1 || len(d.owners) != maxOwners || cap(d.owners) > 2*maxOwners {
		t.Errorf("got %d counters of %d devices, want %d of one", len(d.owners), len(l.devices), maxOwners)
	}
	if got := l.add("GPU-0", energyRow, raw, device.Allocated, pod(pods-maxOwners)); got != 10 {
		t.Errorf("counter of the returned eighth last pod: got %v J, want 10", got)
	}
	if got := l.add("GPU-0", energyRow, raw, device.Allocated, pod(0)); got != 0 {
		t.Errorf("counter of the returned first pod: got %v J, want 0", got)
	}
	if got := l.add("GPU-0", energyRow, raw, device.Unallocated, device.Owner{}); got != pods {
		t.Errorf("counter without owner: got %v J, want %d", got, pods)
	}
}

// TestNewOwnerGetsNoEarlierIncrease covers a pod that is rejected after Allocate, or ends, without ever being listed: the next
// owner does not get the earlier increase.
func TestNewOwnerGetsNoEarlierIncrease(t *testing.T) {
	l := newAttribution(testMetrics)
	add := func(raw float64, state device.AllocationState, owner device.Owner, want float64) {
		t.Helper()
		l.beginCollection()
		if sum := l.add("GPU-0", energyRow, raw, state, owner); sum != want {
			t.Errorf("at %v J: counter of %q: got %v J, want %v", raw, owner.Pod, sum, want)
		}
	}
	allocate := func(id device.ID, r device.Reading) {
		l.addAllocateReading(l.beginAllocate([]device.ID{id}), []device.ID{id}, r)
	}
	noOwner, second := device.Owner{}, device.Owner{Pod: "second"}
	add(100, device.Unallocated, noOwner, 0)
	allocate("GPU-0", counterReading(110))
	add(110, device.AllocatedOwnerUnknown, noOwner, 10) // the first owner, never listed
	allocate("GPU-1", counterReading(200))
	add(210, device.AllocatedOwnerUnknown, noOwner, 10) // another device was allocated
	allocate("GPU-0", counterReading(300))
	add(310, device.AllocatedOwnerUnknown, noOwner, 200)
	add(330, device.AllocatedOwnerUnknown, noOwner, 200)
	add(340, device.Allocated, second, 40)
	add(350, device.Unallocated, noOwner, 200)
	allocate("GPU-0", counterReading(360))
	add(400, device.Allocated, second, 90) // only the energy since its Allocate
	allocate("GPU-0", counterReading(410))
	allocate("GPU-0", device.Reading{Err: errors.New("stalled")})
	add(500, device.Allocated, second, 100) // includes the pending energy
	add(510, device.Unallocated, noOwner, 300)
}

// TestAttributionWithUnknownOwner checks that the increase while the owner is unknown counts once, without labels, and that no counter
// falls afterwards.
func TestAttributionWithUnknownOwner(t *testing.T) {
	l := newAttribution(testMetrics)
	noOwner, train := device.Owner{}, device.Owner{Namespace: "n", Pod: "train", Container: "c"}
	for _, step := range []struct {
		raw   float64
		state device.AllocationState
		owner device.Owner
		want  float64
	}{
		{1000, device.AllocationUnknown, noOwner, 0},
		{1300, device.AllocationUnknown, noOwner, 300},
		{1500, device.Allocated, train, 0},
		{1700, device.Allocated, train, 200},
		{1800, device.AllocationUnknown, noOwner, 500},
		{1900, device.Allocated, train, 300},
	} {
		if got := l.add("GPU-0", energyRow, step.raw, step.state, step.owner); got != step.want {
			t.Errorf("at %v J: counter of %q: got %v J, want %v", step.raw, step.owner.Pod, got, step.want)
		}
	}
	if got := l.add("GPU-0", energyRow, 1900, device.Unallocated, noOwner); got+300 != 900 {
		t.Errorf("counter without owner: got %v J, want 600", got)
	}
}
