package status

import (
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/plugin"
)

// PageState is the state of a node at one time.
type PageState struct {
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
	*PageState
	now time.Time
	// Response is the response of the JSON API for all devices.
	Response api.DevicesResponse
}
