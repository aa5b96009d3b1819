package api

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/incident"
)

// IncidentsResponse is the answer at IncidentsPath.
type IncidentsResponse struct {
	At   time.Time `json:"at"`
	Node string    `json:"node,omitempty"`
	// Persisted says that incidents are on disk, or will be in a moment; Error, why not.
	Persisted bool   `json:"kept"`
	Error     string `json:"error,omitempty"`
	// Total is how many match. The answer has the newest of them, up to the limit.
	Total     int                 `json:"total"`
	Incidents []incident.Incident `json:"incidents"` // newest first
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

// matchesIncident tells whether an incident is meant, wherever it was.
func (q Query) matchesIncident(i *incident.Incident) bool {
	return (q.Reason == "" || q.Reason == i.Reason) && !i.Last.Before(q.Since) &&
		(q.Namespace == "" && q.Pod == "" || slices.ContainsFunc(i.Affected, func(h incident.AffectedContainer) bool { return q.matchesPod(h.Namespace, h.Pod) }))
}

// withUTCTimes is the incident with all its times in UTC, and no list that is null.
func withUTCTimes(i incident.Incident) incident.Incident {
	i.First, i.Last = i.First.UTC(), i.Last.UTC()
	if i.RecoveredAt != nil {
		recovered := i.RecoveredAt.UTC()
		i.RecoveredAt = &recovered
	}
	affected := make([]incident.AffectedContainer, len(i.Affected))
	for n, h := range i.Affected {
		h.Since, h.Until = h.Since.UTC(), h.Until.UTC()
		if h.Termination != nil {
			ended := *h.Termination
			ended.At = ended.At.UTC()
			h.Termination = &ended
		}
		affected[n] = h
	}
	i.Affected = affected
	return i
}
