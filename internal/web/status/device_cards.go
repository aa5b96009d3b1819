package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
)

// Limits per device. The page shows the number of owners left out; the JSON has all.
const (
	maxOwners   = 16
	maxReplicas = 64
)

// deviceCard is a GPU or a MIG device.
type deviceCard struct {
	ID                 device.ID
	Anchor             string
	Name               string // "GPU 3", "GPU 3, MIG device 1"
	ShortName          string // "3", "1"
	Model, Profile     string
	Healthy            bool
	Health             string // as in the JSON
	Gone, Partitioned  bool
	Reason, Action     string
	HealthNote         string // explains Health
	Since              displayTime
	Flaps              uint64
	Stalled, NoReading bool
	Bars               []usageBar
	Readings           []nameValue
	Details            []nameValue
	Allocation         deviceAllocation
	MIGDevices         []*deviceCard
	Partition          *partitionMap
}

// usageBar is a bar of Percent length, with the same value as text.
type usageBar struct{ Name, Device, Kind, Percent, Text string }

// alertRow is a device that is not healthy, with a link to the device below.
type alertRow struct{ Anchor, Name, Health, Reason, Action string }

func (c *deviceCard) alertRow() alertRow {
	if c.Gone {
		return alertRow{Anchor: c.Anchor, Name: c.Name, Health: "gone"}
	}
	return alertRow{c.Anchor, c.Name, c.Health, c.Reason, c.Action}
}

// deviceAllocation is the allocation of a device.
type deviceAllocation struct {
	Known, Allocated                bool
	Text                            string // without owners
	Owners                          []ownerRow
	MoreOwners                      int // not shown
	Sharing                         string
	Replicas                        []replicaBox
	AllocatedReplicas, MoreReplicas int
	Complete                        bool // replicas without an owner are unallocated
}

// ownerRow is a container.
type ownerRow struct {
	Namespace, Pod, Container string
	Replicas                  string // "replica 1", "replicas 0, 2"
	Since                     displayTime
}

type replicaBox struct {
	Number    string
	Allocated bool
}

// gpuCards returns the GPUs with their MIG devices.
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
		card.Name += ", MIG device " + card.ShortName
		card.Anchor += "-" + card.ShortName
	}
	if b.anchors[card.Anchor]++; b.anchors[card.Anchor] > 1 { // a replacement has the index of a removed GPU
		card.Anchor += "." + strconv.Itoa(b.anchors[card.Anchor])
	}
	if card.HealthNote = healthNotes[card.Health]; card.Gone {
		card.HealthNote = "No longer listed by the driver."
	}
	card.Details = details(d)
	b.addReadings(card, d)
	return card
}

var healthNotes = map[string]string{
	"suspect":    "A fault was reported. Checks are running; the device stays allocatable.",
	"recovering": "The fault is gone. The device is healthy after more passed checks.",
}

func details(d *api.DeviceJSON) []nameValue {
	details := []nameValue{{"UUID", sanitize(string(d.ID))}}
	if string(d.ID) != string(d.GPU) {
		if d.GI != nil && d.CI != nil {
			details = append(details, nameValue{"GPU instance", strconv.Itoa(*d.GI)}, nameValue{"Compute instance", strconv.Itoa(*d.CI)})
		}
		return details
	}
	details = addKnown(details, nameValue{"PCI address", d.PCI})
	if d.NUMANode != nil {
		details = append(details, nameValue{"NUMA node", strconv.Itoa(*d.NUMANode)})
	}
	return addKnown(details, nameValue{"Serial", d.InfoLabels["serial"]}, nameValue{"VBIOS", d.InfoLabels["vbios_version"]})
}

// addReadings adds the bars and values of a reading.
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
		addBar("use", "Utilization", ratio, formatPercent(ratio)+" %")
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
	"idle": "unallocated", "unnamed": "allocated to a container that the kubelet does not name", "unknown": "allocation not known yet",
	"partitioned": "allocatable as MIG devices",
}

func (b *viewBuilder) allocation(d *api.DeviceJSON) deviceAllocation {
	a := deviceAllocation{Known: d.AllocationState != "unknown", Allocated: slices.Contains([]string{"held", "shared", "unnamed"}, d.AllocationState)}
	for i := range d.Owners[:min(len(d.Owners), maxOwners)] {
		owner := &d.Owners[i]
		a.Owners = append(a.Owners, ownerRow{
			sanitize(owner.Namespace), sanitize(owner.Pod), sanitize(owner.Container), formatReplicas(owner), formatSince(b.now, owner.FirstSeen),
		})
	}
	a.MoreOwners = len(d.Owners) - len(a.Owners)
	if len(a.Owners) == 0 {
		a.Text = allocationTexts[d.AllocationState]
	}
	b.addReplicas(&a, d)
	return a
}

// replicaNumber returns the number of a replica; false for a device.
func replicaNumber(id device.AdvertisedID) (string, bool) {
	_, n, ok := strings.Cut(string(id), "::")
	return sanitize(n), ok
}

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

// addReplicas adds listed replicas, and allocated ones no longer listed.
func (b *viewBuilder) addReplicas(a *deviceAllocation, d *api.DeviceJSON) {
	allocated := map[string]bool{} // by number
	for _, row := range b.allocations.ForDevice(d.ID) {
		if n, ok := replicaNumber(row.DeviceID); ok {
			allocated[n] = true
		}
	}
	numbers := slices.Collect(maps.Keys(allocated))
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

// TotalReplicas returns the number of replicas, shown or not.
func (a deviceAllocation) TotalReplicas() int { return len(a.Replicas) + a.MoreReplicas }

// partitionMap shows the GPU instances of a GPU in its memory.
type partitionMap struct {
	MemorySlices int
	Instances    []instanceBlock
}

// instanceBlock is a GPU instance with its compute instances. Start and Size are in memory slices; -1 and 1 if unknown.
type instanceBlock struct {
	Start, Size int
	MIGDevices  []*deviceCard
}

// CSSClass returns the place as classes of the style.
func (i instanceBlock) CSSClass() string {
	if i.Start < 0 {
		return "span-" + strconv.Itoa(i.Size)
	}
	return "at-" + strconv.Itoa(i.Start) + " span-" + strconv.Itoa(i.Size)
}

// maxMemorySlices is the number of memory slices of a GPU; the A30 has half.
const maxMemorySlices = 8

func (b *viewBuilder) partitionMap(gpu *deviceCard) *partitionMap {
	p := &partitionMap{MemorySlices: maxMemorySlices}
	gpuBytes, last := b.statusOf(gpu.ID).MemoryBytes, device.Status{}
	for _, card := range gpu.MIGDevices {
		s := b.statusOf(card.ID)
		placement := s.Placement
		if placement.Size < 1 || placement.Start < 0 || placement.Start+placement.Size > maxMemorySlices {
			placement = device.Placement{Start: -1, Size: 1}
		} else if sliceBytes := s.MemoryBytes / uint64(placement.Size); sliceBytes > 0 && gpuBytes > 0 && gpuBytes/sliceBytes <= maxMemorySlices/2 {
			p.MemorySlices = maxMemorySlices / 2
		}
		if n := len(p.Instances); n > 0 && s.GI >= 0 && s.GI == last.GI && !s.Gone && !last.Gone {
			p.Instances[n-1].MIGDevices = append(p.Instances[n-1].MIGDevices, card)
		} else {
			p.Instances = append(p.Instances, instanceBlock{placement.Start, placement.Size, []*deviceCard{card}})
		}
		last = s
	}
	return p
}
