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
	*nodeData
	PageOptions
	Filter          filter
	AllGPUs         []*gpuCard
	GPUs            []*gpuCard // matching the filter
	Model           string     // of all GPUs, if common
	Grade, Headline string     // the node's state in a sentence
}

// filterLink is a link to the devices in a state; to all devices without State.
type filterLink struct {
	State string
	Count int
}

func newPageView(d *nodeData, o PageOptions, f filter) *pageView {
	o.Node = cmp.Or(o.Node, "this node")
	gpus := d.gpuCards()
	v := &pageView{nodeData: d, PageOptions: o, Filter: f, AllGPUs: gpus}
	v.Model = moveModel(gpus)
	v.GPUs = matchingGPUs(gpus, f)
	v.summarize()
	return v
}

// Driver returns the state of the driver.
func (v *pageView) Driver() dependency { return driverStates[v.Response.Driver.State] }

// Kubelet returns the state of the kubelet.
func (v *pageView) Kubelet() dependency { return kubeletState(v.Response.Kubelet) }

// Stats returns the numbers of the whole node.
func (v *pageView) Stats() []nodeStat { return v.stats(v.AllGPUs) }

// ReadAt returns the time of old readings.
func (v *pageView) ReadAt() (at time.Time) {
	if v.now.Sub(v.Readings.At) >= maxReadingsAge {
		at = v.Readings.At
	}
	return at
}

// NewestIncidents returns the newest incidents that affected the pod of the
// filter.
func (v *pageView) NewestIncidents() (newest []incident.Incident) {
	for _, i := range v.Incidents.Incidents {
		if v.Filter.Pod == "" || v.Filter.affects(i.Affected) {
			newest = append(newest, i)
		}
	}
	return limit(newest, maxIncidents).First
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

// FilterLinks returns links to all devices and to each state, in fixed places.
// The filter of pods stays.
func (v *pageView) FilterLinks() (links []filterLink) {
	for _, state := range append([]string{""}, filterStates...) {
		link := filterLink{State: state}
		for _, g := range v.AllGPUs {
			for _, card := range g.allocatable() {
				if card.matches(filter{v.Filter.Pod, state}) {
					link.Count++
				}
			}
		}
		links = append(links, link)
	}
	return links
}

// Alerts returns the devices that are not healthy, except MIG devices with the
// fault of their GPU.
func (v *pageView) Alerts() (all []*deviceCard) {
	for _, g := range v.AllGPUs {
		for _, card := range g.devices() {
			if (card.isUnhealthy() || card.Device.Gone) && !card.FaultOfGPU {
				all = append(all, card)
			}
		}
	}
	return all
}

// summarize sets the headline and the grade.
func (v *pageView) summarize() {
	v.Grade, v.Headline = v.summarizeDevices(v.Response.Counts())
	warnings := ""
	stalled := 0
	for _, g := range v.AllGPUs {
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
	if v.Kubelet().Grade == gradeBad {
		warnings += " The kubelet " + v.Kubelet().State + "."
	}
	v.Headline += warnings
	if warnings != "" && v.Grade == gradeWell {
		v.Grade = gradeWarning
	}
}

func (v *pageView) summarizeDevices(n api.DeviceCounts) (grade, headline string) {
	grade = v.Driver().Grade
	noGPU := len(v.AllGPUs) == 0
	driver := "The driver " + v.Driver().State + "."
	switch {
	case grade == gradeBad && noGPU:
		return gradeBad, driver + " No GPU is known."
	case grade == gradeBad:
		return gradeBad, driver
	case noGPU && grade == gradeWarning:
		return gradeWarning, driver + " No GPU is known yet."
	case noGPU:
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
