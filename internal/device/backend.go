package device

import (
	"context"
	"errors"
)

// Errors that a caller branches on. A Backend wraps them with what it knows.
var (
	// ErrNoDriver says that there is nothing to ask: no driver, no library, or
	// one that refuses to start. It may come later.
	ErrNoDriver = errors.New("no driver")
	// ErrDriverReplaced comes with ErrNoDriver when the driver was replaced by one that this
	// process cannot talk to: only a new process loads its library.
	ErrDriverReplaced = errors.New("the driver was replaced, and only a restart of this process loads its library")
	// ErrLost says that the GPU has fallen off the bus.
	ErrLost = errors.New("GPU is lost")
	// ErrStalled says that an earlier call to the GPU has not come back, so it
	// was not asked again.
	ErrStalled = errors.New("GPU does not answer")
)

// Backend answers for one vendor's hardware. Any call may take for ever: callers
// give each a goroutine that nothing else waits for. Calls for different GPUs may
// run at the same time, and so may Devices and Wait.
type Backend interface {
	// Metrics are the rows that Read fills, in the order of Sample.Metric. They
	// are the same for the life of the Backend.
	Metrics() []Metric
	// Devices lists what there is, all of it, each time: every GPU, one in MIG mode
	// too, and the slices of those that are partitioned. It starts the driver's
	// library when that has not happened yet: ErrNoDriver while it cannot.
	// A device that cannot be described is left out; an error beside devices that
	// are not nil says why.
	Devices(ctx context.Context) ([]Device, error)
	// Read appends to buf what can be read of a GPU and its devices and returns
	// it. A value that the GPU does not have is not appended. The error is for
	// the GPU as a whole: ErrLost, or another one when it gave nothing.
	Read(gpu GPU, buf []Sample) ([]Sample, error)
	// Check asks whether the GPU can be used: ErrLost or a *Fault where it can
	// not. The Vitals are as far as is known then.
	Check(gpu GPU) (ResetEvidence, error)
	// Wait blocks until the driver reports something, for a few seconds at most:
	// a zero Event is "nothing". An error blames nobody.
	Wait(ctx context.Context) (Event, error)
}

// ProcessUsageReader is a Backend that knows which processes use a GPU and its slices, and how
// much of it.
type ProcessUsageReader interface {
	// ReadProcessUsage appends to buf a row for each process and device. It is called right after a
	// Read of the GPU that succeeded, as a part of the same reading. known is false where
	// it cannot be said who uses the GPU: then there is no row.
	ReadProcessUsage(gpu GPU, buf []ProcessUsage) (uses []ProcessUsage, known bool)
}

// Closer is implemented by a Backend that can release its driver.
type Closer interface {
	// Idle reports whether no call to the driver runs in the background. Devices and Links may return before
	// their calls about a hanging GPU do. Idle must be quick.
	Idle() bool
	// Close unloads the driver's library; the next Devices loads it again. No call may run, Idle must be true.
	Close()
}

// ResetEvidence are what tells whether a GPU has been reset since something happened to it.
type ResetEvidence struct {
	// Resets counts how often it was seen to have been reset or its driver reloaded,
	// since this process started.
	Resets uint64
	// EnergyCounter only ever rises, but for a reset or a reload, which a later process can
	// tell by it; 0 where the GPU has none.
	EnergyCounter uint64
	// RepairPending says that a part of what went wrong is repaired with the next reset.
	RepairPending bool
}

// Event is one report of the driver.
type Event struct {
	GPU      GPU
	Device   ID       // the one slice that is hit; empty: the whole GPU, or nothing is
	Xid      uint64   // the error's number; 0 where the report is of another kind
	Kind     string   // of a report that is no Xid, in a word: "gpu_unavailable"; else empty
	Class    string   // what the Backend's table calls such a report: "application"
	Recovery Recovery // what ends it
	Action   string   // what the fault asks for, as in Status.Action
	// PartitionChanged says that the GPU's slices have changed, or are about to.
	PartitionChanged bool
	// Source is the second source that the report is from; empty: the driver itself. What
	// both report happened once.
	Source string
	// Historical says that it happened before podgauge listened: it is not counted and marks no
	// device unhealthy, and the owner of the GPU now need not have been its owner then.
	Historical bool
}

// Recovery is what ends the trouble that a report or a fault means.
type Recovery uint8

const (
	// RecoveryNone says that the next program runs, and nobody loses the device.
	RecoveryNone Recovery = iota
	// RecoveryChecksPass says that it is over as soon as checks find nothing.
	RecoveryChecksPass
	// RecoveryAfterReset says that it is over once a reset was seen, of which a reboot is one.
	RecoveryAfterReset
)

// Fault is what a Backend finds wrong with a GPU that still answers.
type Fault struct {
	Reason, Action string // as in Status
	// RecoveryAfterReset says that it stands until a reset was seen, also where checks find it no
	// more. Else it is over as soon as they do not.
	NeedsReset bool
}

func (f *Fault) Error() string { return f.Reason + ", wants " + f.Action }
