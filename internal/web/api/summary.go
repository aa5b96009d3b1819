package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/text"
)

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
