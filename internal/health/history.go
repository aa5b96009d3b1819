package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// maxAbsentRecords bounds the records of absent devices. Records do not expire
// by age: a clock that is ahead must not erase any.
const maxAbsentRecords = 256

// History is the health of the devices in an earlier process. It is
// immutable once handed over. The JSON form is that of the file: fields are
// added, and never change.
type History struct {
	Records []Record `json:"records"` // by GPU and device
	// Rebooted is set if the node was rebooted since: all GPUs were reset.
	Rebooted bool `json:"-"`
	// Lost is set if an earlier history cannot be read: then each device is
	// checked before its first publication. Lost is saved until then.
	Lost bool `json:"lost,omitempty"`
	// DriverRestarts counts the processes that ended by ErrRestart since the
	// driver last worked for a while.
	DriverRestarts uint `json:"driver_restarts,omitempty"`
}

// Validate returns an error unless the records are ordered and unique, and each
// has a GPU, which LastListed is.
func (h *History) Validate() error {
	for i, r := range h.Records {
		l := r.LastListed
		isOrdered := i == 0 || h.Records[i-1].compare(r) < 0
		isGPU := r.Device == "" && l.GPU == r.GPU && l.WholeGPU()
		if r.GPU == "" || !isOrdered || l.ID != "" && !isGPU {
			return fmt.Errorf("record %d has no GPU, has another GPU or is out of order", i)
		}
	}
	return nil
}

// Record is the health of a GPU with all its devices, or of one MIG device.
type Record struct {
	GPU            device.GPU              `json:"gpu"`
	Device         device.ID               `json:"device,omitempty"` // of a MIG device; empty: the GPU
	Cause          `json:"cause,omitzero"` // of Unhealthy or Recovering
	UnhealthyTimes []time.Time             `json:"unhealthy_times,omitempty"`
	FailedResets   FailedResets            `json:"failed_resets,omitzero"`
	// Retired is the retirement by a command, otherwise Listed: versions that
	// ignore Listed must not return the device to service.
	Retired *device.Retirement `json:"retired,omitempty"`
	Listed  *device.Retirement `json:"listed,omitempty"` // by Options.Retired
	Behind  device.MaskedFault `json:"behind,omitzero"`  // the retirement
	Xids    []device.Xid       `json:"xids,omitempty"`   // of the GPU, without counts
	// LastSeen is when the GPU was present, or the MIG device present and
	// unhealthy.
	LastSeen time.Time `json:"last_seen,omitzero"`
	// GoneSince is when the GPU was first absent from a listing; zero: present.
	GoneSince time.Time `json:"gone_since,omitzero"`
	// LastListed is the GPU in its newest listing; the zero Device if unknown.
	// DeviceNodes and InfoLabels are not saved.
	LastListed device.Device `json:"last_listed,omitzero"`
	rebooted   bool          // the node, after the record was made
}

type recordKey struct {
	gpu    device.GPU
	device device.ID
}

func (r Record) key() recordKey { return recordKey{r.GPU, r.Device} }

func (r Record) isRetired() bool { return r.Retired != nil || r.Listed != nil }

// retiredByCommand returns the retirement by a command; nil: none.
func (r Record) retiredByCommand() *device.Retirement {
	if r.Retired != nil && r.Retired.ListedAs != "" {
		return nil
	}
	return r.Retired
}

// setRetired sets the retirements by a command and by the list.
func (r *Record) setRetired(byCommand, listed *device.Retirement) {
	r.Retired, r.Listed = cmp.Or(byCommand, listed), listed
}

func (r Record) compare(o Record) int {
	return cmp.Or(cmp.Compare(r.GPU, o.GPU), cmp.Compare(r.Device, o.Device))
}

// healthState returns the health in a record. Times after now, from before the
// clock was set back, are corrected.
func (r Record) healthState(checksBegun uint64, now time.Time) healthState {
	s := healthState{failedResets: r.FailedResets, retired: r.retiredByCommand(), listed: r.Listed, behind: r.Behind}
	s.unhealthyTimes = slices.Clone(r.UnhealthyTimes)
	s.unhealthyTimes = slices.DeleteFunc(s.unhealthyTimes, func(at time.Time) bool { return at.After(now) })
	if s.retired != nil && s.retired.At.After(now) {
		s.retired = &device.Retirement{Note: s.retired.Note, At: now}
	}
	if r.Reason == "" {
		return s
	}
	r.Since = earliest(r.Since, now)
	s.state, s.cause = device.Unhealthy, r.Cause
	// Without a reboot only a check shows that the fault is over, since a repair
	// may be pending.
	if r.rebooted {
		s.state = device.Recovering
	}
	s.cause.rebooted = r.rebooted
	s.cause.needsRepair = false
	s.cause.notedAt = now
	s.cause.checksBegun = checksBegun
	s.cause.resetBaseline = nil
	return s
}

