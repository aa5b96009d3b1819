package api

import (
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// DevicesResponse is the answer at DevicesPath.
type DevicesResponse struct {
	At      time.Time    `json:"at"` // when it was given
	Node    string       `json:"node,omitempty"`
	Driver  DriverJSON   `json:"driver"`
	Kubelet KubeletJSON  `json:"kubelet"`
	Devices []DeviceJSON `json:"devices"` // each GPU before its slices
}

// DriverJSON is the driver's state.
type DriverJSON struct {
	// State is "starting", "up", "failing", "absent", "not_answering", "replaced" or
	// "released".
	State string `json:"state"`
	Error string `json:"error,omitempty"`
}

// KubeletJSON says how the kubelet answered when it was last asked who holds what.
type KubeletJSON struct {
	Up         bool      `json:"up"`
	LastAnswer time.Time `json:"answered,omitzero"` // when it last did; what holders are drawn from
	Error      string    `json:"error,omitempty"`
}

// DeviceJSON is what can be held, and a GPU whose slices can.
type DeviceJSON struct {
	ID             device.ID         `json:"device"`
	GPU            device.GPU        `json:"gpu"`
	Index          int               `json:"index"`             // the GPU's
	MIG            bool              `json:"mig"`               // a GPU in MIG mode: its slices are held, and not it
	Profile        string            `json:"profile,omitempty"` // of a slice, as are the next three
	MIGDeviceIndex *int              `json:"slice,omitempty"`
	GI             *int              `json:"gi,omitempty"`
	CI             *int              `json:"ci,omitempty"`
	Model          string            `json:"model,omitempty"`
	PCI            string            `json:"pci_bus_id,omitempty"`
	NUMANode       *int              `json:"numa_node,omitempty"`
	MemoryBytes    uint64            `json:"memory_bytes,omitempty"`
	InfoLabels     map[string]string `json:"facts,omitempty"` // as nvidia_gpu_info has them

	Healthy bool      `json:"healthy"` // as the kubelet is told
	Health  string    `json:"health"`  // "healthy", "suspect", "unhealthy" or "recovering"
	Reason  string    `json:"reason,omitempty"`
	Action  string    `json:"action,omitempty"`
	Since   time.Time `json:"since,omitzero"` // when Healthy or Reason last changed
	Flaps   uint64    `json:"flaps"`
	Gone    bool      `json:"gone,omitempty"` // no listing has it any more
	// Unallocatable is why nothing of a GPU that works can be allocated: "no_mig_devices".
	Unallocatable string    `json:"unallocatable,omitempty"`
	Xids          []XidJSON `json:"xids"` // that were reported of its GPU, as far as is remembered

	// AllocationState is "idle", "held", "shared", "unnamed" (allocated to a container that the
	// kubelet does not name), "unknown", or "partitioned".
	AllocationState string             `json:"hold"`
	Owners          []OwnerJSON        `json:"holders"`
	PastOwners      []OwnerJSON        `json:"last_holders"` // that hold it no more, newest first
	LastIncident    *incident.Incident `json:"last_incident,omitempty"`
}

// XidJSON is how often the driver reported an error.
type XidJSON struct {
	Xid   uint64    `json:"xid"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}

var driverStateNames = [...]string{
	device.DriverStarting: "starting", device.DriverUp: "up", device.DriverFailing: "failing", device.DriverAbsent: "absent",
	device.DriverNotAnswering: "not_answering", device.DriverReplaced: "replaced", device.DriverReleased: "released",
}

var allocationStateNames = [...]string{
	device.AllocationUnknown: "unknown", device.Unallocated: "idle", device.Allocated: "held", device.AllocatedShared: "shared", device.AllocatedOwnerUnknown: "unnamed",
}

func (n node) handleDevices(q Query, now time.Time) any { return n.devicesMatching(q, now) }

// Devices returns the answer for all devices of a node.
func Devices(name string, state NodeState, now time.Time) DevicesResponse {
	return node{state, name}.devicesMatching(Query{}, now)
}

func (n node) devicesMatching(q Query, now time.Time) DevicesResponse {
	statuses, _ := n.Statuses()
	allocations, _ := n.Allocations()
	snapshot, driver := n.Incidents(), n.Driver()
	d := DevicesResponse{
		At: now.UTC(), Node: n.name, Driver: DriverJSON{driverStateNames[driver.State], errorText(driver.Err)},
		Kubelet: newKubeletJSON(allocations), Devices: []DeviceJSON{},
	}
	matcher := q.deviceMatcher(statuses)
	for _, status := range statuses {
		if matcher.matches(status.ID, status.GPU, status.Index) {
			d.Devices = append(d.Devices, newDeviceJSON(status, statuses, allocations, snapshot))
		}
	}
	return d
}

func newKubeletJSON(a device.Allocations) KubeletJSON {
	return KubeletJSON{Up: a.Err == nil && !a.At.IsZero(), LastAnswer: a.At.UTC(), Error: errorText(a.Err)}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

func newDeviceJSON(s device.Status, all []device.Status, allocations device.Allocations, snapshot incident.Snapshot) DeviceJSON {
	d := DeviceJSON{
		ID: s.ID, GPU: s.GPU, Index: s.Index, MIG: s.MIGEnabled, Model: s.Model, PCI: s.PCI, NUMANode: nonNegative(s.NUMANode),
		MemoryBytes: s.MemoryBytes, Healthy: s.Healthy, Health: s.Health.String(), Reason: s.Reason, Action: s.Action,
		Since: s.Since.UTC(), Flaps: s.Flaps, Gone: s.Gone, Unallocatable: s.Unallocatable(all), Xids: make([]XidJSON, len(s.Xids)),
		Owners: []OwnerJSON{}, PastOwners: []OwnerJSON{},
	}
	if !s.WholeGPU() {
		d.Profile, d.MIGDeviceIndex, d.GI, d.CI = s.Profile, nonNegative(s.MIGDeviceIndex), nonNegative(s.GI), nonNegative(s.CI)
	}
	for i, x := range s.Xids {
		d.Xids[i] = XidJSON{x.Code, x.Count, x.Last.UTC()}
	}
	for _, f := range s.InfoLabels {
		if f.Value == "" { // the driver does not tell it
			continue
		}
		if d.InfoLabels == nil {
			d.InfoLabels = map[string]string{}
		}
		d.InfoLabels[f.Name] = f.Value
	}
	state, _ := allocations.State(s.ID)
	d.AllocationState = allocationStateNames[state]
	if s.MIGEnabled && len(allocations.ForDevice(s.ID)) == 0 {
		d.AllocationState = "partitioned"
	}
	for _, owner := range ownersOf(s.ID, allocations) {
		if owner.Current {
			d.Owners = append(d.Owners, owner)
		} else {
			d.PastOwners = append(d.PastOwners, owner)
		}
	}
	if i := slices.IndexFunc(snapshot.Incidents, func(i incident.Incident) bool { return i.Device == s.ID }); i >= 0 {
		last := withUTCTimes(snapshot.Incidents[i]) // the newest is the first
		d.LastIncident = &last
	}
	return d
}

// nonNegative is a number, or nothing where it is not known.
func nonNegative(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}
