package device

import (
	"slices"
	"time"
)

// How long a device that no listing has any more stays on the Board, unhealthy. From
// 1.37 on a kubelet crashes when a device vanishes while its Allocate is under way
// (pkg/kubelet/cm/devicemanager); it reports one that it is not told of as healthy in
// the status of the pod that holds it; and a GPU that fell off the bus is worth
// showing for longer than a slice that somebody took away.
const (
	sliceKeptFor = 10 * time.Second
	gpuKeptFor   = 10 * time.Minute
)

// ReasonGone is the reason of a device that no listing has any more.
const ReasonGone = "gone"

// ward is what the Monitor remembers of one device: of a slice that is its own, and
// of a whole GPU no more than that it is there, since what is wrong with a GPU is
// wrong with all its devices.
type ward struct {
	Device
	patient *patient
	own     condition // of a slice alone
	hit     []Device  // itself; replaced, never written
	goneAt  time.Time // since when no listing has it; zero: the newest has
	reason  string    // why it is not healthy, as of since
	since   time.Time // zero: it has not been judged yet
}

// judged is where the device stands, and the verdict that holds.
func (w *ward) judged() (Health, verdict) {
	p := w.patient
	switch {
	case p.verdict.reason != "":
		return p.health, p.verdict
	case !w.goneAt.IsZero():
		return Unhealthy, verdict{reason: ReasonGone}
	case w.own.verdict.reason != "":
		return w.own.health, w.own.verdict
	default: // each is Well or Suspect
		return max(p.health, w.own.health), verdict{}
	}
}

// status is what the Board is told.
func (w *ward) status(h Health, v verdict, now time.Time) Status {
	if w.since.IsZero() {
		w.reason, w.since = v.reason, now
		if !v.since.IsZero() { // it was so before this process
			w.since = v.since
		}
	}
	if w.reason != v.reason {
		w.reason, w.since = v.reason, now
	}
	action := v.action
	if h == Probation { // it was done
		action = ""
	}
	return Status{
		Device: w.Device, Healthy: v.reason == "", Health: h, Reason: v.reason, Action: action,
		Since: w.since, Gone: !w.goneAt.IsZero(), Xids: w.patient.xids,
	}
}

// over tells whether the device has been gone for so long that nobody needs to be
// told any more.
func (w *ward) over(now time.Time) bool {
	kept := sliceKeptFor
	if w.WholeGPU() {
		kept = gpuKeptFor
	}
	return !w.goneAt.IsZero() && now.Sub(w.goneAt) >= kept
}

// ward finds a device; nil where there is none.
func (m *Monitor) ward(id ID) *ward {
	if i := slices.IndexFunc(m.wards, func(w *ward) bool { return w.ID == id }); i >= 0 {
		return m.wards[i]
	}
	return nil
}

// arrange has each GPU know its slices, and what is hit with it.
func (m *Monitor) arrange() {
	slices.SortFunc(m.wards, func(a, b *ward) int { return a.Compare(b.Device) })
	for _, p := range m.patients {
		p.slices, p.hit = nil, nil
	}
	for _, w := range m.wards {
		w.hit = []Device{w.Device}
		p := w.patient
		if w.goneAt.IsZero() || w.WholeGPU() {
			p.hit = append(p.hit, w.Device)
		}
		if !w.WholeGPU() {
			p.slices = append(p.slices, w)
		}
	}
}

// merge takes a whole listing in.
func (m *Monitor) merge(devices []Device, now time.Time) {
	for _, p := range m.patients {
		p.listed = false
	}
	listed := map[ID]bool{}
	for _, d := range devices {
		p := m.patients[d.GPU]
		if p == nil {
			p = &patient{gpu: d.GPU, number: len(m.patients), first: now, verdictBy: now.Add(firstVerdictBy)}
			m.patients[d.GPU] = p
			m.changed = true // the next process has to know that it was there
			m.takeRecord(p, &p.condition, "", now)
		}
		w := m.ward(d.ID)
		if w == nil {
			w = &ward{}
			m.wards = append(m.wards, w)
			if !d.WholeGPU() {
				m.takeRecord(p, &w.own, d.ID, now)
			}
		}
		w.Device, w.patient, w.goneAt = d, p, time.Time{}
		p.listed, listed[d.ID] = true, true
		if d.WholeGPU() {
			p.device, p.goneAt = d, time.Time{}
			p.device.Nodes, p.device.Facts = nil, nil
		}
	}
	m.takeAbsent(now)
	for _, w := range m.wards {
		if !listed[w.ID] && w.goneAt.IsZero() {
			w.goneAt = now
			m.log.Info("device is gone", "device", w.ID, "gpu", w.GPU, "profile", w.Profile)
		}
	}
	for _, p := range m.patients {
		if !p.listed { // with what it had until now
			if p.goneAt.IsZero() {
				p.goneAt = now
			}
			m.find(p, verdict{reason: ReasonGone, at: now, noted: now}, now)
		}
	}
	m.arrange()
}

// held reports whether a container has the device.
func (m *Monitor) held(id ID) bool { return m.Held != nil && m.Held(id) }

// forget drops what has been gone for long enough, once nobody holds it.
func (m *Monitor) forget(now time.Time) {
	kept := len(m.wards)
	m.wards = slices.DeleteFunc(m.wards, func(w *ward) bool {
		over := w.over(now) && !m.held(w.ID)
		if over && !w.WholeGPU() {
			m.put(w.patient, &w.own, w.ID, now)
		}
		return over
	})
	if len(m.wards) == kept {
		return
	}
	m.changed = true
	for gpu, p := range m.patients {
		if !slices.ContainsFunc(m.wards, func(w *ward) bool { return w.patient == p }) {
			m.put(p, &p.condition, "", now)
			delete(m.patients, gpu)
		}
	}
	m.arrange()
}
