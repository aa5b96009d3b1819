package health

import (
	"cmp"

	"github.com/podgauge/podgauge/internal/device"
)

// applyRetirements applies the list of retired devices to all devices, tracked
// and absent, and notes the faults behind retirements. The list and the
// commands on the node are independent: a device in both stays retired until
// both end.
func (e *engine) applyRetirements() {
	list := device.Retirements{}
	if e.options.Retired != nil {
		list = e.options.Retired()
	}
	for _, g := range e.gpus {
		for id, s := range g.levels("") {
			if list != nil {
				names := []string{cmp.Or(string(id), string(g.gpu))}
				if id == "" {
					names = append(names, g.device.Serial())
				}
				e.applyRetirement(g, id, s, e.listedRetirement(list, s.listed, names...))
			}
			e.noteFaultBehind(g, s)
		}
	}
	for key, r := range e.absent {
		listed := r.Listed
		if list != nil {
			listed = e.listedRetirement(list, listed, cmp.Or(string(key.device), string(key.gpu)))
		}
		if listed != r.Listed {
			r.setRetired(r.retiredByCommand(), listed)
			e.absent[key] = r
			e.needSave(saveSoon)
		}
	}
}

// listedRetirement returns the retirement of a device by its names; the current
// one if nothing has changed. A GPU that is gone is also found by its name in
// the list before: its serial number is unknown. Without a date, and with one in
// the future, the retirement begins now.
func (e *engine) listedRetirement(list device.Retirements, current *device.Retirement,
	names ...string,
) *device.Retirement {
	if current != nil {
		names = append(names, current.ListedAs)
	}
	r, ok := list.Of(names...)
	_, incomplete := list[device.IncompleteList]
	switch {
	case incomplete && !ok:
		return current
	case !ok:
		return nil
	}
	if r.At.IsZero() || r.At.After(e.now) {
		r.At = e.now
		if current != nil {
			r.At = current.At
		}
	}
	if current != nil && r.Equal(*current) {
		return current
	}
	return &r
}

// applyRetirement sets the listed retirement of one level of a GPU.
func (e *engine) applyRetirement(g *trackedGPU, id device.ID, s *healthState, listed *device.Retirement) {
	before := s.retirement()
	if listed == s.listed {
		return
	}
	s.listed = listed
	e.needSave(saveSoon)
	if listed == nil {
		e.log.Info("device no longer in the list of retirements", "gpu", g.gpu, "device", id)
		return
	}
	e.log.Info("device retired by the list of retirements", "gpu", g.gpu, "device", id, "note", listed.Note)
	if before != nil {
		return
	}
	_, _, affected := g.level(id)
	e.emit(notify{
		At: e.now, GPU: g.gpu, Affected: affected, Reason: device.ReasonRetired, Note: listed.Note,
		MarkedUnhealthy: true,
	})
}

// noteFaultBehind notes the fault of a retired level, so that operators see it
// after its end, too.
func (e *engine) noteFaultBehind(g *trackedGPU, s *healthState) {
	behind := s.behind
	switch {
	case cmp.Or(g.health.retirement(), s.retirement()) == nil:
		behind = device.MaskedFault{}
	case s.cause.isFault():
		behind = device.MaskedFault{Reason: s.cause.Reason, Since: s.cause.Since}
	}
	if behind != s.behind {
		s.behind = behind
		e.needSave(saveSoon)
	}
}
