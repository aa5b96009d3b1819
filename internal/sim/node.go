package sim

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// gpuResource is the resource of the workload's pods.
const gpuResource = "nvidia.com/gpu"

// kubeletUptime is the simulated age of the kubelet: allocations are incomplete
// for a minute after a start.
const kubeletUptime = time.Hour

// VirtualNode is a node in this process: a machine, a kubelet on real sockets
// in a temporary folder, and a workload.
type VirtualNode struct {
	Machine      *Machine
	Kubelet      *kubelet.Kubelet
	ProcessTable *ProcessTable

	sysfs       *sysfs
	script      *Script              // nil: random workload
	deviceByPod map[string]device.ID // named by the script; only for runScript
	log         *slog.Logger
}

// NewVirtualNode returns a node with a script, or with a random workload if
// script is nil. Close removes the node's folder.
func NewVirtualNode(m *Machine, script *Script, log *slog.Logger) (*VirtualNode, error) {
	dir, err := os.MkdirTemp("", "podgauge-node-")
	if err != nil {
		return nil, fmt.Errorf("create the simulated node's folder: %w", err)
	}
	k := kubelet.New(kubelet.Options{Dir: dir, RunningSince: time.Now().Add(-kubeletUptime)})
	return &VirtualNode{
		Machine: m, Kubelet: k,
		ProcessTable: NewProcessTable(m),
		sysfs:        newSysfs(k),
		script:       script, deviceByPod: map[string]device.ID{}, log: log,
	}, nil
}

// Dir returns the kubelet's folder.
func (n *VirtualNode) Dir() string { return n.Kubelet.Dir() }

// Sysfs returns the node's sysfs, with RDMA devices and CPUs.
func (n *VirtualNode) Sysfs() fs.FS { return n.sysfs }

// DevicePluginDir returns the folder of the registration socket.
func (n *VirtualNode) DevicePluginDir() string { return filepath.Dir(n.Kubelet.RegistrationSocket()) }

// Close removes the node's folder. Run must have returned.
func (n *VirtualNode) Close() {
	os.RemoveAll(n.Dir()) // in the temporary folder
}
