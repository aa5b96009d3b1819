package exporter

import (
	"time"

	"github.com/podgauge/podgauge/device"
)

// forgetAfter is how long an account is kept after its owner was last seen: as
// long as the last holders are.
const forgetAfter = time.Hour

// ledger books what a device's counter rises by on whoever held the device when
// it rose (docs/adr/0003-holder-counters.md). The sum of a counter's accounts is
// what the device's own counter rose by since it was first read.
//
// What it rises by between two readings is due to the holder at the first of
// them. An allocation that has no name yet is a holder too: its share waits until
// it has one. Where the device is allocated anew before that, it is nobody's.
type ledger struct {
	counters map[counter]*accounts
	rates    rates
}

type counter struct {
	device device.ID
	metric int
}

type accounts struct {
	raw     float64 // the device's own counter at the last reading
	holder  device.Owner
	unnamed bool    // the holder at the last reading had no name
	waiting float64 // the share of that holder
	anew    bool    // the device was allocated anew since
	sums    map[device.Owner]*account
}

type account struct {
	sum  float64
	seen time.Time
}

func newLedger() *ledger { return &ledger{counters: map[counter]*accounts{}, rates: rates{}} }

// granted notes that devices were allocated before the next reading: whoever was allocated
// them before, and has no name yet, does not have them any more.
func (l *ledger) granted(devices map[device.ID]bool) {
	if len(devices) == 0 {
		return
	}
	for c, a := range l.counters {
		a.anew = a.anew || a.unnamed && devices[c.device]
	}
}

// book takes a reading in and returns the account of the device's holder of now.
// Nothing is booked, nor returned, while the holder is not known.
func (l *ledger) book(c counter, raw float64, hold device.Hold, owner device.Owner, now time.Time) (float64, bool) {
	if hold == device.Unknown {
		return 0, false
	}
	a := l.counters[c]
	if a == nil {
		a = &accounts{raw: raw, holder: owner, unnamed: hold == device.Unnamed, sums: map[device.Owner]*account{}}
		l.counters[c] = a
		return a.of(owner, now).sum, true
	}
	rose := raw - a.raw
	if rose < 0 { // the driver was loaded anew, and its counter began again at 0
		rose = raw
	}
	switch {
	case !a.unnamed:
		a.of(a.holder, now).sum += rose
	case a.anew:
		a.of(device.Owner{}, now).sum += a.waiting + rose
		a.waiting = 0
	case hold == device.Unnamed:
		a.waiting += rose
	default:
		a.of(owner, now).sum += a.waiting + rose
		a.waiting = 0
	}
	a.raw, a.holder, a.unnamed, a.anew = raw, owner, hold == device.Unnamed, false
	a.forget(now)
	return a.of(owner, now).sum, true
}

func (a *accounts) of(owner device.Owner, now time.Time) *account {
	s := a.sums[owner]
	if s == nil {
		s = &account{}
		a.sums[owner] = s
	}
	s.seen = now
	return s
}

func (a *accounts) forget(now time.Time) {
	for owner, s := range a.sums {
		if now.Sub(s.seen) > forgetAfter {
			delete(a.sums, owner)
		}
	}
}
