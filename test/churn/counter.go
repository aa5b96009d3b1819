package churn

import (
	"fmt"
	"slices"
	"time"
)

// Counter is a device's energy counter, and what its holders' accounts show of it.
type Counter struct {
	Device string
	// Rose is what it rose by from the begin of the first snapshot to the end of the last,
	// in joules.
	Rose float64
	// Shown is what the accounts rose by: those that were not shown to the end count with
	// what they showed last.
	Shown float64
	// Hidden is the most that accounts can have got after they were last shown: what the
	// device burns from a pod's last snapshot to the next is that pod's
	// (docs/adr/0003-holder-counters.md).
	Hidden float64
	// Slack is how much of it was burned while these two were taken: a flight reads the
	// counter at a moment that it does not tell.
	Slack float64
}

// grain is how far a counter's value may lie beside the truth, in joules: it counts whole
// millijoules, and a float64 of seconds since 1970 has steps of a quarter of a microsecond.
const grain = 0.01

// Off is how much the accounts are off, beyond what is hidden; 0 where they add up.
func (c Counter) Off() float64 {
	switch {
	case c.Shown > c.Rose+grain:
		return c.Shown - c.Rose
	case c.Shown < c.Rose-c.Hidden-c.Slack-grain:
		return c.Rose - c.Hidden - c.Slack - c.Shown
	default:
		return 0
	}
}

// counter adds a device's accounts up, and judges each of them.
func (j *judgement) counter(device string, snapshots []Snapshot) Counter {
	known := slices.DeleteFunc(slices.Clone(snapshots), func(s Snapshot) bool {
		shown := s.Devices[device]
		return !shown.Counted || shown.Hold != Idle && shown.Hold != Named
	})
	c := Counter{Device: device}
	if len(known) == 0 {
		return c
	}
	// The idle account may have something from before the first snapshot.
	first, last := known[0], known[len(known)-1]
	c.Shown = -first.Devices[device].Joules
	accounts := map[Owner]*account{}
	for i, s := range known {
		shown := s.Devices[device]
		a := accounts[shown.Booked]
		if a == nil {
			a = &account{first: i}
			accounts[shown.Booked] = a
		}
		a.last, a.joules = i, shown.Joules
	}
	for owner, a := range accounts {
		c.Shown += a.joules
		j.account(device, owner, *a, known)
	}
	for i := range known[1:] {
		// What is burned between two is booked on whom the first shows, or on somebody who
		// was there in between.
		between := Span{known[i].From, known[i+1].To}
		unseen := func(o Owner) bool { return accounts[o] == nil || accounts[o].last <= i }
		if unseen(known[i].Devices[device].Booked) || slices.ContainsFunc(j.byDevice[device], func(h Holding) bool {
			return h.may(between) && unseen(h.Owner)
		}) {
			c.Hidden += j.burned(device, between)
		}
	}
	c.Slack = j.burned(device, first.Span) + j.burned(device, last.Span)
	c.Rose = j.Burned(device, last.To) - j.Burned(device, first.From)
	return c
}

// account is what a container was shown to have burned of a device.
type account struct {
	first, last int // the snapshots
	joules      float64
}

func (j *judgement) burned(device string, s Span) float64 {
	return j.Burned(device, s.To) - j.Burned(device, s.From)
}

// account judges what was booked on a pod: what was burned between its first snapshot and
// its last, and nothing from before it was given to the node. A flight reads the counters at
// one moment of its time and has the holders of another, so that what is booked may have been
// burned the length of a flight before. A pod that had the device twice, or together with
// another, is not judged.
func (j *judgement) account(device string, owner Owner, a account, known []Snapshot) {
	var held []Holding
	for _, h := range j.byDevice[device] {
		if h.Owner == owner {
			held = append(held, h)
		}
	}
	if len(held) != 1 || slices.ContainsFunc(j.byDevice[device], held[0].overlaps) {
		return
	}
	first, last := known[a.first].Span, known[a.last].Span
	least := j.burned(device, Span{first.To, last.From}) // the first and the last may be one
	most := j.burned(device, Span{held[0].Placed.Add(-j.longest), last.To})
	if a.joules < max(0, least)-grain || a.joules > most+grain {
		j.Misbooked = append(j.Misbooked, fmt.Sprintf("%s: %.3f J are booked on %v, which burned %.3f to %.3f J from %s to %s",
			device, a.joules, owner, max(0, least), most, held[0].Placed.Format(time.TimeOnly), last))
	}
}
