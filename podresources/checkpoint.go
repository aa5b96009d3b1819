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

// mostCheckpointBytes is far more than a full node's: an entry has some kilobytes.
const mostCheckpointBytes = 64 << 20

// stampedLate is how far a file's time may lie before that of its writing: the
// kernel stamps files by its tick.
const stampedLate = 10 * time.Millisecond

// notes are what the kubelet has written down of its allocations. They know init
// containers too, which List never names, but they are no witness of what is held
// now: the kubelet frees what a pod leaves behind without writing it down
// (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go), and the
// entry stays until the next allocation or the next list of a plugin.
type notes struct {
	// allocated has the UID of the pod that has it; "" where that is not clear.
	allocated map[allocation]string
	written   time.Time
}

// others tells of which pods it is known that they are others than the one that has
// an allocation: several come in one second, and those that hold devices by name
// have UIDs in the notes. Notes from before it was made may have that of a pod
// before.
func (n notes) others(a allocation, made span, uids map[podName]string) func(podName) bool {
	uid := n.allocated[a]
	known := uid != "" && !n.written.Add(stampedLate).Before(made.late)
	return func(p podName) bool { return known && uids[p] != "" && uids[p] != uid }
}

// readCheckpoint looks up what List leaves open, while there is such a thing, and
// what the checkpoint has become.
func (c *Client) readCheckpoint() {
	now := time.Now() // what is allocated from here on is not in question
	c.mu.Lock()
	open, overdue := c.memory.open(now)
	c.mu.Unlock()
	if !open && !c.rewritten() {
		return
	}
	notes, err := readNotes(c.Checkpoint)
	c.mu.Lock()
	c.publish(c.memory.review(notes, err, now))
	c.mu.Unlock()
	switch {
	case err == nil:
		c.saidBlind = false
	case overdue && !c.saidBlind:
		c.log.Warn("allocations that the kubelet names nobody for cannot be looked up; they are kept for an hour", "err", err)
		c.saidBlind = true
	}
}

// rewritten tells whether the checkpoint is another than the one that is known. One
// that is not is as good as read again.
func (c *Client) rewritten() bool {
	info, err := os.Stat(c.Checkpoint)
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !info.ModTime().Equal(c.memory.noted.written) {
		return true
	}
	c.memory.note(c.memory.noted)
	return false
}

// notesSince are the kubelet's where they are others than those that are known, and
// empty where there are none or they cannot be read.
func (c *Client) notesSince() notes {
	if !c.rewritten() {
		return notes{}
	}
	n, err := readNotes(c.Checkpoint)
	if err != nil {
		return notes{}
	}
	return n
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
func parseNotes(content []byte) (map[allocation]string, error) {
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
		DeviceIDs    map[string][]device.OfferedID // by NUMA node
	}
	if err := json.Unmarshal(file.Data.PodDeviceEntries, &entries); err != nil {
		return nil, err
	}
	allocated := map[allocation]string{}
	for _, entry := range entries {
		if entry.ResourceName == "" || entry.DeviceIDs == nil {
			return nil, errors.New("an entry is not of the known form")
		}
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				a, uid := allocation{entry.ResourceName, id}, entry.PodUID
				if other, twice := allocated[a]; twice && other != uid {
					uid = ""
				}
				allocated[a] = uid
			}
		}
	}
	return allocated, nil
}
