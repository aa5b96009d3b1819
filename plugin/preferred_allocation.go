package plugin

import (
	"context"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/plugin/preferred"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// GetPreferredAllocation returns the best ids for containers. Ids rejected by
// Allocate are the last choice.
//
// The kubelet asks even if a container needs all available ids, sets no
// deadline and fails the pod on an error. So the method only reads published
// values and returns no error; without a choice, Allocate returns the reason.
func (s *server) GetPreferredAllocation(
	_ context.Context, r *api.PreferredAllocationRequest,
) (*api.PreferredAllocationResponse, error) {
	begin := time.Now()
	snapshot := s.snapshot()
	topology := preferred.New(snapshot.candidates(), s.Links())
	resp := &api.PreferredAllocationResponse{}
	for _, c := range r.GetContainerRequests() {
		size := int(c.GetAllocationSize())
		ids := topology.Prefer(preferred.AllocationRequest{
			Available: advertisedIDs(c.GetAvailableDeviceIDs()),
			Must:      advertisedIDs(c.GetMustIncludeDeviceIDs()),
			Size:      size,
			Reject: func(id device.AdvertisedID) bool {
				_, _, err := snapshot.checkID(id, size)
				return err != requestError{}
			},
		}, snapshot.rules.Policy)
		resp.ContainerResponses = append(resp.ContainerResponses, &api.ContainerPreferredAllocationResponse{
			DeviceIDs: text.Each(ids, func(id device.AdvertisedID) string { return string(id) }),
		})
	}
	s.Hooks.OnCallServed("GetPreferredAllocation", time.Since(begin), nil)
	return resp, nil
}

// candidates returns listed ids, and withdrawn ids with an allocation: a load
// on the device.
func (l *deviceList) candidates() []preferred.Candidate {
	all := make([]preferred.Candidate, 0, len(l.items))
	for _, i := range l.items {
		if i.removeAt.IsZero() || i.allocated {
			all = append(all, preferred.Candidate{
				ID: i.id, Device: i.device.ID, GPU: i.device.GPU, Index: i.device.Index, NUMANode: i.device.NUMANode,
				Replica: i.replica, Allocated: i.allocated,
			})
		}
	}
	return all
}
