package incident

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// justBefore is how long before a report a container may have lost the device, and be
	// hit all the same: what the driver says nothing of, a check finds, and a GPU that seems
	// well is checked every five seconds (checkEvery in device/monitor.go). Its crash may be
	// all that shows until then, and a pod is gone within a second of that.
	justBefore = 5 * time.Second
	// amendWithin is how long a name is waited for. The kubelet names an allocation within
	// milliseconds; one that was restarted may take a minute (docs/adr/0004-unknown-holders.md).
	amendWithin = time.Minute
	// mostHolders bounds those of one incident: replicas of a device may be many.
	mostHolders = 256
)

// attribute names those who had the device when e was reported, or until just before.
func (b *book) attribute(e *entry, h *device.Holders, now time.Time) {
	if e.Past {
		e.HoldersUnknown = true
		return
	}
	seen := seenWith(h.Recent, e.Device)
	var newest time.Time // when the newest of the holders of now got it
	for _, r := range e.rows {
		if r.Owner == (device.Owner{}) {
			e.unnamed = append(e.unnamed, r)
			newest = e.First
			continue
		}
		since := earliest(h.At, e.First) // where the history has forgotten him, he has had it for long
		if i := slices.IndexFunc(seen, func(s device.Seen) bool { return s.Owner == r.Owner }); i >= 0 {
			since = seen[i].First
		}
		newest = latest(newest, since)
		if !since.After(e.First) {
			b.name(e, r.Owner, since, time.Time{})
		}
	}
	for _, s := range seen {
		if ended := endOf(s, e.rows); !ended.IsZero() && hadUntilJustBefore(e, s, ended, newest) {
			b.name(e, s.Owner, s.First, s.Last)
		}
	}
	e.Nameless, e.amendBy = len(e.unnamed) > 0, now.Add(amendWithin)
	e.HoldersUnknown = len(e.rows) == 0 && !h.Settled
}

// hadUntilJustBefore tells whether somebody who has the device no more may have been hit.
// The driver reports an error within milliseconds, so where the device has been given to
// somebody else since, it is the error of that one. What a check finds may have happened
// while either had it.
func hadUntilJustBefore(e *entry, s device.Seen, ended, newest time.Time) bool {
	if s.First.After(e.First) || ended.Before(e.First.Add(-justBefore)) {
		return false
	}
	return e.Xid == 0 || ended.After(e.First) || !newest.After(s.Last)
}

// endOf is when somebody was known not to have the device any more; zero where he has it.
func endOf(s device.Seen, rows []device.Holding) time.Time {
	if slices.ContainsFunc(rows, func(r device.Holding) bool { return r.Owner == s.Owner }) {
		return time.Time{}
	}
	if s.Ended.IsZero() {
		return s.Last
	}
	return s.Ended
}

// name adds a holder, once.
func (b *book) name(e *entry, o device.Owner, since, until time.Time) {
	known := slices.ContainsFunc(e.Holders, func(h Holder) bool { return h.owner() == o })
	if known || len(e.Holders) == mostHolders {
		return
	}
	b.add(e, Holder{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container, Since: since, Until: until})
}

// amend names those of whom it is known only now that they had the device then: the
// kubelet names a holder when Allocate has returned, and the history says since when he
// has had it. Who got it later is named by no answer.
func (b *book) amend(e *entry, h *device.Holders, now time.Time) {
	rows := h.Rows(e.Device)
	named := 0 // of those who have it no more
	for _, s := range seenWith(h.Recent, e.Device) {
		ended := endOf(s, rows)
		had := !s.First.After(e.First) && (ended.IsZero() || ended.After(e.First))
		if had && !slices.ContainsFunc(e.Holders, func(o Holder) bool { return o.owner() == s.Owner }) {
			until := time.Time{}
			if !ended.IsZero() {
				until = s.Last
				named++
			}
			b.name(e, s.Owner, s.First, until)
		}
	}
	left := slices.DeleteFunc(slices.Clone(e.unnamed), func(u device.Holding) bool {
		i := slices.IndexFunc(rows, func(r device.Holding) bool { return r.Resource == u.Resource && r.Offered == u.Offered })
		if i >= 0 && (rows[i].Owner == (device.Owner{}) || slices.ContainsFunc(e.Holders, func(o Holder) bool { return o.owner() == rows[i].Owner })) {
			return rows[i].Owner != (device.Owner{})
		}
		named-- // it was named, and has ended
		return named >= 0
	})
	if len(left) < len(e.unnamed) {
		e.unnamed = left
		if len(left) == 0 {
			e.Nameless = false
			e.rows = slices.Clone(rows) // whose error the next report is as well
		}
		b.changed()
	}
	if now.After(e.amendBy) || len(rows) == 0 && h.Settled {
		e.unnamed = nil
	}
}

// nameOfGone adds the containers that the kubelet first names after their device is gone, as
// after a restart of podgauge. A device that is gone is never allocated, so they had it before.
func (b *book) nameOfGone(e *entry, h *device.Holders, now time.Time) {
	if e.Reason != device.ReasonGone || e.Healed != nil || now.After(e.amendBy) {
		return
	}
	rows := h.Rows(e.Device)
	for _, s := range seenWith(h.Recent, e.Device) {
		if endOf(s, rows).IsZero() {
			b.name(e, s.Owner, s.First, time.Time{})
		}
	}
	if h.Settled && len(e.Holders) > 0 {
		e.HoldersUnknown, e.rows = false, slices.Clone(rows)
		b.changed()
	}
}

// follow takes in who holds what now: names that were missing, and ends.
func (b *book) follow(h *device.Holders, now time.Time) {
	for _, e := range b.entries {
		if len(e.unnamed) > 0 {
			b.amend(e, h, now)
		}
		if e.HoldersUnknown {
			b.nameOfGone(e, h, now)
		}
		b.left(e, h)
	}
}

// left notes until when the holders had the device.
func (b *book) left(e *entry, h *device.Holders) {
	for i, o := range e.Holders {
		if !o.Until.IsZero() {
			continue
		}
		rows := h.Rows(e.Device)
		seen := seenWith(h.Recent, e.Device)
		s := device.Seen{Last: e.Last} // when it was known to have it
		if k := slices.IndexFunc(seen, func(s device.Seen) bool { return s.Owner == o.owner() }); k >= 0 {
			s = seen[k]
		}
		another := s.First.After(latest(e.Last, o.Since)) && !e.earlier // of that name
		has := slices.ContainsFunc(rows, func(r device.Holding) bool { return r.Owner == o.owner() })
		if has && !another {
			continue
		}
		if !another && s.Ended.IsZero() && !h.Settled {
			continue // nobody can tell: a kubelet that comes up names one after the other
		}
		if another {
			s.Last = e.Last
		}
		e.Holders = slices.Clone(e.Holders)
		e.Holders[i].Until = latest(s.Last, o.Since)
		b.changed()
	}
}

// seenWith are those who were seen with a device, of rows in the order of Holders.Recent.
func seenWith(recent []device.Seen, id device.ID) []device.Seen {
	start, _ := slices.BinarySearchFunc(recent, id, func(s device.Seen, id device.ID) int { return cmp.Compare(s.Device, id) })
	end := start
	for end < len(recent) && recent[end].Device == id {
		end++
	}
	return recent[start:end]
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
