package device

import (
	"log/slog"
	"time"
)

// HistoryStore keeps the health of devices across processes.
type HistoryStore interface {
	// Save stores a history in the background, at once if urgent: a device turned unhealthy. The Monitor calls Save at most a
	// few times a second.
	Save(h HealthHistory, urgent bool)
	// ExportedCounts returns the history whose counts may be published, nil for all zero, and a channel that the next change closes: a
	// published count must not fall if the process is killed. Health is published without waiting for the store.
	ExportedCounts() (h *HealthHistory, changed <-chan struct{})
}

// MonitorOptions configure a Monitor. All functions must return quickly.
type MonitorOptions struct {
	Log *slog.Logger
	// UnhealthyTimeout is how long a call about a GPU may run before the GPU is unhealthy; 0 is 30 seconds.
	UnhealthyTimeout time.Duration
	// RestartAfter is how long the driver fails before Run returns ErrRestart; 0: never.
	RestartAfter time.Duration
	History      HealthHistory // from the previous process
	Store        HistoryStore  // nil: health is not saved, and all counts are published
	// IsAllocated reports whether a container has a device. An allocated device that is gone stays in the Inventory.
	// nil: no device is allocated.
	IsAllocated func(ID) bool
	// Policy returns the operator's policy for an Xid, at each report; nil: PolicyDefault.
	Policy func(xid uint64) Policy
	// ExpectedGPUs returns the number of GPUs that the node should have. While some are missing, GPUs that are gone stay in the Inventory.
	// nil: any number.
	ExpectedGPUs func() int
	// OnHealthEvent receives each event, in order, and before the Inventory has the resulting status; nil: none does.
	OnHealthEvent func(HealthEvent)
}
