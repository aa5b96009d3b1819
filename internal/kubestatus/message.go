package kubestatus

import (
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/xid"
)

// deviceName returns "GPU 3 (GPU-…)" or "MIG device 1g.10gb (MIG-…) of GPU 3".
func deviceName(id device.ID, gpu device.GPU, index int, profile string) string {
	name := "GPU " + strconv.Itoa(index)
	if string(id) == string(gpu) {
		return name + " (" + string(id) + ")"
	}
	return "MIG device " + profile + " (" + string(id) + ") of " + name
}

// faultMessage returns "Xid 79, GPU has fallen off the bus. Reboot the node."
func faultMessage(reason, action string) string {
	message := strings.Replace(xid.Reason(reason), ": ", ", ", 1) + "."
	if action != "" {
		message += " " + sentence(xid.Action(action))
	}
	return message
}

func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] + "." }

// incidentMessage returns the message of the event of an incident.
func incidentMessage(i *incident.Incident) string {
	if i.Reason == device.ReasonRetired {
		name := deviceName(i.Device, i.GPU, i.Index, i.Profile)
		return text.Printable(name + " was retired by an operator: " + i.Note)
	}
	verb := " reported: "
	if i.MarkedUnhealthy {
		verb = " failed: "
	}
	return text.Printable(deviceName(i.Device, i.GPU, i.Index, i.Profile) + verb + faultMessage(i.Reason, i.Action))
}
