package sim

import (
	"slices"
	"sync"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// What a made-up process uses of its device.
const (
	processBytes = 18 << 30
	processSM    = 0.4
)

// Crowd is the processes of a node's containers: one for each device, or replica of one,
// that a container holds, as long as the container runs. It tells whose they are, which
// takes cgroups on a real node.
type Crowd struct {
	machine *Machine

	mu sync.Mutex
	// All below are guarded by mu.
	pids map[held]uint32
	born uint32 // the number of the newest
	// idle are pods, by namespace/name, whose containers run nothing on what they hold.
	idle map[string]bool
}

// held is what a process is there for.
type held struct {
	uid     string
	owner   device.Owner
	offered device.OfferedID
}

// NewCrowd is nobody yet.
func NewCrowd(m *Machine) *Crowd {
	return &Crowd{machine: m, pids: map[held]uint32{}, born: 1000, idle: map[string]bool{}}
}

// rest has a pod's containers run nothing on what they hold. It is to be said before the pod runs.
func (c *Crowd) rest(namespace, pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle[namespace+"/"+pod] = true
}

// follow has those processes run that the pods have.
func (c *Crowd) follow(pods []kubelet.PodStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	run := map[held]bool{}
	for _, p := range pods {
		for _, container := range p.Containers {
			owner := device.Owner{Namespace: p.Namespace, Pod: p.Name, Container: container.Name}
			for _, d := range container.Devices {
				run[held{p.UID, owner, device.OfferedID(d.ID)}] = container.Running && !c.idle[p.Namespace+"/"+p.Name]
			}
		}
	}
	for h, pid := range c.pids {
		if !run[h] {
			c.machine.Quit(pid)
			delete(c.pids, h)
		}
	}
	for h, runs := range run {
		if _, known := c.pids[h]; runs && !known {
			c.born++
			c.pids[h] = c.born
			c.machine.Run(h.offered.Device(), c.born, processBytes, processSM)
		}
	}
}

// Visible is true: a simulated node hides nothing.
func (c *Crowd) Visible() bool { return true }

// Owner tells whose a process is.
func (c *Crowd) Owner(pid uint32, holders []device.Owner) (device.Owner, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for h, p := range c.pids {
		if p == pid {
			return h.owner, slices.Contains(holders, h.owner)
		}
	}
	return device.Owner{}, false
}

// Sweep has nothing to forget.
func (c *Crowd) Sweep() {}
