package exporter

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

// counterReading is a reading of a device's counter for an Allocate.
func counterReading(joules float64) device.Reading {
	return device.Reading{GPU: "GPU-0", Samples: []device.Sample{
		{Device: "GPU-0", Metric: powerRow, Value: 1}, {Device: "GPU-1", Metric: energyRow, Value: 2}, {Device: "GPU-0", Metric: energyRow, Value: joules},
	}}
}

// TestLedgerSums holds the ledger to its promise over random lives of a device: the counts of all
// owners, and what waits for a name, sum up to what the device's own counter rose by. No count
// falls, and a reading for an Allocate that is late, or fails, loses nothing.
func TestLedgerSums(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := newAttribution(testMetrics)
		ids := []device.ID{"GPU-0"}
		raw, rose := r.Float64()*1e6, 0.0
		known, taken := false, raw // whether the ledger has a reading, and which
		shown := map[device.Owner]float64{}
		awaited := 0
		read := func() {
			if !known { // what the counter was at the first reading is counted for no owner
				known, rose = true, 0
			}
			taken = raw
		}
		for range 200 {
			hold := device.AllocationState(r.IntN(5))
			owner := device.Owner{}
			if hold == device.Allocated {
				owner.Pod = string(rune('a' + r.IntN(3)))
			}
			switch event := r.IntN(20); {
			case event == 0 && taken > 10 && awaited == 0: // the driver is loaded again
				rose -= raw - taken // what was burned after the last reading is lost with the counter
				raw = r.Float64() * 10
				rose += raw
			case event < 4:
				l.expectAllocateReading(ids)
				awaited++
			case event < 8 && awaited > 0:
				awaited--
				if r.IntN(4) == 0 {
					l.addAllocateReading(ids, device.Reading{Err: errors.New("stalled")})
					break
				}
				l.addAllocateReading(ids, counterReading(raw))
				read()
			default:
				more := r.Float64() * 100
				raw += more
				rose += more
			}
			d := l.countersOf("GPU-0")
			l.beginCollection()
			counts := awaited == 0 || !known
			got := l.add("GPU-0", energyRow, raw, hold, owner)
			if counts {
				read()
			}
			if got < shown[owner] {
				t.Fatalf("seed %d: the count of %q fell from %f to %f", seed, owner.Pod, shown[owner], got)
			}
			shown[owner] = got
			sum := d.counters[0].pending + d.unattributed.sums[0]
			for _, a := range d.owners {
				sum += a.sums[0]
			}
			if math.Abs(sum-(rose-(raw-taken))) > 1e-6 {
				t.Fatalf("seed %d: the counts sum up to %f, the counter rose by %f", seed, sum, rose-(raw-taken))
			}
		}
	}
}

// TestLedgerIsBounded: however many pods come and go, a device has eight counts and that of no
// owner. The last eight go on when their pods return, others begin at 0, and no sum is changed.
func TestLedgerIsBounded(t *testing.T) {
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
		t.Errorf("%d counts of %d devices are kept, want %d of one", len(d.owners), len(l.devices), maxOwners)
	}
	if got := l.add("GPU-0", energyRow, raw, device.Allocated, pod(pods-maxOwners)); got != 10 {
		t.Errorf("the eighth last pod is back, and has %v J, want 10", got)
	}
	if got := l.add("GPU-0", energyRow, raw, device.Allocated, pod(0)); got != 0 {
		t.Errorf("the first pod is back, and has %v J, want 0", got)
	}
	if got := l.add("GPU-0", energyRow, raw, device.Unallocated, device.Owner{}); got != pods {
		t.Errorf("no owner has %v J, want %d", got, pods)
	}
}

// A pod is turned away after Allocate, or ends, before anybody names it, and the device is
// allocated to another: that one does not pay for the time before.
func TestLedgerBooksNothingOfBeforeAnAllocation(t *testing.T) {
	l := newAttribution(testMetrics)
	book := func(raw float64, hold device.AllocationState, owner device.Owner, want float64) {
		t.Helper()
		l.beginCollection()
		if sum := l.add("GPU-0", energyRow, raw, hold, owner); sum != want {
			t.Errorf("at %v J %q has %v J, want %v", raw, owner.Pod, sum, want)
		}
	}
	allocate := func(id device.ID, r device.Reading) {
		l.expectAllocateReading([]device.ID{id})
		l.addAllocateReading([]device.ID{id}, r)
	}
	nobody, second := device.Owner{}, device.Owner{Pod: "second"}
	book(100, device.Unallocated, nobody, 0)
	allocate("GPU-0", counterReading(110))
	book(110, device.AllocatedOwnerUnknown, nobody, 10) // the first, which is never named
	allocate("GPU-1", counterReading(200))
	book(210, device.AllocatedOwnerUnknown, nobody, 10) // another device was allocated
	allocate("GPU-0", counterReading(300))
	book(310, device.AllocatedOwnerUnknown, nobody, 200)
	book(330, device.AllocatedOwnerUnknown, nobody, 200)
	book(340, device.Allocated, second, 40)
	book(350, device.Unallocated, nobody, 200)
	allocate("GPU-0", counterReading(360))
	book(400, device.Allocated, second, 90) // its own share, though it was never allocated again
	allocate("GPU-0", counterReading(410))
	allocate("GPU-0", device.Reading{Err: errors.New("stalled")})
	book(500, device.Allocated, second, 100) // what waited could not be told apart
	book(510, device.Unallocated, nobody, 300)
}

// TestLedgerOfAnUnknownOwner: what is burned while nobody can name the owner is counted without
// labels, once, and neither count falls when the owner is known.
func TestLedgerOfAnUnknownOwner(t *testing.T) {
	l := newAttribution(testMetrics)
	nobody, train := device.Owner{}, device.Owner{Namespace: "n", Pod: "train", Container: "c"}
	for _, step := range []struct {
		raw   float64
		hold  device.AllocationState
		owner device.Owner
		want  float64
	}{
		{1000, device.AllocationUnknown, nobody, 0},
		{1300, device.AllocationUnknown, nobody, 300},
		{1500, device.Allocated, train, 0},
		{1700, device.Allocated, train, 200},
		{1800, device.AllocationUnknown, nobody, 500},
		{1900, device.Allocated, train, 300},
	} {
		if got := l.add("GPU-0", energyRow, step.raw, step.hold, step.owner); got != step.want {
			t.Errorf("at %v J %q has %v J, want %v", step.raw, step.owner.Pod, got, step.want)
		}
	}
	if got := l.add("GPU-0", energyRow, 1900, device.Unallocated, nobody); got+300 != 900 {
		t.Errorf("no owner has %v J: with the pod's 300 not what the device burned", got)
	}
}
