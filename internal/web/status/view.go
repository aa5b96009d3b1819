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

// readingsOldAfter is the age from which on it is said how old readings are.
const readingsOldAfter = 5 * time.Second

// view is what the layout shows.
type view struct {
	Node, Version string
	Simulated     bool
	Headline      string // how the node is, in a sentence; it changes with that alone
	Grade         string // "well", "warning" or "bad"
	Troubles      []trouble
	Figures       []figure
	Model         string // of all GPUs, where they are of one
	ReadAt        when   // of the readings, where they are old
	GPUs          []*unit
	Driver        part
	DriverFacts   []fact
	Kubelet       part
	Answered      when
	Pods          part
	Resources     []resource
	Plugin        bool // this process is the device plugin
	Memory        remembered
	Links         []string
}

// trouble is a device that is not well, and where on the page it is.
type trouble struct{ Anchor, Name, Health, Reason, Action string }

// figure is one number of the node.
type figure struct {
	Name, Value, More string
	At                when   // in the place of More
	Grade             string // as in view; empty where it says nothing of how the node is
}

// part is something that podgauge depends on, and how it is: Grade as in view, and State
// as it goes on in a sentence.
type part struct{ Grade, State, Why string }

// Short is the state by itself.
func (p part) Short() string { return strings.TrimPrefix(strings.TrimPrefix(p.State, "is "), "was ") }

// fact is a name and a value.
type fact struct{ Name, Value string }

// meter is a bar: Percent of it is filled, and Text says the same.
type meter struct{ Name, Of, Kind, Percent, Text string }

// resource is what pods ask for.
type resource struct {
	Name, Sharing              string
	Registered                 bool
	Why                        string
	Offered, Healthy, Held     int
	Replicated, KnownHowHealth bool
	HeldKnown                  bool
}

// builder makes a view.
type builder struct {
	*Sources
	now      time.Time
	readings Readings
	node     api.Devices
	statuses []device.Status
	held     device.Holders
	offers   []Offer
	anchors  map[string]int
}

func (s *Sources) view(readings Readings, now time.Time) *view {
	b := &builder{Sources: s, now: now, readings: readings, node: s.Devices(now), anchors: map[string]int{}}
	b.statuses, _ = s.Look()
	b.held, _ = s.Held()
	if s.Offers != nil {
		b.offers = s.Offers()
	}
	v := &view{
		Node: clean(cmp.Or(s.Node, "this node")), Version: s.Version, Simulated: s.Simulated, Links: s.Links,
		Driver: b.driver(), Kubelet: b.kubelet(), Answered: ago(now, b.node.Kubelet.Answered), Pods: b.pods(), Memory: b.remembered(),
	}
	if age := now.Sub(readings.At); !readings.At.IsZero() && age >= readingsOldAfter {
		v.ReadAt = ago(now, readings.At)
	}
	v.Plugin, v.GPUs = b.offers != nil, b.gpus()
	if v.Model = oneModel(v.GPUs); v.Model != "" {
		for _, g := range v.GPUs {
			g.Model = "" // it need not be said of each
		}
	}
	v.DriverFacts = b.driverFacts()
	v.Resources = b.resources()
	v.Troubles = troubles(v.GPUs)
	v.Figures = append(b.figures(v.GPUs), b.dependencies(v)...)
	b.judge(v)
	return v
}

