package api

import (
	"time"

	"github.com/podgauge/podgauge/internal/incident"
)

// IncidentsResponse is the response at IncidentsPath.
type IncidentsResponse struct {
	At        time.Time           `json:"at"`
	Node      string              `json:"node,omitempty"`
	Persisted bool                `json:"kept"` // incidents are stored on disk; if not, Error has the reason
	Error     string              `json:"error,omitempty"`
	Total     int                 `json:"total"`     // incidents that match
	Incidents []incident.Incident `json:"incidents"` // the newest of them up to the limit, newest first
}

func (n node) handleIncidents(q Query, now time.Time) any {
	statuses, _ := n.Statuses()
	snapshot := n.Incidents()
	response := IncidentsResponse{At: now.UTC(), Node: n.name, Persisted: snapshot.Persisted, Error: errorText(snapshot.Err), Incidents: []incident.Incident{}}
	matcher := q.deviceMatcher(statuses)
	for i := range snapshot.Incidents {
		item := &snapshot.Incidents[i]
		if !matcher.matches(item.Device, item.GPU, item.Index) || !q.matchesIncident(item) {
			continue
		}
		if response.Total++; response.Total <= q.Limit {
			response.Incidents = append(response.Incidents, withUTCTimes(*item))
		}
	}
	return response
}

// withUTCTimes returns a copy of the incident with all times in UTC.
func withUTCTimes(i incident.Incident) incident.Incident {
	i.First, i.Last = i.First.UTC(), i.Last.UTC()
	if i.RecoveredAt != nil {
		i.RecoveredAt = new(i.RecoveredAt.UTC())
	}
	i.Affected = append([]incident.AffectedContainer{}, i.Affected...)
	for n := range i.Affected {
		a := &i.Affected[n]
		a.Since, a.Until = a.Since.UTC(), a.Until.UTC()
		if a.Termination != nil {
			a.Termination = new(*a.Termination)
			a.Termination.At = a.Termination.At.UTC()
		}
	}
	return i
}
