package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
)

// maxReadingsAge is the age from which on it is said how old readings are.
const maxReadingsAge = 5 * time.Second

// pageView is what the layout shows.
type pageView struct {
	Node, Version string
	Simulated     bool
	Headline      string // how the node is, in a sentence; it changes with that alone
	Grade         string // "well", "warning" or "bad"
	Alerts        []alertRow
	Stats         []nodeStat
	Model         string      // of all GPUs, where they are of one
	ReadAt        displayTime // of the readings, where they are old
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

// alertRow is a device that is not well, and where on the page it is.
type alertRow struct{ Anchor, Name, Health, Reason, Action string }

// nodeStat is one number of the node.
type nodeStat struct {
	Name, Value, Note string
	At                displayTime // in the place of More
	Grade             string      // as in view; empty where it says nothing of how the node is
}

// dependency is something that podgauge depends on, and how it is: Grade as in view, and State
// as it goes on in a sentence.
type dependency struct{ Grade, State, Error string }

// ShortState is the state by itself.
func (d dependency) ShortState() string {
	return strings.TrimPrefix(strings.TrimPrefix(d.State, "is "), "was ")
}

// nameValue is a name and a value.
type nameValue struct{ Name, Value string }

// usageBar is a bar: Percent of it is filled, and Text says the same.
type usageBar struct{ Name, Device, Kind, Percent, Text string }

// resourceRow is what pods ask for.
type resourceRow struct {
	Name, Sharing               string
	Registered                  bool
	Error                       string
	Devices, Healthy, Allocated int
	Replicated, HealthKnown     bool
	AllocatedKnown              bool
}

// viewBuilder makes a view.
type viewBuilder struct {
	PageState
	now             time.Time
	readings        Readings
	node            api.DevicesResponse
	statuses        []device.Status
	allocations     device.Allocations
	pluginResources []PluginResource
	anchors         map[string]int
}

func newPageView(state PageState, o *PageOptions, readings Readings, now time.Time) *pageView {
	b := &viewBuilder{PageState: state, now: now, readings: readings, node: api.Devices(o.Node, state, now), anchors: map[string]int{}}
	b.statuses, _ = state.Statuses()
	b.allocations, _ = state.Allocations()
	b.pluginResources = state.PluginResources()
	v := &pageView{
		Node: sanitize(cmp.Or(o.Node, "this node")), Version: o.Version, Simulated: o.Simulated, Links: o.Links,
		Driver: b.driver(), Kubelet: b.kubelet(), LastAnswer: formatAgo(now, b.node.Kubelet.LastAnswer), PodsAPI: b.podsAPI(), Incidents: b.incidentList(),
	}
	if age := now.Sub(readings.At); !readings.At.IsZero() && age >= maxReadingsAge {
		v.ReadAt = formatAgo(now, readings.At)
	}
	v.IsPlugin, v.GPUs = b.pluginResources != nil, b.gpuCards()
	if v.Model = commonModel(v.GPUs); v.Model != "" {
		for _, g := range v.GPUs {
			g.Model = "" // it need not be said of each
		}
	}
	v.DriverDetails = b.driverDetails()
	v.Resources = b.resourceRows()
	v.Alerts = alertRows(v.GPUs)
	v.Stats = append(b.stats(v.GPUs), b.dependencyStats(v)...)
	b.summarize(v)
	return v
}

// commonModel is that of all GPUs; then none of them has to say it.
func commonModel(gpus []*deviceCard) string {
	for _, g := range gpus {
		if g.Model != gpus[0].Model {
			return ""
		}
	}
	if len(gpus) == 0 {
		return ""
	}
	return gpus[0].Model
}

// allocatableCards are the devices that containers can hold: not a GPU whose slices can.
func allocatableCards(gpus []*deviceCard) (all []*deviceCard) {
	for _, g := range gpus {
		if !g.Partitioned || g.Allocation.Allocated {
			all = append(all, g)
		}
		all = append(all, g.MIGDevices...)
	}
	return all
}

// summarize says in a sentence how the node is.
func (b *viewBuilder) summarize(v *pageView) {
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
		v.Headline = "The driver is up, and lists no GPU."
	case len(all) == 0:
		v.Headline = "All GPUs are partitioned, and none has a slice."
	case unhealthy > 0:
		v.Grade, v.Headline = "bad", fmt.Sprintf("%d of %s cannot be used.", unhealthy, pluralize(len(all), "device"))
	case suspect > 0:
		v.Grade, v.Headline = "warning", fmt.Sprintf("%s can be used, %d under suspicion.", pluralize(len(all), "device"), suspect)
	case len(all) == 1:
		v.Headline = "The device is healthy."
	default:
		v.Headline = fmt.Sprintf("All %d devices are healthy.", len(all))
	}
	b.addWarnings(v)
}

