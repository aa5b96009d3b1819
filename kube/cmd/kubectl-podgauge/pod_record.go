package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
)

// podRecord is a device that a container of a pod has or had, with a fault
// that affected the container, if any.
type podRecord struct {
	Node      string    `json:"node"`
	Device    device.ID `json:"device,omitempty"`
	GPU       string    `json:"gpu,omitempty"` // index, "2:0" for a MIG device
	Pod       string    `json:"pod,omitempty"`
	Container string    `json:"container,omitempty"`
	Allocated bool      `json:"allocated"`

	HealthNow string `json:"health_now,omitempty"` // a device.Health, or "unknown"
	ReasonNow string `json:"reason_now,omitempty"`

	Fault   string    `json:"fault,omitempty"`   // the reason: "xid_79"
	FaultAt time.Time `json:"fault_at,omitzero"` // the newest
	// effect of the fault: "unhealthy", "no change", "recovered 3 min ago"
	HealthThen string   `json:"health_then,omitempty"`
	Xid        uint64   `json:"xid,omitempty"`
	Action     string   `json:"action,omitempty"`
	HPCJobs    []string `json:"hpc_jobs,omitempty"`
	Ended      string   `json:"ended,omitempty"` // the container and the pod: "Failed, Error, exit 139"
	Source     string   `json:"source"`          // "podgauge", "prometheus" or, without a device, "pod"

	owner   allocation.Owner
	faultAt time.Time // the first; zero: unknown
}

// unknownHealth is the health of a device that no source has.
const unknownHealth = "unknown"

// podAnswer is the part of a node's answer.
type podAnswer struct {
	devices   *api.DevicesResponse
	incidents *api.IncidentsResponse
}

// podSet is a set of pods.
type podSet interface {
	hasOwner(o allocation.Owner) bool
	hasAffected(i *incident.Incident, c *incident.AffectedContainer) bool
}

// recordsOf returns the records of a node: a record for each fault, and for
// each device without a fault.
func recordsOf(node string, a *podAnswer, pods podSet) (records []podRecord) {
	type key struct {
		id    device.ID
		owner allocation.Owner
	}
	faulted, ended := map[key]bool{}, map[allocation.Owner]string{}
	for i := range a.incidents.Incidents {
		inc := &a.incidents.Incidents[i]
		affected := inc.Affected
		if len(affected) == 0 { // a Slurm job on a node without Kubernetes has no container
			affected = []incident.AffectedContainer{{}}
		}
		for k := range affected {
			if !pods.hasAffected(inc, &affected[k]) {
				continue
			}
			record := faultRecord(node, a, inc, &affected[k])
			faulted[key{record.Device, record.owner}] = true
			ended[record.owner] = cmp.Or(ended[record.owner], record.Ended)
			records = append(records, record)
		}
	}
	for i := range a.devices.Devices {
		d := &a.devices.Devices[i]
		for _, o := range slices.Concat(d.Owners, d.PastOwners) {
			if pods.hasOwner(o.Owner) && !faulted[key{d.ID, o.Owner}] {
				record := podRecord{Node: node, Device: d.ID, GPU: cli.DeviceNumber(d), Source: "podgauge"}
				record.setOwner(o.Owner)
				record.setNow(a.devices)
				if !record.Allocated { // otherwise a fault affected an earlier container
					record.Ended = ended[o.Owner]
				}
				records = append(records, record)
			}
		}
	}
	return records
}

// faultRecord returns the record of a fault and an affected container.
func faultRecord(node string, a *podAnswer, inc *incident.Incident, affected *incident.AffectedContainer) podRecord {
	id, profile := inc.DeviceOf(*affected), inc.Profile
	for _, mig := range inc.MIGDevices {
		if mig.Device == id {
			profile = mig.Profile
		}
	}
	record := podRecord{
		Node:       node,
		Device:     id,
		GPU:        strings.TrimSpace(strconv.Itoa(inc.Index) + " " + profile),
		Fault:      inc.Reason,
		FaultAt:    inc.LastOf(*affected),
		HealthThen: cli.OutcomeText(a.incidents.At, inc),
		Xid:        inc.Xid,
		Action:     inc.PendingAction(),
		HPCJobs:    inc.HPCJobs,
		Ended:      api.TerminationText(affected.Termination),
		HealthNow:  "gone",
		Source:     "podgauge",
		faultAt:    inc.First,
	}
	if affected.Since.After(inc.First) { // earlier events affected other containers
		record.faultAt = affected.Since
	}
	record.setOwner(affected.Owner)
	record.setNow(a.devices)
	return record
}

func (p *podRecord) setOwner(o allocation.Owner) { p.owner, p.Pod, p.Container = o, o.Pod, o.Container }

// setNow sets the current state of the device.
func (p *podRecord) setNow(devices *api.DevicesResponse) {
	for i := range devices.Devices {
		d := &devices.Devices[i]
		if d.ID != p.Device {
			continue
		}
		p.GPU, p.HealthNow, p.ReasonNow = cli.DeviceNumber(d), d.Health, cli.ReasonText(d)
		p.Allocated = slices.ContainsFunc(d.Owners, func(o api.OwnerJSON) bool { return o.Owner == p.owner })
	}
}

func (p *podRecord) sameDevice(other *podRecord) bool {
	return p.Device == other.Device && p.owner == other.owner
}
