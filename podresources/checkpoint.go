package podresources

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// CheckpointFile is the name of the kubelet's checkpoint in its device-plugins
// folder.
const CheckpointFile = "kubelet_internal_checkpoint"

// maxCheckpointBytes is far more than a full node's: an entry has some kilobytes.
const maxCheckpointBytes = 64 << 20

// maxMtimeLag is how far a file's time may lie before that of its writing: the
// kernel stamps files by its tick.
const maxMtimeLag = 10 * time.Millisecond

// kubeletCheckpoint are what the kubelet has written down of its allocations. They know init
// containers too, which List never names, but they are no witness of what is held
// now: the kubelet frees what a pod leaves behind without writing it down
// (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go), and the
// entry stays until the next allocation or the next list of a plugin.
type kubeletCheckpoint struct {
	// allocated has the UID of the pod that has it; "" where that is not clear.
	allocated map[allocationKey]string
	writtenAt time.Time
}

// otherPods tells of which pods it is known that they are others than the one that has
// an allocation: several come in one second, and those that hold devices by name
// have UIDs in the notes. Notes from before it was made may have that of a pod
// before.
func (c kubeletCheckpoint) otherPods(a allocationKey, allocatedAt timeInterval, uids map[podName]string) func(podName) bool {
	uid := c.allocated[a]
	known := uid != "" && !c.writtenAt.Add(maxMtimeLag).Before(allocatedAt.latest)
	return func(p podName) bool { return known && uids[p] != "" && uids[p] != uid }
}

// refreshCheckpoint looks up what List leaves open, while there is such a thing, and
// what the checkpoint has become.
func (c *Client) refreshCheckpoint() {
	now := time.Now() // what is allocated from here on is not in question
	c.mu.Lock()
	needed, overdue := c.tracker.needsCheckpoint(now)
	c.mu.Unlock()
	if !needed && !c.hasCheckpointChanged() {
		return
	}
	checkpoint, err := readCheckpoint(c.options.CheckpointPath)
	c.mu.Lock()
	c.publish(c.tracker.mergeCheckpoint(checkpoint, err, now))
	c.mu.Unlock()
	switch {
	case err == nil:
		c.loggedCheckpointError = false
	case overdue && !c.loggedCheckpointError:
		c.log.Warn("allocations that the kubelet names nobody for cannot be looked up; they are kept for an hour", "err", err)
		c.loggedCheckpointError = true
	}
}

// hasCheckpointChanged tells whether the checkpoint is another than the one that is known. One
// that is not is as good as read again.
func (c *Client) hasCheckpointChanged() bool {
	info, err := os.Stat(c.options.CheckpointPath)
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !info.ModTime().Equal(c.tracker.checkpoint.writtenAt) {
		return true
	}
	c.tracker.storeCheckpoint(c.tracker.checkpoint)
	return false
}

// changedCheckpoint are the kubelet's where they are others than those that are known, and
// empty where there are none or they cannot be read.
func (c *Client) changedCheckpoint() kubeletCheckpoint {
	if !c.hasCheckpointChanged() {
		return kubeletCheckpoint{}
	}
	checkpoint, err := readCheckpoint(c.options.CheckpointPath)
	if err != nil {
		return kubeletCheckpoint{}
	}
	return checkpoint
}

// readCheckpoint reads a checkpoint. The kubelet replaces the file as a whole.
func readCheckpoint(path string) (kubeletCheckpoint, error) {
	if path == "" {
		return kubeletCheckpoint{}, errors.New("read the kubelet's checkpoint: its place is not known")
	}
	file, err := os.Open(path)
	if err != nil {
		return kubeletCheckpoint{}, fmt.Errorf("read the kubelet's checkpoint: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	info, err := file.Stat()
	if err != nil {
		return kubeletCheckpoint{}, fmt.Errorf("read the kubelet's checkpoint: %w", err)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxCheckpointBytes))
	if err != nil {
		return kubeletCheckpoint{}, fmt.Errorf("read the kubelet's checkpoint: %w", err)
	}
	allocated, err := parseCheckpoint(content)
	if err != nil {
		return kubeletCheckpoint{}, fmt.Errorf("read the kubelet's checkpoint %s: %w", path, err)
	}
	return kubeletCheckpoint{allocated, info.ModTime()}, nil
}

// parseCheckpoint takes only what has the known form (checkpoint/checkpoint.go in
// pkg/kubelet/cm/devicemanager): the file has no version, and an entry that is
// overlooked would free a device that is held.
func parseCheckpoint(content []byte) (map[allocationKey]string, error) {
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
			return nil, errors.New("an entry is not of the known form")
		}
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				a, uid := allocationKey{entry.ResourceName, id}, entry.PodUID
				if other, twice := allocated[a]; twice && other != uid {
					uid = ""
				}
				allocated[a] = uid
			}
		}
	}
	return allocated, nil
}
