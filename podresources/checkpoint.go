package podresources

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
)

// CheckpointFile is the name of the kubelet's checkpoint in the device-plugins folder.
const CheckpointFile = "kubelet_internal_checkpoint"

// maxMtimeLag is the possible lag of a file's time behind the write: the kernel uses the time of the last tick.
const maxMtimeLag = 10 * time.Millisecond

// kubeletCheckpoint has the allocations in the kubelet's checkpoint, with the allocations of init containers, which List never names. An
// entry does not prove an allocation: the kubelet frees the devices of an ended pod without a write (UpdateAllocatedDevices in
// pkg/kubelet/cm/devicemanager/manager.go), and the entry stays until the next allocation or device list.
type kubeletCheckpoint struct {
	allocated map[allocationKey]string // the UID of the pod; "" if there are several
	writtenAt time.Time
}

// readCheckpoint reads a checkpoint. The kubelet replaces the file as a whole.
func readCheckpoint(path string) (c kubeletCheckpoint, err error) {
	defer func() {
		if err != nil {
			c, err = kubeletCheckpoint{}, fmt.Errorf("read the kubelet's checkpoint %s: %w", path, err)
		}
	}()
	file, err := os.Open(path)
	if err != nil {
		return c, err
	}
	defer file.Close() //nolint:errcheck // opened for reading
	info, err := file.Stat()
	if err != nil {
		return c, err
	}
	// An entry has some kilobytes. Decoding takes several times the size.
	if limit := int64(wire.MaxMessageBytes() / 2); info.Size() > limit {
		return c, fmt.Errorf("file of %d bytes, at most %d", info.Size(), limit)
	}
	content := make([]byte, info.Size())
	if _, err := io.ReadFull(file, content); err != nil {
		return c, err
	}
	c.writtenAt = info.ModTime()
	c.allocated, err = parseCheckpoint(content)
	return c, err
}

// parseCheckpoint returns the allocations of a checkpoint of the known form (checkpoint/checkpoint.go in pkg/kubelet/cm/devicemanager). The
// file has no version, so any unknown form is an error: a missed entry would free an allocated device.
func parseCheckpoint(content []byte) (map[allocationKey]string, error) {
	var file struct {
		Data struct {
			PodDeviceEntries json.RawMessage // null without an entry, but always present
		}
	}
	if err := json.Unmarshal(content, &file); err != nil {
		return nil, err
	}
	if file.Data.PodDeviceEntries == nil {
		return nil, errors.New("no PodDeviceEntries")
	}
	var entries []struct {
		PodUID       string
		ResourceName string
		DeviceIDs    map[string][]device.AdvertisedID // by NUMA node
	}
	if err := json.Unmarshal(file.Data.PodDeviceEntries, &entries); err != nil {
		return nil, err
	}
	allocated := map[allocationKey]string{}
	for _, entry := range entries {
		if entry.ResourceName == "" || entry.DeviceIDs == nil {
			return nil, errors.New("an entry of PodDeviceEntries lacks ResourceName or DeviceIDs")
		}
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				key, uid := allocationKey{entry.ResourceName, id}, entry.PodUID
				if other, twice := allocated[key]; twice && other != uid {
					uid = ""
				}
				allocated[key] = uid
			}
		}
	}
	return allocated, nil
}
