package exporter

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/podgauge/podgauge/device"
)

// TestLedgerSums holds the ledger to its promise over random lives of a device:
// what all accounts, and the share that waits for a name, sum up to is what the
// device's own counter rose by.
func TestLedgerSums(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := newLedger()
		key := counter{device: "GPU-0", metric: 1}
		raw, rose, now := r.Float64()*1e6, 0.0, time.Unix(1e9, 0)
		known, taken := false, raw // whether the ledger has a reading, and which
		for range 100 {
			hold := device.Hold(r.IntN(5))
			owner := device.Owner{}
			if hold == device.Held {
				owner.Pod = string(rune('a' + r.IntN(3)))
			}
			switch {
			case r.IntN(20) == 0 && taken > 10 && hold != device.Unknown: // the driver is loaded anew
				rose -= raw - taken // what was burned after the last reading is lost with the counter
				raw = r.Float64() * 10
				rose += raw
			default:
				more := r.Float64() * 100
				raw += more
				rose += more
			}
			now = now.Add(time.Second)
			l.granted(map[device.ID]bool{"GPU-0": r.IntN(3) == 0})
			shown, ok := l.book(key, raw, hold, owner, now)
			if ok != (hold != device.Unknown) {
				t.Fatalf("seed %d: shown %v for hold %d", seed, ok, hold)
			}
			if !ok { // the reading is not taken; the next one covers it
				continue
			}
			if !known { // what the counter was at the first reading is nobody's
				known, rose = true, 0
			}
			taken = raw
			a := l.counters[key]
			sum := a.waiting
			for _, s := range a.sums {
				sum += s.sum
			}
			if math.Abs(sum-rose) > 1e-6 {
				t.Fatalf("seed %d: the accounts sum up to %f, the counter rose by %f", seed, sum, rose)
			}
			if shown != a.sums[owner].sum {
				t.Fatalf("seed %d: shown %f, booked %f", seed, shown, a.sums[owner].sum)
			}
		}
	}
}

func TestLedgerForgetsOwnersLongGone(t *testing.T) {
	l := newLedger()
	key := counter{device: "GPU-0"}
	now := time.Unix(1e9, 0)
	l.book(key, 0, device.Held, device.Owner{Pod: "a"}, now)
	l.book(key, 10, device.Idle, device.Owner{}, now)
	for range 61 {
		now = now.Add(time.Minute)
		l.book(key, 10, device.Idle, device.Owner{}, now)
	}
	if n := len(l.counters[key].sums); n != 1 {
		t.Errorf("%d accounts are kept, want that of nobody alone", n)
	}
}

// A pod is turned away after Allocate, or ends, before anybody names it, and the device is
// allocated to another: that one does not pay for the time before.
func TestLedgerBooksNothingOfBeforeAnAllocation(t *testing.T) {
	l := newLedger()
	key := counter{device: "GPU-0"}
	now := time.Unix(1e9, 0)
	book := func(raw float64, hold device.Hold, owner device.Owner, want float64, granted ...device.ID) {
		t.Helper()
		now = now.Add(time.Second)
		devices := map[device.ID]bool{}
		for _, id := range granted {
			devices[id] = true
		}
		l.granted(devices)
		if sum, _ := l.book(key, raw, hold, owner, now); sum != want {
			t.Errorf("at %v J %q has %v J, want %v", raw, owner.Pod, sum, want)
		}
	}
	nobody, second := device.Owner{}, device.Owner{Pod: "second"}
	book(100, device.Idle, nobody, 0)
	book(110, device.Unnamed, nobody, 10, "GPU-0") // the first, which is never named
	book(210, device.Unnamed, nobody, 10, "GPU-1") // another device's
	book(310, device.Unnamed, nobody, 210, "GPU-0")
	book(330, device.Unnamed, nobody, 210)
	book(340, device.Held, second, 30)
	book(350, device.Idle, nobody, 210)
	book(360, device.Unnamed, nobody, 220, "GPU-0")
	book(400, device.Held, second, 80) // its own share, though it was never granted again
}
