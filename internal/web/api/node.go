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
	Resources    []ResourceJSON
}

// ResourceJSON is a resource of the device plugin.
type ResourceJSON struct {
	Name    string `json:"name"`
	Devices int    `json:"devices"`           // in the newest list to the kubelet
	Waiting bool   `json:"waiting,omitempty"` // another device plugin serves the resource
	Error   string `json:"error,omitempty"`   // of the newest registration
}

// response is a response at a path.
type response interface {
	// withoutTimes returns the response without times that change with each
	// request.
	withoutTimes() any
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
