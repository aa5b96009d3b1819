package main

import (
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
)

// podRecord is a device that a container of the pod has or had, with a fault
// that affected the container, if any.
type podRecord struct {
	Node      string    `json:"node"`
	Device    device.ID `json:"device"`
	GPU       string    `json:"gpu"` // index, "2:0" for a MIG device
	Container string    `json:"container"`
	Allocated bool      `json:"allocated"`

	HealthNow string `json:"health_now"` // a device.Health, or "unknown"
	ReasonNow string `json:"reason_now,omitempty"`

	Fault   string     `json:"fault,omitempty"` // the reason: "xid_79"
	FaultAt *time.Time `json:"fault_at,omitempty"`
	// effect of the fault: "unhealthy", "no change", "recovered 3 min ago"
	HealthThen string `json:"health_then,omitempty"`
	Xid        uint64 `json:"xid,omitempty"`
	Action     string `json:"action,omitempty"`
	Ended      string `json:"ended,omitempty"` // the container and the pod: "Failed, Error, exit 139"
	Source     string `json:"source"`          // "podgauge" or "prometheus"
}

// unknownHealth is the health of a device that no source has.
const unknownHealth = "unknown"

// podAnswer is the part of a node's answer.
type podAnswer struct {
	devices   *api.DevicesResponse
	incidents *api.IncidentsResponse
}

func (p *podRecord) sameDevice(other *podRecord) bool {
	return p.Device == other.Device && p.Container == other.Container
}

func (p *podRecord) faultTime() time.Time {
	if p.FaultAt == nil {
		return time.Time{}
	}
	return *p.FaultAt
}
