package podresources

import (
	"log/slog"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
)

// Options configure a Client. Except for Allocations, the zero value of each is
// valid.
type Options struct {
	Log *slog.Logger // nil discards messages
	// CheckpointPath is the path of the kubelet's checkpoint (CheckpointFile),
	// for allocations without a name in List. The file may be missing.
	CheckpointPath string
	// OwnPod is the name of podgauge's pod, if it is a pod of the API server.
	// Once a restarted kubelet lists the pod, it lists all pods ten seconds
	// later. Without OwnPod, podgauge waits for a minute.
	OwnPod string
	// OwnerRetention is how long past owners are reported; 0 is an hour.
	OwnerRetention time.Duration
	// Allocations receives the allocations.
	Allocations *pubsub.Value[allocation.Snapshot]
	// Devices are the devices of this node. If nil, all ids are devices of this
	// node.
	Devices *device.Inventory
	// ForeignPlugin is set if another device plugin allocates the GPUs. Ids of
	// Google's plugin then name devices.
	ForeignPlugin bool
	// ClaimedDevice returns the device allocated by a claim, if the node has the
	// device. If nil, claims are no allocations.
	ClaimedDevice func(allocation.Claim) (device.ID, bool)
	// OnCall observes each call of the kubelet, on the caller's goroutine; may be
	// nil.
	OnCall func(method string, took time.Duration, err error)
}
