package exporter_test

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/sysfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scrapeFixture is a node: it implements the exporter's sources with values of a test.
type scrapeFixture struct {
	mu                   sync.Mutex
	node                 node.State
	allocations          allocation.Snapshot // at the kubelet
	watts                float64
	joules               map[device.ID]float64
	joulesPerMillisecond float64 // power of each GPU since started
	started              time.Time
	readCalls, listCalls int
	readErr              map[device.GPU]error
	stalled              map[device.GPU]bool
	metrics              []device.Metric
	statuses             []device.Status
	extraSamples         []device.Sample // of any device
	uses                 map[device.GPU][]device.ProcessUsage
	processOwners        map[uint32]allocation.Owner // by PID, for processes in containers
	processesHidden      bool                        // Visible returns false
	sysfs                fs.FS                       // nil: not read
	onOwner              func()
	onList               func(ctx context.Context)
	onRead               func(ctx context.Context, readings []health.Reading)
	onReadOne            func(r *health.Reading)
}

const (
	powerRow = iota
	energyRow
	replayRow
	smClockRow
	memClockRow
	memoryRow
	widthRow
	bytesRow
)

var testMetrics = []device.Metric{
	powerRow:    {Name: "nvidia_gpu_power_watts", Help: "Power."},
	energyRow:   {Name: "nvidia_gpu_energy_joules_total", Help: "Energy.", Kind: device.OwnerCounter},
	replayRow:   {Name: "nvidia_gpu_pcie_replays_total", Help: "Replays.", Kind: device.FaultCounter},
	smClockRow:  {Name: "nvidia_gpu_clock_hertz", Help: "Clock.", Labels: []device.Label{{Name: "clock", Value: "sm"}}},
	memClockRow: {Name: "nvidia_gpu_clock_hertz", Help: "Clock.", Labels: []device.Label{{Name: "clock", Value: "memory"}}},
	memoryRow:   {Name: "nvidia_gpu_memory_used_bytes", Help: "Memory."},
	widthRow:    {Name: "nvidia_gpu_pcie_link_width", Help: "Lanes.", Kind: device.StateGauge},
	bytesRow:    {Name: "nvidia_gpu_pcie_transmit_bytes_total", Help: "Bytes.", Kind: device.OwnerCounter},
}

// newScrapeFixture returns a node of n idle GPUs.
func newScrapeFixture(n int) *scrapeFixture {
	d := &scrapeFixture{
		joules: map[device.ID]float64{}, started: time.Now(), metrics: testMetrics,
		readErr: map[device.GPU]error{}, stalled: map[device.GPU]bool{},
	}
	for i := range n {
		id := device.ID(fmt.Sprintf("GPU-%d", i))
		d.statuses = append(d.statuses, device.Status{
			Device: device.Device{
				ID: id, GPU: device.GPU(id), Index: i, Minor: i, Model: "NVIDIA H100", PCI: "0000:1a:00.0",
				InfoLabels: []device.Label{{Name: "driver_version", Value: "580.95.05"}},
			},
			Healthy: true,
		})
	}
	d.node.Driver.Set(device.Driver{State: device.DriverUp})
	d.node.Devices.Set(d.statuses)
	d.allocate()
	return d
}

// publish publishes changed statuses. A published slice is immutable.
func (d *scrapeFixture) publish(change func(statuses []device.Status)) {
	d.statuses = slices.Clone(d.statuses)
	change(d.statuses)
	d.node.Devices.Set(d.statuses)
}

// partition splits GPU-0 into MIG devices, each with a GPU instance.
func (d *scrapeFixture) partition(profiles ...string) {
	gpu := d.statuses[0]
	gpu.MIGEnabled = true
	d.statuses = []device.Status{gpu}
	for i, profile := range profiles {
		migDevice := gpu
		migDevice.MIGEnabled, migDevice.ID = false, device.ID(fmt.Sprintf("MIG-%d", i))
		migDevice.MIGDeviceIndex, migDevice.GI, migDevice.CI, migDevice.Profile = i, 7+i, i, profile
		d.statuses = append(d.statuses, migDevice)
	}
	d.node.Devices.Set(d.statuses)
}

// allocate sets the allocations from rows of "id=namespace/pod/container", or "id=" without a name. An id with "dra:" is that of a claim.
func (d *scrapeFixture) allocate(rows ...string) {
	a := allocation.Snapshot{At: time.Now(), Complete: true}
	for _, row := range rows {
		id, owner, _ := strings.Cut(row, "=")
		row := allocation.Allocation{Resource: "nvidia.com/gpu", DeviceID: device.AdvertisedID(id)}
		if claimed, ok := strings.CutPrefix(id, "dra:"); ok {
			row.Resource, row.DeviceID, row.Claim = "gpu.nvidia.com", device.AdvertisedID(claimed), owner
		}
		if owner != "" {
			row.Owner = ownerOf(owner)
			record := allocation.Record{Device: row.DeviceID.Device(), Owner: row.Owner, LastSeen: a.At}
			a.Recent = append(a.Recent, record)
		}
		a.All = append(a.All, row)
	}
	d.setAllocations(a)
}

// advertise sets the ids of device plugins, from rows of "id" or "resource=id".
func (d *scrapeFixture) advertise(ids ...string) {
	a := d.allocations
	a.Resources.AllocatableKnown, a.Resources.Allocatable.Devices = true, nil
	for _, row := range ids {
		resource, id, ok := strings.Cut(row, "=")
		if !ok {
			resource, id = "nvidia.com/gpu", row
		}
		a.Resources.Allocatable.Devices = append(a.Resources.Allocatable.Devices, allocation.ResourceDevice{Resource: resource, ID: id})
	}
	d.setAllocations(a)
}

