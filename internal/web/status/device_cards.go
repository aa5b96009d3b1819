package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/fault"
	"github.com/podgauge/podgauge/internal/web/api"
)

// Limits per device. The page shows the number of owners left out; the JSON has all.
const (
	maxOwners   = 16
	maxReplicas = 128
	wideRows    = 16 // owners of replicas above which a device takes the whole width
)

// deviceCard is a GPU or a MIG device.
type deviceCard struct {
	*api.DeviceJSON
	Anchor             string
	Name               string // "GPU 3", "GPU 3, MIG device 1"
	ShortName          string // "3", "1"
	Model              string // empty if all GPUs have the same
	Action             string // in words
	ShownHealth        string // or "gone"
	HealthNote         string // explains ShownHealth
	Since              displayTime
	HasFaultOfGPU      bool       // a MIG device: the fault is shown at the GPU
	FaultyMIGDevices   int        // with HasFaultOfGPU
	LastFault          *lastFault // of a device that is not healthy
	Stalled, NoReading bool
	Bars               []usageBar
	Readings           []nameValue
	Replicas           replicaList
	MIGDevices         []*deviceCard
	Partition          *partitionMap
}

// usageBar is a bar of Percent length, with the same value as text, and the last half hour. Without a limit Percent is empty.
type usageBar struct {
	Name, Device, Kind, Percent, Text string
	Past                              sparkline
}

// replicaList has the replicas of a shared device.
type replicaList struct {
	Sharing          string
	First            []replicaBox // at most maxReplicas
	Allocated, Total int
	Complete         bool // replicas without an owner are unallocated
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
		if !d.IsMIGDevice() || len(gpus) == 0 {
			gpus = append(gpus, card)
			continue
		}
		gpu := gpus[len(gpus)-1]
		gpu.MIGDevices = append(gpu.MIGDevices, card)
	}
	for _, g := range gpus {
		if g.MIG {
			g.Partition = newPartitionMap(g)
		}
		for _, m := range g.MIGDevices {
			if m.HasFaultOfGPU = m.Health == g.Health && m.Reason == g.Reason && m.Health != device.Healthy.String(); m.HasFaultOfGPU {
				g.FaultyMIGDevices++
			}
		}
	}
	return gpus
}

// urgency orders devices by health: the worst first. A partitioned GPU is as urgent as the worst of its MIG devices.
func (c *deviceCard) urgency() int {
	urgency := slices.Index(filterStates, c.Health)
	for _, m := range c.MIGDevices {
		urgency = min(urgency, m.urgency())
	}
	return urgency
}

// sortByUrgency sorts GPUs, and the MIG devices of each.
func sortByUrgency(cards []*deviceCard) {
	slices.SortStableFunc(cards, func(a, b *deviceCard) int { return cmp.Compare(a.urgency(), b.urgency()) })
	for _, c := range cards {
		sortByUrgency(c.MIGDevices)
	}
}

var healthNotes = map[string]string{
	"suspect":    "A fault was reported. Checks are running; the device remains allocatable.",
	"recovering": "The fault is gone. The device becomes healthy after further checks pass.",
	"gone":       "No longer listed by the driver.",
}

func (b *viewBuilder) deviceCard(d *api.DeviceJSON) *deviceCard {
	index := strconv.Itoa(d.Index)
	card := &deviceCard{
		DeviceJSON: d, ShortName: index, Name: "GPU " + index, Anchor: "gpu-" + index, Model: d.Model, ShownHealth: d.Health,
		Action: fault.Action(d.Action), Since: formatTime(b.now, d.Since, since), Replicas: b.replicas(d),
	}
	if d.IsMIGDevice() {
		card.ShortName = d.MIGNumber()
		card.Name += ", MIG device " + card.ShortName
		card.Anchor += "-" + card.ShortName
	}
	if b.anchors[card.Anchor]++; b.anchors[card.Anchor] > 1 { // a replacement has the index of a removed GPU
		card.Anchor += "." + strconv.Itoa(b.anchors[card.Anchor])
	}
	if d.Gone {
		card.ShownHealth = "gone"
	}
	card.HealthNote = cmp.Or(d.Note, healthNotes[card.ShownHealth])
	if d.Health != device.Healthy.String() {
		card.LastFault = b.lastFault(d)
	}
	b.addReadings(card)
	return card
}

