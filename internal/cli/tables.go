package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
)

// emptyCell marks a cell without a value.
const emptyCell = "-"

// DeviceTable returns the headers, and a row for each device of a node.
func DeviceTable(d *api.DevicesResponse, wide bool) [][]string {
	rows := [][]string{{"GPU", "MODEL", "HEALTH", "REASON", "SINCE", "ALLOCATED TO", "LAST INCIDENT", "UUID"}}
	if wide {
		rows[0] = append(rows[0], "PCI", "NUMA", "MEMORY", "FLAPS")
	}
	for i := range d.Devices {
		dev := &d.Devices[i]
		last := emptyCell
		if dev.LastIncident != nil {
			last = dev.LastIncident.Reason + " " + Ago(d.At, dev.LastIncident.Last)
		}
		row := []string{
			DeviceNumber(dev), cmp.Or(dev.Profile, dev.Model, emptyCell), dev.Health,
			cmp.Or(ReasonText(dev), emptyCell), Ago(d.At, dev.Since), ownersText(dev), last, string(dev.ID),
		}
		if wide {
			numa := emptyCell
			if dev.NUMANode != nil {
				numa = strconv.Itoa(*dev.NUMANode)
			}
			row = append(row, cmp.Or(dev.PCI, emptyCell), numa,
				fmt.Sprintf("%.1f GiB", float64(dev.MemoryBytes)/(1<<30)), strconv.FormatUint(dev.Flaps, 10))
		}
		rows = append(rows, row)
	}
	return rows
}

// DeviceNumber returns the index of a GPU, or "GPU:MIG device".
func DeviceNumber(d *api.DeviceJSON) string {
	if d.IsMIGDevice() {
		return strconv.Itoa(d.Index) + ":" + d.MIGNumber()
	}
	return strconv.Itoa(d.Index)
}

// ReasonText returns why a device cannot be allocated, and the action.
func ReasonText(d *api.DeviceJSON) string {
	reason := cmp.Or(d.Reason, d.Unallocatable)
	if more := cmp.Or(d.Action, d.Note); more != "" {
		reason += ": " + more
	}
	if fault := d.MaskedFault.String(); fault != "" {
		reason += "; fault behind: " + fault
	}
	return reason
}

// NodeSummary returns a line on the node, and a line per error.
func NodeSummary(d *api.DevicesResponse) []string {
	n := d.Counts()
	lines := []string{fmt.Sprintf("%s: driver %s; kubelet %s; %d of %d devices healthy, %d allocated",
		cmp.Or(d.Node, "this node"), DriverText(d), KubeletText(d), n.Healthy, n.Devices, n.Allocated)}
	if d.MissingGPUs > 0 {
		lines = append(lines, fmt.Sprintf("%d of %d expected GPUs missing", d.MissingGPUs, d.ExpectedGPUs))
	}
	if d.Driver.Error != "" {
		lines = append(lines, "driver: "+d.Driver.Error)
	}
	if d.Kubelet.Error != "" {
		lines = append(lines, "kubelet: "+d.Kubelet.Error)
	}
	return lines
}

// DriverText returns the state of the driver.
func DriverText(d *api.DevicesResponse) string { return strings.ReplaceAll(d.Driver.State, "_", " ") }

// KubeletText returns the state of the kubelet.
func KubeletText(d *api.DevicesResponse) string {
	switch {
	case d.Kubelet.Up:
		return "up"
	case d.Kubelet.LastResponse.IsZero():
		return "not responding"
	}
	return "not responding, last response " + Ago(d.At, d.Kubelet.LastResponse)
}

func ownersText(d *api.DeviceJSON) string {
	switch {
	case len(d.Owners) > 0:
		return text.JoinFirst(text.Each(d.Owners, func(o api.OwnerJSON) string {
			return o.Namespace + "/" + o.Pod + "/" + o.Container
		}))
	case d.AllocationState == "unallocated":
		return emptyCell
	}
	return "(" + d.AllocationState + ")"
}

// IncidentTable returns the headers, and a row for each incident of a node.
func IncidentTable(all *api.IncidentsResponse, wide bool) [][]string {
	rows := [][]string{{"ID", "LAST", "COUNT", "GPU", "REASON", "OUTCOME", "ACTION", "AFFECTED", "UUID"}}
	if wide {
		rows[0] = append(rows[0], "FIRST", "MODEL", "PCI", "SOURCE")
	}
	for i := range all.Incidents {
		inc := &all.Incidents[i]
		row := []string{
			strconv.FormatUint(inc.ID, 10), Ago(all.At, inc.Last), strconv.FormatUint(inc.Count, 10),
			strings.TrimSpace(strconv.Itoa(inc.Index) + " " + inc.Profile),
			inc.Reason, OutcomeText(all.At, inc), cmp.Or(inc.PendingAction(), inc.Note, emptyCell), affectedText(inc),
			string(inc.Device),
		}
		if wide {
			row = append(row, Ago(all.At, inc.First), cmp.Or(inc.Model, emptyCell), cmp.Or(inc.PCI, emptyCell),
				cmp.Or(inc.Source, emptyCell))
		}
		rows = append(rows, row)
	}
	return rows
}

// IncidentNotes returns lines on the incidents that a node lost or left out.
func IncidentNotes(all *api.IncidentsResponse) (notes []string) {
	if all.Error != "" {
		notes = append(notes, "not stored: "+all.Error)
	}
	if all.Total > len(all.Incidents) {
		notes = append(notes, fmt.Sprintf("the newest %d of %d", len(all.Incidents), all.Total))
	}
	return notes
}

// OutcomeText returns the effect of an incident on the device. An earlier
// incident may have made the device unhealthy.
func OutcomeText(now time.Time, i *incident.Incident) string {
	switch {
	case i.RecoveredAt != nil:
		return "recovered " + Ago(now, *i.RecoveredAt)
	case i.MarkedUnhealthy:
		return "unhealthy"
	}
	return "no change"
}

// affectedText returns the affected containers, and how each ended.
func affectedText(i *incident.Incident) string {
	names := make([]string, 0, len(i.Affected)+1)
	for _, c := range incident.UniqueOwners(i.Affected) {
		name := c.Namespace + "/" + c.Pod + "/" + c.Container
		if ended := api.TerminationText(c.Termination); ended != "" {
			name += " (" + ended + ")"
		}
		names = append(names, name)
	}
	if i.OwnersIncomplete {
		names = append(names, "(unnamed)")
	}
	if i.AffectedUnknown {
		names = append(names, "(unknown)")
	}
	return cmp.Or(text.JoinFirst(names), emptyCell)
}

// Ago returns the time from a moment to the server's time.
func Ago(now, at time.Time) string {
	switch d := now.Sub(at); {
	case at.IsZero():
		return emptyCell
	case d < time.Second:
		return "now"
	default:
		return text.Duration(d) + " ago"
	}
}
