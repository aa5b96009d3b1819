package health

import (
	"context"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// event is an input of the engine, of a type below.
type event any

type (
	// tick lets the engine derive and publish the results of the events, and
	// start the calls that are due.
	tick struct {
		calls  map[device.GPU]gpuCalls
		idle   bool // no call about a GPU runs, and no background call of the Backend
		stored bool // the disk has the saved history
	}
	listed struct { // by Devices
		devices []device.Device
		err     error
	}
	linksRead struct { // by Links
		links []device.Link
		err   error
	}
	waited struct { // by Wait; the zero Event: none
		event device.Event
		err   error
	}
	reported struct { // by the kernel log
		event device.Event
		count int
		at    time.Time // the newest
	}
	checked struct {
		gpu       device.GPU
		seq       uint64 // of the GPU's checks, counted from 1
		startedAt time.Time
		evidence  device.ResetEvidence
		err       error
	}
	request struct { // by the operator
		ctx     context.Context // of a release
		action  action
		id      device.ID // of a device
		note    string
		replyTo chan<- requestEnd // buffered
	}
	closed  struct{}              // by Close
	stopped struct{ cause error } // Run ends
)

// gpuCalls are the calls about a GPU.
type gpuCalls struct {
	busy   time.Duration // as of Readers.busy
	failed bool          // the newest read
}

// action is the kind of a request.
type action uint8

const (
	actionRelease action = iota
	actionResume
	actionRetire
	actionTrust
	actionForget
)

// requestEnd is the result of a request.
type requestEnd struct {
	Trusted
	err error
}

// effect is work of the Monitor for the engine, of a type below.
type effect any

type (
	publish        []device.Status
	setDriver      device.Driver
	setMissing     []device.Device
	setLinks       []device.Link
	setInterrupted bool // the driver's events
	notify         device.HealthEvent
	pause          bool // of the Readers
	list           struct{}
	readLinks      struct{}
	wait           struct{}
	closeBackend   struct{}
	end            struct{ err error } // of Run; the last effect
	checkGPU       struct {
		gpu device.GPU
		seq uint64
		at  time.Time
	}
	save struct {
		history History
		urgent  bool
	}
	reply struct {
		to chan<- requestEnd
		requestEnd
	}
)

// Trusted is the result of Monitor.Trust.
type Trusted struct {
	// Retired is set if the device, or a MIG device of the GPU, was retired.
	Retired bool
	// RepairPending is set if the next reset of the GPU repairs a part of a
	// fault. A pending repair does not make a device unhealthy.
	RepairPending bool
	// Err is why the earlier cause still holds: the GPU failed its check, is
	// gone, or was not checked.
	Err error
}
