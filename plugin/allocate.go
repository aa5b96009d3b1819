package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/device"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// visibleDevices is what the NVIDIA container runtime reads.
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// usable finds the devices behind a container's ids, each once, in the order of
// the node, and says of each id that cannot be given why.
func usable(statuses []device.Status, ids []device.OfferedID) (devices []device.Device, wrong []string) {
	if len(ids) == 0 {
		return nil, []string{"a container asks for no device"}
	}
	for _, id := range ids {
		i := slices.IndexFunc(statuses, func(s device.Status) bool { return s.ID == id.Device() })
		switch {
		case i < 0:
			wrong = append(wrong, fmt.Sprintf("%s is unknown", id))
		case !statuses[i].Healthy:
			wrong = append(wrong, fmt.Sprintf("%s is unhealthy (%s)", id, statuses[i].Reason))
		default:
			devices = append(devices, statuses[i].Device)
		}
	}
	slices.SortFunc(devices, func(a, b device.Device) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID))
	})
	return slices.CompactFunc(devices, func(a, b device.Device) bool { return a.ID == b.ID }), wrong
}

// refusal names every id and why: it ends up in the pod's status, where it is all
// that its owner sees. The kubelet sends ids in random order.
func refusal(wrong []string) error {
	slices.Sort(wrong)
	return fmt.Errorf("cannot allocate: %s", strings.Join(slices.Compact(wrong), ", "))
}

// containerAnswer is what one container gets. It is the same for the same
// devices: the kubelet keeps it with the allocation.
func containerAnswer(devices []device.Device, specs bool) *api.ContainerAllocateResponse {
	ids := make([]string, len(devices))
	var nodes []string
	for i, d := range devices {
		ids[i] = string(d.ID)
		nodes = append(nodes, d.Nodes...)
	}
	answer := &api.ContainerAllocateResponse{Envs: map[string]string{visibleDevices: strings.Join(ids, ",")}}
	if !specs {
		return answer
	}
	slices.Sort(nodes)
	for _, node := range slices.Compact(nodes) {
		answer.Devices = append(answer.Devices, &api.DeviceSpec{ContainerPath: node, HostPath: node, Permissions: "rw"})
	}
	return answer
}
