package status

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
)

// mostIncidents is how many are shown, the newest: the JSON has all.
const mostIncidents = 12

// remembered is what happened to devices.
type remembered struct {
	Incidents []happening
	Total     int
	Href      string // of all of them
	Why       string // why they are not kept on disk
}

// happening is one incident.
type happening struct {
	Last                          when
	Count                         uint64
	Device, Reason, Action, State string
	Grade                         string
	Hit                           []victim
	More                          int
	Note                          string // where not all who were hit are named
	Href                          string
}

// victim is a container that was hit, and how it ended.
type victim struct{ Namespace, Pod, Container, Ended, Href string }

func (b *builder) remembered() remembered {
	r := remembered{Href: strings.TrimPrefix(api.IncidentsPath, "/")}
	if b.Incidents == nil {
		return r
	}
	known := b.Incidents()
	r.Total = len(known.Incidents)
	if known.Err != nil {
		r.Why = clean(known.Err.Error())
	}
	for i := range known.Incidents[:min(r.Total, mostIncidents)] {
		r.Incidents = append(r.Incidents, b.happening(&known.Incidents[i]))
	}
	return r
}

func (b *builder) happening(i *incident.Incident) happening {
	h := happening{
		Last: ago(b.now, i.Last), Count: i.Count, Device: "GPU " + strconv.Itoa(i.Index), Reason: clean(i.Reason), Action: todo(i.Action),
		Href: incidentsOf(url.Values{"device": {string(i.Device)}, "reason": {i.Reason}}),
	}
	if i.Profile != "" {
		h.Device += ", " + clean(i.Profile)
	}
	switch {
	case i.Healed != nil:
		h.Grade, h.State, h.Action = "well", "healthy again", "" // it was done
	case i.Condemned:
		h.Grade, h.State = "bad", "turned unhealthy"
	default:
		h.Grade, h.State = "plain", "stayed as it was"
	}
	for n := range i.Holders[:min(len(i.Holders), mostHolders)] {
		of := &i.Holders[n]
		h.Hit = append(h.Hit, victim{
			clean(of.Namespace), clean(of.Pod), clean(of.Container), ending(of.Ended),
			incidentsOf(url.Values{"namespace": {of.Namespace}, "pod": {of.Pod}}),
		})
	}
	h.More = len(i.Holders) - len(h.Hit)
	switch {
	case i.HoldersUnknown:
		h.Note = "nobody could tell then who held it"
	case i.Nameless:
		h.Note = "a container that the kubelet does not name"
	case len(i.Holders) == 0:
		h.Note = "nobody"
	}
	return h
}

// incidentsOf is where the JSON has these incidents.
func incidentsOf(which url.Values) string {
	return strings.TrimPrefix(api.IncidentsPath, "/") + "?" + which.Encode()
}

// ending says how a container and its pod ended.
func ending(e *incident.Ending) string {
	if e == nil {
		return ""
	}
	var said []string
	for _, s := range []string{e.Phase, e.Reason} {
		if s != "" {
			said = append(said, clean(s))
		}
	}
	if e.ExitCode != nil {
		said = append(said, fmt.Sprintf("exit %d", *e.ExitCode))
	}
	if e.Restarts > 0 {
		said = append(said, counted(int(e.Restarts), "restart"))
	}
	return strings.Join(said, ", ")
}
