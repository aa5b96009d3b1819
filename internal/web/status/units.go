package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
)

// Bounds of what is drawn. What is left out is counted, and the JSON has it.
const (
	mostHolders  = 16
	mostReplicas = 64
)

// unit is a GPU, or a slice of one.
type unit struct {
	ID                device.ID
	Anchor            string
	Name              string // "GPU 3", "GPU 3, slice 1"
	Short             string // "3", "1"
	Model, Profile    string
	Healthy           bool
	Health            string // as the JSON has it
	Gone, Partitioned bool
	Reason, Action    string
	Meaning           string // of Health, where that does not say enough
	Since             when
	Flaps             uint64
	Stalled, Unread   bool
	Meters            []meter
	Facts             []fact // that were read
	About             []fact // that stay
	Hold              hold
	Slices            []*unit
	Map               *partition
}

func (u *unit) trouble() trouble {
	if u.Gone { // which is the reason, too
		return trouble{Anchor: u.Anchor, Name: u.Name, Health: "gone"}
	}
	return trouble{u.Anchor, u.Name, u.Health, u.Reason, u.Action}
}

// hold is who holds a device.
type hold struct {
	Known, Taken bool
	Text         string // where nobody is named
	Holders      []holder
	More         int // holders that are not shown
	Sharing      string
	Replicas     []replica
	ReplicasHeld int
	Settled      bool // what is held by nobody who is named is free
	MoreReplicas int
}

// holder is a container.
type holder struct {
	Namespace, Pod, Container string
	Replicas                  string // "replica 1", "replicas 0, 2"
	Since                     when
}

// replica is one of those as which a device is offered.
type replica struct {
	Number string
	Held   bool
}

// gpus are the devices, with each GPU's slices in it.
func (b *builder) gpus() (gpus []*unit) {
	for i := range b.node.Devices {
		d := &b.node.Devices[i]
		u := b.unit(d)
		if string(d.ID) == string(d.GPU) || len(gpus) == 0 {
			gpus = append(gpus, u)
			continue
		}
		of := gpus[len(gpus)-1]
		of.Slices = append(of.Slices, u)
	}
	for _, g := range gpus {
		if g.Partitioned {
			g.Map = b.partition(g)
		}
	}
	return gpus
}

func (b *builder) unit(d *api.Device) *unit {
	u := &unit{
		ID: d.ID, Short: strconv.Itoa(d.Index), Name: "GPU " + strconv.Itoa(d.Index), Model: clean(d.Model), Profile: clean(d.Profile),
		Healthy: d.Healthy, Health: d.Health, Gone: d.Gone, Partitioned: d.MIG,
		Reason: clean(d.Reason), Action: todo(d.Action), Since: since(b.now, d.Since), Flaps: d.Flaps, Hold: b.hold(d),
	}
	u.Anchor = "gpu-" + u.Short
	if string(d.ID) != string(d.GPU) {
		u.Short = "?"
		if d.Slice != nil {
			u.Short = strconv.Itoa(*d.Slice)
		}
		u.Name += ", slice " + u.Short
		u.Anchor += "-" + u.Short
	}
	if b.anchors[u.Anchor]++; b.anchors[u.Anchor] > 1 { // one that is gone, and another in its place
		u.Anchor += "." + strconv.Itoa(b.anchors[u.Anchor])
	}
	if u.Meaning = meanings[u.Health]; u.Gone {
		u.Meaning = "No listing of the driver has it any more."
	}
	u.About = about(d)
	b.measure(u, d)
	return u
}

var meanings = map[string]string{
	"suspect":   "Something was reported: it is checked, and used as before meanwhile.",
	"probation": "Nothing is wrong any more, and not yet for long enough.",
}

// about is what a device is known by.
func about(d *api.Device) []fact {
	facts := []fact{{"UUID", clean(string(d.ID))}}
	if string(d.ID) != string(d.GPU) {
		if d.GI != nil && d.CI != nil {
			facts = append(facts, fact{"GPU instance", strconv.Itoa(*d.GI)}, fact{"Compute instance", strconv.Itoa(*d.CI)})
		}
		return facts
	}
	if d.PCI != "" {
		facts = append(facts, fact{"PCI address", clean(d.PCI)})
	}
	if d.NUMANode != nil {
		facts = append(facts, fact{"NUMA node", strconv.Itoa(*d.NUMANode)})
	}
	for _, f := range []fact{{"Serial", d.Facts["serial"]}, {"VBIOS", d.Facts["vbios_version"]}} {
		if f.Value != "" {
			facts = append(facts, fact{f.Name, clean(f.Value)})
		}
	}
	return facts
}

