// Package message words devices and faults for events and conditions.
package message

import (
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/xid"
)

// Device returns "GPU 3 (GPU-…)" or "MIG device 1g.10gb (MIG-…) of GPU 3".
func Device(id device.ID, gpu device.GPU, index int, profile string) string {
	name := "GPU " + strconv.Itoa(index)
	if string(id) == string(gpu) {
		return name + " (" + string(id) + ")"
	}
	return "MIG device " + profile + " (" + string(id) + ") of " + name
}

// Fault returns "Xid 79, GPU has fallen off the bus. Reboot the node."
func Fault(reason, action string) string {
	message := strings.Replace(xid.Reason(reason), ": ", ", ", 1) + "."
	if action != "" {
		action = xid.Action(action)
		message += " " + strings.ToUpper(action[:1]) + action[1:] + "."
	}
	return message
}

// Incident returns the message of an incident.
func Incident(i *incident.Incident) string {
	name := Device(i.Device, i.GPU, i.Index, i.Profile)
	switch {
	case i.Reason == device.ReasonRetired:
		name += " was retired by an operator: " + i.Note
	case i.MarkedUnhealthy:
		name += " failed: " + Fault(i.Reason, i.Action)
	default:
		name += " reported: " + Fault(i.Reason, i.Action)
	}
	return text.Printable(name)
}

// Recovery returns the message of the recovery from an incident.
func Recovery(i *incident.Incident) string {
	return text.Printable(Device(i.Device, i.GPU, i.Index, i.Profile) + " recovered after: " + Fault(i.Reason, ""))
}
