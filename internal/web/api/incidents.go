package api

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/incident"
)

// Incidents is the answer at IncidentsPath.
type Incidents struct {
	At   time.Time `json:"at"`
	Node string    `json:"node,omitempty"`
	// Kept says that incidents are on disk, or will be in a moment; Error, why not.
	Kept  bool   `json:"kept"`
	Error string `json:"error,omitempty"`
	// Total is how many match. The answer has the newest of them, up to the limit.
	Total     int                 `json:"total"`
	Incidents []incident.Incident `json:"incidents"` // newest first
}

func (s Sources) incidents(q Query, now time.Time) any {
	statuses, _ := s.Look()
	known := s.remembered()
	answer := Incidents{At: now.UTC(), Node: s.Node, Kept: known.Kept, Error: errText(known.Err), Incidents: []incident.Incident{}}
	at := q.place(statuses)
	for i := range known.Incidents {
		of := &known.Incidents[i]
		if !at.has(of.Device, of.GPU, of.Index) || !q.about(of) {
			continue
		}
		if answer.Total++; answer.Total <= q.Limit {
			answer.Incidents = append(answer.Incidents, inUTC(*of))
		}
	}
	return answer
}

// about tells whether an incident is meant, wherever it was.
func (q Query) about(i *incident.Incident) bool {
	return (q.Reason == "" || q.Reason == i.Reason) && !i.Last.Before(q.Since) &&
		(q.Namespace == "" && q.Pod == "" || slices.ContainsFunc(i.Holders, func(h incident.Holder) bool { return q.names(h.Namespace, h.Pod) }))
}

// inUTC is the incident with all its times in UTC, and no list that is null.
func inUTC(i incident.Incident) incident.Incident {
	i.First, i.Last = i.First.UTC(), i.Last.UTC()
	if i.Healed != nil {
		at := i.Healed.UTC()
		i.Healed = &at
	}
	holders := make([]incident.Holder, len(i.Holders))
	for n, h := range i.Holders {
		h.Since, h.Until = h.Since.UTC(), h.Until.UTC()
		if h.Ended != nil {
			ended := *h.Ended
			ended.At = ended.At.UTC()
			h.Ended = &ended
		}
		holders[n] = h
	}
	i.Holders = holders
	return i
}
