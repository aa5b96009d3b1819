package api

import (
	"time"

	"github.com/podgauge/podgauge/internal/incident"
)

// defaultSince limits the incidents of a NodeResponse: those whose consequences
// a client may still have to report.
const defaultSince = 15 * time.Minute

// maxNodeIncidents limits the incidents of a NodeResponse: with each change, a
// watch sends all of them again.
const maxNodeIncidents = 200

// NodeResponse is the response at NodePath: the state that matters to the cluster.
type NodeResponse struct {
	At           time.Time      `json:"at"`
	Node         string         `json:"node,omitempty"`
	Driver       DriverJSON     `json:"driver"`
	ExpectedGPUs int            `json:"expected_gpus,omitempty"`
	MissingGPUs  int            `json:"missing_gpus,omitempty"`
	Devices      []DeviceJSON   `json:"devices"`   // as at DevicesPath
	Resources    []ResourceJSON `json:"resources"` // of the device plugin
	// IncidentsTotal is the number of incidents that began, recurred or ended
	// since then. Incidents are the newest 200 of them, newest first.
	IncidentsTotal int                 `json:"incidents_total"`
	Incidents      []incident.Incident `json:"incidents"`
}

func (r NodeResponse) withoutTimes() any {
	r.At = time.Time{}
	return r
}

func (n *Node) handleNode(q Query, now time.Time) response {
	if q.Since.IsZero() {
		q.Since = now.Add(-defaultSince)
	}
	d := n.Devices(q, now)
	r := NodeResponse{
		At: now, Node: n.Name, Driver: d.Driver, ExpectedGPUs: d.ExpectedGPUs, MissingGPUs: d.MissingGPUs,
		Devices: d.Devices, Resources: append([]ResourceJSON{}, n.Resources...), Incidents: []incident.Incident{},
	}
	for _, i := range n.Incidents.Incidents {
		if i.Last.Before(q.Since) && (i.RecoveredAt == nil || i.RecoveredAt.Before(q.Since)) {
			continue
		}
		if r.IncidentsTotal++; r.IncidentsTotal <= maxNodeIncidents {
			r.Incidents = append(r.Incidents, withoutNull(i))
		}
	}
	return r
}
