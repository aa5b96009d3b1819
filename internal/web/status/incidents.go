package status

import (
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
	StoreError error
}

type incidentRow struct {
	*incident.Incident
	Last                         displayTime
	Device, Action, State, Grade string
	Affected                     []affectedContainer
	MoreAffected                 int
	Note, Href                   string
}

type affectedContainer struct {
	*incident.AffectedContainer
	Termination, Href string
}

func (b *viewBuilder) incidentList() incidentList {
	snapshot := b.Incidents()
	list := incidentList{Href: strings.TrimPrefix(api.IncidentsPath, "/"), Total: len(snapshot.Incidents), StoreError: snapshot.Err}
	for i := range snapshot.Incidents[:min(list.Total, maxIncidents)] {
		list.Rows = append(list.Rows, b.incidentRow(&snapshot.Incidents[i]))
	}
	return list
}

func (b *viewBuilder) incidentRow(i *incident.Incident) incidentRow {
	row := incidentRow{
		Incident: i, Last: formatTime(b.now, i.Last, ago), Device: "GPU " + strconv.Itoa(i.Index), Action: formatAction(i.Action), State: "no change", Grade: "plain",
		Href: incidentsHref(url.Values{"device": {string(i.Device)}, "reason": {i.Reason}}),
	}
	if i.Profile != "" {
		row.Device += ", " + i.Profile
	}
	switch {
	case i.RecoveredAt != nil:
		row.Grade, row.State, row.Action = "well", "healthy again", ""
	case i.MarkedUnhealthy:
		row.Grade, row.State = "bad", "unhealthy"
	}
	for n := range i.Affected[:min(len(i.Affected), maxOwners)] {
		c := &i.Affected[n]
		href := incidentsHref(url.Values{"namespace": {c.Namespace}, "pod": {c.Pod}})
		row.Affected = append(row.Affected, affectedContainer{c, api.TerminationText(c.Termination), href})
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
