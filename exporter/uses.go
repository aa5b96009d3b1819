package exporter

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// A device that several containers hold keeps its own series, without a holder. What
// each of them uses of it is told by their processes, and what is left over has
// families of its own, so that the sum over both is the device's
// (docs/adr/0010-processes-to-containers.md).

// useFamilies are what is told of a container's use of a device, and of nobody's.
type useFamilies struct{ container, rest [useKinds]*family }

// useKinds are the things that a use consists of.
const (
	usedMemory = iota
	usedSM
	usedController
	usedEncoder
	usedDecoder
	processCount
	useKinds
)

func (u *useFamilies) make(add func(description) *family) {
	for i, row := range [useKinds]struct{ name, container, rest string }{
		usedMemory: {
			"memory_used_bytes", "Memory of the device that the container's processes hold.",
			"Memory of the device in use that no container's process is known to hold: the driver's own, and that of processes in no container that holds the device.",
		},
		usedSM:         {"sm_utilization_ratio", "Share of the last two seconds in which a kernel of the container's processes ran.", "Share of the last two seconds in which a kernel of a process ran that is in no container that holds the device."},
		usedController: {"memory_controller_utilization_ratio", "Share of the last two seconds in which the container's processes read or wrote the device's memory.", "Share of the last two seconds in which processes in no container that holds the device read or wrote its memory."},
		usedEncoder:    {"encoder_utilization_ratio", "Share of the last two seconds in which the container's processes used the encoders.", "Share of the last two seconds in which processes in no container that holds the device used its encoders."},
		usedDecoder:    {"decoder_utilization_ratio", "Share of the last two seconds in which the container's processes used the decoders.", "Share of the last two seconds in which processes in no container that holds the device used its decoders."},
		processCount:   {"processes", "Processes of the container that use the device.", "Processes that use the device and are in no container that holds it."},
	} {
		u.container[i] = add(gauge("nvidia_gpu_container_"+row.name, row.container))
		u.rest[i] = add(gauge("nvidia_gpu_unattributed_"+row.name, row.rest))
	}
}

// tally is what the processes of one container, or of none, use of a device. What was
// told of none of them is not told of all.
type tally struct {
	owner device.Owner // the zero one: of none
	sum   [useKinds]float64
	told  [useKinds]bool
}

func (t *tally) add(u device.Use) {
	for i, v := range [...]float64{usedMemory: u.MemoryBytes, usedSM: u.SM, usedController: u.MemoryController, usedEncoder: u.Encoder, usedDecoder: u.Decoder} {
		if v >= 0 {
			t.sum[i] += v
			t.told[i] = true
		}
	}
	t.sum[processCount]++
}

// renderUses writes what each container that holds the device uses of it, and what is
// left. Nothing is written where processes cannot be told apart: that would be a guess.
func (d rendering) renderUses(s snapshot, r *device.Reading, gpu []device.Status) {
	if !r.Peopled || !s.visible || d.hold == device.Unknown || d.status.Gone {
		return
	}
	tallies := d.tally(s.holders, r.Uses)
	nobody := &tallies[0]
	if d.status.MIG && len(tallies) == 1 && nobody.sum[processCount] == 0 {
		return // whoever uses it, uses its slices
	}
	told := toldOf(tallies)
	for i := range tallies[1:] {
		t := &tallies[1+i]
		on := d.page.labelled(deviceLabels, d.status, t.owner)
		for kind, f := range d.page.own.uses.container {
			if told[kind] {
				on.set(slot{family: f}, t.sum[kind])
			}
		}
	}
	if !d.status.MIG {
		nobody.sum[usedMemory], told[usedMemory] = d.memoryLeft(s.holders, r, gpu)
	}
	for kind, f := range d.page.own.uses.rest {
		if told[kind] {
			d.itself.set(slot{family: f}, nobody.sum[kind])
		}
	}
}

// tally sorts the uses of the device by container. The first is that of nobody, and
// each container that holds the device has one, be it empty.
func (d rendering) tally(h device.Holders, uses []device.Use) []tally {
	p := d.page
	p.holders, p.tallies = p.holders[:0], append(p.tallies[:0], tally{})
	for _, row := range h.Rows(d.status.ID) {
		if row.Owner != (device.Owner{}) && !slices.Contains(p.holders, row.Owner) {
			p.holders = append(p.holders, row.Owner)
			p.tallies = append(p.tallies, tally{owner: row.Owner})
		}
	}
	for _, u := range uses {
		if u.Device != d.status.ID {
			continue
		}
		of := 0
		if owner, ok := p.sources.Processes.Owner(u.PID, p.holders); ok {
			of = 1 + slices.Index(p.holders, owner)
		}
		p.tallies[of].add(u)
	}
	return p.tallies
}

// toldOf is what the driver tells of the device's processes. Of none it tells their
// number and memory.
func toldOf(tallies []tally) (told [useKinds]bool) {
	used := false
	for i := range tallies {
		used = used || tallies[i].sum[processCount] > 0
		for kind, is := range tallies[i].told {
			told[kind] = told[kind] || is
		}
	}
	told[usedMemory] = told[usedMemory] || !used
	told[processCount] = true
	return told
}

// memoryLeft is what of the device's memory in use no container's process holds: false
// where the device does not say what is in use. What slices that share a GPU instance
// use is read of the first of them, for all.
func (d rendering) memoryLeft(h device.Holders, r *device.Reading, gpu []device.Status) (float64, bool) {
	i := slices.IndexFunc(r.Samples, func(s device.Sample) bool { return s.Device == d.status.ID && s.Metric == d.page.memoryUsed })
	if i < 0 {
		return 0, false
	}
	left := r.Samples[i].Value
	for _, t := range d.page.tallies[1:] {
		left -= t.sum[usedMemory]
	}
	for _, other := range gpu {
		if other.ID != d.status.ID && shareInstance(d.status, other) {
			left -= d.attributed(h, r.Uses, other.ID)
		}
	}
	return max(0, left), true
}

// attributed is the memory of another device that is some container's.
func (d rendering) attributed(h device.Holders, uses []device.Use, id device.ID) (sum float64) {
	var holders []device.Owner
	for _, row := range h.Rows(id) {
		holders = append(holders, row.Owner)
	}
	for _, u := range uses {
		if u.Device != id || u.MemoryBytes < 0 {
			continue
		}
		if _, ok := d.page.sources.Processes.Owner(u.PID, holders); ok {
			sum += u.MemoryBytes
		}
	}
	return sum
}
