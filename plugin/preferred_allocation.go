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
func (s *server) GetPreferredAllocation(_ context.Context, r *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	begin := time.Now()
	snapshot := s.snapshot()
	topology := s.preferredTopology(snapshot.deviceList)
	resp := &api.PreferredAllocationResponse{}
	for _, c := range r.GetContainerRequests() {
		request := preferred.Request{
			Available: advertisedIDs(c.GetAvailableDeviceIDs()), Must: advertisedIDs(c.GetMustIncludeDeviceIDs()), Size: int(c.GetAllocationSize()),
		}
		request.Reject = func(id device.AdvertisedID) bool {
			_, _, reqErr := snapshot.checkID(id, request.Size)
			return reqErr != requestError{}
		}
		chosen := &api.ContainerPreferredAllocationResponse{}
		for _, id := range topology.Prefer(request, snapshot.rules.Policy) {
			chosen.DeviceIDs = append(chosen.DeviceIDs, string(id))
		}
		resp.ContainerResponses = append(resp.ContainerResponses, chosen)
	}
	if s.Hooks.OnCallServed != nil {
		s.Hooks.OnCallServed("GetPreferredAllocation", time.Since(begin), nil)
	}
	return resp, nil
}

// cachedTopology is how near the devices of an offer are to each other.
type cachedTopology struct {
	list     *deviceList
	links    []device.Link
	topology *preferred.Topology
}

// preferredTopology is that of an offer. It is worked out when it is first asked for, and again when
// ids, devices or links change, but not when a device fails.
func (e *endpoint) preferredTopology(list *deviceList) *preferred.Topology {
	links := e.Links()
	v := e.topologyCache.Load()
	switch {
	case v != nil && v.list == list && sameBacking(v.links, links):
	case v != nil && sameBacking(v.links, links) && v.list.sameCandidates(list):
		v = &cachedTopology{list, links, v.topology}
		e.topologyCache.Store(v)
	default:
		v = &cachedTopology{list, links, preferred.New(list.candidates(), links)}
		e.topologyCache.Store(v)
	}
	return v.topology
}

// sameBacking tells whether two slices are one and the same memory.
func sameBacking[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// candidates are the ids that may be given away, and those that may not and that
// containers hold all the same.
func (l *deviceList) candidates() (all []preferred.Candidate) {
	for n := range l.items {
		if i := &l.items[n]; i.isCandidate() {
			all = append(all, i.candidate())
		}
	}
	return all
}

// sameCandidates reports whether another offer has the same candidates.
func (l *deviceList) sameCandidates(other *deviceList) bool {
	m := 0
	next := func() *listItem {
		for ; m < len(other.items); m++ {
			if i := &other.items[m]; i.isCandidate() {
				m++
				return i
			}
		}
		return nil
	}
	for n := range l.items {
		i := &l.items[n]
		if !i.isCandidate() {
			continue
		}
		if j := next(); j == nil || i.candidate() != j.candidate() {
			return false
		}
	}
	return next() == nil
}

// isCandidate reports whether an item decides which ids are preferred.
func (i *listItem) isCandidate() bool { return i.removeAt.IsZero() || i.allocated }

func (i *listItem) candidate() preferred.Candidate {
	d := i.device
	return preferred.Candidate{
		ID: i.id, Device: d.ID, GPU: d.GPU, Index: d.Index, NUMANode: d.NUMANode, Replica: i.replica, Allocated: i.allocated,
	}
}
