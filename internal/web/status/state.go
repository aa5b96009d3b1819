package status

import (
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
)

// Node is the state of a node at one time.
type Node struct {
	api.Node
	Readings Readings
	// Stalled reports whether a call to the GPU hangs.
	Stalled func(device.GPU) bool
	// IsPlugin is set if this process is the device plugin.
	IsPlugin  bool
	Resources []PluginResource
	// PodsSynced reports whether the kubelet's Pods API is followed. Without an
	// error as well, there was no attempt yet.
	PodsSynced bool
	PodsErr    error
}

// PluginResource is a resource of the device plugin.
type PluginResource struct {
	Resource   string
	IDs        []device.AdvertisedID
	Sharing    string // "time-slicing" or "MPS"; empty without replicas
	Registered bool   // the kubelet reads the device list
	Healthy    int    // devices in the latest device list
	Err        string // of the latest registration
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
