package plugin

import (
	"context"
	"time"

	"github.com/podgauge/podgauge/device"
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

// topology is that of an offer. It is worked out when it is first asked for, and
// again when what it comes from is another.
func (e *endpoint) topology(of *offer) *preferred.Topology {
	links := e.Links()
	v := e.view.Load()
	if v == nil || v.of != of || !sameSlice(v.links, links) {
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
func (o *offer) candidates() []preferred.Candidate {
	var all []preferred.Candidate
	for _, i := range o.items {
		if i.until.IsZero() || i.held {
			d := i.status.Device
			all = append(all, preferred.Candidate{
				ID: i.id, Device: d.ID, GPU: d.GPU, Index: d.Index, NUMANode: d.NUMANode, Replica: i.shared, Held: i.held,
			})
		}
	}
	return all
}
