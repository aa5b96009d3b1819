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

// nothingThere is shown where there is nothing to show: an empty cell looks like a slip.
const nothingThere = "-"

// mostNames is how many containers a cell has.
const mostNames = 3

// statusTable shows the node's devices.
func statusTable(body []byte) ([]string, table, error) {
	var d api.Devices
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, nil, err
	}
	if len(d.Devices) == 0 {
		return summary(&d), nil, nil
	}
	t := table{head("GPU", "MODEL", "HEALTH", "WHY", "SINCE", "HOLDERS", "LAST INCIDENT", "UUID")}
	for i := range d.Devices {
		of := &d.Devices[i]
		last := nothingThere
		if of.LastIncident != nil {
			last = of.LastIncident.Reason + " " + ago(d.At, of.LastIncident.Last)
		}
		t = append(t, []cell{
			{text: position(of)},
			{text: cmp.Or(of.Profile, of.Model, nothingThere)},
			{of.Health, healthColour(of)},
			{text: why(cmp.Or(of.Reason, of.Unallocatable), of.Action)},
			{text: ago(d.At, of.Since)},
			{text: holding(of)},
			{text: last},
			{text: string(of.ID)},
		})
	}
	return summary(&d), t, nil
}

// summary says in a line how the node is, and in one more what is wrong with it.
func summary(d *api.Devices) []string {
	devices, healthy, allocated := 0, 0, 0
	for i := range d.Devices {
		of := &d.Devices[i]
		if of.Hold == "partitioned" {
			continue
		}
		devices++
		if of.Healthy {
			healthy++
		}
		if of.Hold == "held" || of.Hold == "shared" || of.Hold == "unnamed" {
			allocated++
		}
	}
	kubelet := "up"
	if !d.Kubelet.Up {
		kubelet = "not answering"
		if !d.Kubelet.Answered.IsZero() {
			kubelet += ", last answer " + ago(d.At, d.Kubelet.Answered)
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

// position is a GPU's index and, of a slice, its own behind it.
func position(d *api.Device) string {
	at := strconv.Itoa(d.Index)
	if string(d.ID) == string(d.GPU) {
		return at
	}
	if d.Slice == nil {
		return at + ":?"
	}
	return at + ":" + strconv.Itoa(*d.Slice)
}

func healthColour(d *api.Device) colour {
	switch {
	case !d.Healthy:
		return red
	case d.Health != "well":
		return yellow
	default:
		return plain
	}
}

// why is a reason, and what it asks for.
func why(reason, action string) string {
	if action != "" {
		reason += ": " + action
	}
	return cmp.Or(reason, nothingThere)
}

func holding(d *api.Device) string {
	names := make([]string, len(d.Holders))
	for i, h := range d.Holders {
		names[i] = h.Namespace + "/" + h.Pod + "/" + h.Container
	}
	switch {
	case len(names) > 0:
		return few(names)
	case d.Hold == "idle":
		return nothingThere
	default:
		return "(" + d.Hold + ")"
	}
}

// few are the first names, and how many there are besides.
func few(names []string) string {
	if more := len(names) - mostNames; more > 0 {
		names = append(names[:mostNames:mostNames], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// incidentsTable shows what happened.
func incidentsTable(body []byte) ([]string, table, error) {
	var all api.Incidents
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
	t := table{head("ID", "LAST", "COUNT", "GPU", "REASON", "DEVICE", "ACTION", "HIT", "UUID")}
	for i := range all.Incidents {
		of := &all.Incidents[i]
		gpu := strconv.Itoa(of.Index)
		if of.Profile != "" {
			gpu += " " + of.Profile
		}
		t = append(t, []cell{
			{text: strconv.FormatUint(of.ID, 10)},
			{text: ago(all.At, of.Last)},
			{text: strconv.FormatUint(of.Count, 10)},
			{text: gpu},
			{text: of.Reason},
			outcome(all.At, of),
			{text: cmp.Or(action(of), nothingThere)},
			{text: hit(of)},
			{text: string(of.Device)},
		})
	}
	if more := all.Total - len(all.Incidents); more > 0 {
		lines = append(lines, fmt.Sprintf("the newest %d of %d", len(all.Incidents), all.Total))
	}
	return lines, t, nil
}

// action is what the incident still asks for: nothing where the device is healthy again.
func action(i *incident.Incident) string {
	if i.Healed != nil {
		return ""
	}
	return i.Action
}

// outcome is what became of the device.
func outcome(now time.Time, i *incident.Incident) cell {
	switch {
	case i.Healed != nil:
		return cell{text: "healed " + ago(now, *i.Healed)}
	case i.Condemned:
		return cell{"unhealthy", red}
	default:
		return cell{text: "as before"} // which may be unhealthy, by an earlier one
	}
}

// hit are the containers that had the device, and how they ended.
func hit(i *incident.Incident) string {
	names := make([]string, 0, len(i.Holders)+1)
	for _, h := range i.Holders {
		names = append(names, h.Namespace+"/"+h.Pod+"/"+h.Container+ending(h.Ended))
	}
	if i.Nameless {
		names = append(names, "(unnamed)")
	}
	if i.HoldersUnknown {
		names = append(names, "(unknown)")
	}
	return cmp.Or(few(names), nothingThere)
}

func ending(e *incident.Ending) string {
	if e == nil {
		return ""
	}
	var said []string
	for _, s := range []string{e.Phase, e.Reason} {
		if s != "" {
			said = append(said, s)
		}
	}
	if e.ExitCode != nil {
		said = append(said, fmt.Sprintf("exit %d", *e.ExitCode))
	}
	if e.Restarts > 0 {
		said = append(said, fmt.Sprintf("%d restarts", e.Restarts))
	}
	if len(said) == 0 {
		return ""
	}
	return " (" + strings.Join(said, ", ") + ")"
}

// ago is how long it has been, by the clock of whoever answers.
func ago(now, at time.Time) string {
	if at.IsZero() {
		return nothingThere
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
