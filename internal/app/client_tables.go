package app

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
)

// emptyCell is shown where there is nothing to show: an empty cell looks like a slip.
const emptyCell = "-"

// maxNames is how many containers a cell has.
const maxNames = 3

// statusTable shows the node's devices.
func statusTable(body []byte) ([]string, textTable, error) {
	var d api.DevicesResponse
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, nil, err
	}
	if len(d.Devices) == 0 {
		return statusSummary(&d), nil, nil
	}
	t := textTable{headerRow("GPU", "MODEL", "HEALTH", "WHY", "SINCE", "HOLDERS", "LAST INCIDENT", "UUID")}
	for i := range d.Devices {
		dev := &d.Devices[i]
		last := emptyCell
		if dev.LastIncident != nil {
			last = dev.LastIncident.Reason + " " + ago(d.At, dev.LastIncident.Last)
		}
		t = append(t, []tableCell{
			{text: deviceIndex(dev)},
			{text: cmp.Or(dev.Profile, dev.Model, emptyCell)},
			{dev.Health, healthColor(dev)},
			{text: reasonText(cmp.Or(dev.Reason, dev.Unallocatable), dev.Action)},
			{text: ago(d.At, dev.Since)},
			{text: ownersText(dev)},
			{text: last},
			{text: string(dev.ID)},
		})
	}
	return statusSummary(&d), t, nil
}

// statusSummary says in a line how the node is, and in one more what is wrong with it.
func statusSummary(d *api.DevicesResponse) []string {
	devices, healthy, allocated := 0, 0, 0
	for i := range d.Devices {
		dev := &d.Devices[i]
		if dev.AllocationState == "partitioned" {
			continue
		}
		devices++
		if dev.Healthy {
			healthy++
		}
		if dev.AllocationState == "held" || dev.AllocationState == "shared" || dev.AllocationState == "unnamed" {
			allocated++
		}
	}
	kubelet := "up"
	if !d.Kubelet.Up {
		kubelet = "not answering"
		if !d.Kubelet.LastAnswer.IsZero() {
			kubelet += ", last answer " + ago(d.At, d.Kubelet.LastAnswer)
		}
	}
	lines := []string{fmt.Sprintf("%s: driver %s; kubelet %s; %d of %d devices healthy, %d allocated",
		cmp.Or(d.Node, "this node"), strings.ReplaceAll(d.Driver.State, "_", " "), kubelet, healthy, devices, allocated)}
	if d.Driver.Error != "" {
		lines = append(lines, "driver: "+d.Driver.Error)
	}
	if d.Kubelet.Error != "" {
		lines = append(lines, "kubelet: "+d.Kubelet.Error)
	}
	return lines
}

// deviceIndex is a GPU's index and, of a slice, its own behind it.
func deviceIndex(d *api.DeviceJSON) string {
	index := strconv.Itoa(d.Index)
	if string(d.ID) == string(d.GPU) {
		return index
	}
	if d.MIGDeviceIndex == nil {
		return index + ":?"
	}
	return index + ":" + strconv.Itoa(*d.MIGDeviceIndex)
}

func healthColor(d *api.DeviceJSON) ansiColor {
	switch {
	case !d.Healthy:
		return colorRed
	case d.Health != "well":
		return colorYellow
	default:
		return colorNone
	}
}

// reasonText is a reason, and what it asks for.
func reasonText(reason, action string) string {
	if action != "" {
		reason += ": " + action
	}
	return cmp.Or(reason, emptyCell)
}

func ownersText(d *api.DeviceJSON) string {
	names := make([]string, len(d.Owners))
	for i, h := range d.Owners {
		names[i] = h.Namespace + "/" + h.Pod + "/" + h.Container
	}
	switch {
	case len(names) > 0:
		return joinFirst(names)
	case d.AllocationState == "idle":
		return emptyCell
	default:
		return "(" + d.AllocationState + ")"
	}
}

// joinFirst are the first names, and how many there are besides.
func joinFirst(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		names = append(names[:maxNames:maxNames], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// incidentsTable shows what happened.
func incidentsTable(body []byte) ([]string, textTable, error) {
	var all api.IncidentsResponse
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, nil, err
	}
	var lines []string
	if all.Error != "" {
		lines = append(lines, "not kept: "+all.Error)
	}
	if len(all.Incidents) == 0 {
		return append(lines, "no incidents"), nil, nil
	}
	t := textTable{headerRow("ID", "LAST", "COUNT", "GPU", "REASON", "DEVICE", "ACTION", "HIT", "UUID")}
	for i := range all.Incidents {
		inc := &all.Incidents[i]
		gpu := strconv.Itoa(inc.Index)
		if inc.Profile != "" {
			gpu += " " + inc.Profile
		}
		t = append(t, []tableCell{
			{text: strconv.FormatUint(inc.ID, 10)},
			{text: ago(all.At, inc.Last)},
			{text: strconv.FormatUint(inc.Count, 10)},
			{text: gpu},
			{text: inc.Reason},
			outcomeCell(all.At, inc),
			{text: cmp.Or(pendingAction(inc), emptyCell)},
			{text: affectedText(inc)},
			{text: string(inc.Device)},
		})
	}
	if more := all.Total - len(all.Incidents); more > 0 {
		lines = append(lines, fmt.Sprintf("the newest %d of %d", len(all.Incidents), all.Total))
	}
	return lines, t, nil
}

// pendingAction is what the incident still asks for: nothing where the device is healthy again.
func pendingAction(i *incident.Incident) string {
	if i.RecoveredAt != nil {
		return ""
	}
	return i.Action
}

// outcomeCell is what became of the device.
func outcomeCell(now time.Time, i *incident.Incident) tableCell {
	switch {
	case i.RecoveredAt != nil:
		return tableCell{text: "healed " + ago(now, *i.RecoveredAt)}
	case i.MarkedUnhealthy:
		return tableCell{"unhealthy", colorRed}
	default:
		return tableCell{text: "as before"} // which may be unhealthy, by an earlier one
	}
}

// affectedText are the containers that had the device, and how they ended.
func affectedText(i *incident.Incident) string {
	names := make([]string, 0, len(i.Affected)+1)
	for _, h := range i.Affected {
		names = append(names, h.Namespace+"/"+h.Pod+"/"+h.Container+terminationText(h.Termination))
	}
	if i.OwnersIncomplete {
		names = append(names, "(unnamed)")
	}
	if i.AffectedUnknown {
		names = append(names, "(unknown)")
	}
	return cmp.Or(joinFirst(names), emptyCell)
}

func terminationText(e *incident.PodTermination) string {
	if e == nil {
		return ""
	}
	var fields []string
	for _, s := range []string{e.Phase, e.Reason} {
		if s != "" {
			fields = append(fields, s)
		}
	}
	if e.ExitCode != nil {
		fields = append(fields, fmt.Sprintf("exit %d", *e.ExitCode))
	}
	if e.Restarts > 0 {
		fields = append(fields, fmt.Sprintf("%d restarts", e.Restarts))
	}
	if len(fields) == 0 {
		return ""
	}
	return " (" + strings.Join(fields, ", ") + ")"
}

// ago is how long it has been, by the clock of whoever answers.
func ago(now, at time.Time) string {
	if at.IsZero() {
		return emptyCell
	}
	const day = 24 * time.Hour
	switch d := now.Sub(at); {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh ago", d/time.Hour)
	default:
		return fmt.Sprintf("%dd ago", d/day)
	}
}
