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
	maxOwners   = 16
	maxReplicas = 64
)

// deviceCard is a GPU, or a slice of one.
type deviceCard struct {
	ID                 device.ID
	Anchor             string
	Name               string // "GPU 3", "GPU 3, slice 1"
	ShortName          string // "3", "1"
	Model, Profile     string
	Healthy            bool
	Health             string // as the JSON has it
	Gone, Partitioned  bool
	Reason, Action     string
	HealthNote         string // of Health, where that does not say enough
	Since              displayTime
	Flaps              uint64
	Stalled, NoReading bool
	Bars               []usageBar
	Readings           []nameValue // that were read
	Details            []nameValue // that stay
	Allocation         deviceAllocation
	MIGDevices         []*deviceCard
	Partition          *partitionMap
}

func (c *deviceCard) alertRow() alertRow {
	if c.Gone { // which is the reason, too
		return alertRow{Anchor: c.Anchor, Name: c.Name, Health: "gone"}
	}
	return alertRow{c.Anchor, c.Name, c.Health, c.Reason, c.Action}
}

// deviceAllocation is who holds a device.
type deviceAllocation struct {
	Known, Allocated  bool
	Text              string // where nobody is named
	Owners            []ownerRow
	MoreOwners        int // holders that are not shown
	Sharing           string
	Replicas          []replicaBox
	AllocatedReplicas int
	Complete          bool // what is held by nobody who is named is free
	MoreReplicas      int
}

// ownerRow is a container.
type ownerRow struct {
	Namespace, Pod, Container string
	Replicas                  string // "replica 1", "replicas 0, 2"
	Since                     displayTime
}

// replicaBox is one of those as which a device is offered.
type replicaBox struct {
	Number    string
	Allocated bool
}

// gpuCards are the devices, with each GPU's slices in it.
func (b *viewBuilder) gpuCards() (gpus []*deviceCard) {
	for i := range b.node.Devices {
		d := &b.node.Devices[i]
		card := b.deviceCard(d)
		if string(d.ID) == string(d.GPU) || len(gpus) == 0 {
			gpus = append(gpus, card)
			continue
		}
		gpu := gpus[len(gpus)-1]
		gpu.MIGDevices = append(gpu.MIGDevices, card)
	}
	for _, g := range gpus {
		if g.Partitioned {
			g.Partition = b.partitionMap(g)
		}
	}
	return gpus
}

func (b *viewBuilder) deviceCard(d *api.DeviceJSON) *deviceCard {
	card := &deviceCard{
		ID: d.ID, ShortName: strconv.Itoa(d.Index), Name: "GPU " + strconv.Itoa(d.Index), Model: sanitize(d.Model), Profile: sanitize(d.Profile),
		Healthy: d.Healthy, Health: d.Health, Gone: d.Gone, Partitioned: d.MIG,
		Reason: sanitize(d.Reason), Action: formatAction(d.Action), Since: formatSince(b.now, d.Since), Flaps: d.Flaps, Allocation: b.allocation(d),
	}
	card.Anchor = "gpu-" + card.ShortName
	if string(d.ID) != string(d.GPU) {
		card.ShortName = "?"
		if d.MIGDeviceIndex != nil {
			card.ShortName = strconv.Itoa(*d.MIGDeviceIndex)
		}
		card.Name += ", slice " + card.ShortName
		card.Anchor += "-" + card.ShortName
	}
	if b.anchors[card.Anchor]++; b.anchors[card.Anchor] > 1 { // one that is gone, and another in its place
		card.Anchor += "." + strconv.Itoa(b.anchors[card.Anchor])
	}
	if card.HealthNote = healthNotes[card.Health]; card.Gone {
		card.HealthNote = "No listing of the driver has it any more."
	}
	card.Details = details(d)
	b.addReadings(card, d)
	return card
}

var healthNotes = map[string]string{
	"suspect":   "Something was reported: it is checked, and used as before meanwhile.",
	"recovering": "Nothing is wrong any more, and not yet for long enough.",
}

// details is what a device is known by.
func details(d *api.DeviceJSON) []nameValue {
	details := []nameValue{{"UUID", sanitize(string(d.ID))}}
	if string(d.ID) != string(d.GPU) {
		if d.GI != nil && d.CI != nil {
			details = append(details, nameValue{"GPU instance", strconv.Itoa(*d.GI)}, nameValue{"Compute instance", strconv.Itoa(*d.CI)})
		}
		return details
	}
	if d.PCI != "" {
		details = append(details, nameValue{"PCI address", sanitize(d.PCI)})
	}
	if d.NUMANode != nil {
		details = append(details, nameValue{"NUMA node", strconv.Itoa(*d.NUMANode)})
	}
	for _, f := range []nameValue{{"Serial", d.InfoLabels["serial"]}, {"VBIOS", d.InfoLabels["vbios_version"]}} {
		if f.Value != "" {
			details = append(details, nameValue{f.Name, sanitize(f.Value)})
		}
	}
	return details
}