// oneModel is that of all GPUs; then none of them has to say it.
func oneModel(gpus []*unit) string {
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

// holdable are the devices that containers can hold: not a GPU whose slices can.
func holdable(gpus []*unit) (all []*unit) {
	for _, g := range gpus {
		if !g.Partitioned || g.Hold.Taken {
			all = append(all, g)
		}
		all = append(all, g.Slices...)
	}
	return all
}

// judge says in a sentence how the node is.
func (b *builder) judge(v *view) {
	all := holdable(v.GPUs)
	bad, doubted := 0, 0
	for _, u := range all {
		switch {
		case !u.Healthy:
			bad++
		case u.Health != device.Well.String():
			doubted++
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
	case bad > 0:
		v.Grade, v.Headline = "bad", fmt.Sprintf("%d of %s cannot be used.", bad, counted(len(all), "device"))
	case doubted > 0:
		v.Grade, v.Headline = "warning", fmt.Sprintf("%s can be used, %d under suspicion.", counted(len(all), "device"), doubted)
	case len(all) == 1:
		v.Headline = "The device is healthy."
	default:
		v.Headline = fmt.Sprintf("All %d devices are healthy.", len(all))
	}
	b.doubt(v)
}

// doubt adds what else is wrong with the node.
func (b *builder) doubt(v *view) {
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

// troubles are the devices that are not well. Slices that are ill with their GPU are not
// named one by one.
func troubles(gpus []*unit) (all []trouble) {
	for _, g := range gpus {
		if g.Health != device.Well.String() || g.Gone {
			all = append(all, g.trouble())
		}
		for _, s := range g.Slices {
			if (s.Health != g.Health || s.Reason != g.Reason) && s.Health != device.Well.String() {
				all = append(all, s.trouble())
			}
		}
	}
	return all
}

// figures are the numbers of the whole node.
func (b *builder) figures(gpus []*unit) []figure {
	if len(gpus) == 0 {
		return nil
	}
	all := holdable(gpus)
	healthy, taken, known := 0, 0, len(all) > 0
	for _, u := range all {
		if u.Healthy {
			healthy++
		}
		if u.Hold.Taken {
			taken++
		}
		known = known && u.Hold.Known
	}
	of := "of " + strconv.Itoa(len(all))
	figures := []figure{{Name: "Healthy", Value: strconv.Itoa(healthy), More: of}}
	if known {
		figures = append(figures, figure{Name: "Held", Value: strconv.Itoa(taken), More: of})
	} else {
		figures = append(figures, figure{Name: "Held", Value: "–", More: "not known yet"})
	}
	return append(figures, b.sums(gpus)...)
}

// sums are over the GPUs that were read, and say so where these are not all.
func (b *builder) sums(gpus []*unit) (figures []figure) {
	var used, total, power, limit float64
	var there, memories, powers, limits int
	for _, g := range gpus {
		if !g.Gone {
			there++
		}
		r := b.readings.of(g.ID)
		u, one := r.get(MemoryUsed)
		t, two := r.get(MemoryTotal)
		if one && two {
			used, total, memories = used+u, total+t, memories+1
		}
		if w, ok := r.get(Power); ok {
			power, powers = power+w, powers+1
			if l, ok := r.get(PowerLimit); ok {
				limit, limits = limit+l, limits+1
			}
		}
	}
	of := func(all string, read int) string {
		if read < there {
			return strings.TrimPrefix(fmt.Sprintf("%s, %d of %s", all, read, counted(there, "GPU")), ", ")
		}
		return all
	}
	if total > 0 {
		figures = append(figures, figure{
			Name: "Memory", Value: percent(used/total) + " %", More: of(fmt.Sprintf("of %.0f GiB", total/gib), memories),
		})
	}
	if power > 0 {
		all := ""
		if limits == powers {
			all = "of " + watts(limit)
		}
		figures = append(figures, figure{Name: "Power", Value: watts(power), More: of(all, powers)})
	}
	return figures
}

// dependencies are the driver and the kubelet, in a word.
func (b *builder) dependencies(v *view) []figure {
	driver := figure{Name: "Driver", Value: v.Driver.Short(), Grade: v.Driver.Grade}
	if len(v.DriverFacts) > 0 {
		driver.More = v.DriverFacts[0].Value
	}
	return []figure{driver, {Name: "Kubelet", Value: v.Kubelet.Short(), At: v.Answered, Grade: v.Kubelet.Grade}}
}

var driverWords = map[string]part{
	"starting":      {"warning", "is being started", ""},
	"up":            {"well", "is up", ""},
	"failing":       {"bad", "lists no devices", ""},
	"absent":        {"bad", "is not there", ""},
	"not_answering": {"bad", "does not answer", ""},
	"replaced":      {"warning", "was replaced, and podgauge starts anew", ""},
	"released":      {"bad", "is released", ""},
}

func (b *builder) driver() part {
	p := driverWords[b.node.Driver.State]
	p.Why = clean(b.node.Driver.Error)
	return p
}

// driverFacts are what all devices say alike of their driver.
func (b *builder) driverFacts() (facts []fact) {
	if len(b.node.Devices) == 0 {
		return nil
	}
	of := b.node.Devices[0].Facts
	for _, f := range []fact{{"Version", of["driver_version"]}, {"CUDA", of["cuda_version"]}} {
		if f.Value != "" {
			facts = append(facts, fact{f.Name, clean(f.Value)})
		}
	}
	return facts
}

func (b *builder) kubelet() part {
	switch k := b.node.Kubelet; {
	case k.Up:
		return part{"well", "answers", ""}
	case k.Error == "":
		return part{"warning", "was not asked yet", ""}
	default:
		return part{"bad", "does not answer", clean(k.Error)}
	}
}

func (b *builder) pods() part {
	if b.Pods == nil {
		return part{}
	}
	switch f := b.Pods(); {
	case f.Followed:
		return part{"well", "followed", ""}
	case f.Why == "":
		return part{"plain", "not asked yet", ""}
	default:
		return part{"plain", "not followed", clean(f.Why)}
	}
}

// resources are what the kubelet is told of.
func (b *builder) resources() (all []resource) {
	for _, o := range b.offers {
		r := resource{
			Name: clean(o.Resource), Sharing: o.Sharing, Registered: o.Registered, Why: clean(o.Err), Healthy: o.Healthy, Offered: len(o.IDs),
			KnownHowHealth: o.Registered, HeldKnown: b.held.Settled,
		}
		var held []string
		for _, h := range b.held.Held {
			if h.Resource == o.Resource {
				held = append(held, string(h.Offered))
			}
		}
		slices.Sort(held)
		r.Held = len(slices.Compact(held))
		r.Replicated = slices.ContainsFunc(o.IDs, func(id device.OfferedID) bool { return strings.Contains(string(id), "::") })
		all = append(all, r)
	}
	return all
}
