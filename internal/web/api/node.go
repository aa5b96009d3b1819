package api

import (
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// Node is the state of a node at one time.
type Node struct {
	Name         string
	Statuses     []device.Status
	Allocations  allocation.Snapshot
	Driver       device.Driver
	Incidents    incident.Snapshot
	ExpectedGPUs int // 0: any number
}

// KubeletJSON is the result of the latest request for allocations.
type KubeletJSON struct {
	Up           bool      `json:"up"`
	LastResponse time.Time `json:"last_response,omitzero"` // the list of allocations is from then
	Error        string    `json:"error,omitempty"`
}

func newKubeletJSON(a allocation.Snapshot) KubeletJSON {
	return KubeletJSON{Up: a.Err == nil && !a.At.IsZero(), LastResponse: a.At, Error: errorText(a.Err)}
}

// errorText returns an error as one line.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