// addReadings draws what was read of a device.
func (b *viewBuilder) addReadings(card *deviceCard, d *api.DeviceJSON) {
	r := b.readings.forDevice(d.ID)
	gpu := string(d.ID) == string(d.GPU)
	card.Stalled = gpu && b.Stalled(d.GPU)
	card.NoReading = gpu && r.Device == "" && !d.Gone
	addBar := func(kind, name string, ratio float64, text string) {
		ratio = max(0, min(ratio, 1))
		card.Bars = append(card.Bars, usageBar{Name: name, Device: card.Name, Kind: kind, Percent: formatPercent(ratio), Text: text})
	}
	ratio, known := r.get(Utilization)
	if !known {
		ratio, known = r.get(EngineActive)
	}
	if known {
		addBar("use", "Utilisation", ratio, formatPercent(ratio)+" %")
	}
	used, usedOK := r.get(MemoryUsed)
	total, totalOK := r.get(MemoryTotal)
	if usedOK && totalOK && total > 0 {
		addBar("memory", "Memory", used/total, formatMemory(used, total))
	}
	if w, ok := r.get(Power); ok {
		text := formatWatts(w)
		if limit, ok := r.get(PowerLimit); ok {
			text += " of " + formatWatts(limit)
		}
		card.Readings = append(card.Readings, nameValue{"Power", text})
	}
	if t, ok := r.get(Temperature); ok {
		card.Readings = append(card.Readings, nameValue{"Temperature", fmt.Sprintf("%.0f °C", t)})
	}
}

var allocationTexts = map[string]string{
	"idle": "free", "unnamed": "allocated, to a container that the kubelet does not name", "unknown": "nobody can say yet who holds it",
	"partitioned": "held by its slices",
}

func (b *viewBuilder) allocation(d *api.DeviceJSON) deviceAllocation {
	a := deviceAllocation{Known: d.AllocationState != "unknown", Allocated: d.AllocationState == "held" || d.AllocationState == "shared" || d.AllocationState == "unnamed"}
	for i := range d.Owners[:min(len(d.Owners), maxOwners)] {
		owner := &d.Owners[i]
		a.Owners = append(a.Owners, ownerRow{sanitize(owner.Namespace), sanitize(owner.Pod), sanitize(owner.Container), formatReplicas(owner), formatSince(b.now, owner.FirstSeen)})
	}
	a.MoreOwners = len(d.Owners) - len(a.Owners)
	if len(a.Owners) == 0 {
		a.Text = allocationTexts[d.AllocationState]
	}
	b.addReplicas(&a, d)
	return a
}

// replicaNumber is a replica's; false where the whole device is meant.
func replicaNumber(id device.AdvertisedID) (string, bool) {
	_, n, ok := strings.Cut(string(id), "::")
	return sanitize(n), ok
}

// compareNumbers orders replicas.
func compareNumbers(a, b string) int {
	m, _ := strconv.Atoi(a)
	n, _ := strconv.Atoi(b)
	return cmp.Or(cmp.Compare(m, n), cmp.Compare(a, b))
}

func formatReplicas(owner *api.OwnerJSON) string {
	var numbers []string
	for _, resource := range owner.Resources {
		if n, ok := replicaNumber(resource.ID); ok {
			numbers = append(numbers, n)
		}
	}
	switch slices.SortFunc(numbers, compareNumbers); len(numbers) {
	case 0:
		return ""
	case 1:
		return "replica " + numbers[0]
	default:
		return "replicas " + strings.Join(numbers, ", ")
	}
}

// addReplicas are those that are offered of a device, and those that are held, though they
// may be offered no more.
func (b *viewBuilder) addReplicas(a *deviceAllocation, d *api.DeviceJSON) {
	allocated := map[string]bool{} // by number: whether somebody has it
	for _, row := range b.allocations.ForDevice(d.ID) {
		if n, ok := replicaNumber(row.DeviceID); ok {
			allocated[n] = true
		}
	}
	numbers := make([]string, 0, len(allocated))
	for n := range allocated {
		numbers = append(numbers, n)
	}
	for _, resource := range b.pluginResources {
		for _, id := range resource.IDs {
			if n, ok := replicaNumber(id); ok && id.Device() == d.ID {
				a.Sharing = resource.Sharing
				if !allocated[n] {
					numbers = append(numbers, n)
				}
			}
		}
	}
	slices.SortFunc(numbers, compareNumbers)
	for _, n := range numbers[:min(len(numbers), maxReplicas)] {
		a.Replicas = append(a.Replicas, replicaBox{n, allocated[n]})
	}
	a.Complete, a.AllocatedReplicas, a.MoreReplicas = b.allocations.Complete, len(allocated), len(numbers)-len(a.Replicas)
}

// TotalReplicas is how many replicas there are.
func (a deviceAllocation) TotalReplicas() int { return len(a.Replicas) + a.MoreReplicas }
