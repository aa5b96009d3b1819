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

func incidentDevice(i *incident.Incident) string {
	if i.Profile != "" {
		return "GPU " + strconv.Itoa(i.Index) + ", " + i.Profile
	}
	return "GPU " + strconv.Itoa(i.Index)
}

// incidentOutcome returns the state of the device after the incident, and the action that remains.
func incidentOutcome(i *incident.Incident) (grade, state, action string) {
	switch {
	case i.RecoveredAt != nil:
		return "well", "healthy again", ""
	case i.MarkedUnhealthy:
		return "bad", "unhealthy", formatAction(i.Action)
	default:
		return "plain", "no change", formatAction(i.Action)
	}
}

// affectedNote returns the note below the affected containers.
func affectedNote(i *incident.Incident) string {
	switch {
	case i.AffectedUnknown:
		return "owners were unknown"
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
