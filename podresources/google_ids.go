package podresources

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// googleResource is the resource of Google's device plugin.
const googleResource = "nvidia.com/gpu"

// googleNames are the devices by the ids of Google's device plugin, apart from
// replicas:
//
//	nvidia0            /dev/nvidia0, the GPU with minor number 0
//	nvidia0/gi1        its GPU instance 1, with compute instance 0
//	nvidia0/vgpu2      replica 2 of the GPU, by time-sharing or MPS
//	nvidia0/gi1/vgpu2  replica 2 of the MIG device
//
// The source is pkg/gpu/nvidia, manager.go, mig/mig.go and
// gpusharing/gpusharing.go, of
// https://github.com/GoogleCloudPlatform/container-engine-accelerators.
type googleNames map[string]device.ID

// newGoogleNames returns the names of this node's devices. A present device may
// have the name of a lost device.
func newGoogleNames(o *Options) googleNames {
	if !o.ForeignPlugin || o.Devices == nil {
		return nil
	}
	names := googleNames{}
	statuses := o.Devices.Newest()
	for i := range statuses {
		s := &statuses[i]
		if s.Minor < 0 || s.CI > 0 {
			continue
		}
		name := fmt.Sprintf("nvidia%d", s.Minor)
		if !s.WholeGPU() {
			name += fmt.Sprintf("/gi%d", s.GI)
		}
		if _, taken := names[name]; !taken || !s.Gone {
			names[name] = s.ID
		}
	}
	return names
}

// advertised returns the id in podgauge's form: "<ID>" or "<ID>::<n>". Other ids
// are unchanged.
func (n googleNames) advertised(resource, id string) device.AdvertisedID {
	name, replica, isReplica := strings.Cut(id, "/vgpu")
	named, known := n[name]
	if !known || resource != googleResource {
		return device.AdvertisedID(id)
	}
	if !isReplica {
		return named.Advertised()
	}
	number, err := strconv.ParseUint(replica, 10, 31)
	if err != nil {
		return device.AdvertisedID(id)
	}
	return named.Replica(int(number))
}
