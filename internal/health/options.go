package health

import (
	"log/slog"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
)

// Store keeps the health of devices across processes.
type Store interface {
	// SaveHealth stores a history in the background, at once if urgent: a
	// device turned unhealthy. The Monitor calls SaveHealth at most a few
	// times a second.
	SaveHealth(h History, urgent bool)
	// Stored reports whether the disk has all that was saved.
	Stored() bool
}

// Options configure a Monitor. All functions must return quickly.
type Options struct {
	Log    *slog.Logger
	Driver *pubsub.Value[device.Driver] // receives the state of the driver; nil: none does
	// UnhealthyTimeout is how long a call about a GPU may run before the GPU is
	// unhealthy; 0 is 30 seconds.
	UnhealthyTimeout time.Duration
	// RestartAfter is how long the driver fails before Run returns ErrRestart;
	// 0: never.
	RestartAfter time.Duration
	History      History // from the previous process
	Store        Store   // nil: health is not saved
	// IsAllocated reports whether a container has a device. An allocated device
	// that is gone stays in the Inventory. nil: no device is allocated.
	IsAllocated func(device.ID) bool
	// Policy returns the operator's policy for an Xid, at each report; nil:
	// PolicyDefault.
	Policy func(xid uint64) device.XidPolicy
	// ExpectedGPUs returns the number of GPUs that the node should have. While
	// some are missing, GPUs that are gone stay in the Inventory. nil: any
	// number.
	ExpectedGPUs func() int
	// Retired returns the devices that are retired in a list, of all nodes; nil:
	// the list is unknown, and earlier retirements stay. A nil function is a
	// known list without a device.
	Retired func() device.Retirements
	// OnHealthEvent receives each event, in order, and before the Inventory has
	// the resulting status; nil: none does.
	OnHealthEvent func(device.HealthEvent)
}
