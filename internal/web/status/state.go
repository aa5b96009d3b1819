package status

import (
	"context"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
)

// PageState returns the state of a node shown on the page.
type PageState interface {
	api.NodeState
	// Readings returns the readings of the newest collection, or of a new one
	// until ctx is done.
	Readings(ctx context.Context) Readings
	// Stalled reports whether a call to the GPU hangs.
	Stalled(gpu device.GPU) bool
	// PluginResources returns the resources of the device plugin; nil if
	// another device plugin serves the node.
	PluginResources() []PluginResource
	// PodsAPI reports whether the kubelet's Pods API is followed. Without both
	// results there was no attempt yet.
	PodsAPI() (synced bool, err error)
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
	state       PageState
	now         time.Time
	node        api.DevicesResponse
	allocations device.Allocations
	incidents   incident.Snapshot
	resources   []PluginResource
	readings    Readings
}

func newNodeData(state PageState, name string, readings Readings, now time.Time) *nodeData {
	allocations, _ := state.Allocations()
	return &nodeData{
		state:       state,
		now:         now,
		node:        api.Devices(name, state, now),
		allocations: allocations,
		incidents:   state.Incidents(),
		resources:   state.PluginResources(),
		readings:    readings,
	}
}
