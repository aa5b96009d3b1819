package plugin

import (
	"context"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// GetPreferredAllocation returns which of the available devices a container should get:
// nothing that Allocate rejects if there is another choice. The kubelet asks even when it
// will need them all, sets no deadline, and fails the pod on an error: so this calls no
// other program, and returns no error. If there is no choice, Allocate gives the reason.
func (l *life) GetPreferredAllocation(_ context.Context, r *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	begin := time.Now()
	n := l.node()
	topology := l.topology(n.offer)
	answer := &api.PreferredAllocationResponse{}
	for _, c := range r.GetContainerRequests() {
		request := preferred.Request{
			Available: offeredIDs(c.GetAvailableDeviceIDs()), Must: offeredIDs(c.GetMustIncludeDeviceIDs()), Size: int(c.GetAllocationSize()),
		}
		request.Reject = func(id device.OfferedID) bool {
			_, _, wrong := n.check(id, request.Size)
			return wrong != fault{}
		}
		chosen := &api.ContainerPreferredAllocationResponse{}
		for _, id := range topology.Prefer(request, n.rules.Policy) {
			chosen.DeviceIDs = append(chosen.DeviceIDs, string(id))
		}
		answer.ContainerResponses = append(answer.ContainerResponses, chosen)
	}
	if l.Trace.Answered != nil {
		l.Trace.Answered("GetPreferredAllocation", time.Since(begin), nil)
	}
	return answer, nil
}

// view is how near the devices of an offer are to each other.
type view struct {
	of       *offer
	links    []device.Link
	topology *preferred.Topology
}

// topology is that of an offer. It is worked out when it is first asked for, and again when
// ids, devices or links change, but not when a device fails.
func (e *endpoint) topology(of *offer) *preferred.Topology {
	links := e.Links()
	v := e.view.Load()
	switch {
	case v != nil && v.of == of && sameSlice(v.links, links):
	case v != nil && sameSlice(v.links, links) && v.of.sameCandidates(of):
		v = &view{of, links, v.topology}
		e.view.Store(v)
	default:
		v = &view{of, links, preferred.New(of.candidates(), links)}
		e.view.Store(v)
	}
	return v.topology
}

// sameSlice tells whether two slices are one and the same memory.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// candidates are the ids that may be given away, and those that may not and that
// containers hold all the same.
func (o *offer) candidates() (all []preferred.Candidate) {
	for n := range o.items {
		if i := &o.items[n]; i.chosen() {
			all = append(all, i.candidate())
		}
	}
	return all
}

// sameCandidates reports whether another offer has the same candidates.
func (o *offer) sameCandidates(other *offer) bool {
	m := 0
	next := func() *item {
		for ; m < len(other.items); m++ {
			if i := &other.items[m]; i.chosen() {
				m++
				return i
			}
		}
		return nil
	}
	for n := range o.items {
		i := &o.items[n]
		if !i.chosen() {
			continue
		}
		if j := next(); j == nil || i.candidate() != j.candidate() {
			return false
		}
	}
	return next() == nil
}

// chosen reports whether an item decides which ids are preferred.
func (i *item) chosen() bool { return i.until.IsZero() || i.held }

func (i *item) candidate() preferred.Candidate {
	d := i.device
	return preferred.Candidate{
		ID: i.id, Device: d.ID, GPU: d.GPU, Index: d.Index, NUMANode: d.NUMANode, Replica: i.shared, Held: i.held,
	}
}
