package kubelet

import (
	"encoding/json"
	"errors"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// checkpointFormat is the content of kubelet_internal_checkpoint (checkpoint/checkpoint.go:48). Only
// the checksum differs from a real one's in meaning: the real one is that of a Go dump of the
// data, this one is that of their JSON.
type checkpointFormat struct {
	Data     checkpointData
	Checksum uint64
}

type checkpointData struct {
	PodDeviceEntries  []podDevices
	RegisteredDevices map[string][]string // the healthy ones
}

type podDevices struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     map[int64][]string // by NUMA node, -1 where there is none
	AllocResp     []byte
}

func (k *Kubelet) checkpointFile() string {
	return filepath.Join(filepath.Dir(k.RegistrationSocket()), "kubelet_internal_checkpoint")
}

func (d checkpointData) checksum() (uint64, error) {
	b, err := json.Marshal(d)
	if err != nil {
		return 0, err
	}
	hash := fnv.New32a()
	hash.Write(b)
	return uint64(hash.Sum32()), nil
}

// writeCheckpoint replaces the file as a whole. Where that fails the kubelet goes on: it has
// lost what it would need after its next start, and says so in its log alone (manager.go:342).
// mu is held.
func (kp *kubeletProcess) writeCheckpoint() {
	if err := kp.saveCheckpoint(); err != nil {
		kp.k.options.Log.Error("write the checkpoint", "error", err)
	}
}

func (kp *kubeletProcess) saveCheckpoint() error {
	data := checkpointData{RegisteredDevices: map[string][]string{}}
	for resource, healthy := range kp.healthy {
		data.RegisteredDevices[resource] = healthy.list()
	}
	for uid, containers := range kp.allocations {
		for container, resources := range containers {
			for resource, h := range resources {
				answer, err := proto.Marshal(h.response)
				if err != nil {
					return err
				}
				data.PodDeviceEntries = append(data.PodDeviceEntries, podDevices{uid, container, resource, h.devices, answer})
			}
		}
	}
	checksum, err := data.checksum()
	if err != nil {
		return err
	}
	b, err := json.Marshal(checkpointFormat{data, checksum})
	if err != nil {
		return err
	}
	hidden := filepath.Join(filepath.Dir(kp.k.checkpointFile()), ".kubelet_internal_checkpoint")
	if err := os.WriteFile(hidden, b, 0o600); err != nil {
		return err
	}
	return os.Rename(hidden, kp.k.checkpointFile())
}

// readCheckpoint restores who holds what. The resources come back without devices, as if their
// plugins had left just now: their capacity is zero until the plugins register again
// (manager.go:545). The life is not published yet.
func (kp *kubeletProcess) readCheckpoint() {
	var c checkpointFormat
	if err := loadCheckpoint(kp.k.checkpointFile(), &c); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			kp.k.options.Log.Error("read the checkpoint, and go on without it", "error", err)
		}
		return
	}
	for _, entry := range c.Data.PodDeviceEntries {
		answer := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(entry.AllocResp, answer); err != nil {
			kp.k.options.Log.Error("read the checkpoint's entry", "pod", entry.PodUID, "error", err)
			continue
		}
		kp.recordAllocation(entry.PodUID, entry.ContainerName, entry.ResourceName, containerAllocation{entry.DeviceIDs, answer})
	}
	kp.recountAllocated()
	for resource := range c.Data.RegisteredDevices {
		kp.healthy[resource], kp.unhealthy[resource] = idSet{}, idSet{}
		kp.endpoints[resource] = &pluginEndpoint{resource: resource, stoppedAt: kp.now()}
	}
}

func loadCheckpoint(path string, c *checkpointFormat) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, c); err != nil {
		return err
	}
	if checksum, err := c.Data.checksum(); err != nil || checksum != c.Checksum {
		return errors.Join(errors.New("checkpoint is corrupted"), err)
	}
	return nil
}
