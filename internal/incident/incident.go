// Package incident records which containers had a device when the device
// failed.
//
// A fault of a GPU is one incident with all MIG devices of the GPU; a fault of
// a MIG device is an incident of that device.
//
// The Monitor reports health events to Log.Record, which stores each event with
// the current allocations, without waiting. Log.Run follows each incident:
// containers named later by the kubelet, the end of their allocations, the
// device's recovery, and the termination of the pods. Snapshots are published
// at most ten times a second.
//
// A container is affected only if the allocation history shows the device
// allocated to it at the time of the event. A late answer of the kubelet
// therefore names the right containers, and later containers of the device are
// not affected.
//
// A SnapshotStore keeps the incidents for the next process. Counts start at 0
// in each process.
package incident

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

// Incident is a health event of a device, with its repetitions: within a minute
// while the same containers had the device, and within a day while containers
// of the same workload had the device and no event marked the device unhealthy.
//
// The JSON form is that of /api/v1/incidents and of the file: fields are added,
// and never change.
type Incident struct {
	// ID rises and is unique: the Unix time of the record in milliseconds, or
	// the next unused number.
	ID    uint64    `json:"id"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count uint64    `json:"count"`

	Device  device.ID  `json:"device"` // the GPU, or the MIG device if the event affects no other
	GPU     device.GPU `json:"gpu"`
	Index   int        `json:"index"`
	Profile string     `json:"profile,omitempty"` // of a MIG device
	// MIGDevices are the MIG devices that an event of the GPU affects.
	MIGDevices []AffectedMIGDevice `json:"mig_devices,omitempty"`
	Model      string              `json:"model,omitempty"`
	PCI        string              `json:"pci_bus_id,omitempty"`

	Reason          string `json:"reason"`         // "xid_79", "lost", "not_responding"
	Note            string `json:"note,omitempty"` // the operator's reason, if the Reason is "retired"
	Xid             uint64 `json:"xid,omitempty"`
	Class           string `json:"class,omitempty"`
	Action          string `json:"action,omitempty"`
	MarkedUnhealthy bool   `json:"marked_unhealthy"` // the event turned the device unhealthy
	Source          string `json:"source,omitempty"`
	// Historical is set if the event was before the start of podgauge: the
	// affected containers are unknown.
	Historical bool `json:"historical,omitempty"`

	// RecoveredAt is nil if the device was not marked unhealthy, or has not
	// recovered.
	RecoveredAt *time.Time `json:"recovered,omitempty"`
	// Affected are the containers with the device at the event, or until just
	// before; then the newest that only earlier events affected.
	Affected []AffectedContainer `json:"affected"`
	// HPCJobs are the ids of the scheduler's jobs on the affected devices at the
	// event, from its mapping files.
	HPCJobs []string `json:"hpc_jobs,omitempty"`
	// OwnersIncomplete reports that the kubelet did not name the owner of some
	// allocation.
	OwnersIncomplete bool `json:"owners_incomplete,omitempty"`
	// AffectedUnknown reports that allocations were unknown at the event.
	AffectedUnknown bool `json:"affected_unknown,omitempty"`
}

// Validate returns an error unless the incidents are ordered, newest first, and
// each has a device.
func Validate(all []Incident) error {
	for n, i := range all {
		if i.Device == "" || i.ID == 0 || n > 0 && i.ID >= all[n-1].ID {
			return fmt.Errorf("incident %d: id %d is not in descending order, or no device", n, i.ID)
		}
	}
	return nil
}

// PendingAction returns the action that the operator still has to take; empty
// after the recovery.
func (i *Incident) PendingAction() string {
	if i.RecoveredAt != nil {
		return ""
	}
	return i.Action
}

// Concerns reports whether the event affects a device.
func (i *Incident) Concerns(id device.ID) bool {
	return i.Device == id || slices.ContainsFunc(i.MIGDevices, func(d AffectedMIGDevice) bool { return d.Device == id })
}

// DeviceOf returns the device of an affected container.
func (i *Incident) DeviceOf(c AffectedContainer) device.ID { return cmp.Or(c.Device, i.Device) }

// LastOf returns the time of the last event that affected a container.
func (i *Incident) LastOf(c AffectedContainer) time.Time { return cmp.Or(c.Last, i.Last) }

// UniqueOwners returns each container once, with its first device.
func UniqueOwners(all []AffectedContainer) (unique []AffectedContainer) {
	for _, c := range all {
		if !slices.ContainsFunc(unique, func(o AffectedContainer) bool { return o.Owner == c.Owner }) {
			unique = append(unique, c)
		}
	}
	return unique
}

// AffectedMIGDevice is an affected MIG device, as it was.
type AffectedMIGDevice struct {
	Device  device.ID `json:"device"`
	Profile string    `json:"profile,omitempty"`
}

// AffectedContainer is a container with a device at the event. A container with
// several affected devices has a row for each.
type AffectedContainer struct {
	allocation.Owner
	Device device.ID `json:"device,omitempty"` // a MIG device of Incident.MIGDevices; empty: Incident.Device
	UID    string    `json:"uid,omitempty"`    // of the pod; empty: unknown
	// Workload adds the fields controller and labels, of the pod. Nil: unknown.
	*allocation.Workload
	Since       time.Time       `json:"since"`           // first seen with the device
	Until       time.Time       `json:"until,omitzero"`  // last seen with the device; zero: still allocated
	Last        time.Time       `json:"last,omitzero"`   // of the events with the container; zero: Incident.Last
	Termination *PodTermination `json:"ended,omitempty"` // nil: still running, or unknown

	terminationFinal bool // nothing more will be known
}

// PodTermination is how a container and its pod ended, from the kubelet's Pods
// API.
type PodTermination struct {
	At       time.Time `json:"at,omitzero"`
	Phase    string    `json:"phase,omitempty"` // of the pod: "Failed"
	Reason   string    `json:"reason,omitempty"`
	ExitCode *int32    `json:"exit_code,omitempty"`
	Restarts int32     `json:"restarts"`
}

// Snapshot is the published state. It is immutable.
type Snapshot struct {
	Incidents []Incident // newest ID first
	// Counts include removed incidents. Counts rise; an expired row is removed
	// and starts from 0.
	Devices  []EventCount // by device and reason, without Owner
	Affected []EventCount // by device, affected container and reason

	// Persisted and Err are not set by a Log, but by the owner of its Store.
	Persisted bool  // the incidents are on disk, or will be within a second
	Err       error // of writing them
}

// EventCount counts the events of a device by reason; with an Owner, the events
// with this affected container.
type EventCount struct {
	Device device.ID
	GPU    device.GPU // of the newest incident
	Index  int        // of the newest incident
	allocation.Owner
	Reason string
	Count  uint64    // in this process
	Last   time.Time // in any process
}
