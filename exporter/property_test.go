package exporter

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// FuzzPages: whatever is true of a node, a page is one that Prometheus takes as a whole.
// No two series are one, no label stands twice, and what the containers use of a device
// and what is nobody's are together what the device says.
func FuzzPages(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		m := made{rand.New(rand.NewPCG(seed, 4))}
		d, o := m.node(), m.options()
		p, l := newPage(new(d.sources()), &o), newLedger(d.metrics)
		for range 3 { // what is kept from one rendering is used in the next
			s := m.snapshot(d)
			p.render(s, l)
			wantOneOfEach(t, p)
			wantParsed(t, p)
			wantSums(t, d, s, p)
			m.change(d)
		}
	})
}

// wantOneOfEach checks that no two lines are of one series. Labels are ordered by name, so
// that a series has one line.
func wantOneOfEach(t *testing.T, p *page) {
	t.Helper()
	seen := map[string]bool{}
	for _, f := range p.families {
		for _, s := range f.series {
			line := f.name + string(s.labels)
			if seen[line] {
				t.Errorf("twice: %s", line)
			}
			seen[line] = true
		}
	}
	if len(seen) > p.options.SeriesLimit+nodeFamilies {
		t.Errorf("%d series with a limit of %d", len(seen), p.options.SeriesLimit)
	}
}

// wantParsed reads the page with the library's parser, and has the library write what it
// has read: names, label names, escapes and types are as it knows them.
func wantParsed(t *testing.T, p *page) {
	t.Helper()
	text := written(t, p, false)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(bytes.NewReader(text)); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	families, err := p.gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []expfmt.FormatType{expfmt.TypeTextPlain, expfmt.TypeOpenMetrics} {
		var want bytes.Buffer
		encoder := expfmt.NewEncoder(&want, expfmt.NewFormat(of))
		for _, family := range families {
			if err := encoder.Encode(family); err != nil {
				t.Fatal(err)
			}
		}
		if got := written(t, p, of == expfmt.TypeOpenMetrics); !bytes.Equal(got, want.Bytes()) {
			t.Fatalf("got\n%s\nwant\n%s", got, want.Bytes())
		}
	}
}