// measure draws what was read of a device.
func (b *builder) measure(u *unit, d *api.Device) {
	r := b.readings.of(d.ID)
	gpu := string(d.ID) == string(d.GPU)
	u.Stalled = gpu && b.Stalled(d.GPU)
	u.Unread = gpu && r.Device == "" && !d.Gone
	bar := func(kind, name string, share float64, text string) {
		share = max(0, min(share, 1))
		u.Meters = append(u.Meters, meter{Name: name, Of: u.Name, Kind: kind, Percent: percent(share), Text: text})
	}
	share, known := r.get(Utilization)
	if !known {
		share, known = r.get(EngineActive)
	}
	if known {
		bar("use", "Utilisation", share, percent(share)+" %")
	}
	used, one := r.get(MemoryUsed)
	total, two := r.get(MemoryTotal)
	if one && two && total > 0 {
		bar("memory", "Memory", used/total, memory(used, total))
	}
	if w, ok := r.get(Power); ok {
		text := watts(w)
		if limit, ok := r.get(PowerLimit); ok {
			text += " of " + watts(limit)
		}
		u.Facts = append(u.Facts, fact{"Power", text})
	}
	if t, ok := r.get(Temperature); ok {
		u.Facts = append(u.Facts, fact{"Temperature", fmt.Sprintf("%.0f °C", t)})
	}
}

var holdWords = map[string]string{
	"idle": "free", "unnamed": "allocated, to a container that the kubelet does not name", "unknown": "nobody can say yet who holds it",
	"partitioned": "held by its slices",
}

func (b *builder) hold(d *api.Device) hold {
	h := hold{Known: d.Hold != "unknown", Taken: d.Hold == "held" || d.Hold == "shared" || d.Hold == "unnamed"}
	for i := range d.Holders[:min(len(d.Holders), mostHolders)] {
		of := &d.Holders[i]
		h.Holders = append(h.Holders, holder{clean(of.Namespace), clean(of.Pod), clean(of.Container), replicasOf(of), since(b.now, of.First)})
	}
	h.More = len(d.Holders) - len(h.Holders)
	if len(h.Holders) == 0 {
		h.Text = holdWords[d.Hold]
	}
	b.replicas(&h, d)
	return h
}

// number is a replica's; false where the whole device is meant.
func number(id device.OfferedID) (string, bool) {
	_, n, is := strings.Cut(string(id), "::")
	return clean(n), is
}

// byNumber orders replicas.
func byNumber(a, b string) int {
	m, _ := strconv.Atoi(a)
	n, _ := strconv.Atoi(b)
	return cmp.Or(cmp.Compare(m, n), cmp.Compare(a, b))
}

func replicasOf(h *api.Holder) string {
	var numbers []string
	for _, as := range h.As {
		if n, is := number(as.ID); is {
			numbers = append(numbers, n)
		}
	}
	switch slices.SortFunc(numbers, byNumber); len(numbers) {
	case 0:
		return ""
	case 1:
		return "replica " + numbers[0]
	default:
		return "replicas " + strings.Join(numbers, ", ")
	}
}

// replicas are those that are offered of a device, and those that are held, though they
// may be offered no more.
func (b *builder) replicas(h *hold, d *api.Device) {
	held := map[string]bool{} // by number: whether somebody has it
	for _, row := range b.held.Rows(d.ID) {
		if n, is := number(row.Offered); is {
			held[n] = true
		}
	}
	numbers := make([]string, 0, len(held))
	for n := range held {
		numbers = append(numbers, n)
	}
	for _, o := range b.offers {
		for _, id := range o.IDs {
			if n, is := number(id); is && id.Device() == d.ID {
				h.Sharing = o.Sharing
				if !held[n] {
					numbers = append(numbers, n)
				}
			}
		}
	}
	slices.SortFunc(numbers, byNumber)
	for _, n := range numbers[:min(len(numbers), mostReplicas)] {
		h.Replicas = append(h.Replicas, replica{n, held[n]})
	}
	h.Settled, h.ReplicasHeld, h.MoreReplicas = b.held.Settled, len(held), len(numbers)-len(h.Replicas)
}

// ReplicasAll is how many replicas there are.
func (h hold) ReplicasAll() int { return len(h.Replicas) + h.MoreReplicas }
