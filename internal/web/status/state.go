package status

import (
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/plugin"
)

// Node is the state of a node at one time.
type Node struct {
	api.Node
	Readings Readings
	// Stalled reports whether a call to the GPU hangs.
	Stalled func(device.GPU) bool
	// IsPlugin is set if this process is the device plugin.
	IsPlugin  bool
	Resources []plugin.Resource
	// PodsSynced reports whether the kubelet's Pods API is followed. Without an
	// error as well, there was no attempt yet.
	PodsSynced bool
	PodsErr    error
}

// Readings are the readings of one collection.
type Readings struct {
	At      time.Time // end of the collection; zero without one
	Devices map[device.ID]DeviceReading
	History *ReadingHistory // nil without one
}

// nodeData is the state of a node at one time. All parts of a page are built
// from it.
type nodeData struct {
	*Node
	now time.Time
	api api.DevicesResponse
}

func newNodeData(n *Node, now time.Time) *nodeData {
	return &nodeData{Node: n, now: now, api: n.Devices(now)}
}
