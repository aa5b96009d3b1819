package device

import (
	"context"
	"time"
)

// event is an input of the engine: one of the types below.
type event any

type (
	// tick lets the engine derive and publish what follows from the events, and
	// start the calls that are due.
	tick struct {
		calls  map[GPU]gpuCalls
		idle   bool // no call about a GPU runs, and no background call of the Backend
		stored bool // the disk has all that was saved
	}
	listed struct { // by Devices
		devices []Device
		err     error
	}
	linksRead struct { // by Links
		links []Link
		err   error
	}
	waited struct { // by Wait; the zero Event: none
		event Event
		err   error
	}
	reported struct { // by the kernel log
		event Event
		count int
		at    time.Time // the newest
	}
	checkBegun checkGPU
	checked    struct {
		gpu       GPU
		seq       uint64 // of the GPU's checks, counted from 1
		startedAt time.Time
		evidence  ResetEvidence
		err       error
	}
	request struct { // by the operator
		ctx     context.Context // of a release
		action  action
		id      ID // of a device
		note    string
		replyTo chan<- answer // buffered
	}
	closed  struct{}              // by Close
	stopped struct{ cause error } // Run ends
)

// gpuCalls are the calls about a GPU.
type gpuCalls struct {
	busy   time.Duration // as of Readers.Busy
	failed bool          // the newest read
}

// action is what an operator asks for.
type action uint8

const (
	actionRelease action = iota
	actionResume
	actionRetire
	actionTrust
	actionForget
)

// answer is the result of a request.
type answer struct {
	Trusted
	err error
}

// effect is what the Monitor does for the engine: one of the types below.
type effect any

type (
	publish        []Status
	setDriver      Driver
	setMissing     []Device
	setLinks       []Link
	setInterrupted bool     // the driver's events
	firstListed    struct{} // once
	notify         HealthEvent
	pause          bool // of the Readers
	list           struct{}
	readLinks      struct{}
	wait           struct{}
	closeBackend   struct{}
	end            struct{ err error } // of Run; the last effect
	checkGPU       struct {
		gpu GPU
		seq uint64
		at  time.Time
	}
	save struct {
		history HealthHistory
		urgent  bool
	}
	reply struct {
		to chan<- answer
		answer
	}
)
