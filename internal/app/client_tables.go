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

// emptyCell marks a cell without a value.
const emptyCell = "-"

// maxNames limits the containers in a cell.
const maxNames = 3

// statusTable returns the summary lines and the table of a node's devices.
func statusTable(body []byte) ([]string, *textTable, error) {
	var d api.DevicesResponse
	if err := json.Unmarshal(body, &d); err != nil || len(d.Devices) == 0 {
		return statusSummary(&d), nil, err
	}
	t := newTextTable(2, "GPU", "MODEL", "HEALTH", "REASON", "SINCE", "ALLOCATED TO", "LAST INCIDENT", "UUID")
	for i := range d.Devices {
		dev := &d.Devices[i]
		last := emptyCell
		if dev.LastIncident != nil {
			last = dev.LastIncident.Reason + " " + ago(d.At, dev.LastIncident.Last)
		}
		reason := cmp.Or(dev.Reason, dev.Unallocatable)
		if dev.Action != "" {
			reason += ": " + dev.Action
		}
		t.add(healthColor(dev), deviceIndex(dev), cmp.Or(dev.Profile, dev.Model, emptyCell), dev.Health, cmp.Or(reason, emptyCell),
			ago(d.At, dev.Since), ownersText(dev), last, string(dev.ID))
	}
	return statusSummary(&d), t, nil
}

// statusSummary returns a line on the node, and a line per error.
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

// deviceIndex returns the GPU's index and, for a MIG device, the MIG index.
func deviceIndex(d *api.DeviceJSON) string {
	index := strconv.Itoa(d.Index)
	switch {
	case string(d.ID) == string(d.GPU):
		return index
	case d.MIGDeviceIndex == nil:
		return index + ":?"
	}
	return index + ":" + strconv.Itoa(*d.MIGDeviceIndex)
}

func healthColor(d *api.DeviceJSON) string {
	switch {
	case !d.Healthy:
		return colorRed
	case d.Health != "healthy":
		return colorYellow
	}
	return ""
}

func ownersText(d *api.DeviceJSON) string {
	names := make([]string, len(d.Owners))
	for i, o := range d.Owners {
		names[i] = o.Namespace + "/" + o.Pod + "/" + o.Container
	}
	switch {
	case len(names) > 0:
		return joinFirst(names)
	case d.AllocationState == "idle":
		return emptyCell
	}
	return "(" + d.AllocationState + ")"
}

// joinFirst joins the first names, and adds the number of further names.
func joinFirst(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		names = append(names[:maxNames:maxNames], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// incidentsTable returns the notes and the table of a node's incidents.
func incidentsTable(body []byte) ([]string, *textTable, error) {
	var all api.IncidentsResponse
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, nil, err
	}
	var lines []string
	if all.Error != "" {
		lines = append(lines, "not stored: "+all.Error)
	}
	if len(all.Incidents) == 0 {
		return append(lines, "no incidents"), nil, nil
	}
	t := newTextTable(5, "ID", "LAST", "COUNT", "GPU", "REASON", "DEVICE", "ACTION", "AFFECTED", "UUID")
	for i := range all.Incidents {
		inc := &all.Incidents[i]
		outcome, color, action := "as before", "", inc.Action // an earlier incident may have made the device unhealthy
		switch {
		case inc.RecoveredAt != nil:
			outcome, action = "recovered "+ago(all.At, *inc.RecoveredAt), ""
		case inc.MarkedUnhealthy:
			outcome, color = "unhealthy", colorRed
		}
		t.add(color, strconv.FormatUint(inc.ID, 10), ago(all.At, inc.Last), strconv.FormatUint(inc.Count, 10),
			strings.TrimSpace(strconv.Itoa(inc.Index)+" "+inc.Profile), inc.Reason, outcome, cmp.Or(action, emptyCell), affectedText(inc), string(inc.Device))
	}
	if all.Total > len(all.Incidents) {
		lines = append(lines, fmt.Sprintf("the newest %d of %d", len(all.Incidents), all.Total))
	}
	return lines, t, nil
}

// affectedText returns the affected containers, and how each ended.
func affectedText(i *incident.Incident) string {
	names := make([]string, 0, len(i.Affected)+1)
	for _, c := range i.Affected {
		names = append(names, c.Namespace+"/"+c.Pod+"/"+c.Container+terminationText(c.Termination))
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

// ago returns the time from a moment to the server's time.
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
