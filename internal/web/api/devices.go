package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/text"
)

// DevicesResponse is the response at DevicesPath.
type DevicesResponse struct {
	At      time.Time    `json:"at"`
	Node    string       `json:"node,omitempty"`
	Driver  DriverJSON   `json:"driver"`
	Kubelet KubeletJSON  `json:"kubelet"`
	Devices []DeviceJSON `json:"devices"` // each GPU before its MIG devices
	// ExpectedGPUs is the number of GPUs in a complete node. MissingGPUs is the
	// number of GPUs missing in the listing.
	ExpectedGPUs int `json:"expected_gpus,omitempty"`
	MissingGPUs  int `json:"missing_gpus,omitempty"`
}

// DriverJSON is the state of the driver.
type DriverJSON struct {
	State string `json:"state"` // a driverStateNames
	Error string `json:"error,omitempty"`
}

// DeviceJSON is a device, or a partitioned GPU.
type DeviceJSON struct {
	ID             device.ID         `json:"device"`
	GPU            device.GPU        `json:"gpu"`
	Index          int               `json:"index"`             // of the GPU
	MIG            bool              `json:"mig"`               // partitioned
	Profile        string            `json:"profile,omitempty"` // of a MIG device, like the next four fields
	MIGDeviceIndex *int              `json:"mig_device_index,omitempty"`
	GI             *int              `json:"gi,omitempty"`
	CI             *int              `json:"ci,omitempty"`
	Placement      device.Placement  `json:"placement,omitzero"`
	Model          string            `json:"model,omitempty"`
	PCI            string            `json:"pci_bus_id,omitempty"`
	Minor          *int              `json:"minor,omitempty"` // the N of /dev/nvidiaN
	NUMANode       *int              `json:"numa_node,omitempty"`
	MemoryBytes    uint64            `json:"memory_bytes,omitempty"`
	InfoLabels     map[string]string `json:"info,omitempty"` // as in nvidia_gpu_info

	Healthy       bool      `json:"healthy"` // as listed to the kubelet
	Health        string    `json:"health"`  // a device.Health
	Reason        string    `json:"reason,omitempty"`
	Note          string    `json:"note,omitempty"` // the operator's reason of a retired device
	Action        string    `json:"action,omitempty"`
	Since         time.Time `json:"since,omitzero"` // latest change of Healthy or Reason
	Flaps         uint64    `json:"flaps"`
	Gone          bool      `json:"gone,omitempty"`          // no longer listed by the driver
	Unallocatable string    `json:"unallocatable,omitempty"` // reason why no device of a healthy GPU can be allocated
	Xids          []XidJSON `json:"xids"`                    // of the GPU

	MaskedFault device.MaskedFault `json:"masked_fault,omitzero"` // of a retired device

	AllocationState string             `json:"allocation"` // an allocationStateNames, or "partitioned"
	Owners          []OwnerJSON        `json:"owners"`
	PastOwners      []OwnerJSON        `json:"past_owners"` // newest first
	LastIncident    *incident.Incident `json:"last_incident,omitempty"`
}

