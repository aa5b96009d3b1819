// Package incident remembers which container held a device when it went bad.
//
// A Log is told by the Monitor what happens (Happened), and takes it down at once, with
// those who hold the device: what the kubelet says a moment later may be of somebody else.
// It waits for nobody there. Run then follows each incident: the name of a holder that the
// kubelet says late, until when he had the device, when that was healthy again, and how the
// pod ended. All of it is published ten times a second at most, whole and never written
// again.
//
// Nobody is named of whom it is not known that he had the device then. What is known is
// from the history of holders, which says since when each has had it and when he had not
// any more; so an answer of the kubelet that comes late does no harm, and a container that
// was given the device after the report is in none.
//
// All of it is kept in one file, which is replaced at most once a second, and at once when a
// device turned unhealthy (state/disk). While that fails, all goes on in memory. Counts are
// published when they are stored, so that what a scrape has shown survives a SIGKILL.
package incident

import (
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Incident is what happened to a device once, or over and over while the same
// containers held it. Its JSON is what /api/v1/incidents answers with and what the store
// keeps: fields are added, and never change.
type Incident struct {
	// ID rises, and is never given twice: it is the milliseconds of when the incident was
	// taken down, since 1970, or the next number that is free.
	ID    uint64    `json:"id"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count uint64    `json:"count"`

	Device  device.ID  `json:"device"`
	GPU     device.GPU `json:"gpu"`
	Index   int        `json:"index"`
	Profile string     `json:"profile,omitempty"` // of a slice
	Model   string     `json:"model,omitempty"`
	PCI     string     `json:"pci_bus_id,omitempty"`

	Reason          string `json:"reason"` // "xid_79", "lost", "not_answering"
	Xid             uint64 `json:"xid,omitempty"`
	Class           string `json:"class,omitempty"`
	Action          string `json:"action,omitempty"`
	MarkedUnhealthy bool   `json:"condemned"` // the device turned unhealthy by it
	Source          string `json:"witness,omitempty"`
	Historical      bool   `json:"past,omitempty"` // it happened before podgauge listened, to containers that are not known

	// RecoveredAt is when the device was healthy again; nil where it is not yet, or never
	// was condemned.
	RecoveredAt *time.Time `json:"healed,omitempty"`
	// Affected are the containers that held the device then, or had until just before.
	Affected []AffectedContainer `json:"holders"`
	// OwnersIncomplete says that somebody had the device whom the kubelet did not name.
	OwnersIncomplete bool `json:"nameless,omitempty"`
	// AffectedUnknown says that nobody could tell then who had the device.
	AffectedUnknown bool `json:"holders_unknown,omitempty"`
}

// AffectedContainer is a container that was hit.
type AffectedContainer struct {
	Namespace   string          `json:"namespace"`
	Pod         string          `json:"pod"`
	Container   string          `json:"container"`
	UID         string          `json:"uid,omitempty"`   // of the pod, where the kubelet tells
	Since       time.Time       `json:"since"`           // first seen with the device
	Until       time.Time       `json:"until,omitzero"`  // last seen with it; zero: it has it still
	Termination *PodTermination `json:"ended,omitempty"` // nil: it has not, or nobody can tell
}

// PodTermination is how a pod and its container ended, as the kubelet's Pods API tells.
type PodTermination struct {
	At       time.Time `json:"at,omitzero"`
	Phase    string    `json:"phase,omitempty"` // of the pod: "Failed"
	Reason   string    `json:"reason,omitempty"`
	ExitCode *int32    `json:"exit_code,omitempty"`
	Restarts int32     `json:"restarts"`
}

// Snapshot is what is remembered at one moment. It is never written after it was published.
type Snapshot struct {
	Incidents []Incident // newest first, by ID
	// Devices and Hits only rise, but for rows that are dropped as a whole when they are long
	// over, and start from 0. They have what is stored, so they are up to a second late.
	Devices   []DeviceCount   // by device and reason, also of incidents that were dropped
	Affected  []AffectedCount // by device, container and reason, also of incidents that were dropped
	Persisted bool            // all is on disk, or will be within a second
	Err       error           // why it is not kept on disk; nil if it is, or is not to be
}

// DeviceCount is how often a thing happened to a device.
type DeviceCount struct {
	Device device.ID
	GPU    device.GPU // and Index: of the newest such incident
	Index  int
	Reason string
	Count  uint64
	Last   time.Time
}

// AffectedCount is how often a thing happened to a device while a container held it.
type AffectedCount struct {
	Device device.ID
	GPU    device.GPU // and Index: as in Count
	Index  int
	Owner  device.Owner
	Reason string
	Count  uint64
	Last   time.Time
}
