package podresources

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

// CheckpointFile is the name of the kubelet's checkpoint in the device-plugins
// folder.
const CheckpointFile = "kubelet_internal_checkpoint"

type allocationKey struct {
	resource string
	id       device.AdvertisedID
}

func keyOf(a allocation.Allocation) allocationKey { return allocationKey{a.Resource, a.DeviceID} }

// kubeletCheckpoint has the allocations in the kubelet's checkpoint, with the
// allocations of init containers, which List never names. An entry does not
// prove an allocation: the kubelet frees the devices of an ended pod without a
// write (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go).
type kubeletCheckpoint struct {
	allocated map[allocationKey]string // the UID of the pod; "" if there are several
}

// has reports whether the checkpoint has a device. An unreadable checkpoint,
// nil, may have each.
func (c *kubeletCheckpoint) has(key allocationKey) bool {
	if c == nil {
		return true
	}
	_, found := c.allocated[key]
	return found
}

// checkpointFile parses the checkpoint after each change of the file or of the
// names.
type checkpointFile struct {
	path    string
	content []byte
	names   googleNames
	newest  *kubeletCheckpoint // of content and names; nil if invalid
}

// read returns the checkpoint, or an error. The kubelet replaces the file as a
// whole.
func (f *checkpointFile) read(names googleNames) (*kubeletCheckpoint, error) {
	content, err := readLimited(f.path)
	if err == nil && (f.newest == nil || !bytes.Equal(content, f.content) || !maps.Equal(names, f.names)) {
		f.newest, err = parseCheckpoint(content, names)
		f.content, f.names = content, names
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's checkpoint %s: %w", f.path, err)
	}
	return f.newest, nil
}

func readLimited(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // opened for reading
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	// An entry has some kilobytes. Decoding takes several times the size.
	if limit := int64(memoryLimit() / 10); info.Size() > limit {
		return nil, fmt.Errorf("file of %d bytes, at most %d", info.Size(), limit)
	}
	content := make([]byte, info.Size())
	_, err = io.ReadFull(file, content)
	return content, err
}

// parseCheckpoint returns the allocations of a checkpoint of the known form
// (checkpoint/checkpoint.go in pkg/kubelet/cm/devicemanager). The file has no
// version, so any unknown form is an error: a missed entry would free an
// allocated device.
func parseCheckpoint(content []byte, names googleNames) (*kubeletCheckpoint, error) {
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
		DeviceIDs    map[string][]string // by NUMA node
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
				key, uid := allocationKey{entry.ResourceName, names.advertised(entry.ResourceName, id)}, entry.PodUID
				if other, twice := allocated[key]; twice && other != uid {
					uid = ""
				}
				allocated[key] = uid
			}
		}
	}
	return &kubeletCheckpoint{allocated}, nil
}
