package plugin

import (
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
	"github.com/podgauge/podgauge/plugin/response"
)

// Rules map devices to resources. The zero Rules offer each whole GPU once, as
// nvidia.com/gpu. Rules are immutable.
type Rules struct {
	// MIGStrategy is none (also if empty), single or mixed. Unlike in NVIDIA's
	// plugin, none does not offer a partitioned GPU as a whole
	// (docs/contributing/adr/0008-mig-in-the-inventory.md).
	//
	//	       whole GPU        MIG device
	//	none   nvidia.com/gpu   not offered
	//	single nvidia.com/gpu   nvidia.com/gpu, if all MIG devices have the same profile and no GPU is whole
	//	mixed  nvidia.com/gpu   nvidia.com/mig-<profile>
	MIGStrategy string
	// Resources rename the resources of the strategy.
	Resources config.ResourceNames
	// Select reports whether a device is offered. Nil: each is.
	Select func(device.Device) bool
	// Sharing returns the sharing of each device of a resource, in the order of
	// the node. Nil: not shared.
	Sharing func(resource string, devices []device.Device) []config.DeviceSharing
	// MPSErrors are the reasons, by resource, why no MPS control daemon
	// answers. Replicas of the resource are unusable.
	MPSErrors map[string]string
	// Response has the options of Allocate. The MPSRoot is for containers with
	// a replica.
	Response response.Options
	// Policy is the order of replicas and MIG devices. With preferred.Distinct,
	// a container with two replicas of a GPU is rejected.
	Policy preferred.AllocationPolicy
	// ReserveClaimed treats a device of a claim (Dynamic Resource Allocation)
	// as allocated. The PodResources API does not show whether a claim has
	// admin access, so claims do not reserve devices by default.
	ReserveClaimed bool
	// PreStartCheck checks a container's devices before each start.
	PreStartCheck bool
	// NotReady is why containers cannot start by the rules yet. Until then,
	// nothing is registered.
	NotReady error
}

// conflicts returns the allocations of a device by different ids or resources.
// Each keeps the device from further containers.
//
// The result own reports an allocation by the same id: the kubelet is the first
// to know when the container ends.
func (r Rules) conflicts(
	allocations allocation.Snapshot, resource string, d device.ID, id device.AdvertisedID,
) (conflicts []allocation.Allocation, own bool) {
	for _, a := range allocations.ForDevice(d) {
		if a.Resource == resource && a.DeviceID == id {
			own = true
		} else if r.ReserveClaimed || !a.Claimed() {
			conflicts = append(conflicts, a)
		}
	}
	return conflicts, own
}
