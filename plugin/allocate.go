package plugin

import (
	"context"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/plugin/preferred"
	"github.com/podgauge/podgauge/plugin/response"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Allocate returns environment, mounts and device nodes for containers.
//
// Allocate only reads published values: the kubelet sets no deadline and admits
// no pod until Allocate returns.
func (s *server) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	begin := time.Now()
	resp, ids, errs := s.buildResponse(r)
	err := s.reject("allocate", ids, errs)
	s.Hooks.OnCallServed("Allocate", time.Since(begin), err)
	if err != nil {
		return nil, err
	}
	s.Hooks.OnAllocated(s.resource, ids)
	return resp, nil
}

// buildResponse returns the response, all requested ids and the faults of the
// request.
func (s *server) buildResponse(r *api.AllocateRequest) (*api.AllocateResponse, []device.AdvertisedID, []requestError) {
	snapshot := s.snapshot()
	resp := &api.AllocateResponse{}
	var requested []device.AdvertisedID
	var errs []requestError
	for _, c := range r.GetContainerRequests() {
		ids := advertisedIDs(c.GetDevicesIds())
		requested = append(requested, ids...)
		devices, rejected := snapshot.resolveDevices(ids)
		errs = append(errs, rejected...)
		resp.ContainerResponses = append(resp.ContainerResponses, snapshot.responseOptions(ids).ForContainer(devices))
	}
	return resp, requested, errs
}

func advertisedIDs(ids []string) []device.AdvertisedID {
	return text.Each(ids, func(id string) device.AdvertisedID { return device.AdvertisedID(id) })
}

// callSnapshot has the published values at the time of a call. The kubelet's
// list may be older.
type callSnapshot struct {
	*deviceList
	resource    string
	statuses    []device.Status
	allocations allocation.Snapshot
}

func (r *resourceState) snapshot() callSnapshot {
	return callSnapshot{
		deviceList: r.list(), resource: r.resource,
		statuses: r.Devices.Newest(), allocations: r.Allocations.Newest(),
	}
}

// responseOptions returns the options for a container. Without a replica among
// the ids, no MPS daemon serves the container.
func (c callSnapshot) responseOptions(ids []device.AdvertisedID) response.Options {
	options := c.rules.Response
	options.Resource = c.resource
	if !slices.ContainsFunc(ids, func(id device.AdvertisedID) bool { i, _ := c.find(id); return i.replica }) {
		options.MPSRoot = ""
	}
	return options
}

// resolveDevices returns the devices of a container's ids, and a fault for each
// rejected id.
func (c callSnapshot) resolveDevices(ids []device.AdvertisedID) (devices []device.Device, errs []requestError) {
	if len(ids) == 0 {
		return nil, []requestError{{RejectNoIDs, "a container requests no device"}}
	}
	replicaOf := map[device.GPU]device.AdvertisedID{}
	for _, id := range ids {
		i, s, err := c.checkID(id, len(ids))
		other, sameGPU := replicaOf[s.GPU]
		switch {
		case err != requestError{}:
			errs = append(errs, err)
		case sameGPU && i.replica && c.rules.Policy == preferred.Distinct:
			errs = append(errs, rejectf(RejectSameGPU, "%s is of the same GPU as %s", id, other))
		default:
			devices = append(devices, s.Device)
		}
		if i.replica {
			replicaOf[s.GPU] = id
		}
	}
	return devices, errs
}

// checkID returns the item and status of an id, and the reason to reject the id
// in a request for size ids; zero: none.
//
// Allocate and GetPreferredAllocation both use checkID, so rejected ids are not
// preferred. All ids of a device have the same reason.
func (c callSnapshot) checkID(id device.AdvertisedID, size int) (listItem, device.Status, requestError) {
	i, found := c.find(id)
	s, known := findStatus(c.statuses, id.Device())
	var conflicts []allocation.Allocation
	if found && !i.replica {
		conflicts, _ = c.rules.conflicts(c.allocations, c.resource, i.device.ID, id)
	}
	var err requestError
	switch {
	case !found || !known:
		err = rejectf(RejectUnknown, "%s is unknown", id)
	case !i.removeAt.IsZero(): // only a running container has the id
		err = rejectf(RejectUnknown, "%s is withdrawn", id)
	case !s.Healthy:
		err = rejectf(RejectUnhealthy, "%s is unhealthy (%s)", id, s.Reason)
	case len(conflicts) > 0:
		other := conflicts[0]
		err = rejectf(RejectAllocated, "%s is allocated to another container, as %s of %s",
			id, other.DeviceID, other.Resource)
	case i.unusableReason != "" && i.unusableReason != reasonAllocatedElsewhere: // here the newest allocations decide
		err = rejectf(RejectUnhealthy, "%s is unhealthy (%s)", id, i.unusableReason)
	case i.onePerContainer && size > 1:
		err = rejectf(RejectTooMany, "%s is shared: a container can request one such device, not %d", id, size)
	}
	return i, s, err
}