func (d *scrapeFixture) setAllocations(a allocation.Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.allocations = a
	d.node.Allocations.Set(a)
}

// ownerOf returns the owner "namespace/pod/container".
func ownerOf(text string) allocation.Owner {
	parts := strings.Split(text, "/")
	return allocation.Owner{Namespace: parts[0], Pod: parts[1], Container: parts[2]}
}

func (d *scrapeFixture) sources() exporter.Sources {
	s := exporter.Sources{
		Metrics: d.metrics, State: &d.node, Readers: d, Processes: d, ListAllocations: d.listAllocations,
	}
	if d.sysfs != nil {
		s.Sysfs = sysfs.New(sysfs.Options{Root: d.sysfs, RDMA: true, CPU: true, Log: slog.New(slog.DiscardHandler)})
	}
	return s
}

func (d *scrapeFixture) Stalled(g device.GPU) bool { return d.stalled[g] }

func (d *scrapeFixture) Visible() bool { return !d.processesHidden }

func (d *scrapeFixture) Sweep() {}

func (d *scrapeFixture) Owner(pid uint32, owners []allocation.Owner) (allocation.Owner, bool) {
	if d.onOwner != nil {
		d.onOwner()
	}
	owner, ok := d.processOwners[pid]
	return owner, ok && slices.Contains(owners, owner)
}

func (d *scrapeFixture) listAllocations(ctx context.Context) allocation.Snapshot {
	if d.onList != nil {
		d.onList(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listCalls++
	return d.allocations
}

func (d *scrapeFixture) Read(ctx context.Context, gpus []device.GPU, _ bool) []health.Reading {
	d.mu.Lock()
	d.readCalls++
	d.mu.Unlock()
	var readings []health.Reading
	for _, gpu := range gpus {
		readings = append(readings, d.reading(gpu))
	}
	if d.onRead != nil {
		d.onRead(ctx, readings)
	}
	return readings
}

func (d *scrapeFixture) ReadOne(_ context.Context, gpu device.GPU) health.Reading {
	r := d.reading(gpu)
	if d.onReadOne != nil {
		d.onReadOne(&r)
	}
	return r
}

func (d *scrapeFixture) reading(gpu device.GPU) health.Reading {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := device.ID(gpu)
	uses, known := d.uses[gpu]
	energy := d.joules[id] + d.joulesPerMillisecond*float64(time.Since(d.started).Milliseconds())
	samples := []device.Sample{
		{Device: id, Metric: powerRow, Value: d.watts},
		{Device: id, Metric: energyRow, Value: energy},
		{Device: id, Metric: replayRow, Value: 7},
		{Device: id, Metric: smClockRow, Value: 1980e6},
		{Device: id, Metric: memClockRow, Value: 2619e6},
	}
	return health.Reading{
		GPU: gpu, Err: d.readErr[gpu], ProcessUsage: uses, ProcessUsageKnown: known,
		Samples: append(samples, d.extraSamples...),
	}
}

func (d *scrapeFixture) addEnergy(id device.ID, joules float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.joules[id] += joules
}

func noFailures() map[string]error { return nil }

func handlerOptions() exporter.HandlerOptions {
	return exporter.HandlerOptions{
		TelemetryPath: "/metrics", Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		Alive: noFailures, Ready: noFailures,
	}
}

// handler returns a handler of a new exporter.
func (d *scrapeFixture) handler(o exporter.Options) http.Handler {
	return exporter.New(d.sources(), o).Handler(handlerOptions())
}

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func scrape(t *testing.T, h http.Handler, header ...string) string {
	t.Helper()
	w := get(h, "/metrics", header...)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// assertSeries checks that the text has series, and lacks those after "!".
func assertSeries(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		short, absent := strings.CutPrefix(want, "!")
		line := "\n" + expand(short)
		if !absent {
			line += "\n"
		}
		if strings.Contains("\n"+text, line) == absent {
			t.Errorf("%s: want absent %v: %s in\n%s", want, absent, line, text)
		}
	}
}

func assertAbsent(t *testing.T, text, unwanted string) {
	t.Helper()
	if strings.Contains(text, unwanted) {
		t.Errorf("unexpected %q in\n%s", unwanted, text)
	}
}

// expand returns the series "family device owner [value] [label=value …]", in which the family lacks nvidia_gpu_, "-" is
// no owner, and MIG devices are those of GPU-0. Any other text is a series already.
func expand(short string) string {
	fields := strings.Fields(short)
	if len(fields) < 3 || !strings.HasPrefix(fields[1], "GPU-") && !strings.HasPrefix(fields[1], "MIG-") {
		return short
	}
	owner, gpu, mig := allocation.Owner{}, fields[1], ""
	if fields[2] != "-" {
		owner = ownerOf(fields[2])
	}
	if strings.HasPrefix(gpu, "MIG-") {
		gpu, mig = "GPU-0", fields[1]
	}
	labels := []string{
		fmt.Sprintf(`container="%s"`, owner.Container), `gpu="` + strings.TrimPrefix(gpu, "GPU-") + `"`,
		`mig_uuid="` + mig + `"`, `namespace="` + owner.Namespace + `"`, `pod="` + owner.Pod + `"`, `uuid="` + gpu + `"`,
	}
	value := ""
	for _, field := range fields[3:] {
		if name, v, ok := strings.Cut(field, "="); ok {
			labels = append(labels, name+`="`+v+`"`)
		} else {
			value = " " + field
		}
	}
	slices.Sort(labels)
	return "nvidia_gpu_" + fields[0] + "{" + strings.Join(labels, ",") + "}" + value
}