// addWarnings adds what else is wrong with the node.
func (b *viewBuilder) addWarnings(v *pageView) {
	stalled := 0
	for _, g := range v.GPUs {
		if g.Stalled && g.Healthy {
			stalled++
		}
	}
	var more []string
	switch {
	case stalled == 1:
		more = append(more, " A call to one GPU has not come back.")
	case stalled > 1:
		more = append(more, fmt.Sprintf(" Calls to %d GPUs have not come back.", stalled))
	}
	if v.Kubelet.Grade == "bad" {
		more = append(more, " The kubelet "+v.Kubelet.State+".")
	}
	if v.Headline += strings.Join(more, ""); len(more) > 0 && v.Grade == "well" {
		v.Grade = "warning"
	}
}

// alertRows are the devices that are not well. Slices that are ill with their GPU are not
// named one by one.
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

// stats are the numbers of the whole node.
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
	stats := []nodeStat{{Name: "Healthy", Value: strconv.Itoa(healthy), Note: of}}
	if known {
		stats = append(stats, nodeStat{Name: "Held", Value: strconv.Itoa(allocated), Note: of})
	} else {
		stats = append(stats, nodeStat{Name: "Held", Value: "–", Note: "not known yet"})
	}
	return append(stats, b.sumStats(gpus)...)
}

// sumStats are over the GPUs that were read, and say so where these are not all.
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

// dependencyStats are the driver and the kubelet, in a word.
func (b *viewBuilder) dependencyStats(v *pageView) []nodeStat {
	driver := nodeStat{Name: "Driver", Value: v.Driver.ShortState(), Grade: v.Driver.Grade}
	if len(v.DriverDetails) > 0 {
		driver.Note = v.DriverDetails[0].Value
	}
	return []nodeStat{driver, {Name: "Kubelet", Value: v.Kubelet.ShortState(), At: v.LastAnswer, Grade: v.Kubelet.Grade}}
}

var driverStates = map[string]dependency{
	"starting":      {"warning", "is being started", ""},
	"up":            {"well", "is up", ""},
	"failing":       {"bad", "lists no devices", ""},
	"absent":        {"bad", "is not there", ""},
	"not_answering": {"bad", "does not answer", ""},
	"replaced":      {"warning", "was replaced, and podgauge starts anew", ""},
	"released":      {"bad", "is released", ""},
}

func (b *viewBuilder) driver() dependency {
	p := driverStates[b.node.Driver.State]
	p.Error = sanitize(b.node.Driver.Error)
	return p
}

// driverDetails are what all devices say alike of their driver.
func (b *viewBuilder) driverDetails() (details []nameValue) {
	if len(b.node.Devices) == 0 {
		return nil
	}
	labels := b.node.Devices[0].InfoLabels
	for _, f := range []nameValue{{"Version", labels["driver_version"]}, {"CUDA", labels["cuda_version"]}} {
		if f.Value != "" {
			details = append(details, nameValue{f.Name, sanitize(f.Value)})
		}
	}
	return details
}

func (b *viewBuilder) kubelet() dependency {
	switch k := b.node.Kubelet; {
	case k.Up:
		return dependency{"well", "answers", ""}
	case k.Error == "":
		return dependency{"warning", "was not asked yet", ""}
	default:
		return dependency{"bad", "does not answer", sanitize(k.Error)}
	}
}

func (b *viewBuilder) podsAPI() dependency {
	switch f := b.PodsAPI(); {
	case f.Synced:
		return dependency{"well", "followed", ""}
	case f.Reason == "":
		return dependency{"plain", "not asked yet", ""}
	default:
		return dependency{"plain", "not followed", sanitize(f.Reason)}
	}
}

// resourceRows are what the kubelet is told of.
func (b *viewBuilder) resourceRows() (all []resourceRow) {
	for _, resource := range b.pluginResources {
		row := resourceRow{
			Name: sanitize(resource.Resource), Sharing: resource.Sharing, Registered: resource.Registered, Error: sanitize(resource.Err), Healthy: resource.Healthy, Devices: len(resource.IDs),
			HealthKnown: resource.Registered, AllocatedKnown: b.allocations.Complete,
		}
		var ids []string
		for _, allocation := range b.allocations.All {
			if allocation.Resource == resource.Resource {
				ids = append(ids, string(allocation.DeviceID))
			}
		}
		slices.Sort(ids)
		row.Allocated = len(slices.Compact(ids))
		row.Replicated = slices.ContainsFunc(resource.IDs, func(id device.AdvertisedID) bool { return strings.Contains(string(id), "::") })
		all = append(all, row)
	}
	return all
}
