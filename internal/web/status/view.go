package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// maxReadingsAge is the age of readings from which the page shows the age.
const maxReadingsAge = 5 * time.Second

// pageView is the input of the template.
type pageView struct {
	Node, Version string
	Simulated     bool
	Headline      string // the node's state in a sentence
	Grade         string // "well", "warning" or "bad"
	Alerts        []alertRow
	Stats         []nodeStat
	Model         string      // of all GPUs, if common
	ReadAt        displayTime // of old readings
	GPUs          []*deviceCard
	Driver        dependency
	DriverDetails []nameValue
	Kubelet       dependency
	LastAnswer    displayTime
	PodsAPI       dependency
	Resources     []resourceRow
	IsPlugin      bool // this process is the device plugin
	Incidents     incidentList
	Links         []string
}

// nodeStat is a number of the node, with a note or a time. Grade is as in pageView, or empty.
type nodeStat struct {
	Name, Value, Note string
	At                displayTime
	Grade             string
}

func newPageView(state PageState, o *PageOptions, readings Readings, now time.Time) *pageView {
	b := newViewBuilder(state, o, readings, now)
	v := &pageView{
		Node: sanitize(cmp.Or(o.Node, "this node")), Version: o.Version, Simulated: o.Simulated, Links: o.Links, GPUs: b.gpuCards(),
		Driver: b.driver(), DriverDetails: b.driverDetails(), Kubelet: b.kubelet(), LastAnswer: formatAgo(now, b.node.Kubelet.LastAnswer),
		PodsAPI: b.podsAPI(), Resources: b.resourceRows(), IsPlugin: b.pluginResources != nil, Incidents: b.incidentList(),
	}
	if age := now.Sub(readings.At); !readings.At.IsZero() && age >= maxReadingsAge {
		v.ReadAt = formatAgo(now, readings.At)
	}
	if v.Model = commonModel(v.GPUs); v.Model != "" {
		for _, g := range v.GPUs {
			g.Model = ""
		}
	}
	v.Alerts = alertRows(v.GPUs)
	v.Stats = append(b.stats(v.GPUs), dependencyStats(v)...)
	summarize(v)
	return v
}

// commonModel returns the model of all GPUs; empty if models differ.
func commonModel(gpus []*deviceCard) string {
	if len(gpus) == 0 || slices.ContainsFunc(gpus, func(g *deviceCard) bool { return g.Model != gpus[0].Model }) {
		return ""
	}
	return gpus[0].Model
}

// allocatableCards returns the devices that can be allocated: MIG devices instead of their GPU.
func allocatableCards(gpus []*deviceCard) (all []*deviceCard) {
	for _, g := range gpus {
		if !g.Partitioned || g.Allocation.Allocated {
			all = append(all, g)
		}
		all = append(all, g.MIGDevices...)
	}
	return all
}

// summarize sets the headline and the grade.
func summarize(v *pageView) {
	all := allocatableCards(v.GPUs)
	unhealthy, suspect := 0, 0
	for _, card := range all {
		switch {
		case !card.Healthy:
			unhealthy++
		case card.Health != device.Healthy.String():
			suspect++
		}
	}
	v.Grade = "well"
	switch {
	case v.Driver.Grade == "bad":
		v.Grade, v.Headline = "bad", "The driver "+v.Driver.State+"."
		if len(v.GPUs) == 0 {
			v.Headline += " No GPU is known."
		}
	case len(v.GPUs) == 0 && v.Driver.Grade == "warning":
		v.Grade, v.Headline = "warning", "The driver "+v.Driver.State+". No GPU is known yet."
	case len(v.GPUs) == 0:
		v.Headline = "The driver is up and lists no GPU."
	case len(all) == 0:
		v.Headline = "All GPUs are partitioned and have no MIG device."
	case unhealthy > 0:
		v.Grade, v.Headline = "bad", fmt.Sprintf("Unhealthy: %d of %s.", unhealthy, pluralize(len(all), "device"))
	case suspect > 0:
		v.Grade, v.Headline = "warning", fmt.Sprintf("Suspect: %d of %s.", suspect, pluralize(len(all), "device"))
	case len(all) == 1:
		v.Headline = "The device is healthy."
	default:
		v.Headline = fmt.Sprintf("All %d devices are healthy.", len(all))
	}
	addWarnings(v)
}

