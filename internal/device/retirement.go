package device

import (
	"strings"
	"time"
)

// Retirement is an operator's decision: the device is unhealthy, with and
// without a fault. A Retirement is immutable.
type Retirement struct {
	Note string    `json:"note,omitempty"` // the operator's reason
	At   time.Time `json:"at"`
	// ListedAs is the device's name in Retirements; empty: retired by a command
	// on the node.
	ListedAs string `json:"listed_as,omitempty"`
}

// Equal reports whether two retirements are equal, also after a restart.
func (r Retirement) Equal(o Retirement) bool {
	return r.Note == o.Note && r.At.Equal(o.At) && r.ListedAs == o.ListedAs
}

// Retirements are the listed devices of all nodes, by UUID of a GPU or MIG
// device or by serial number of a GPU, in lower case. nil: the list is unknown.
type Retirements map[string]Retirement

// IncompleteList is the key of an entry that marks a list with invalid entries.
// The list retires devices, and returns none to service.
const IncompleteList = "*"

// Of returns the first retirement with one of a device's names.
func (r Retirements) Of(names ...string) (found Retirement, ok bool) {
	for _, name := range names {
		if found, ok = r[strings.ToLower(name)]; ok {
			break
		}
	}
	return found, ok
}

// MaskedFault is the fault behind a retirement; the zero MaskedFault: none.
type MaskedFault struct {
	Reason string    `json:"reason"`
	Action string    `json:"action,omitempty"` // that recovers the device; empty: unknown or done
	Since  time.Time `json:"since"`
	// Present is set if the device still has the fault, by the newest check or,
	// for a fault that needs a reset, until a reset.
	Present bool `json:"present"`
}

// String returns the fault in one line; empty: none.
func (f MaskedFault) String() string {
	switch {
	case f.Reason == "":
		return ""
	case !f.Present:
		return f.Reason + ", over"
	case f.Action == "":
		return f.Reason
	}
	return f.Reason + ": " + f.Action
}