// XidJSON counts the reports of an Xid.
type XidJSON struct {
	Xid   uint64    `json:"xid"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}

var driverStateNames = [...]string{
	device.DriverStarting:      "starting",
	device.DriverUp:            "up",
	device.DriverFailing:       "failing",
	device.DriverAbsent:        "absent",
	device.DriverNotResponding: "not_responding",
	device.DriverReplaced:      "replaced",
	device.DriverReleased:      "released",
}

var allocationStateNames = [...]string{
	allocation.Unknown:      "unknown",
	allocation.Unallocated:  "unallocated",
	allocation.Allocated:    "allocated",
	allocation.Shared:       "shared",
	allocation.OwnerUnknown: "unnamed",
}

func (r DevicesResponse) withoutTimes() any {
	r.At, r.Kubelet.LastResponse = time.Time{}, time.Time{}
	return r
}

func (n *Node) handleDevices(q Query, now time.Time) response { return n.Devices(q, now) }

// Devices returns the response for the devices of a node.
func (n *Node) Devices(q Query, now time.Time) DevicesResponse {
	d := DevicesResponse{
		At: now, Node: n.Name, Driver: DriverJSON{driverStateNames[n.Driver.State], errorText(n.Driver.Err)},
		Kubelet: newKubeletJSON(n.Allocations), Devices: []DeviceJSON{}, ExpectedGPUs: n.ExpectedGPUs,
	}
	if n.Statuses == nil && n.Driver.State == device.DriverUp { // the first checks of the devices have not ended
		d.Driver.State = driverStateNames[device.DriverStarting]
	}
	if n.Statuses != nil {
		d.MissingGPUs = device.MissingGPUs(n.Statuses, d.ExpectedGPUs)
	}
	for _, status := range n.Statuses {
		if q.matchesDevice(status.ID, status.GPU) {
			d.Devices = append(d.Devices, deviceJSON(status, n.Statuses, n.Allocations, n.Incidents.Incidents))
		}
	}
	return d
}

func deviceJSON(s device.Status, all []device.Status, a allocation.Snapshot, incidents []incident.Incident) DeviceJSON {
	d := DeviceJSON{
		ID: s.ID, GPU: s.GPU, Index: s.Index, MIG: s.MIGEnabled, Model: s.Model, PCI: s.PCI,
		NUMANode: nonNegative(s.NUMANode), MemoryBytes: s.MemoryBytes, InfoLabels: map[string]string{},
		Healthy: s.Healthy, Health: s.Health.String(), Reason: s.Reason, Note: s.Note, Action: s.Action,
		Since: s.Since, Flaps: s.Flaps, Gone: s.Gone, Unallocatable: s.Unallocatable(all),
		Xids: make([]XidJSON, len(s.Xids)), Minor: nonNegative(s.Minor), Placement: s.Placement,
		MaskedFault: s.MaskedFault,
	}
	if !s.WholeGPU() {
		d.Profile, d.MIGDeviceIndex = s.Profile, nonNegative(s.MIGDeviceIndex)
		d.GI, d.CI = nonNegative(s.GI), nonNegative(s.CI)
	}
	for i, x := range s.Xids {
		d.Xids[i] = XidJSON{x.Code, x.Count, x.Last}
	}
	for _, f := range s.InfoLabels {
		if f.Value != "" {
			d.InfoLabels[f.Name] = f.Value
		}
	}
	state, _ := a.State(s.ID)
	d.AllocationState = allocationStateNames[state]
	if s.MIGEnabled && len(a.ForDevice(s.ID)) == 0 {
		d.AllocationState = "partitioned"
	}
	d.Owners, d.PastOwners = ownersOf(s.ID, a)
	concerns := func(i incident.Incident) bool { return i.Concerns(s.ID) }
	if i := slices.IndexFunc(incidents, concerns); i >= 0 {
		d.LastIncident = new(withoutNull(incidents[i])) // incidents are newest first
	}
	return d
}

// nonNegative returns nil for an unknown number.
func nonNegative(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

// IsMIGDevice reports whether the device is a MIG device.
func (d *DeviceJSON) IsMIGDevice() bool { return string(d.ID) != string(d.GPU) }

// MIGNumber returns the index of a MIG device; "?" if unknown.
func (d *DeviceJSON) MIGNumber() string {
	if d.MIGDeviceIndex == nil {
		return "?"
	}
	return strconv.Itoa(*d.MIGDeviceIndex)
}

// IsAllocated reports whether a container has the device.
func (d *DeviceJSON) IsAllocated() bool {
	return slices.Contains([]string{"allocated", "shared", "unnamed"}, d.AllocationState)
}

// DeviceCounts are numbers of devices that can be allocated: MIG devices in place of their GPU.
type DeviceCounts struct{ Devices, Healthy, Suspect, Allocated, Unknown int }

// Counts counts the devices. Suspect devices are healthy; the allocation of Unknown devices is unknown.
func (r *DevicesResponse) Counts() (n DeviceCounts) {
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.AllocationState == "partitioned" {
			continue
		}
		n.Devices++
		if d.Healthy {
			n.Healthy++
			if d.Health != device.Healthy.String() {
				n.Suspect++
			}
		}
		if d.IsAllocated() {
			n.Allocated++
		}
		if d.AllocationState == "unknown" {
			n.Unknown++
		}
	}
	return n
}

// TerminationText returns the end of a container and its pod, "Failed, Error, exit 139".
func TerminationText(t *incident.PodTermination) string {
	if t == nil {
		return ""
	}
	parts := []string{t.Phase, t.Reason}
	if t.ExitCode != nil {
		parts = append(parts, fmt.Sprintf("exit %d", *t.ExitCode))
	}
	if t.Restarts > 0 {
		parts = append(parts, text.Plural(int(t.Restarts), "restart"))
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ", ")
}
