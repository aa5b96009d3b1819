package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
)

// maxReadingsAge is the age of readings from which the page shows the age.
const maxReadingsAge = 5 * time.Second

// pageView is the input of the template. Its texts may have control characters.
type pageView struct {
	*PageOptions
	Node          string
	Filter        filter
	FilterLinks   []filterLink
	Headline      string        // the node's state in a sentence
	Grade         string        // "well", "warning" or "bad"
	Alerts        []*deviceCard // of devices that are not healthy
	Stats         []nodeStat
	Model         string        // of all GPUs, if common
	ReadAt        displayTime   // of old readings
	GPUs          []*deviceCard // matching the filter
	AllGPUs       int
	Driver        dependency
	DriverDetails []nameValue
	Kubelet       dependency
	LastResponse  displayTime
	PodsAPI       dependency
	Resources     []resourceRow
	IsPlugin      bool // this process is the device plugin
	Incidents     incident.Snapshot
	Now           time.Time
}

// nodeStat is a number of the node, with a note or a time. Grade is as in pageView, or empty.
type nodeStat struct {
	Name, Value, Note string
	At                displayTime
	Grade             string
}

// nameValue is a name and a value.
type nameValue struct{ Name, Value string }

// addKnown appends a pair with a value.
func addKnown(list []nameValue, name, value string) []nameValue {
	if value == "" {
		return list
	}
	return append(list, nameValue{name, value})
}

// viewBuilder has the state from which all parts of a page are built.
type viewBuilder struct {
	PageState
	now             time.Time
	readings        Readings
	node            api.DevicesResponse
	allocations     device.Allocations
	incidents       incident.Snapshot
	pluginResources []PluginResource
	anchors         map[string]int // devices per anchor
}

func newPageView(state PageState, o *PageOptions, readings Readings, f filter, now time.Time) *pageView {
	b := &viewBuilder{
		PageState: state, now: now, readings: readings, node: api.Devices(o.Node, state, now),
		incidents: state.Incidents(), pluginResources: state.PluginResources(), anchors: map[string]int{},
	}
	b.allocations, _ = state.Allocations()
	v := &pageView{
		PageOptions: o, Node: cmp.Or(o.Node, "this node"), GPUs: b.gpuCards(), Filter: f,
		Driver: b.driver(), DriverDetails: b.driverDetails(), Kubelet: b.kubelet(), LastResponse: formatTime(now, b.node.Kubelet.LastResponse, ago),
		PodsAPI: b.podsAPI(), Resources: b.resourceRows(), IsPlugin: b.pluginResources != nil, Incidents: b.incidents, Now: now,
	}
	if age := now.Sub(readings.At); age >= maxReadingsAge {
		v.ReadAt = formatTime(now, readings.At, ago)
	}
	if len(v.GPUs) > 0 && !slices.ContainsFunc(v.GPUs, func(g *deviceCard) bool { return g.Model != v.GPUs[0].Model }) {
		v.Model = v.GPUs[0].Model
		for _, g := range v.GPUs {
			g.Model = ""
		}
	}
	sortByUrgency(v.GPUs)
	v.Alerts = alerts(v.GPUs)
	driver := nodeStat{Name: "Driver", Value: v.Driver.ShortState(), Grade: v.Driver.Grade}
	if len(v.DriverDetails) > 0 {
		driver.Note = v.DriverDetails[0].Value
	}
	v.Stats = append(b.stats(v.GPUs), driver, nodeStat{Name: "Kubelet", Value: v.Kubelet.ShortState(), At: v.LastResponse, Grade: v.Kubelet.Grade})
	v.summarize(b.node.Counts(), b.node.MissingGPUs, b.node.ExpectedGPUs)
	v.AllGPUs, v.FilterLinks = len(v.GPUs), f.links(v.GPUs)
	v.GPUs = f.apply(v.GPUs)
	if f.Pod != "" {
		v.Incidents.Incidents = slices.DeleteFunc(slices.Clone(v.Incidents.Incidents), func(i incident.Incident) bool { return !f.affects(i.Affected) })
	}
	return v
}

// summarize sets the headline and the grade.
func (v *pageView) summarize(n api.DeviceCounts, missing, expected int) {
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
		v.Headline = "The driver is up but lists no GPUs."
	case n.Devices == 0:
		v.Headline = "MIG mode is enabled on all GPUs, but no MIG device exists."
	case n.Healthy < n.Devices:
		v.Grade, v.Headline = "bad", fmt.Sprintf("Unhealthy: %d of %s.", n.Devices-n.Healthy, text.Plural(n.Devices, "device"))
	case n.Suspect > 0:
		v.Grade, v.Headline = "warning", fmt.Sprintf("Suspect: %d of %s.", n.Suspect, text.Plural(n.Devices, "device"))
	case n.Devices == 1:
		v.Headline = "The device is healthy."
	default:
		v.Headline = fmt.Sprintf("All %d devices are healthy.", n.Devices)
	}
	warnings := ""
	if stalled := countCards(v.GPUs, func(g *deviceCard) bool { return g.Stalled && g.Healthy }); stalled > 0 {
		warnings = " Calls to " + text.Plural(stalled, "GPU") + " hang."
	}
	if missing > 0 {
		warnings += fmt.Sprintf(" Missing: %d of %d expected GPUs.", missing, expected)
	}
	if v.Kubelet.Grade == "bad" {
		warnings += " The kubelet " + v.Kubelet.State + "."
	}
	if v.Headline += warnings; warnings != "" && v.Grade == "well" {
		v.Grade = "warning"
	}
}