// written is the page as text.
func written(t *testing.T, p *page, openMetrics bool) []byte {
	t.Helper()
	var text bytes.Buffer
	w := bufio.NewWriter(&text)
	p.write(w, openMetrics)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

// wantSums checks that what containers use and what nobody does add up, where a device's
// processes use no more than it says. Slices of one GPU instance are one sum.
func wantSums(t *testing.T, d *node, s snapshot, p *page) {
	t.Helper()
	if p.dropped > 0 || !s.visible || !p.options.Choice.Takes("nvidia_gpu_container_memory_used_bytes") {
		return
	}
	of := func(family string, d device.Status) (sum float64) {
		slice := string(d.ID)
		if d.WholeGPU() {
			slice = ""
		}
		for _, f := range p.families {
			for _, s := range f.series {
				if f.name == family && bytes.Contains(s.labels, fmt.Appendf(nil, `mig_uuid=%q,`, slice)) && bytes.Contains(s.labels, fmt.Appendf(nil, `uuid=%q}`, d.GPU)) {
					sum += s.value
				}
			}
		}
		return sum
	}
	for i, status := range s.statuses {
		used, has := usedOf(d, status.ID)
		if d.uses[status.GPU] == nil { // the driver names no processes
			continue
		}
		if hold, _ := s.holders.Of(status.ID); !has || status.MIG || hold == device.Unknown {
			continue
		}
		sum, all := 0.0, true
		for j, other := range s.statuses {
			if i == j || shareInstance(status, other) {
				hold, _ := s.holders.Of(other.ID)
				all = all && hold != device.Unknown
				sum += of("nvidia_gpu_container_memory_used_bytes", other)
			}
		}
		sum += of("nvidia_gpu_unattributed_memory_used_bytes", status)
		if all && sum != used {
			t.Errorf("device %s uses %.0f, and its parts are %.0f\n%s", status.ID, used, sum, written(t, p, false))
		}
	}
}

// usedOf is what a device says that it uses.
func usedOf(d *node, id device.ID) (float64, bool) {
	i := slices.IndexFunc(d.more, func(s device.Sample) bool { return s.Device == id && s.Metric == memoryRow })
	if i < 0 {
		return 0, false
	}
	return d.more[i].Value, true
}

// made makes up what a node may be like.
type made struct{ *rand.Rand }

// hostile are texts that nobody should have sent.
var hostile = []string{"", "a", "a", "b", "c", `"`, "\n", `\`, "\xff", "\xfe", "é", "{", "}", ",", "a_conflict2", "a-b", "a.b", "a_b", "a_b_conflict2", "a_b_conflict3", strings.Repeat("x", 300)}

func (m made) text() string { return hostile[m.IntN(len(hostile))] }
func (m made) yes() bool    { return m.IntN(2) == 0 }
func (m made) owner() device.Owner {
	return device.Owner{Namespace: "n", Pod: fmt.Sprint("p", m.IntN(3)), Container: fmt.Sprint("c", m.IntN(2))}
}

func (m made) options() Options {
	o := Options{StableSeries: m.yes(), PodUID: m.yes(), DCGM: m.yes(), Hostname: m.text(), SeriesLimit: DefaultSeriesLimit}
	if m.IntN(4) == 0 {
		o.SeriesLimit = 1 + m.IntN(60)
	}
	if m.IntN(4) == 0 {
		o.Choice, _ = NewChoice([]string{"nvidia_gpu_*info", "*_watts", "podgauge_*", "DCGM_*_COUNTER"}, []string{"podgauge_series"})
	}
	return o
}

func (m made) node() *node {
	d := dcgmNode(1 + m.IntN(3))
	d.statuses, d.pods, d.uses, d.runsIn = nil, map[string]device.PodMeta{}, map[device.GPU][]device.Use{}, map[uint32]device.Owner{}
	for i, status := range dcgmNode(3).statuses {
		gpu := status
		gpu.Model, gpu.Slice, gpu.GI, gpu.CI = m.text(), -1, -1, -1
		gpu.MIG = m.yes()
		gpu.Xids = []device.Xid{{Code: 31, Count: 1, Last: time.Unix(1, 0)}, {Code: 79, Count: 1, Last: time.Unix(2, 0)}}
		d.statuses = append(d.statuses, gpu)
		for n := range m.IntN(5) {
			if !gpu.MIG {
				break
			}
			slice := gpu
			slice.MIG, slice.ID, slice.Xids = false, device.ID(fmt.Sprintf("MIG-%d-%d", i, n)), nil
			slice.Slice, slice.GI, slice.CI, slice.Profile = n, m.IntN(3), m.IntN(2), "1g.10gb"
			slice.Healthy = m.yes()
			if slice.Gone = m.IntN(4) == 0; slice.Gone {
				slice.Healthy, slice.Reason = false, "gone"
			}
			d.statuses = append(d.statuses, slice)
		}
	}
	m.change(d)
	return d
}

// change makes up what changes from flight to flight.
func (m made) change(d *node) {
	d.watts, d.hidden = m.Float64(), m.IntN(4) == 0
	d.holders = device.Holders{Settled: m.IntN(4) > 0, At: time.Unix(100, 0), Resources: m.resources()}
	d.more = nil
	clear(d.uses)
	for pid := range uint32(20) {
		d.runsIn[pid] = m.owner()
	}
	for i, s := range d.statuses {
		for range m.IntN(4) {
			row := device.Holding{Resource: []string{"nvidia.com/gpu", "nvidia.com/gpu.shared", "gpu.nvidia.com"}[m.IntN(3)], Offered: s.ID.Replica(m.IntN(3)), Owner: m.owner()}
			if m.yes() {
				row.Offered = s.ID.Offered()
			}
			if m.IntN(5) == 0 {
				row.Owner = device.Owner{}
			}
			d.holders.Held = append(d.holders.Held, row)
		}
		for range m.IntN(3) {
			d.holders.Recent = append(d.holders.Recent, device.Seen{Device: s.ID, Owner: m.owner(), Last: time.Unix(9, 0)})
		}
		m.use(d, i)
	}
	slices.SortFunc(d.holders.Held, device.CompareHoldings)
	d.holders.Held = slices.Compact(d.holders.Held)
	d.holders.Recent = once(d.holders.Recent, func(s device.Seen) string { return fmt.Sprint(s.Device, s.Owner) })
	for _, pod := range []string{"n/p0", "n/p1", "n/p2"} {
		meta := device.PodMeta{UID: m.text()}
		for range m.IntN(8) {
			meta.Labels = append(meta.Labels, device.Label{Name: m.text(), Value: m.text()})
		}
		meta.Labels = once(meta.Labels, func(l device.Label) string { return l.Name })
		slices.SortFunc(meta.Labels, func(a, b device.Label) int { return strings.Compare(a.Name, b.Name) })
		d.pods[pod] = meta
	}
}

// use has processes use a device, no more of its memory than there is, which for slices of
// one instance is read of the first.
func (m made) use(d *node, i int) {
	s := d.statuses[i]
	if s.Gone {
		return
	}
	used := 0.0
	for range m.IntN(5) {
		u := device.Use{Device: s.ID, PID: uint32(m.IntN(20)), MemoryBytes: float64(m.IntN(1000)), SM: -1, MemoryController: 0.5, Encoder: -1, Decoder: -1}
		if m.IntN(5) == 0 {
			u.MemoryBytes = -1
		}
		d.uses[s.GPU] = append(d.uses[s.GPU], u)
		used += max(0, u.MemoryBytes)
	}
	for _, other := range d.statuses[:i] {
		if at := slices.IndexFunc(d.more, func(s device.Sample) bool { return s.Device == other.ID && s.Metric == memoryRow }); at >= 0 &&
			shareInstance(s, other) {
			d.more[at].Value += used
			return
		}
	}
	d.more = append(d.more, device.Sample{Device: s.ID, Metric: memoryRow, Value: used + float64(m.IntN(100))})
}

// resources are made up as podresources publishes them: each thing once.
func (m made) resources() (r device.Resources) {
	r.Known = m.yes()
	nodes := func() []int { return [][]int{nil, {0}, {1}, {0, 1}}[m.IntN(4)] }
	thing := func() device.ResourceDevice {
		return device.ResourceDevice{Resource: "r/" + strings.ToValidUTF8(m.text(), "?"), ID: strings.ToValidUTF8(m.text(), "?"), NUMANodes: nodes()}
	}
	for range m.IntN(10) {
		r.Devices = append(r.Devices, thing())
		r.HeldDevices = append(r.HeldDevices, device.HeldDevice{Owner: m.owner(), ResourceDevice: thing()})
		r.CPUs = append(r.CPUs, int64(len(r.CPUs)))
		r.HeldCPUs = append(r.HeldCPUs, device.HeldCPUs{Owner: m.owner(), CPUs: []int64{int64(m.IntN(10))}})
		r.Memory = append(r.Memory, device.Memory{Type: m.text(), Bytes: 1, NUMANodes: nodes()})
		r.HeldMemory = append(r.HeldMemory, device.HeldMemory{Owner: m.owner(), Memory: r.Memory[0]})
		r.Claims = append(r.Claims, device.Claim{Owner: m.owner(), ClaimName: "c", Driver: "gpu.nvidia.com", Pool: "p", Device: "gpu-0", Share: []string{"", "s"}[m.IntN(2)]})
	}
	r.HeldCPUs = append(r.HeldCPUs, device.HeldCPUs{Owner: device.Owner{Namespace: "n", Pod: "p0"}, CPUs: []int64{9}}) // the pod's as a whole
	r.Devices = once(r.Devices, func(d device.ResourceDevice) string { return d.Resource + d.ID })
	r.HeldDevices = once(r.HeldDevices, func(d device.HeldDevice) string { return fmt.Sprint(d.Owner) + d.Resource + d.ID })
	r.HeldCPUs = once(r.HeldCPUs, func(c device.HeldCPUs) string { return fmt.Sprint(c.Owner) })
	r.Memory = once(r.Memory, func(m device.Memory) string { return fmt.Sprint(strings.ToValidUTF8(m.Type, "?"), m.NUMANodes) })
	r.HeldMemory = once(r.HeldMemory, func(m device.HeldMemory) string { return fmt.Sprint(m.Owner, m.Type, m.NUMANodes) })
	r.Claims = once(r.Claims, func(c device.Claim) string { return fmt.Sprint(c) })
	return r
}

// once has the first of those that have the same key.
func once[T any](rows []T, key func(T) string) (kept []T) {
	seen := map[string]bool{}
	for _, row := range rows {
		if k := key(row); !seen[k] {
			seen[k] = true
			kept = append(kept, row)
		}
	}
	return kept
}

func (m made) snapshot(d *node) snapshot {
	begin := time.Unix(100, 0)
	return snapshot{
		begin: begin, end: begin.Add(time.Second), statuses: d.statuses, holders: d.holders, driver: d.driver,
		readings: d.readings(gpus(d.statuses)), stalled: func(device.GPU) bool { return false }, visible: !d.hidden,
	}
}
