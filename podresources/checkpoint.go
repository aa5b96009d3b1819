package podresources

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/podgauge/podgauge/device"
)

// CheckpointFile is the name of the kubelet's checkpoint in its device-plugins
// folder.
const CheckpointFile = "kubelet_internal_checkpoint"

// mostCheckpointBytes is far more than a full node's: an entry has some kilobytes.
const mostCheckpointBytes = 64 << 20

// notes are what the kubelet has written down of its allocations. They know init
// containers too, which List never names, but they are no witness of what is held
// now: the kubelet frees what a pod leaves behind without writing it down
// (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go), and the
// entry stays until the next allocation or the next list of a plugin.
type notes struct {
	allocated map[allocation]bool
	written   time.Time
}

// readNotes reads a checkpoint. The kubelet replaces the file as a whole.
func readNotes(path string) (notes, error) {
	if path == "" {
		return notes{}, errors.New("read the kubelet's checkpoint: its place is not known")
	}
	file, err := os.Open(path)
	if err != nil {
		return notes{}, fmt.Errorf("read the kubelet's checkpoint: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	info, err := file.Stat()
	if err != nil {
		return notes{}, fmt.Errorf("read the kubelet's checkpoint: %w", err)
	}
	content, err := io.ReadAll(io.LimitReader(file, mostCheckpointBytes))
	if err != nil {
		return notes{}, fmt.Errorf("read the kubelet's checkpoint: %w", err)
	}
	allocated, err := parseNotes(content)
	if err != nil {
		return notes{}, fmt.Errorf("read the kubelet's checkpoint %s: %w", path, err)
	}
	return notes{allocated, info.ModTime()}, nil
}

// parseNotes takes only what has the known form (checkpoint/checkpoint.go in
// pkg/kubelet/cm/devicemanager): the file has no version, and an entry that is
// overlooked would free a device that is held.
func parseNotes(content []byte) (map[allocation]bool, error) {
	var file struct {
		Data struct {
			PodDeviceEntries json.RawMessage // null where there is none, and never left out
		}
	}
	if err := json.Unmarshal(content, &file); err != nil {
		return nil, err
	}
	if file.Data.PodDeviceEntries == nil {
		return nil, errors.New("it has no entries")
	}
	var entries []struct {
		ResourceName string
		DeviceIDs    map[string][]device.OfferedID // by NUMA node
	}
	if err := json.Unmarshal(file.Data.PodDeviceEntries, &entries); err != nil {
		return nil, err
	}
	allocated := map[allocation]bool{}
	for _, entry := range entries {
		if entry.ResourceName == "" || entry.DeviceIDs == nil {
			return nil, errors.New("an entry is not of the known form")
		}
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				allocated[allocation{entry.ResourceName, id}] = true
			}
		}
	}
	return allocated, nil
}
