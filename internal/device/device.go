// Package device models GPUs and MIG devices: their identities, their published
// status and driver, and the Backend that reads the hardware.
//
// The package knows no vendor, no kubelet and no Prometheus.
package device

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// The three identities are distinct types, so the compiler keeps them apart
// (docs/contributing/adr/0001-three-identities.md).
type (
	// GPU is the UUID of a physical GPU ("GPU-…"). Driver calls, faults and stalls are per GPU.
	GPU string
	// ID is the UUID of a device: a whole GPU or a MIG device. Readings, health and allocations are joined on ID.
	ID string
	// AdvertisedID is an id in the kubelet's device list: a device's ID, or a replica, "<ID>::<n>".
	AdvertisedID string
)

// replicaSeparator separates a device's ID from the number of a replica, as in NVIDIA's device plugin.
const replicaSeparator = "::"

// Advertised returns the device-plugin id of the whole device.
func (id ID) Advertised() AdvertisedID { return AdvertisedID(id) }

// Replica returns the device-plugin id of replica n, counted from 0.
func (id ID) Replica(n int) AdvertisedID {
	return AdvertisedID(string(id) + replicaSeparator + strconv.Itoa(n))
}

// Device returns the device of a device-plugin id.
func (a AdvertisedID) Device() ID {
	id, _, _ := strings.Cut(string(a), replicaSeparator)
	return ID(id)
}

// Device describes a GPU or a MIG device. The description changes only with the
// driver or the MIG layout. A partitioned GPU and its MIG devices are devices
// of their own, with the same GPU, Index, Minor, Model, PCI and NUMANode.
type Device struct {
	ID    ID  `json:"id"`
	GPU   GPU `json:"gpu"`
	Index int `json:"index"` // the GPU's index in the driver's order
	// MIGEnabled is set on a whole GPU in MIG mode. Only its MIG devices can be allocated, if there are any.
	MIGEnabled bool `json:"mig,omitempty"`
	// MIGDeviceIndex is the index of a MIG device under its GPU, GI and CI are
	// the ids of its instances, and Profile is NVIDIA's name of its size:
	// "1g.10gb", "1c.3g.40gb", "1g.10gb+me". On a whole GPU, and where unknown:
	// -1 and empty.
	MIGDeviceIndex int       `json:"mig_device_index"`
	GI             int       `json:"gi"`
	CI             int       `json:"ci"`
	Profile        string    `json:"profile,omitempty"`
	ComputeSlices  int       `json:"-"` // of a MIG device's GPU: 7 on an H100, 4 on an A30; 0 when unknown
	Placement      Placement `json:"-"`
	Minor          int       `json:"minor"`                  // the N of /dev/nvidiaN; -1 when unknown
	Model          string    `json:"model,omitempty"`        // as the driver names it: "NVIDIA H100 80GB HBM3"
	PCI            string    `json:"pci_bus_id,omitempty"`   // bus address: "0000:1a:00.0"
	NUMANode       int       `json:"numa_node"`              // -1 when unknown
	MemoryBytes    uint64    `json:"memory_bytes,omitempty"` // 0 when unknown
	DeviceNodes    []string  `json:"-"`
	// InfoLabels are further labels of the device's info series: each name
	// once, and the same names on all devices of a Backend.
	InfoLabels []Label `json:"-"`
}

// GPUFraction returns the device's part of its GPU, by the compute slices in the
// profile: 1/7 for 1g.10gb on an H100. It is 1 for a whole GPU, and when unknown.
func (d Device) GPUFraction() float64 {
	size, err := strconv.Atoi(d.Profile[:max(0, strings.IndexAny(d.Profile, "cg"))])
	if err != nil || size >= d.ComputeSlices {
		return 1
	}
	return float64(size) / float64(d.ComputeSlices)
}

// Placement is the position of a MIG device's GPU instance on the GPU. The zero Placement is unknown, or a whole GPU's.
type Placement struct {
	Profile int `json:"profile"` // number of the GPU instance profile; 19 is 1g on an A100 and an H100
	Start   int `json:"start"`   // in memory slices, as Size
	Size    int `json:"size"`    // 0 when unknown
}

// Label is a Prometheus label.
type Label struct{ Name, Value string }

// WholeGPU reports whether the device is a whole GPU, not a MIG device.
func (d Device) WholeGPU() bool { return string(d.ID) == string(d.GPU) }

// Number returns the index of a GPU ("3"), and with it that of a MIG device ("3:1").
func (d Device) Number() string {
	if d.WholeGPU() {
		return strconv.Itoa(d.Index)
	}
	return fmt.Sprintf("%d:%d", d.Index, d.MIGDeviceIndex)
}

// InfoLabel returns the value of one of InfoLabels; empty: unknown.
func (d Device) InfoLabel(name string) string {
	for _, l := range d.InfoLabels {
		if l.Name == name {
			return l.Value
		}
	}
	return ""
}

// Serial returns the serial number of the GPU; empty: unknown.
func (d Device) Serial() string { return d.InfoLabel("serial") }

// Compare orders devices by GPU in the driver's order, each GPU before its MIG devices: its MIGDeviceIndex is -1.
func (d Device) Compare(o Device) int {
	return cmp.Or(cmp.Compare(d.Index, o.Index), cmp.Compare(d.GPU, o.GPU),
		cmp.Compare(d.MIGDeviceIndex, o.MIGDeviceIndex), cmp.Compare(d.ID, o.ID))
}