// alerts returns the devices that are not healthy, except MIG devices with the health and reason of their GPU.
func alerts(gpus []*deviceCard) (all []*deviceCard) {
	for _, g := range gpus {
		if g.ShownHealth != device.Healthy.String() {
			all = append(all, g)
		}
		for _, m := range g.MIGDevices {
			if !m.HasFaultOfGPU && m.Health != device.Healthy.String() {
				all = append(all, m)
			}
		}
	}
	return all
}

// isShown reports whether the filter leaves a device on the page.
func (v *pageView) isShown(card *deviceCard) bool {
	return slices.ContainsFunc(v.GPUs, func(g *deviceCard) bool { return g == card || slices.Contains(g.MIGDevices, card) })
}

func countCards(cards []*deviceCard, has func(*deviceCard) bool) (n int) {
	for _, card := range cards {
		if has(card) {
			n++
		}
	}
	return n
}

// stats returns the numbers of the whole node.
func (b *viewBuilder) stats(gpus []*deviceCard) []nodeStat {
	if len(gpus) == 0 {
		return nil
	}
	n := b.node.Counts()
	of := "of " + text.Plural(n.Devices, deviceNoun(b.node.Devices))
	stats := []nodeStat{{Name: "Healthy", Value: strconv.Itoa(n.Healthy), Note: of}, {Name: "Allocated", Value: strconv.Itoa(n.Allocated), Note: of}}
	if n.Unknown > 0 || n.Devices == 0 {
		stats[1].Value, stats[1].Note = "–", "not known yet"
	}
	if r := b.replicaSum(gpus); r.Total > 0 {
		replicas := nodeStat{Name: "Replicas allocated", Value: strconv.Itoa(r.Allocated), Note: "of " + strconv.Itoa(r.Total)}
		if !r.Complete {
			replicas.Value, replicas.Note = "–", "not known yet"
		}
		stats = append(stats, replicas)
	}
	present := countCards(gpus, func(g *deviceCard) bool { return !g.Gone })
	note := func(s sum, of string) string {
		if s.limits < s.gpus {
			of = ""
		}
		if s.gpus < present {
			of += fmt.Sprintf(", %d of %s", s.gpus, text.Plural(present, "GPU"))
		}
		return strings.TrimPrefix(of, ", ")
	}
	if m := b.sum(gpus, MemoryUsed, MemoryTotal); m.limit > 0 {
		stats = append(stats, nodeStat{Name: "Memory", Value: formatPercent(m.value/m.limit) + " %", Note: note(m, fmt.Sprintf("of %.0f GiB", m.limit/gib))})
	}
	if p := b.sum(gpus, Power, PowerLimit); p.value > 0 {
		stats = append(stats, nodeStat{Name: "Power", Value: formatWatts(p.value), Note: note(p, "of "+formatWatts(p.limit))})
	}
	return stats
}

// deviceNoun names the devices that can be allocated.
func deviceNoun(devices []api.DeviceJSON) string {
	gpus, migDevices := false, false
	for i := range devices {
		migDevices = migDevices || devices[i].IsMIGDevice()
		gpus = gpus || !devices[i].IsMIGDevice() && devices[i].AllocationState != "partitioned"
	}
	switch {
	case gpus && migDevices:
		return "device"
	case migDevices:
		return "MIG device"
	}
	return "GPU"
}

// replicaSum counts the replicas of all devices.
func (b *viewBuilder) replicaSum(gpus []*deviceCard) (all replicaList) {
	all.Complete = b.allocations.Complete
	for _, g := range gpus {
		for _, c := range append([]*deviceCard{g}, g.MIGDevices...) {
			all.Allocated, all.Total = all.Allocated+c.Replicas.Allocated, all.Total+c.Replicas.Total
		}
	}
	return all
}

// sum is the sum of a quantity and its limit over the GPUs that were read.
type sum struct {
	value, limit float64
	gpus, limits int
}

func (b *viewBuilder) sum(gpus []*deviceCard, value, limit Quantity) (s sum) {
	for _, g := range gpus {
		r := b.readings.Devices[g.ID]
		if v, ok := r[value]; ok {
			s.value, s.gpus = s.value+v, s.gpus+1
			if l, ok := r[limit]; ok {
				s.limit, s.limits = s.limit+l, s.limits+1
			}
		}
	}
	return s
}
