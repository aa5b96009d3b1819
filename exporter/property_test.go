package exporter

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// FuzzPages checks on random nodes that all series are valid and unique, and that Prometheus can parse the text. The
// usage of containers and the unattributed usage sum up to the device's.
func FuzzPages(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		gen := fixtureGenerator{rand.New(rand.NewPCG(seed, 4))}
		d, o := gen.node(), gen.options()
		p := newRenderer(new(d.sources()), &o, newAttribution(d.metrics))
		for range 3 {
			collected := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return p.render(gen.snapshot(d)), nil })
			families, err := prometheus.Gatherers{collected}.Gather() // checks labels, and that series are unique
			if err != nil {
				t.Fatal(err)
			}
			assertParses(t, families, o.SeriesLimit+maxNodeSeries)
			assertSums(t, d, p, families)
			gen.change(d)
		}
	})
}

// assertParses checks that Prometheus can parse the text.
func assertParses(t *testing.T, families []*dto.MetricFamily, limit int) {
	t.Helper()
	var text bytes.Buffer
	series := 0
	for _, f := range families {
		series += len(f.Metric)
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	if series > limit {
		t.Errorf("got %d series, want at most %d", series, limit)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(bytes.NewReader(text.Bytes())); err != nil {
		t.Fatalf("got error %v in\n%s", err, text.Bytes())
	}
}

// assertSums checks that the memory of containers and the unattributed memory sum up to the device's memory in use. MIG devices of one GPU
// instance have one sum.
func assertSums(t *testing.T, d *scrapeFixture, p *renderer, families []*dto.MetricFamily) {
	t.Helper()
	s := p.snapshot
	if p.seriesDropped > 0 || d.processesHidden || !p.options.Filter.Matches("nvidia_gpu_container_memory_used_bytes") {
		return
	}
	of := func(family string, d device.Status) (sum float64) {
		migUUID := string(d.ID)
		if d.WholeGPU() {
			migUUID = ""
		}
		for _, f := range families {
			for _, m := range f.Metric {
				labels := map[string]string{}
				for _, l := range m.Label {
					labels[l.GetName()] = l.GetValue()
				}
				if f.GetName() == family && labels["mig_uuid"] == migUUID && labels["uuid"] == string(d.GPU) {
					sum += m.Gauge.GetValue()
				}
			}
		}
		return sum
	}
	for i, status := range s.Statuses {
		used, has := memoryUsedBy(d, status.ID)
		if d.uses[status.GPU] == nil { // processes are not reported
			continue
		}
		if state, _ := s.Allocations.State(status.ID); !has || status.MIGEnabled || state == device.AllocationUnknown {
			continue
		}
		sum, all := 0.0, true
		for j, other := range s.Statuses {
			if i == j || sameGPUInstance(status, other) {
				state, _ := s.Allocations.State(other.ID)
				all = all && state != device.AllocationUnknown
				sum += of("nvidia_gpu_container_memory_used_bytes", other)
			}
		}
		sum += of("nvidia_gpu_unattributed_memory_used_bytes", status)
		if all && sum != used {
			t.Errorf("device %s: got a sum of %.0f, want %.0f\n%v", status.ID, sum, used, families)
		}
	}
}

// memoryUsedBy returns the device's memory in use.
func memoryUsedBy(d *scrapeFixture, id device.ID) (float64, bool) {
	i := slices.IndexFunc(d.extraSamples, func(s device.Sample) bool { return s.Device == id && s.Metric == memoryRow })
	if i < 0 {
		return 0, false
	}
	return d.extraSamples[i].Value, true
}

// fixtureGenerator generates random nodes.
type fixtureGenerator struct{ *rand.Rand }

// hostileTexts are names and values with special characters.
var hostileTexts = []string{"", "a", "a", "b", "c", `"`, "\n", `\`, "\xff", "\xfe", "é", "{", "}", ",", "a_conflict2", "a-b", "a.b", "a_b", "a_b_conflict2", "a_b_conflict3", strings.Repeat("x", 300)}

func (g fixtureGenerator) text() string { return hostileTexts[g.IntN(len(hostileTexts))] }
func (g fixtureGenerator) coin() bool   { return g.IntN(2) == 0 }
func (g fixtureGenerator) owner() device.Owner {
	return device.Owner{Namespace: "n", Pod: fmt.Sprint("p", g.IntN(3)), Container: fmt.Sprint("c", g.IntN(2))}
}

func (g fixtureGenerator) options() Options {
	o := Options{StableSeries: g.coin(), PodUID: g.coin(), DCGM: g.coin(), Hostname: g.text(), SeriesLimit: DefaultSeriesLimit}
	if g.IntN(4) == 0 {
		o.SeriesLimit = 1 + g.IntN(60)
	}
	if g.IntN(4) == 0 {
		o.Filter, _ = NewFamilyFilter("none", []string{"nvidia_gpu_*info", "*_watts", "podgauge_*", "DCGM_*_COUNTER"}, []string{"podgauge_series"})
	}
	return o
}

func (g fixtureGenerator) node() *scrapeFixture {
	d := dcgmFixture(1 + g.IntN(3))
	d.statuses, d.uses, d.processOwners = nil, map[device.GPU][]device.ProcessUsage{}, map[uint32]device.Owner{}
	for i, status := range dcgmFixture(3).statuses {
		gpu := status
		gpu.Model, gpu.MIGDeviceIndex, gpu.GI, gpu.CI = g.text(), -1, -1, -1
		gpu.MIGEnabled = g.coin()
		gpu.Xids = []device.Xid{{Code: 31, Count: 1, Last: time.Unix(1, 0)}, {Code: 79, Count: 1, Last: time.Unix(2, 0)}}
		d.statuses = append(d.statuses, gpu)
		for n := range g.IntN(5) {
			if !gpu.MIGEnabled {
				break
			}
			migDevice := gpu
			migDevice.MIGEnabled, migDevice.ID, migDevice.Xids = false, device.ID(fmt.Sprintf("MIG-%d-%d", i, n)), nil
			migDevice.MIGDeviceIndex, migDevice.GI, migDevice.CI, migDevice.Profile = n, g.IntN(3), g.IntN(2), "1g.10gb"
			migDevice.Healthy = g.coin()
			if migDevice.Gone = g.IntN(4) == 0; migDevice.Gone {
				migDevice.Healthy, migDevice.Reason = false, "gone"
			}
			d.statuses = append(d.statuses, migDevice)
		}
	}
	g.change(d)
	return d
}

// change changes the values of a node that may change between collections.
func (g fixtureGenerator) change(d *scrapeFixture) {
	d.watts, d.processesHidden = g.Float64(), g.IntN(4) == 0
	d.allocations = device.Allocations{Complete: g.IntN(4) > 0, At: time.Unix(100, 0), Resources: g.resources()}
	d.extraSamples = nil
	clear(d.uses)
	for pid := range uint32(20) {
		d.processOwners[pid] = g.owner()
	}
	for i, s := range d.statuses {
		for range g.IntN(4) {
			allocation := device.Allocation{Resource: []string{"nvidia.com/gpu", "nvidia.com/gpu.shared", "gpu.nvidia.com"}[g.IntN(3)], DeviceID: s.ID.Replica(g.IntN(3)), Owner: g.owner()}
			if g.coin() {
				allocation.DeviceID = s.ID.Advertised()
			}
			if g.IntN(5) == 0 {
				allocation.Owner = device.Owner{}
			}
			d.allocations.All = append(d.allocations.All, allocation)
		}
		for range g.IntN(3) {
			d.allocations.Recent = append(d.allocations.Recent, device.AllocationRecord{Device: s.ID, Owner: g.owner(), LastSeen: time.Unix(9, 0)})
		}
		g.useDevice(d, i)
	}
	slices.SortFunc(d.allocations.All, device.CompareAllocations)
	d.allocations.All = slices.Compact(d.allocations.All)
	d.allocations.Recent = uniqueBy(d.allocations.Recent, func(s device.AllocationRecord) string { return fmt.Sprint(s.Device, s.Owner) })
	var all []*pods.Pod
	for _, name := range []string{"p0", "p1", "p2"} {
		meta := &pods.Pod{Namespace: "n", Name: name, UID: g.text()}
		for range g.IntN(8) {
			meta.Labels = append(meta.Labels, device.Label{Name: g.text(), Value: g.text()})
		}
		meta.Labels = uniqueBy(meta.Labels, func(l device.Label) string { return l.Name })
		slices.SortFunc(meta.Labels, func(a, b device.Label) int { return strings.Compare(a.Name, b.Name) })
		all = append(all, meta)
	}
	d.node.Pods.Set(pods.NewPods(all...))
}

// useDevice adds processes to a device, within its memory. MIG devices of one GPU instance share the memory of the first.
func (g fixtureGenerator) useDevice(d *scrapeFixture, i int) {
	s := d.statuses[i]
	if s.Gone {
		return
	}
	used := 0.0
	for range g.IntN(5) {
		u := device.ProcessUsage{Device: s.ID, PID: uint32(g.IntN(20)), MemoryBytes: float64(g.IntN(1000)), SM: -1, MemoryController: 0.5, Encoder: -1, Decoder: -1}
		if g.IntN(5) == 0 {
			u.MemoryBytes = -1
		}
		d.uses[s.GPU] = append(d.uses[s.GPU], u)
		used += max(0, u.MemoryBytes)
	}
	for _, other := range d.statuses[:i] {
		if at := slices.IndexFunc(d.extraSamples, func(s device.Sample) bool { return s.Device == other.ID && s.Metric == memoryRow }); at >= 0 &&
			sameGPUInstance(s, other) {
			d.extraSamples[at].Value += used
			return
		}
	}
	d.extraSamples = append(d.extraSamples, device.Sample{Device: s.ID, Metric: memoryRow, Value: used + float64(g.IntN(100))})
}

// resources returns resources as podresources publishes them, without duplicates.
func (g fixtureGenerator) resources() (r device.NodeResources) {
	r.AllocatableKnown = g.coin()
	nodes := func() []int { return [][]int{nil, {0}, {1}, {0, 1}}[g.IntN(4)] }
	var cpus []int64
	randomDevice := func(owner device.Owner) device.ResourceDevice {
		return device.ResourceDevice{Owner: owner, Resource: "r/" + strings.ToValidUTF8(g.text(), "?"), ID: strings.ToValidUTF8(g.text(), "?"), NUMANodes: nodes()}
	}
	for range g.IntN(10) {
		r.Allocatable.Devices = append(r.Allocatable.Devices, randomDevice(device.Owner{}))
		r.Allocated.Devices = append(r.Allocated.Devices, randomDevice(g.owner()))
		cpus = append(cpus, int64(len(cpus)))
		r.Allocated.CPUs = append(r.Allocated.CPUs, device.ExclusiveCPUs{Owner: g.owner(), CPUs: []int64{int64(g.IntN(10))}})
		r.Allocatable.Memory = append(r.Allocatable.Memory, device.ReservedMemory{Type: g.text(), Bytes: 1, NUMANodes: nodes()})
		reserved := r.Allocatable.Memory[0]
		reserved.Owner = g.owner()
		r.Allocated.Memory = append(r.Allocated.Memory, reserved)
		r.Allocated.Claims = append(r.Allocated.Claims, device.Claim{Owner: g.owner(), ClaimName: "c", Driver: "gpu.nvidia.com", Pool: "p", Device: "gpu-0", ShareID: []string{"", "s"}[g.IntN(2)]})
	}
	if len(cpus) > 0 {
		r.Allocatable.CPUs = []device.ExclusiveCPUs{{CPUs: cpus}}
	}
	r.Allocated.CPUs = append(r.Allocated.CPUs, device.ExclusiveCPUs{Owner: device.Owner{Namespace: "n", Pod: "p0"}, CPUs: []int64{9}}) // of the whole pod
	r.Allocatable.Devices = uniqueBy(r.Allocatable.Devices, func(d device.ResourceDevice) string { return d.Resource + d.ID })
	r.Allocated.Devices = uniqueBy(r.Allocated.Devices, func(d device.ResourceDevice) string { return fmt.Sprint(d.Owner) + d.Resource + d.ID })
	r.Allocated.CPUs = uniqueBy(r.Allocated.CPUs, func(c device.ExclusiveCPUs) string { return fmt.Sprint(c.Owner) })
	r.Allocatable.Memory = uniqueBy(r.Allocatable.Memory, func(g device.ReservedMemory) string { return fmt.Sprint(strings.ToValidUTF8(g.Type, "?"), g.NUMANodes) })
	r.Allocated.Memory = uniqueBy(r.Allocated.Memory, func(g device.ReservedMemory) string { return fmt.Sprint(g.Owner, g.Type, g.NUMANodes) })
	r.Allocated.Claims = uniqueBy(r.Allocated.Claims, func(c device.Claim) string { return fmt.Sprint(c) })
	return r
}

// uniqueBy returns the first row of each key.
func uniqueBy[T any](rows []T, key func(T) string) (kept []T) {
	seen := map[string]bool{}
	for _, row := range rows {
		if k := key(row); !seen[k] {
			seen[k] = true
			kept = append(kept, row)
		}
	}
	return kept
}

func (g fixtureGenerator) snapshot(d *scrapeFixture) *nodeSnapshot {
	begin := time.Unix(100, 0)
	var gpus []device.GPU
	for gpu := range byGPU(d.statuses) {
		gpus = append(gpus, gpu[0].GPU)
	}
	s := &nodeSnapshot{
		begin: begin, end: begin.Add(time.Second), readings: d.readings(gpus),
		stalled: func(device.GPU) bool { return false },
	}
	s.Statuses, s.Allocations, s.Driver = d.statuses, d.allocations, device.Driver{State: device.DriverUp}
	return s
}