// addWarnings adds sentences about stalled GPUs and the kubelet.
func addWarnings(v *pageView) {
	stalled := 0
	for _, g := range v.GPUs {
		if g.Stalled && g.Healthy {
			stalled++
		}
	}
	warnings := ""
	switch {
	case stalled == 1:
		warnings = " A call to one GPU hangs."
	case stalled > 1:
		warnings = fmt.Sprintf(" Calls to %d GPUs hang.", stalled)
	}
	if v.Kubelet.Grade == "bad" {
		warnings += " The kubelet " + v.Kubelet.State + "."
	}
	if v.Headline += warnings; warnings != "" && v.Grade == "well" {
		v.Grade = "warning"
	}
}

// alertRows returns the devices that are not healthy, except MIG devices with the health and reason of their GPU.
func alertRows(gpus []*deviceCard) (all []alertRow) {
	for _, g := range gpus {
		if g.Health != device.Healthy.String() || g.Gone {
			all = append(all, g.alertRow())
		}
		for _, s := range g.MIGDevices {
			if (s.Health != g.Health || s.Reason != g.Reason) && s.Health != device.Healthy.String() {
				all = append(all, s.alertRow())
			}
		}
	}
	return all
}

// stats returns the numbers of the whole node.
func (b *viewBuilder) stats(gpus []*deviceCard) []nodeStat {
	if len(gpus) == 0 {
		return nil
	}
	all := allocatableCards(gpus)
	healthy, allocated, known := 0, 0, len(all) > 0
	for _, card := range all {
		if card.Healthy {
			healthy++
		}
		if card.Allocation.Allocated {
			allocated++
		}
		known = known && card.Allocation.Known
	}
	of := "of " + strconv.Itoa(len(all))
	allocatedStat := nodeStat{Name: "Allocated", Value: "–", Note: "not known yet"}
	if known {
		allocatedStat.Value, allocatedStat.Note = strconv.Itoa(allocated), of
	}
	return append([]nodeStat{{Name: "Healthy", Value: strconv.Itoa(healthy), Note: of}, allocatedStat}, b.sumStats(gpus)...)
}

// sumStats returns sums over the GPUs that were read, with their number if others were not.
func (b *viewBuilder) sumStats(gpus []*deviceCard) (stats []nodeStat) {
	var used, total, power, limit float64
	var present, memories, powers, limits int
	for _, g := range gpus {
		if !g.Gone {
			present++
		}
		r := b.readings.forDevice(g.ID)
		u, usedOK := r.get(MemoryUsed)
		t, totalOK := r.get(MemoryTotal)
		if usedOK && totalOK {
			used, total, memories = used+u, total+t, memories+1
		}
		if w, ok := r.get(Power); ok {
			power, powers = power+w, powers+1
			if l, ok := r.get(PowerLimit); ok {
				limit, limits = limit+l, limits+1
			}
		}
	}
	withCount := func(all string, read int) string {
		if read < present {
			return strings.TrimPrefix(fmt.Sprintf("%s, %d of %s", all, read, pluralize(present, "GPU")), ", ")
		}
		return all
	}
	if total > 0 {
		stats = append(stats, nodeStat{
			Name: "Memory", Value: formatPercent(used/total) + " %", Note: withCount(fmt.Sprintf("of %.0f GiB", total/gib), memories),
		})
	}
	if power > 0 {
		all := ""
		if limits == powers {
			all = "of " + formatWatts(limit)
		}
		stats = append(stats, nodeStat{Name: "Power", Value: formatWatts(power), Note: withCount(all, powers)})
	}
	return stats
}

// dependencyStats returns the states of the driver and the kubelet.
func dependencyStats(v *pageView) []nodeStat {
	driver := nodeStat{Name: "Driver", Value: v.Driver.ShortState(), Grade: v.Driver.Grade}
	if len(v.DriverDetails) > 0 {
		driver.Note = v.DriverDetails[0].Value
	}
	return []nodeStat{driver, {Name: "Kubelet", Value: v.Kubelet.ShortState(), At: v.LastAnswer, Grade: v.Kubelet.Grade}}
}
