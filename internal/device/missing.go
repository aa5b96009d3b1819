package device

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// knownPeriod is how long a GPU that is gone when a process starts is still known: an older loss must not stop a rollout.
const knownPeriod = 24 * time.Hour

var (
	errListed    = errors.New("the driver lists the GPU: only a GPU that is gone can be forgotten")
	errAllocated = errors.New("the GPU is allocated: delete the pods first")
)

// Missing returns the known GPUs that the newest listing lacks, in order. Known are the GPUs of this process and of the history. Not
// missing are a retired GPU, a GPU with a successor at the same PCI address, and a GPU that was gone for a day before this process.
func (m *Monitor) Missing() []Device {
	missing, _ := m.missing.Get()
	return missing
}

// publishMissing publishes the missing GPUs.
func (m *Monitor) publishMissing() {
	missing := m.tracker.missing()
	if before := m.Missing(); !slices.EqualFunc(missing, before, Device.Equal) {
		m.missing.Set(missing)
	}
}

func (t *deviceTracker) missing() (missing []Device) {
	add := func(d Device, goneSince time.Time, retired *Retirement) {
		hasPlace := func(o *trackedDevice) bool {
			return o.goneSince.IsZero() && o.WholeGPU() && o.PCI == d.PCI && d.PCI != ""
		}
		isOld := !goneSince.IsZero() && t.startedAt.Sub(goneSince) >= knownPeriod
		if d.ID != "" && retired == nil && !isOld && !slices.ContainsFunc(t.devices, hasPlace) {
			missing = append(missing, d)
		}
	}
	for _, g := range t.gpus {
		if !g.listed {
			add(g.device, g.goneSince, g.health.retired)
		}
	}
	for key, r := range t.absentRecords {
		if key.device == "" {
			add(r.LastListed, r.GoneSince, r.Retired)
		}
	}
	slices.SortFunc(missing, Device.Compare)
	return missing
}

// forget removes a GPU that is gone, with its health and counts.
func (t *deviceTracker) forget(id ID) error {
	g := t.gpus[GPU(id)]
	_, recorded := t.absentRecords[recordKey{gpu: GPU(id)}]
	switch {
	case g == nil && !recorded:
		return ErrUnknownDevice
	case g != nil && g.listed:
		return errListed
	case t.isAllocated(id):
		return errAllocated
	}
	maps.DeleteFunc(t.absentRecords, func(key recordKey, _ HealthRecord) bool { return key.gpu == GPU(id) })
	delete(t.gpus, GPU(id))
	t.devices = slices.DeleteFunc(t.devices, func(d *trackedDevice) bool { return d.GPU == GPU(id) })
	t.group()
	t.historyChanged, t.historyUrgent = true, true
	t.log.Info("GPU forgotten by the operator", "gpu", id)
	return nil
}
