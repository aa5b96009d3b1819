package status

import (
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
)

// lastFault is the last incident of a device that is not healthy.
type lastFault struct {
	*incident.Incident
	Affected []incident.AffectedContainer // with the MIG device, or with any device of the GPU
}

// lastFault returns the incident that made a device unhealthy, or the newest
// incident; nil without incidents.
func (d *nodeData) lastFault(of *api.DeviceJSON) *lastFault {
	var found []*incident.Incident
	for n := range d.Incidents.Incidents {
		i := &d.Incidents.Incidents[n]
		isOpen := i.MarkedUnhealthy && i.RecoveredAt == nil && i.Reason == of.Reason
		if isOpen && i.GPU == of.GPU && (!of.IsMIGDevice() || i.Concerns(of.ID)) {
			found = append(found, i)
		}
	}
	if len(found) == 0 && of.LastIncident != nil {
		found = append(found, of.LastIncident)
	}
	if len(found) == 0 {
		return nil
	}
	last := &lastFault{Incident: found[0]}
	for _, i := range found {
		for _, c := range i.Affected {
			if !of.IsMIGDevice() || i.DeviceOf(c) == of.ID {
				last.Affected = append(last.Affected, c)
			}
		}
	}
	return last
}

// firstContainers returns at most maxOwners containers, each once.
func firstContainers(all []incident.AffectedContainer) limited[incident.AffectedContainer] {
	return limit(incident.UniqueOwners(all), maxOwners)
}
