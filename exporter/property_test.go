package exporter_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// FuzzPages checks on random nodes that Prometheus can parse the text of a scrape, and that all series are valid and
// unique. The memory used by containers and the unattributed memory sum up to the device's.
func FuzzPages(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		gen := fixtureGenerator{rand.New(rand.NewPCG(seed, 4))}
		d, o := gen.node(), gen.options()
		e := exporter.New(d.sources(), o)
		h := e.Handler(handlerOptions())
		for range 3 {
			assertSums(t, d, o, parse(t, scrape(t, h), o.SeriesLimit+nodeSeries))
			gen.change(d)
		}
		e.Drain()
	})
}

// nodeSeries is above the number of series without a limit.
const nodeSeries = 16

// parse returns the families of a scrape as Prometheus parses it.
func parse(t *testing.T, text string, limit int) []*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("got error %v in\n%s", err, text)
	}
	parsedFamilies := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		return slices.Collect(maps.Values(parsed)), nil
	})
	families, err := prometheus.Gatherers{parsedFamilies}.Gather() // checks labels, and that series are unique
	require.NoError(t, err)
	series := 0
	for _, f := range families {
		series += len(f.Metric)
	}
	if series > limit {
		t.Errorf("got %d series, want at most %d", series, limit)
	}
	return families
}

// assertSums checks that the memory of containers and the unattributed memory sum up to the memory in use of a GPU's devices.
func assertSums(t *testing.T, d *scrapeFixture, o exporter.Options, families []*dto.MetricFamily) {
	t.Helper()
	if o.SeriesLimit < exporter.DefaultSeriesLimit || d.processesHidden || !o.Filter.Matches("nvidia_gpu_container_memory_used_bytes") {
		return
	}
	sums := map[string]map[string]float64{} // by family and GPU
	for _, f := range families {
		gpus := map[string]float64{}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == "uuid" {
					gpus[l.GetValue()] += m.Gauge.GetValue()
				}
			}
		}
		sums[f.GetName()] = gpus
	}
	for gpu := range d.uses {
		known := func(s device.Status) bool {
			state, _ := d.allocations.State(s.ID)
			return s.GPU != gpu || s.MIGEnabled || s.Gone || state != allocation.Unknown
		}
		sum := sums["nvidia_gpu_container_memory_used_bytes"][string(gpu)] + sums["nvidia_gpu_unattributed_memory_used_bytes"][string(gpu)]
		used := sums["nvidia_gpu_memory_used_bytes"][string(gpu)]
		if !slices.ContainsFunc(d.statuses, func(s device.Status) bool { return !known(s) }) && sum != used {
			t.Errorf("%s: got a sum of %.0f, want %.0f\n%v", gpu, sum, used, families)
		}
	}
}

// fixtureGenerator generates random nodes.
type fixtureGenerator struct{ *rand.Rand }

// hostileTexts are names and values with special characters.
var hostileTexts = []string{"", "a", "a", "b", "c", `"`, "\n", `\`, "\xff", "\xfe", "é", "{", "}", ",", "a_conflict2", "a-b", "a.b", "a_b", "a_b_conflict2", "a_b_conflict3", strings.Repeat("x", 300)}

func (g fixtureGenerator) text() string { return hostileTexts[g.IntN(len(hostileTexts))] }
func (g fixtureGenerator) coin() bool   { return g.IntN(2) == 0 }
func (g fixtureGenerator) owner() allocation.Owner {
	return allocation.Owner{Namespace: "n", Pod: fmt.Sprint("p", g.IntN(3)), Container: fmt.Sprint("c", g.IntN(2))}
}

func (g fixtureGenerator) options() exporter.Options {
	o := exporter.Options{StableSeries: g.coin(), PodUID: g.coin(), DCGM: g.dcgm(), Hostname: g.text(), SeriesLimit: exporter.DefaultSeriesLimit}
	if g.IntN(4) == 0 {
		o.SeriesLimit = 1 + g.IntN(60)
	}
	if g.IntN(4) == 0 {
		o.Filter, _ = exporter.NewFamilyFilter("none", []string{"nvidia_gpu_*info", "*_watts", "podgauge_*", "DCGM_*_COUNTER"}, []string{"podgauge_series"})
	}
	return o
}

// dcgm returns no families of dcgm-exporter, default ones, or those of a counters file.
func (g fixtureGenerator) dcgm() dcgm.Counters {
	generations := [][]dcgm.Generation{nil, {dcgm.V48}, {dcgm.V49}, {dcgm.V48, dcgm.V49}}[g.IntN(4)]
	if g.coin() {
		return dcgm.Defaults(generations...)
	}
	var file strings.Builder
	for range g.IntN(40) {
		f, types := dcgm.Fields()[g.IntN(len(dcgm.Fields()))], []string{"gauge", "counter", "label"}
		fmt.Fprintf(&file, "%s,%s,Help.\n", f.Names[g.IntN(2)].Name, types[g.IntN(3)])
	}
	return dcgm.Parse("file", file.String(), generations...)
}

func (g fixtureGenerator) node() *scrapeFixture {
	d := newScrapeFixture(1 + g.IntN(3))
	d.statuses, d.uses, d.processOwners = nil, map[device.GPU][]device.ProcessUsage{}, map[uint32]allocation.Owner{}
	for i, status := range newScrapeFixture(3).statuses {
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
	d.node.Devices.Set(d.statuses)
	g.change(d)
	return d
}

// change changes the values of a node that may change between collections.
func (g fixtureGenerator) change(d *scrapeFixture) {
	d.watts, d.processesHidden = g.Float64(), g.IntN(4) == 0
	d.allocations = allocation.Snapshot{Complete: g.IntN(4) > 0, At: time.Unix(100, 0)}
	d.extraSamples = nil
	clear(d.uses)
	for pid := range uint32(20) {
		d.processOwners[pid] = g.owner()
	}
	for i, s := range d.statuses {
		for range g.IntN(4) {
			row := allocation.Allocation{Resource: []string{"nvidia.com/gpu", "nvidia.com/gpu.shared", "gpu.nvidia.com"}[g.IntN(3)], DeviceID: s.ID.Replica(g.IntN(3)), Owner: g.owner()}
			if g.coin() {
				row.DeviceID = s.ID.Advertised()
			}
			if g.IntN(5) == 0 {
				row.Owner = allocation.Owner{}
			}
			d.allocations.All = append(d.allocations.All, row)
		}
		for range g.IntN(3) {
			d.allocations.Recent = append(d.allocations.Recent, allocation.Record{Device: s.ID, Owner: g.owner(), LastSeen: time.Unix(9, 0)})
		}
		g.useDevice(d, i)
	}
	slices.SortFunc(d.allocations.All, allocation.Compare)
	d.allocations.All = slices.Compact(d.allocations.All)
	d.allocations.Recent = uniqueBy(d.allocations.Recent, func(s allocation.Record) string { return fmt.Sprint(s.Device, s.Owner) })
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
	d.setAllocations(d.allocations)
}

// useDevice adds processes to a device, within its memory. MIG devices of one GPU instance share the memory of the first.
func (g fixtureGenerator) useDevice(d *scrapeFixture, i int) {
	s := d.statuses[i]
	if s.Gone || s.MIGEnabled {
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
			!s.WholeGPU() && s.GPU == other.GPU && s.GI == other.GI {
			d.extraSamples[at].Value += used
			return
		}
	}
	d.extraSamples = append(d.extraSamples, device.Sample{Device: s.ID, Metric: memoryRow, Value: used + float64(g.IntN(100))})
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
