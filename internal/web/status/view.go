package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
)

// maxReadingsAge is the age of readings from which the page shows the age.
const maxReadingsAge = 5 * time.Second

// maxIncidents bounds the incidents shown, newest first; the JSON has all.
const maxIncidents = 12

// PageOptions are the parts of the page that do not change.
type PageOptions struct {
	Node      string // name
	Version   string
	Simulated bool
	Links     []string // relative paths of other pages
}

// pageView is the input of the template. Its texts may have control characters.
type pageView struct {
	PageOptions
	Node     string               // name
	Response *api.DevicesResponse // for all devices
	Grade    string
	Headline string        // the node's state in a sentence
	Alerts   []*deviceCard // devices that are not healthy
	Stats    []nodeStat

	Model       string    // of all GPUs, if common
	ReadAt      time.Time // of old readings
	Filter      filter
	FilterLinks []filterLink
	GPUs        []*gpuCard // matching the filter
	AllGPUs     int

	Incidents      []incident.Incident // the newest that affected the pod of the filter
	IncidentsError error               // not stored on disk

	Driver, Kubelet dependency
	PodsAPIUp       bool
	PodsAPIError    error
	Resources       []resourceRow
	IsPlugin        bool // this process is the device plugin
}

// filterLink is a link to the devices in a state; to all devices without State.
type filterLink struct {
	State string
	Count int
}

func newPageView(d *nodeData, o PageOptions, f filter) *pageView {
	gpus := d.gpuCards()
	v := &pageView{
		PageOptions:    o,
		Node:           cmp.Or(o.Node, "this node"),
		Response:       &d.api,
		Model:          moveModel(gpus),
		Filter:         f,
		FilterLinks:    filterLinks(gpus, f),
		AllGPUs:        len(gpus),
		IncidentsError: d.Incidents.Err,
		Driver:         driverStates[d.api.Driver.State],
		Kubelet:        kubeletState(d.api.Kubelet),
		Stats:          d.stats(gpus),
		Resources:      d.resourceRows(),
		IsPlugin:       d.IsPlugin,
		PodsAPIUp:      d.PodsSynced,
		PodsAPIError:   d.PodsErr,
	}
	if d.now.Sub(d.Readings.At) >= maxReadingsAge {
		v.ReadAt = d.Readings.At
	}
	for _, i := range d.Incidents.Incidents {
		if f.Pod == "" || f.affects(i.Affected) {
			v.Incidents = append(v.Incidents, i)
		}
	}
	v.Incidents = limit(v.Incidents, maxIncidents).First
	v.summarize(gpus)
	v.Alerts = unhealthyCards(gpus)
	v.GPUs = matchingGPUs(gpus, f)
	return v
}

// moveModel returns the common model of all GPUs, and removes it from each.
func moveModel(gpus []*gpuCard) (model string) {
	for i, g := range gpus {
		if i > 0 && g.Model != model {
			return ""
		}
		model = g.Model
	}
	for _, g := range gpus {
		g.Model = ""
	}
	return model
}

// filterLinks returns links to all devices and to each state, in fixed places.
// The filter of pods stays.
func filterLinks(gpus []*gpuCard, f filter) (links []filterLink) {
	for _, state := range append([]string{""}, filterStates...) {
		link := filterLink{State: state}
		for _, g := range gpus {
			for _, card := range g.allocatable() {
				if card.matches(filter{f.Pod, state}) {
					link.Count++
				}
			}
		}
		links = append(links, link)
	}
	return links
}

// unhealthyCards returns the devices that are not healthy, except MIG devices
// with the fault of their GPU.
func unhealthyCards(gpus []*gpuCard) (all []*deviceCard) {
	for _, g := range gpus {
		for _, card := range g.devices() {
			if (card.isUnhealthy() || card.Device.Gone) && !card.FaultOfGPU {
				all = append(all, card)
			}
		}
	}
	return all
}

// summarize sets the headline and the grade.
func (v *pageView) summarize(gpus []*gpuCard) {
	v.Grade, v.Headline = v.summarizeDevices(v.Response.Counts())
	warnings := ""
	stalled := 0
	for _, g := range gpus {
		if g.Stalled && g.Device.Healthy {
			stalled++
		}
	}
	if stalled > 0 {
		warnings += " Calls to " + text.Plural(stalled, "GPU") + " hang."
	}
	if missing := v.Response.MissingGPUs; missing > 0 {
		warnings += fmt.Sprintf(" Missing: %d of %d expected GPUs.", missing, v.Response.ExpectedGPUs)
	}
	if v.Kubelet.Grade == gradeBad {
		warnings += " The kubelet " + v.Kubelet.State + "."
	}
	v.Headline += warnings
	if warnings != "" && v.Grade == gradeWell {
		v.Grade = gradeWarning
	}
}

func (v *pageView) summarizeDevices(n api.DeviceCounts) (grade, headline string) {
	driver := "The driver " + v.Driver.State + "."
	switch {
	case v.Driver.Grade == gradeBad && v.AllGPUs == 0:
		return gradeBad, driver + " No GPU is known."
	case v.Driver.Grade == gradeBad:
		return gradeBad, driver
	case v.AllGPUs == 0 && v.Driver.Grade == gradeWarning:
		return gradeWarning, driver + " No GPU is known yet."
	case v.AllGPUs == 0:
		return gradeWell, "The driver is up but lists no GPUs."
	case n.Devices == 0:
		return gradeWell, "MIG mode is enabled on all GPUs, but no MIG device exists."
	case n.Healthy < n.Devices:
		return gradeBad, fmt.Sprintf("Unhealthy: %d of %s.", n.Devices-n.Healthy, text.Plural(n.Devices, "device"))
	case n.Suspect > 0:
		return gradeWarning, fmt.Sprintf("Suspect: %d of %s.", n.Suspect, text.Plural(n.Devices, "device"))
	case n.Devices == 1:
		return gradeWell, "The device is healthy."
	}
	return gradeWell, fmt.Sprintf("All %d devices are healthy.", n.Devices)
}
