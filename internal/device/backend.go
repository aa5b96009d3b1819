package device

import (
	"context"
	"errors"
	"time"
)

// Errors that callers branch on. A Backend wraps them.
var (
	// ErrNoDriver means that the driver or its library is missing, or refuses to start. Both may appear later.
	ErrNoDriver = errors.New("no driver")
	// ErrDriverReplaced accompanies ErrNoDriver if the loaded library does not
	// match the new driver: only a new process can load the new library.
	ErrDriverReplaced = errors.New("the driver was replaced: restart podgauge to load the new library")
	// ErrDriverFault means that driver or container fail, and not the GPU of the call.
	ErrDriverFault = errors.New("the driver fails")
	// ErrLost means that the GPU has fallen off the bus.
	ErrLost = errors.New("GPU is lost")
	// ErrStalled means that no call was made because an earlier call to the GPU still runs.
	ErrStalled = errors.New("GPU does not respond")
)

// Backend reads the hardware of one vendor. Any call may hang: callers run each in
// a goroutine that no other work waits for. Calls about GPUs may run at the same
// time, and so may Devices and Wait. The Backend serializes calls about one GPU.
type Backend interface {
	// Metrics returns the rows that Read fills, indexed by Sample.Metric. They
	// never change.
	Metrics() []Metric
	// Devices lists all GPUs and MIG devices. Devices loads the driver's
	// library if needed; ErrNoDriver means that there is no usable one. A
	// device that cannot be described is left out: then the list comes with an
	// error. If the driver fails, the list is nil.
	Devices(ctx context.Context) ([]Device, error)
	// Links lists pairs of GPUs in any order. The two directions of a pair may
	// differ, since a lane can be down on one side. Missing pairs are unknown.
	Links(ctx context.Context) ([]Link, error)
	// Wait returns the next report of the driver, or the zero Event after a few
	// seconds. An error is not about a GPU.
	Wait(ctx context.Context) (Event, error)
	// Read returns the values of a GPU and its devices. Unsupported values are
	// left out. The error is about the whole GPU: ErrLost, or the error of a GPU
	// without any value.
	Read(gpu GPU) ([]Sample, error)
	// ReadProcessUsage returns a row for each process and device. It follows a
	// successful Read of the GPU, as part of the same reading. If the processes
	// are unknown, known is false and there is no row.
	ReadProcessUsage(gpu GPU) (uses []ProcessUsage, known bool)
	// Check returns ErrLost or a *Fault if the GPU cannot be used. ResetEvidence
	// is filled as far as known.
	Check(gpu GPU) (ResetEvidence, error)
	// Processes returns the host PIDs of processes with memory on the device.
	// It is a call about the device's GPU, like Read.
	Processes(d Device) ([]uint32, error)
	// Idle reports whether no call to the driver runs in the background. Devices
	// and Links may return before their calls about a hanging GPU do. Idle must
	// be quick.
	Idle() bool
	// Close unloads the driver's library; the next Devices loads it again. No
	// call may run, and Idle must be true.
	Close()
}

// ResetEvidence shows whether a GPU was reset since an event.
type ResetEvidence struct {
	// Resets counts resets of the GPU and reloads of the driver since this process started.
	Resets uint64
	// EnergyCounter falls only with a reset or a reload, so a later process can detect both; 0 if the GPU has none.
	EnergyCounter uint64
	// RepairPending is set if the next reset repairs a part of the fault.
	RepairPending bool
}

// Event is a report of the driver.
type Event struct {
	GPU      GPU
	Device   ID       // the affected MIG device; empty: the whole GPU, or no device
	Xid      uint64   // 0 if the report is no Xid
	Kind     string   // of a report other than an Xid, one word: "gpu_unavailable"
	Class    string   // of the report in the Backend's table: "application"
	Recovery Recovery // what ends the fault
	Severity Severity // as far as known
	Action   string   // as in Status
	// PartitionChanged is set if the GPU's MIG devices changed, or are about to.
	PartitionChanged bool
	// Source names the second source of the report; empty: the driver. A report by both sources is about one event.
	Source string
	// Historical is set if the event happened before podgauge listened. It is
	// not counted and marks no device unhealthy, and the GPU may have had
	// another owner.
	Historical bool
}

// Recovery is what ends a fault.
type Recovery uint8

const (
	// RecoveryNone means that the next program runs, and the device stays healthy.
	RecoveryNone Recovery = iota
	// RecoveryChecksPass means that the fault is over as soon as checks pass.
	RecoveryChecksPass
	// RecoveryAfterReset means that the fault is over after a reset; a reboot is a reset.
	RecoveryAfterReset
)

// Severity is the severity of a report, apart from its class.
type Severity uint8

const (
	// SeverityOfClass means that the class has the severity.
	SeverityOfClass Severity = iota
	// SeverityNonfatal means that the driver calls this report of the class nonfatal.
	SeverityNonfatal
	// SeverityUndecided means that the kernel log has the severity, or a fault that the next check finds.
	SeverityUndecided
)

// Policy is the operator's policy for an Xid.
type Policy uint8

// The policies.
const (
	PolicyDefault   Policy = iota // as the Backend's table classifies the Xid
	PolicyIgnore                  // count only
	PolicyWarn                    // count and report, but keep the device healthy
	PolicyUnhealthy               // mark the device unhealthy until a reset
)

// XidPolicy is a policy that applies at each report, or from the Count-th report of a device within Window.
type XidPolicy struct {
	Policy Policy
	Count  int // 0: at each report
	Window time.Duration
	Below  Policy // of reports before the Count-th
}

// Fault is the error of a Check of a GPU that answers.
type Fault struct {
	Reason, Action string // as in Status
	// NeedsReset is set if the fault lasts until a reset, even if checks pass before.
	NeedsReset bool
	// External is set if the GPU itself has no fault, but cannot be used: no incident follows.
	External bool
}

func (f *Fault) Error() string {
	if f.Action == "" {
		return f.Reason
	}
	return f.Reason + ", wants " + f.Action
}
