package api

import (
	"time"

	"github.com/podgauge/podgauge/internal/incident"
)

// IncidentsResponse is the response at IncidentsPath.
type IncidentsResponse struct {
	At        time.Time           `json:"at"`
	Node      string              `json:"node,omitempty"`
	Persisted bool                `json:"persisted"` // incidents are stored on disk; if not, Error has the reason
	Error     string              `json:"error,omitempty"`
	Total     int                 `json:"total"`     // incidents that match
	Incidents []incident.Incident `json:"incidents"` // the newest of them up to the limit, newest first
}

func (r IncidentsResponse) withoutTimes() any {
	r.At = time.Time{}
	return r
}

func (n *Node) handleIncidents(q Query, now time.Time) response {
	snapshot := n.Incidents
	r := IncidentsResponse{
		At: now, Node: n.Name, Persisted: snapshot.Persisted, Error: errorText(snapshot.Err),
		Incidents: []incident.Incident{},
	}
	for i := range snapshot.Incidents {
		if !q.matchesIncident(&snapshot.Incidents[i]) {
			continue
		}
		if r.Total++; r.Total <= q.Limit {
			r.Incidents = append(r.Incidents, withoutNull(snapshot.Incidents[i]))
		}
	}
	return r
}

// withoutNull returns a copy of the incident without a null list.
func withoutNull(i incident.Incident) incident.Incident {
	if i.Affected == nil {
		i.Affected = []incident.AffectedContainer{}
	}
	return i
}
