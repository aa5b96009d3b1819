package kubelet

import (
	"encoding/json"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// checkpointFormat is the content of kubelet_internal_checkpoint
// (checkpoint/checkpoint.go:48). The checksum is 0; the real checksum depends
// on the layout of Go structs.
type checkpointFormat struct {
	Data struct {
		PodDeviceEntries  []podDeviceEntry
		RegisteredDevices map[string][]string // healthy ids by resource
	}
	Checksum uint64
}

type podDeviceEntry struct {
	PodUID, ContainerName, ResourceName string
	DeviceIDs                           map[int64][]string // by NUMA node; -1 without
	AllocResp                           []byte
}

func (kp *kubeletProcess) checkpointFile() string {
	return filepath.Join(kp.dir, "kubelet_internal_checkpoint")
}

// writeCheckpoint replaces the file. The kubelet ignores errors
// (manager.go:342). mu is held.
func (kp *kubeletProcess) writeCheckpoint() {
	var c checkpointFormat
	c.Data.RegisteredDevices = map[string][]string{}
	for resource, healthy := range kp.healthy {
		c.Data.RegisteredDevices[resource] = healthy.list()
	}
	for to, a := range kp.allocations {
		if response, err := proto.Marshal(a.response); err == nil {
			c.Data.PodDeviceEntries = append(c.Data.PodDeviceEntries,
				podDeviceEntry{to.podUID, to.container, to.resource, a.devices, response})
		}
	}
	b, err := json.Marshal(c)
	if err != nil {
		return
	}
	temporary := filepath.Join(kp.dir, ".kubelet_internal_checkpoint")
	if os.WriteFile(temporary, b, 0o600) == nil {
		_ = os.Rename(temporary, kp.checkpointFile())
	}
}

// readCheckpoint restores the allocations; an unreadable file is ignored.
// Resources come back without devices, as if the plugins had just left: the
// capacity is zero until the plugins register (manager.go:545).
func (kp *kubeletProcess) readCheckpoint() {
	var c checkpointFormat
	b, err := os.ReadFile(kp.checkpointFile())
	if err != nil || json.Unmarshal(b, &c) != nil {
		return
	}
	for _, entry := range c.Data.PodDeviceEntries {
		response := &pluginapi.ContainerAllocateResponse{}
		if proto.Unmarshal(entry.AllocResp, response) == nil {
			kp.allocations[allocatedTo{
				entry.PodUID, entry.ContainerName,
				entry.ResourceName,
			}] = containerAllocation{entry.DeviceIDs, response}
		}
	}
	kp.recountAllocated()
	for resource := range c.Data.RegisteredDevices {
		kp.healthy[resource] = idSet{}
		kp.endpoints[resource] = &pluginClient{resource: resource, stoppedAt: kp.now()}
	}
}
