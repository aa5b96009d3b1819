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

// checkpoint is the content of kubelet_internal_checkpoint (checkpoint/checkpoint.go:48). Only
// the checksum differs from a real one's in meaning: the real one is that of a Go dump of the
// data, this one is that of their JSON.
type checkpoint struct {
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
func (l *life) writeCheckpoint() {
	if err := l.saveCheckpoint(); err != nil {
		l.k.options.Log.Error("write the checkpoint", "error", err)
	}
}

func (l *life) saveCheckpoint() error {
	data := checkpointData{RegisteredDevices: map[string][]string{}}
	for resource, healthy := range l.healthy {
		data.RegisteredDevices[resource] = healthy.list()
	}
	for uid, containers := range l.held {
		for container, resources := range containers {
			for resource, h := range resources {
				answer, err := proto.Marshal(h.answer)
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
	b, err := json.Marshal(checkpoint{data, checksum})
	if err != nil {
		return err
	}
	hidden := filepath.Join(filepath.Dir(l.k.checkpointFile()), ".kubelet_internal_checkpoint")
	if err := os.WriteFile(hidden, b, 0o600); err != nil {
		return err
	}
	return os.Rename(hidden, l.k.checkpointFile())
}

// readCheckpoint restores who holds what. The resources come back without devices, as if their
// plugins had left just now: their capacity is zero until the plugins register again
// (manager.go:545). The life is not published yet.
func (l *life) readCheckpoint() {
	var c checkpoint
	if err := loadCheckpoint(l.k.checkpointFile(), &c); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			l.k.options.Log.Error("read the checkpoint, and go on without it", "error", err)
		}
		return
	}
	for _, entry := range c.Data.PodDeviceEntries {
		answer := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(entry.AllocResp, answer); err != nil {
			l.k.options.Log.Error("read the checkpoint's entry", "pod", entry.PodUID, "error", err)
			continue
		}
		l.hold(entry.PodUID, entry.ContainerName, entry.ResourceName, holding{entry.DeviceIDs, answer})
	}
	l.recount()
	for resource := range c.Data.RegisteredDevices {
		l.healthy[resource], l.unhealthy[resource] = ids{}, ids{}
		l.endpoints[resource] = &endpoint{resource: resource, stopped: l.now()}
	}
}

func loadCheckpoint(path string, c *checkpoint) error {
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
