package sim

import (
	"fmt"
	"strings"
	"time"
)

// Script is a list of actions on a node in the order of time, one action per
// line:
//
//	20s  xid team-a/train-0 79   # GPU falls off the bus
//
// Times start when the kubelet has devices. A device is an index ("3"), a GPU's
// index and a MIG device's ("3.1"), or the first device of a pod
// ("team-a/train-0"), also after the pod's end if an earlier line named the
// device so. The actions are in the table scriptActions. "work" is about all
// devices of a pod.
type Script struct {
	Machine string // a name for NewNamedMachine, from the line "machine NAME"; default h100
	Steps   []Step
}

// Step is a line of a Script.
type Step struct {
	At     time.Duration
	Action string
	Args   []string
	Line   int // of the file
}

func (s Step) String() string {
	return fmt.Sprintf("line %d: %s %s", s.Line, s.Action, strings.Join(s.Args, " "))
}
