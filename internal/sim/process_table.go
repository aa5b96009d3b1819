package sim

import (
	"slices"
	"sync"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// Usage of a process.
const (
	defaultProcessBytes = 18 << 30
	defaultProcessSM    = 0.4
)

// ProcessTable runs a process for each device or replica of each running
// container, and resolves owners. Real nodes need cgroups for the latter.
type ProcessTable struct {
	machine *Machine

	mu       sync.Mutex // guards all below
	pids     map[processKey]uint32
	lastPID  uint32
	idlePods map[string]bool // namespace/name of pods without processes
}

// processKey is the purpose of a process.
type processKey struct {
	podUID   string
	owner    allocation.Owner
	deviceID device.AdvertisedID
}

// NewProcessTable returns an empty table.
func NewProcessTable(m *Machine) *ProcessTable {
	return &ProcessTable{machine: m, pids: map[processKey]uint32{}, lastPID: 1000, idlePods: map[string]bool{}}
}

// markIdle prevents processes of a pod before the start.
func (t *ProcessTable) markIdle(namespace, pod string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idlePods[namespace+"/"+pod] = true
}

// startUnattributed starts a process without an owner.
func (t *ProcessTable) startUnattributed(id device.ID, bytes float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastPID++
	t.machine.StartProcess(id, t.lastPID, bytes, defaultProcessSM)
}

// sync starts and stops processes to match the pods.
func (t *ProcessTable) sync(pods []kubelet.PodStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted := map[processKey]bool{}
	for _, p := range pods {
		for _, container := range p.Containers {
			owner := allocation.Owner{Namespace: p.Namespace, Pod: p.Name, Container: container.Name}
			for _, d := range container.Devices {
				if container.Running && !t.idlePods[p.Namespace+"/"+p.Name] {
					wanted[processKey{p.UID, owner, device.AdvertisedID(d.ID)}] = true
				}
			}
		}
	}
	for key, pid := range t.pids {
		if !wanted[key] {
			t.machine.StopProcess(pid)
			delete(t.pids, key)
		}
	}
	for key := range wanted {
		if t.pids[key] == 0 {
			t.lastPID++
			t.pids[key] = t.lastPID
			t.machine.StartProcess(key.deviceID.Device(), t.lastPID, defaultProcessBytes, defaultProcessSM)
		}
	}
}

// Visible returns true: all processes are visible.
func (t *ProcessTable) Visible() bool { return true }

// Owner returns the owner of a process, and whether owners contains the owner.
func (t *ProcessTable) Owner(pid uint32, owners []allocation.Owner) (allocation.Owner, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, p := range t.pids {
		if p == pid {
			return key.owner, slices.Contains(owners, key.owner)
		}
	}
	return allocation.Owner{}, false
}

// Sweep has no effect: the table has no cache.
func (t *ProcessTable) Sweep() {}
