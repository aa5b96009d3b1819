package status

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
)

// maxIncidents bounds the incidents shown, newest first; the JSON has all.
const maxIncidents = 12

type incidentList struct {
	Rows       []incidentRow
	Total      int
	Href       string // of the list in JSON
	StoreError string
}

type incidentRow struct {
	Last                                 displayTime
	Count                                uint64
	Device, Reason, Action, State, Grade string
	Affected                             []affectedContainer
	MoreAffected                         int
	Note, Href                           string
}

type affectedContainer struct{ Namespace, Pod, Container, Termination, Href string }

func (b *viewBuilder) incidentList() incidentList {
	list := incidentList{Href: strings.TrimPrefix(api.IncidentsPath, "/")}
	snapshot := b.Incidents()
	list.Total = len(snapshot.Incidents)
	if snapshot.Err != nil {
		list.StoreError = sanitize(snapshot.Err.Error())
	}
	for i := range snapshot.Incidents[:min(list.Total, maxIncidents)] {
		list.Rows = append(list.Rows, b.incidentRow(&snapshot.Incidents[i]))
	}
	return list
}

func (b *viewBuilder) incidentRow(i *incident.Incident) incidentRow {
	row := incidentRow{
		Last: formatAgo(b.now, i.Last), Count: i.Count, Device: "GPU " + strconv.Itoa(i.Index), Reason: sanitize(i.Reason), Action: formatAction(i.Action),
		Href: incidentsHref(url.Values{"device": {string(i.Device)}, "reason": {i.Reason}}),
	}
	if i.Profile != "" {
		row.Device += ", " + sanitize(i.Profile)
	}
	switch {
	case i.RecoveredAt != nil:
		row.Grade, row.State, row.Action = "well", "healthy again", ""
	case i.MarkedUnhealthy:
		row.Grade, row.State = "bad", "unhealthy"
	default:
		row.Grade, row.State = "plain", "no change"
	}
	for n := range i.Affected[:min(len(i.Affected), maxOwners)] {
		affected := &i.Affected[n]
		row.Affected = append(row.Affected, affectedContainer{
			sanitize(affected.Namespace), sanitize(affected.Pod), sanitize(affected.Container), formatTermination(affected.Termination),
			incidentsHref(url.Values{"namespace": {affected.Namespace}, "pod": {affected.Pod}}),
		})
	}
	row.MoreAffected = len(i.Affected) - len(row.Affected)
	switch {
	case i.AffectedUnknown:
		row.Note = "owners were unknown"
	case i.OwnersIncomplete:
		row.Note = "a container that the kubelet does not name"
	case len(i.Affected) == 0:
		row.Note = "none"
	}
	return row
}

// incidentsHref returns the link to incidents in JSON.
func incidentsHref(filter url.Values) string {
	return strings.TrimPrefix(api.IncidentsPath, "/") + "?" + filter.Encode()
}

// formatTermination returns the end of a container and its pod, "Failed, Error, exit 139".
func formatTermination(t *incident.PodTermination) string {
	if t == nil {
		return ""
	}
	var parts []string
	for _, p := range addKnown(nil, nameValue{"", t.Phase}, nameValue{"", t.Reason}) {
		parts = append(parts, p.Value)
	}
	if t.ExitCode != nil {
		parts = append(parts, fmt.Sprintf("exit %d", *t.ExitCode))
	}
	if t.Restarts > 0 {
		parts = append(parts, pluralize(int(t.Restarts), "restart"))
	}
	return strings.Join(parts, ", ")
}