// addReadings adds the bars and values of a reading.
func (b *viewBuilder) addReadings(card *deviceCard) {
	r, isRead := b.readings.Devices[card.ID]
	card.Stalled = !card.IsMIGDevice() && b.Stalled(card.GPU)
	card.NoReading = !card.IsMIGDevice() && !isRead && !card.Gone
	past := b.readings.History.points(card.ID, b.now)
	for measure, bar := range [...]usageBar{useMeasure: {Name: "Utilization", Kind: "use"}, memoryMeasure: {Name: "Memory", Kind: "memory"}, powerMeasure: {Name: "Power", Kind: "power"}} {
		ratio, hasRatio := r.ratio(measure)
		power, hasPower := r[Power]
		switch {
		case measure == powerMeasure && hasPower:
			bar.Text = formatWatts(power)
			if hasRatio {
				bar.Text += " of " + formatWatts(r[PowerLimit])
			}
		case hasRatio && measure == memoryMeasure:
			bar.Text = fmt.Sprintf("%.1f of %.1f GiB", r[MemoryUsed]/gib, r[MemoryTotal]/gib)
		case hasRatio:
			bar.Text = formatPercent(ratio) + " %"
		case past[measure] == slotPoints{}:
			continue
		default:
			bar.Text = "–"
		}
		if hasRatio {
			bar.Percent = formatPercent(max(0, min(ratio, 1)))
		}
		bar.Device, bar.Past = card.Name, newSparkline(&past[measure])
		card.Bars = append(card.Bars, bar)
	}
	if t, ok := r[Temperature]; ok {
		card.Readings = append(card.Readings, nameValue{"Temperature", fmt.Sprintf("%.0f °C", t)})
	}
}

var allocationTexts = map[string]string{
	"unallocated": "unallocated", "unallocatable": "cannot be allocated", "unnamed": "allocated to a container that the kubelet does not name", "unknown": "allocation not known yet",
	"partitioned": "allocatable as MIG devices",
}

// known reports whether it is known if the device is allocated.
func (c *deviceCard) known() bool { return c.AllocationState != "unknown" }

// isUnallocated reports whether the device can be allocated and is not.
func (c *deviceCard) isUnallocated() bool { return c.Healthy && c.AllocationState == "unallocated" }

// allocationText describes the allocation of a device without an owner.
func (c *deviceCard) allocationText() string {
	if c.AllocationState == "unallocated" && !c.Healthy {
		return allocationTexts["unallocatable"]
	}
	return allocationTexts[c.AllocationState]
}

// hasOwnFault reports whether the page explains the health at this device: once for each fault.
func (c *deviceCard) hasOwnFault() bool {
	return !c.HasFaultOfGPU && (c.Reason != "" || c.HealthNote != "" || c.LastFault != nil)
}

// isWide reports whether the device needs the whole width.
func (c *deviceCard) isWide() bool { return c.Replicas.Total > 0 && len(c.Owners) > wideRows }

// replicaNumber returns the number of a replica; false for a device.
func replicaNumber(id device.AdvertisedID) (string, bool) {
	_, n, ok := strings.Cut(string(id), "::")
	return n, ok
}

func compareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
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

// replicas returns listed replicas, and allocated ones no longer listed.
func (b *viewBuilder) replicas(d *api.DeviceJSON) replicaList {
	list := replicaList{Complete: b.allocations.Complete}
	replicas := map[string]bool{} // whether allocated, by number
	for _, resource := range b.pluginResources {
		for _, id := range resource.IDs {
			if n, ok := replicaNumber(id); ok && id.Device() == d.ID {
				list.Sharing = resource.Sharing
				replicas[n] = false
			}
		}
	}
	for _, row := range b.allocations.ForDevice(d.ID) {
		if n, ok := replicaNumber(row.DeviceID); ok {
			replicas[n] = true
		}
	}
	for _, n := range slices.SortedFunc(maps.Keys(replicas), compareNumbers) {
		if replicas[n] {
			list.Allocated++
		}
		if len(list.First) < maxReplicas {
			list.First = append(list.First, replicaBox{n, replicas[n]})
		}
	}
	list.Total = len(replicas)
	return list
}

// boxClass returns the class of a replica in the style.
func (c *deviceCard) boxClass(r replicaBox) string {
	switch {
	case r.Allocated:
		return "replica allocated"
	case !c.Healthy:
		return "replica unallocatable"
	case !c.Replicas.Complete:
		return "replica unknown"
	}
	return "replica"
}

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

func newPartitionMap(gpu *deviceCard) *partitionMap {
	p := &partitionMap{MemorySlices: maxMemorySlices}
	var last *deviceCard
	for _, card := range gpu.MIGDevices {
		placement := card.Placement
		if placement.Size < 1 || placement.Start < 0 || placement.Start+placement.Size > maxMemorySlices {
			placement = device.Placement{Start: -1, Size: 1}
		} else if sliceBytes := card.MemoryBytes / uint64(placement.Size); sliceBytes > 0 && gpu.MemoryBytes > 0 && gpu.MemoryBytes/sliceBytes <= maxMemorySlices/2 {
			p.MemorySlices = maxMemorySlices / 2
		}
		if n := len(p.Instances); n > 0 && card.GI != nil && last.GI != nil && *card.GI == *last.GI && !card.Gone && !last.Gone {
			p.Instances[n-1].MIGDevices = append(p.Instances[n-1].MIGDevices, card)
		} else {
			p.Instances = append(p.Instances, instanceBlock{placement.Start, placement.Size, []*deviceCard{card}})
		}
		last = card
	}
	return p
}