// healthRecord returns the record of one level of the GPU; false if there is
// nothing to save.
func (g *trackedGPU) healthRecord(id device.ID, s *healthState, now time.Time) (r Record, found bool) {
	r = Record{
		GPU: g.gpu, Device: id,
		UnhealthyTimes: s.unhealthyTimes, FailedResets: s.failedResets, Behind: s.behind,
	}
	r.setRetired(s.retired, s.listed)
	if s.retirement() != nil {
		r.LastSeen = now
	}
	if s.cause.isFault() {
		r.Cause, r.LastSeen = s.cause, now
		// A value from before the fault may also precede an earlier reset.
		if g.energyCounter != 0 && s.cause.resetBaseline != nil {
			r.EnergyCounter = g.energyCounter
		}
	}
	if id == "" {
		for _, c := range g.eventCounters {
			if c.Code != 0 {
				r.Xids = append(r.Xids, c.Xid)
			}
		}
		r.LastListed = g.device
		r.GoneSince = g.goneSince
		r.LastSeen = now
		if !g.goneSince.IsZero() {
			r.LastSeen = g.goneSince
		}
	}
	found = r.LastListed.ID != "" || r.Reason != "" || r.isRetired() || len(r.UnhealthyTimes) > 0 ||
		r.FailedResets.Reason != "" || r.Behind.Reason != "" || len(r.Xids) > 0
	return r, found
}

// applyReset applies evidence of a reset to a record, and reports whether the
// record has changed.
func (r *Record) applyReset(e evidence, now time.Time) bool {
	s, tr := r.healthState(0, now).apply(e, now)
	if tr.save {
		r.Cause, r.FailedResets = s.cause, s.failedResets
	}
	return tr.save
}

// records are the health of devices that are not tracked.
type records map[recordKey]Record

// newRecords returns the records of an earlier process.
func newRecords(h History, now time.Time) records {
	all := records{}
	for _, r := range h.Records {
		r.earlier = true
		if r.rebooted = h.Rebooted; r.rebooted {
			r.applyReset(evidence{kind: evidenceReset}, now)
		}
		all[r.key()] = r
	}
	return all
}

// keep keeps the record of a removed device, which may come back with the same
// fault. At the limit, the record that was last seen first is deleted, of a
// device that is not retired if there is one.
func (all records) keep(r Record, found bool) {
	if found {
		all[r.key()] = r
	}
	for len(all) > maxAbsentRecords {
		oldest := slices.MinFunc(slices.Collect(maps.Values(all)), func(a, b Record) int {
			if a.isRetired() != b.isRetired() {
				return map[bool]int{false: -1, true: 1}[a.isRetired()]
			}
			return cmp.Or(a.LastSeen.Compare(b.LastSeen), a.compare(b))
		})
		delete(all, oldest.key())
	}
}

// take returns and removes a record; the zero record if there is none.
func (all records) take(gpu device.GPU, id device.ID) (r Record, found bool) {
	key := recordKey{gpu, id}
	r, found = all[key]
	delete(all, key)
	return r, found
}

// reset applies an energy counter to the records of a GPU's absent MIG devices,
// and reports whether a record has changed. A reset removes all MIG devices, and
// when they are back, the counter may be as high as before.
func (all records) reset(gpu device.GPU, energyCounter uint64, now time.Time) (changed bool) {
	for key, r := range all {
		if key.gpu == gpu && r.applyReset(evidence{kind: evidenceResetCount, energyCounter: energyCounter}, now) {
			all[key] = r
			changed = true
		}
	}
	return changed
}

// trust ends the retirement of an absent device, and reports whether there was
// one.
func (all records) trust(id device.ID) (retired bool) {
	for key, r := range all {
		if (string(key.gpu) == string(id) || key.device == id) && r.retiredByCommand() != nil {
			r.setRetired(nil, r.Listed)
			all[key] = r
			retired = true
		}
	}
	return retired
}
