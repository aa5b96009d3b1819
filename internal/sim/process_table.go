package sim

import (
	"slices"
	"sync"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// What a made-up process uses of its device.
const (
	defaultProcessBytes = 18 << 30
	defaultProcessSM    = 0.4
)

// ProcessTable is the processes of a node's containers: one for each device, or replica of one,
// that a container holds, as long as the container runs. It tells whose they are, which
// takes cgroups on a real node.
type ProcessTable struct {
	machine *Machine

	mu sync.Mutex
	// All below are guarded by mu.
	pids    map[processKey]uint32
	lastPID uint32 // the number of the newest
	// idlePods are pods, by namespace/name, whose containers run nothing on what they hold.
	idlePods map[string]bool
}

// processKey is what a process is there for.
type processKey struct {
	uid      string
	owner    device.Owner
	deviceID device.AdvertisedID
}

// NewProcessTable is nobody yet.
func NewProcessTable(m *Machine) *ProcessTable {
	return &ProcessTable{machine: m, pids: map[processKey]uint32{}, lastPID: 1000, idlePods: map[string]bool{}}
}

// markIdle has a pod's containers run nothing on what they hold. It is to be said before the pod runs.
func (t *ProcessTable) markIdle(namespace, pod string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idlePods[namespace+"/"+pod] = true
}

// sync has those processes run that the pods have.
func (t *ProcessTable) sync(pods []kubelet.PodStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	run := map[processKey]bool{}
	for _, p := range pods {
		for _, container := range p.Containers {
			owner := device.Owner{Namespace: p.Namespace, Pod: p.Name, Container: container.Name}
			for _, d := range container.Devices {
				run[processKey{p.UID, owner, device.AdvertisedID(d.ID)}] = container.Running && !t.idlePods[p.Namespace+"/"+p.Name]
			}
		}
	}
	for h, pid := range t.pids {
		if !run[h] {
			t.machine.StopProcess(pid)
			delete(t.pids, h)
		}
	}
	for h, runs := range run {
		if _, known := t.pids[h]; runs && !known {
			t.lastPID++
			t.pids[h] = t.lastPID
			t.machine.StartProcess(h.deviceID.Device(), t.lastPID, defaultProcessBytes, defaultProcessSM)
		}
	}
}

// Visible is true: a simulated node hides nothing.
func (t *ProcessTable) Visible() bool { return true }

// Owner tells whose a process is.
func (t *ProcessTable) Owner(pid uint32, owners []device.Owner) (device.Owner, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for h, p := range t.pids {
		if p == pid {
			return h.owner, slices.Contains(owners, h.owner)
		}
	}
	return device.Owner{}, false
}

// Sweep has nothing to forget.
func (t *ProcessTable) Sweep() {}
