package status

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/fault"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
)

// maxIncidents bounds the incidents shown, newest first; the JSON has all.
const maxIncidents = 12

func incidentDevice(i *incident.Incident) string {
	switch {
	case i.Profile != "":
		return "GPU " + strconv.Itoa(i.Index) + ", " + i.Profile
	case len(i.MIGDevices) > 0:
		return "GPU " + strconv.Itoa(i.Index) + ", " + text.Plural(len(i.MIGDevices), "MIG device")
	}
	return "GPU " + strconv.Itoa(i.Index)
}

// incidentOutcome returns the state of the device after the incident, and the action that remains.
func incidentOutcome(i *incident.Incident) (grade, state, action string) {
	switch {
	case i.RecoveredAt != nil:
		return "well", "recovered", ""
	case i.Note != "":
		return "plain", "retired: " + i.Note, ""
	case i.MarkedUnhealthy:
		return "bad", "unhealthy", fault.Action(i.Action)
	default:
		return "plain", "no change", fault.Action(i.Action)
	}
}

// lastFault is the last incident of a device that is not healthy. Affected has the containers of all devices of the GPU.
type lastFault struct {
	*incident.Incident
	Affected []incident.AffectedContainer
}

// lastFault returns the incident that made the device unhealthy, or the newest one without; nil without any.
func (b *viewBuilder) lastFault(d *api.DeviceJSON) *lastFault {
	var fault lastFault
	incidents := b.incidents.Incidents
	for n := range incidents {
		i := &incidents[n]
		if i.GPU != d.GPU || d.IsMIGDevice() && !i.Concerns(d.ID) || i.Reason != d.Reason || !i.MarkedUnhealthy || i.RecoveredAt != nil {
			continue
		}
		if fault.Incident == nil {
			fault.Incident = i
		}
		fault.Affected = append(fault.Affected, affectedBy(i, d)...)
	}
	if fault.Incident == nil && d.LastIncident != nil {
		fault = lastFault{d.LastIncident, affectedBy(d.LastIncident, d)}
	}
	if fault.Incident == nil {
		return nil
	}
	fault.Affected = incident.UniqueOwners(fault.Affected)
	return &fault
}

// affectedBy returns the containers with a device at the incident; with any device, if the device is a GPU.
func affectedBy(i *incident.Incident, d *api.DeviceJSON) (all []incident.AffectedContainer) {
	for _, c := range i.Affected {
		if !d.IsMIGDevice() || i.DeviceOf(c) == d.ID {
			all = append(all, c)
		}
	}
	return all
}

// affectedNote returns the note below the affected containers.
func affectedNote(i *incident.Incident) string {
	switch {
	case i.AffectedUnknown:
		return "owners unknown"
	case i.OwnersIncomplete:
		return "a container that the kubelet does not name"
	case len(i.Affected) == 0:
		return "none"
	}
	return ""
}

// incidentsHref returns the link to incidents in JSON, filtered by pairs of name and value.
func incidentsHref(filter ...string) string {
	query := url.Values{}
	for n := 0; n < len(filter); n += 2 {
		query.Set(filter[n], filter[n+1])
	}
	return strings.TrimSuffix(strings.TrimPrefix(api.IncidentsPath, "/")+"?"+query.Encode(), "?")
}
