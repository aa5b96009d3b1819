package api

import (
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// NodeState returns the published state of a node. Its methods call neither the
// driver nor the kubelet.
type NodeState interface {
	Statuses() ([]device.Status, <-chan struct{})
	Allocations() (device.Allocations, <-chan struct{})
	Driver() device.Driver
	Incidents() incident.Snapshot
	// ExpectedGPUs returns the expected number of GPUs; 0: any number.
	ExpectedGPUs() int
}

// node answers queries about a node. No list is null.
type node struct {
	NodeState
	name string
}

// KubeletJSON is the result of the latest request for allocations.
type KubeletJSON struct {
	Up           bool      `json:"up"`
	LastResponse time.Time `json:"last_response,omitzero"` // the list of allocations is from then
	Error        string    `json:"error,omitempty"`
}

func newKubeletJSON(a device.Allocations) KubeletJSON {
	return KubeletJSON{Up: a.Err == nil && !a.At.IsZero(), LastResponse: a.At, Error: errorText(a.Err)}
}

// errorText returns an error as one line.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
