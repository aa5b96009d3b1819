package api

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Holders is the answer at HoldersPath.
type Holders struct {
	At      time.Time `json:"at"`
	Node    string    `json:"node,omitempty"`
	Kubelet Kubelet   `json:"kubelet"`
	// Settled says that a device which is not listed is held by nobody.
	Settled bool      `json:"settled"`
	Holders []Holding `json:"holders"`
}

// Holding is a container, and a device that it holds or held.
type Holding struct {
	Device  device.ID  `json:"device"`
	GPU     device.GPU `json:"gpu,omitempty"` // as are index and profile: of a device that is still there
	Index   *int       `json:"index,omitempty"`
	Profile string     `json:"profile,omitempty"`
	Holder
}

// Holder is a container that holds a device, or held it within the last hour.
type Holder struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Holds     bool   `json:"holds"` // now
	// As are the resources and ids as which it has it; none where it holds it no more.
	As    []Offered `json:"as"`
	First time.Time `json:"first,omitzero"` // seen with the device
	Last  time.Time `json:"last,omitzero"`
}

// Offered is what the kubelet has given the container.
type Offered struct {
	Resource string           `json:"resource"`
	ID       device.OfferedID `json:"id"`
}

func (s Sources) holders(q Query, now time.Time) any {
	statuses, _ := s.Look()
	held, _ := s.Held()
	h := Holders{At: now.UTC(), Node: s.Node, Kubelet: kubelet(held), Settled: held.Settled, Holders: []Holding{}}
	at := q.place(statuses)
	for _, d := range heldDevices(statuses, held) {
		if !at.has(d.Device, d.GPU, d.index()) {
			continue
		}
		for _, d.Holder = range holdersOf(d.Device, held) {
			if q.names(d.Namespace, d.Pod) {
				h.Holders = append(h.Holders, d)
			}
		}
	}
	return h
}

// index is the GPU's, or one that no GPU has.
func (h Holding) index() int {
	if h.Index == nil {
		return -1
	}
	return *h.Index
}

// heldDevices are the devices that may have a holder: those of the Board in its order,
// and then those that are not there any more.
func heldDevices(statuses []device.Status, held device.Holders) []Holding {
	devices := make([]Holding, 0, len(statuses))
	there := make(map[device.ID]bool, len(statuses))
	for _, s := range statuses {
		there[s.ID] = true
		devices = append(devices, Holding{Device: s.ID, GPU: s.GPU, Index: &s.Index, Profile: s.Profile})
	}
	var gone []device.ID
	for _, r := range held.Held {
		gone = append(gone, r.Offered.Device())
	}
	for _, r := range held.Recent {
		gone = append(gone, r.Device)
	}
	slices.Sort(gone)
	for _, id := range slices.Compact(gone) {
		if !there[id] {
			devices = append(devices, Holding{Device: id})
		}
	}
	return devices
}

// holdersOf are the containers of a device: first those that hold it, by name, then those
// that did, newest first.
func holdersOf(id device.ID, held device.Holders) []Holder {
	var now, then []Holder
	for _, r := range held.Rows(id) {
		if r.Owner == (device.Owner{}) { // nobody knows who
			continue
		}
		i := slices.IndexFunc(now, func(h Holder) bool { return h.owner() == r.Owner })
		if i < 0 {
			i = len(now)
			now = append(now, Holder{Namespace: r.Owner.Namespace, Pod: r.Owner.Pod, Container: r.Owner.Container, Holds: true})
		}
		now[i].As = append(now[i].As, Offered{r.Resource, r.Offered})
	}
	for _, r := range held.Recent {
		if r.Device != id {
			continue
		}
		first, last := r.First.UTC(), r.Last.UTC()
		if i := slices.IndexFunc(now, func(h Holder) bool { return h.owner() == r.Owner }); i >= 0 {
			now[i].First, now[i].Last = first, last
			continue
		}
		then = append(then, Holder{
			Namespace: r.Owner.Namespace, Pod: r.Owner.Pod, Container: r.Owner.Container, As: []Offered{}, First: first, Last: last,
		})
	}
	slices.SortFunc(now, func(a, b Holder) int { return a.owner().Compare(b.owner()) })
	slices.SortStableFunc(then, func(a, b Holder) int { return b.Last.Compare(a.Last) })
	return append(now, then...)
}

func (h Holder) owner() device.Owner {
	return device.Owner{Namespace: h.Namespace, Pod: h.Pod, Container: h.Container}
}
