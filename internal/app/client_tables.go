package app

import (
	"cmp"
	"encoding/json"
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

// statusTable returns the summary lines and the table of a node's devices.
func statusTable(body []byte) ([]string, [][]string, error) {
	var d api.DevicesResponse
	if err := json.Unmarshal(body, &d); err != nil || len(d.Devices) == 0 {
		return statusSummary(&d), nil, err
	}
	rows := [][]string{{"GPU", "MODEL", "HEALTH", "REASON", "SINCE", "ALLOCATED TO", "LAST INCIDENT", "UUID"}}
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
		index := strconv.Itoa(dev.Index)
		if dev.IsMIGDevice() {
			index += ":" + dev.MIGNumber()
		}
		rows = append(rows, []string{
			index, cmp.Or(dev.Profile, dev.Model, emptyCell), dev.Health, cmp.Or(reason, emptyCell), ago(d.At, dev.Since), ownersText(dev), last, string(dev.ID),
		})
	}
	return statusSummary(&d), rows, nil
}

// statusSummary returns a line on the node, and a line per error.
func statusSummary(d *api.DevicesResponse) []string {
	kubelet := "up"
	if !d.Kubelet.Up {
		kubelet = "not answering"
		if !d.Kubelet.LastAnswer.IsZero() {
			kubelet += ", last answer " + ago(d.At, d.Kubelet.LastAnswer)
		}
	}
	n := d.Counts()
	lines := []string{fmt.Sprintf("%s: driver %s; kubelet %s; %d of %d devices healthy, %d allocated",
		cmp.Or(d.Node, "this node"), strings.ReplaceAll(d.Driver.State, "_", " "), kubelet, n.Healthy, n.Devices, n.Allocated)}
	if d.Driver.Error != "" {
		lines = append(lines, "driver: "+d.Driver.Error)
	}
	if d.Kubelet.Error != "" {
		lines = append(lines, "kubelet: "+d.Kubelet.Error)
	}
	return lines
}

func ownersText(d *api.DeviceJSON) string {
	names := make([]string, len(d.Owners))
	for i, o := range d.Owners {
		names[i] = o.Namespace + "/" + o.Pod + "/" + o.Container
	}
	switch {
	case len(names) > 0:
		return text.JoinFirst(names)
	case d.AllocationState == "idle":
		return emptyCell
	}
	return "(" + d.AllocationState + ")"
}

// incidentsTable returns the notes and the table of a node's incidents.
func incidentsTable(body []byte) (notes []string, rows [][]string, err error) {
	var all api.IncidentsResponse
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, nil, err
	}
	if all.Error != "" {
		notes = append(notes, "not stored: "+all.Error)
	}
	if len(all.Incidents) == 0 {
		return append(notes, "no incidents"), nil, nil
	}
	rows = [][]string{{"ID", "LAST", "COUNT", "GPU", "REASON", "DEVICE", "ACTION", "AFFECTED", "UUID"}}
	for i := range all.Incidents {
		inc := &all.Incidents[i]
		outcome, action := "as before", inc.Action // an earlier incident may have made the device unhealthy
		switch {
		case inc.RecoveredAt != nil:
			outcome, action = "recovered "+ago(all.At, *inc.RecoveredAt), ""
		case inc.MarkedUnhealthy:
			outcome = "unhealthy"
		}
		rows = append(rows, []string{
			strconv.FormatUint(inc.ID, 10), ago(all.At, inc.Last), strconv.FormatUint(inc.Count, 10), strings.TrimSpace(strconv.Itoa(inc.Index) + " " + inc.Profile),
			inc.Reason, outcome, cmp.Or(action, emptyCell), affectedText(inc), string(inc.Device),
		})
	}
	if all.Total > len(all.Incidents) {
		notes = append(notes, fmt.Sprintf("the newest %d of %d", len(all.Incidents), all.Total))
	}
	return notes, rows, nil
}

// affectedText returns the affected containers, and how each ended.
func affectedText(i *incident.Incident) string {
	names := make([]string, 0, len(i.Affected)+1)
	for _, c := range i.Affected {
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

// ago returns the time from a moment to the server's time.
func ago(now, at time.Time) string {
	switch d := now.Sub(at); {
	case at.IsZero():
		return emptyCell
	case d < time.Second:
		return "now"
	default:
		return text.Duration(d) + " ago"
	}
}
