package exporter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scrapeFixture implements Sources with values of a test.
type scrapeFixture struct {
	mu                   sync.Mutex
	node                 node.State
	allocations          device.Allocations // at the kubelet
	watts                float64
	joules               map[device.ID]float64
	joulesPerMillisecond float64 // power of each GPU since started
	started              time.Time
	readCalls            int
	listCalls            int
	hang                 chan struct{} // reads block until it is closed
	readErr              map[device.GPU]error
	stalled              map[device.GPU]bool
	metrics              []device.Metric
	statuses             []device.Status
	extraSamples         []device.Sample // of any device
	uses                 map[device.GPU][]device.ProcessUsage
	processOwners        map[uint32]device.Owner // by PID, for processes in containers
	processesHidden      bool                    // Visible returns false
	onList               func(ctx context.Context)
	onRead               func(ctx context.Context, readings []device.Reading)
	onReadOne            func(gpu device.GPU)
}

const (
	powerRow = iota
	energyRow
	replayRow
	smClockRow
	memClockRow
	memoryRow
	widthRow
)

var testMetrics = []device.Metric{
	powerRow:    {Name: "nvidia_gpu_power_watts", Help: "Power."},
	energyRow:   {Name: "nvidia_gpu_energy_joules_total", Help: "Energy.", Kind: device.OwnerCounter},
	replayRow:   {Name: "nvidia_gpu_pcie_replays_total", Help: "Replays.", Kind: device.FaultCounter},
	smClockRow:  {Name: "nvidia_gpu_clock_hertz", Help: "Clock.", Labels: []device.Label{{Name: "clock", Value: "sm"}}},
	memClockRow: {Name: "nvidia_gpu_clock_hertz", Help: "Clock.", Labels: []device.Label{{Name: "clock", Value: "memory"}}},
	memoryRow:   {Name: "nvidia_gpu_memory_used_bytes", Help: "Memory."},
	widthRow:    {Name: "nvidia_gpu_pcie_link_width", Help: "Lanes.", Kind: device.StateGauge},
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
			Device:  device.Device{ID: id, GPU: device.GPU(id), Index: i, Minor: i, Model: "NVIDIA H100", PCI: "0000:1a:00.0", NUMANode: 0},
			Healthy: true,
		})
	}
	d.node.Driver.Set(device.Driver{State: device.DriverUp})
	d.node.Devices.Set(d.statuses)
	d.allocate()
	return d
}

func noFailures() map[string]error { return nil }

// onAllocated is an Allocate of devices, which record publishes.
func onAllocated(e *Exporter, record func(), devices ...device.ID) {
	defer e.BeginAllocate(devices...)()
	record()
}

// expireCollection makes the next scrape start a new collection.
func (d *scrapeFixture) expireCollection() { time.Sleep(maxCollectionAge) }

// publish publishes a change of the first GPU's status.
func (d *scrapeFixture) publish(change func(*device.Status)) {
	d.statuses = slices.Clone(d.statuses) // a published slice is immutable
	change(&d.statuses[0])
	d.node.Devices.Set(d.statuses)
}

// allocate sets the allocations from rows of "id=namespace/pod/container", or "id=" without a name.
func (d *scrapeFixture) allocate(rows ...string) {
	h := device.Allocations{At: time.Now(), Complete: true}
	for _, row := range rows {
		id, owner, _ := strings.Cut(row, "=")
		allocation := device.Allocation{Resource: "nvidia.com/gpu", DeviceID: device.AdvertisedID(id)}
		if owner != "" {
			parts := strings.Split(owner, "/")
			allocation.Owner = device.Owner{Namespace: parts[0], Pod: parts[1], Container: parts[2]}
			h.Recent = append(h.Recent, device.AllocationRecord{Device: allocation.DeviceID.Device(), Owner: allocation.Owner, LastSeen: h.At})
		}
		h.All = append(h.All, allocation)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.allocations = h
	d.node.Allocations.Set(h)
}

func (d *scrapeFixture) sources() Sources {
	return Sources{
		Metrics: d.metrics, State: &d.node, Readers: d, Processes: d, ListAllocations: d.listAllocations,
	}
}

func (d *scrapeFixture) Stalled(g device.GPU) bool { return d.stalled[g] }

func (d *scrapeFixture) Visible() bool { return !d.processesHidden }

func (d *scrapeFixture) Sweep() {}

func (d *scrapeFixture) Owner(pid uint32, owners []device.Owner) (device.Owner, bool) {
	owner, ok := d.processOwners[pid]
	return owner, ok && slices.Contains(owners, owner)
}

func (d *scrapeFixture) listAllocations(ctx context.Context) device.Allocations {
	if d.onList != nil {
		d.onList(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listCalls++
	return d.allocations
}

func (d *scrapeFixture) Read(ctx context.Context, gpus []device.GPU, _ bool) []device.Reading {
	d.mu.Lock()
	d.readCalls++
	hang := d.hang
	d.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil
		}
	}
	readings := d.readings(gpus)
	if d.onRead != nil {
		d.onRead(ctx, readings)
	}
	return readings
}

func (d *scrapeFixture) ReadOne(_ context.Context, gpu device.GPU) device.Reading {
	if d.onReadOne != nil {
		d.onReadOne(gpu)
	}
	return d.readings([]device.GPU{gpu})[0]
}

func (d *scrapeFixture) readings(gpus []device.GPU) []device.Reading {
	d.mu.Lock()
	defer d.mu.Unlock()
	readings := []device.Reading{}
	for _, g := range gpus {
		id := device.ID(g)
		uses, known := d.uses[g]
		readings = append(readings, device.Reading{GPU: g, Err: d.readErr[g], ProcessUsage: uses, ProcessUsageKnown: known, Samples: append([]device.Sample{
			{Device: id, Metric: powerRow, Value: d.watts},
			{Device: id, Metric: energyRow, Value: d.joules[id] + d.joulesPerMillisecond*float64(time.Since(d.started).Milliseconds())},
			{Device: id, Metric: replayRow, Value: 7},
			{Device: id, Metric: smClockRow, Value: 1980e6},
			{Device: id, Metric: memClockRow, Value: 2619e6},
		}, d.extraSamples...)})
	}
	return readings
}

func (d *scrapeFixture) addEnergy(id device.ID, joules float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.joules[id] += joules
}

// newHandler returns the exporter's handler with an empty registry.
func newHandler(e *Exporter) http.Handler {
	return e.Handler(HandlerOptions{
		TelemetryPath: "/metrics", Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		Alive: noFailures, Ready: noFailures,
	})
}

func scrape(t *testing.T, h http.Handler, header ...string) string {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	body, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// assertSeries checks that the text has a series: name, labels and value.
func assertSeries(t *testing.T, text, series string) {
	t.Helper()
	if !strings.Contains("\n"+text, "\n"+series+"\n") {
		t.Errorf("missing series %s in\n%s", series, text)
	}
}

func assertAbsent(t *testing.T, text, unwanted string) {
	t.Helper()
	if strings.Contains(text, unwanted) {
		t.Errorf("unexpected %q in\n%s", unwanted, text)
	}
}

func seriesLabels(uuid, gpu, namespace, pod, container string) string {
	return fmt.Sprintf(`{container="%s",gpu="%s",mig_uuid="",namespace="%s",pod="%s",uuid="%s"}`, container, gpu, namespace, pod, uuid)
}

func TestScrapeHasOwnerLabels(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		d.watts = 300
		d.allocate("GPU-0=team/train/main")
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		assertSeries(t, text, "nvidia_gpu_power_watts"+seriesLabels("GPU-0", "0", "team", "train", "main")+" 300")
		assertSeries(t, text, "nvidia_gpu_power_watts"+seriesLabels("GPU-1", "1", "", "", "")+" 300")
		assertSeries(t, text, "nvidia_gpu_healthy"+seriesLabels("GPU-0", "0", "team", "train", "main")+" 1")
		assertSeries(t, text, "nvidia_gpu_allocated"+seriesLabels("GPU-0", "0", "team", "train", "main")+" 1")
		assertSeries(t, text, "nvidia_gpu_allocated"+seriesLabels("GPU-1", "1", "", "", "")+" 0")
		assertSeries(t, text, "nvidia_gpu_pcie_replays_total"+seriesLabels("GPU-0", "0", "", "", "")+" 7")
		assertSeries(t, text, `nvidia_gpu_clock_hertz{clock="sm",container="main",gpu="0",mig_uuid="",namespace="team",pod="train",uuid="GPU-0"} 1.98e+09`)
		assertSeries(t, text, `nvidia_gpu_allocation_info{container="main",device_id="GPU-0",mig_uuid="",namespace="team",pod="train",resource="nvidia.com/gpu",uuid="GPU-0"} 1`)
		assertSeries(t, text, "podgauge_kubelet_up 1")
		assertSeries(t, text, "podgauge_nvml_up 1")
	})
}

func TestOwnerLabelsAreEmptyWithoutSingleOwner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		d.allocate("GPU-0::0=team/a/main", "GPU-0::1=team/b/main", "GPU-1=")
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		assertSeries(t, text, "nvidia_gpu_allocated"+seriesLabels("GPU-0", "0", "", "", "")+" 1")
		assertSeries(t, text, "nvidia_gpu_allocated"+seriesLabels("GPU-1", "1", "", "", "")+" 1")
		assertSeries(t, text, `nvidia_gpu_allocation_info{container="main",device_id="GPU-0::1",mig_uuid="",namespace="team",pod="b",resource="nvidia.com/gpu",uuid="GPU-0"} 1`)
		assertAbsent(t, text, `device_id="GPU-1"`)
	})
}

// TestContainersOfOnePodKeepPodLabels checks that only the container label is empty if several containers of a pod have the device.
func TestContainersOfOnePodKeepPodLabels(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.allocate("GPU-0::0=team/a/main", "GPU-0::1=team/a/side")
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		for family, value := range map[string]string{"allocated": " 1", "healthy": " 1", "power_watts": " 0", "energy_joules_total": " 0"} {
			assertSeries(t, text, "nvidia_gpu_"+family+seriesLabels("GPU-0", "0", "team", "a", "")+value)
		}
		d.partition()
		d.statuses[1].GI, d.statuses[2].GI = 1, 1
		d.extraSamples = []device.Sample{{Device: "MIG-0", Metric: memoryRow, Value: 1000}}
		d.allocate("MIG-0=team/a/main", "MIG-1=team/a/side")
		text = scrape(t, newHandler(New(d.sources(), Options{})))
		assertSeries(t, text, "nvidia_gpu_memory_used_bytes"+migSeriesLabels("MIG-0", "team", "a", "")+" 1000")
	})
}

// migSeriesLabels returns the labels of a MIG device of GPU-0.
func migSeriesLabels(id, namespace, pod, container string) string {
	return strings.Replace(seriesLabels("GPU-0", "0", namespace, pod, container), `mig_uuid=""`, `mig_uuid="`+id+`"`, 1)
}

// partition splits GPU-0 into two MIG devices.
func (d *scrapeFixture) partition() {
	gpu := d.statuses[0]
	gpu.MIGEnabled = true
	d.statuses = []device.Status{gpu}
	for i, profile := range []string{"1g.10gb", "1c.3g.40gb+me"} {
		migDevice := gpu
		migDevice.MIGEnabled, migDevice.ID = false, device.ID(fmt.Sprintf("MIG-%d", i))
		migDevice.MIGDeviceIndex, migDevice.GI, migDevice.CI, migDevice.Profile = i, 7+i, i, profile
		d.statuses = append(d.statuses, migDevice)
	}
	d.node.Devices.Set(d.statuses)
}

func TestScrapeOfAPartitionedGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.partition()
		d.watts = 300
		d.allocate("MIG-1=team/train/main")
		e := New(d.sources(), Options{})
		text := scrape(t, newHandler(e))
		parent, idle, allocated := seriesLabels("GPU-0", "0", "", "", ""), migSeriesLabels("MIG-0", "", "", ""), migSeriesLabels("MIG-1", "team", "train", "main")
		// The GPU's own readings have one series, without an owner.
		assertSeries(t, text, "nvidia_gpu_power_watts"+parent+" 300")
		assertSeries(t, text, "nvidia_gpu_energy_joules_total"+parent+" 0")
		assertSeries(t, text, "nvidia_gpu_pcie_replays_total"+parent+" 7")
		assertSeries(t, text, "nvidia_gpu_up"+parent+" 1")
		// Allocation families have series of MIG devices only, so that sums count no GPU twice.
		assertSeries(t, text, "nvidia_gpu_healthy"+idle+" 1")
		assertSeries(t, text, "nvidia_gpu_healthy"+allocated+" 1")
		assertSeries(t, text, "nvidia_gpu_allocated"+idle+" 0")
		assertSeries(t, text, "nvidia_gpu_allocated"+allocated+" 1")
		assertSeries(t, text, `nvidia_gpu_allocation_info{container="main",device_id="MIG-1",mig_uuid="MIG-1",namespace="team",pod="train",resource="nvidia.com/gpu",uuid="GPU-0"} 1`)
		for name, n := range map[string]int{"power_watts": 1, "energy_joules_total": 1, "up": 1, "stalled": 1, "healthy": 2, "allocated": 2, "info": 3} {
			if got := strings.Count(text, "\nnvidia_gpu_"+name+"{"); got != n {
				t.Errorf("got %d series of nvidia_gpu_%s, want %d", got, name, n)
			}
		}
		const facts = `model="NVIDIA H100",namespace="",numa_node="0",pci_bus_id="0000:1a:00.0",pod="",uuid="GPU-0"} 1`
		assertSeries(t, text, `nvidia_gpu_info{ci="1",container="",gi="8",gpu="0",mig_profile="1c.3g.40gb+me",mig_uuid="MIG-1",minor="0",`+facts)
		assertSeries(t, text, `nvidia_gpu_info{container="",gpu="0",mig_uuid="",minor="0",`+facts)

		d.statuses = slices.Clone(d.statuses) // a published slice is immutable
		d.statuses[1].Profile = "2g.20gb"     // the same id after repartitioning
		d.node.Devices.Set(d.statuses)
		text = scrape(t, newHandler(e))
		assertSeries(t, text, `nvidia_gpu_info{ci="0",container="",gi="7",gpu="0",mig_profile="2g.20gb",mig_uuid="MIG-0",minor="0",`+facts)
		assertAbsent(t, text, `"1g.10gb"`)

		d.allocations = device.Allocations{Err: errors.New("no kubelet")}
		time.Sleep(time.Minute)
		text = scrape(t, newHandler(e))
		assertSeries(t, text, "nvidia_gpu_power_watts"+parent+" 300") // a MIG-enabled GPU has no owner
		assertAbsent(t, text, "nvidia_gpu_allocated")
	})
}

func TestUnhealthyPartitionedGPUWithoutMIGDevices(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.partition()
		d.statuses = slices.Clone(d.statuses[:1])
		d.statuses[0].Healthy, d.statuses[0].Reason, d.statuses[0].Action = false, "xid_79", "reboot"
		d.statuses[0].Xids = []device.Xid{{Code: 79, Count: 1, Last: time.Unix(1e9, 0)}}
		d.node.Devices.Set(d.statuses)
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		assertSeries(t, text, `nvidia_gpu_unhealthy_info{action="reboot",container="",gpu="0",mig_uuid="",namespace="",pod="",reason="xid_79",uuid="GPU-0"} 1`)
		assertSeries(t, text, `nvidia_gpu_xid_errors_total{container="",gpu="0",mig_uuid="",namespace="",pod="",uuid="GPU-0",xid="79"} 1`)
		assertAbsent(t, text, "nvidia_gpu_healthy")
	})
}

// TestUnknownOwnerHasEmptyLabels checks that readings are exported while the kubelet does not respond. Only nvidia_gpu_allocated is absent,
// so that no device looks idle.
func TestUnknownOwnerHasEmptyLabels(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.joulesPerMillisecond, d.watts = 1, 300
		d.statuses[0].Healthy, d.statuses[0].Reason = false, "xid_48"
		d.uses = map[device.GPU][]device.ProcessUsage{"GPU-0": {{Device: "GPU-0", PID: 1, MemoryBytes: 1}}}
		d.allocations = device.Allocations{Err: errors.New("no kubelet")}
		e := New(d.sources(), dcgmOptions)
		text := scrape(t, newHandler(e))
		unknown := seriesLabels("GPU-0", "0", "", "", "")
		for series, value := range map[string]string{
			"nvidia_gpu_power_watts": "300", "nvidia_gpu_energy_joules_total": "0", "nvidia_gpu_healthy": "0", "nvidia_gpu_up": "1",
			"nvidia_gpu_pcie_replays_total": "7",
		} {
			assertSeries(t, text, series+unknown+" "+value)
		}
		assertSeries(t, text, `nvidia_gpu_unhealthy_info{action="",container="",gpu="0",mig_uuid="",namespace="",pod="",reason="xid_48",uuid="GPU-0"} 1`)
		assertSeries(t, text, "podgauge_kubelet_up 0")
		if !strings.Contains(text, "\nDCGM_FI_DEV_POWER_USAGE{") {
			t.Errorf("missing DCGM_FI_DEV_POWER_USAGE in\n%s", text)
		}
		assertAbsent(t, text, "nvidia_gpu_alloc")
		assertAbsent(t, text, "nvidia_gpu_unattributed") // owners of processes are unknown

		// A restarted kubelet responds: unlisted devices are still unknown.
		time.Sleep(10 * time.Second)
		d.allocations = device.Allocations{At: time.Now()}
		text = scrape(t, newHandler(e))
		assertSeries(t, text, "nvidia_gpu_energy_joules_total"+unknown+" 10000")
		assertSeries(t, text, "podgauge_kubelet_up 1")
		assertAbsent(t, text, "nvidia_gpu_alloc")

		// A pod is listed. Both counters continue, and sum up to the energy of the GPU.
		time.Sleep(10 * time.Second)
		d.allocate("GPU-0=team/train/main")
		train := seriesLabels("GPU-0", "0", "team", "train", "main")
		text = scrape(t, newHandler(e))
		assertSeries(t, text, "nvidia_gpu_energy_joules_total"+train+" 0")
		assertSeries(t, text, "nvidia_gpu_allocated"+train+" 1")
		assertAbsent(t, text, "nvidia_gpu_power_watts"+unknown)
		time.Sleep(10 * time.Second)
		assertSeries(t, scrape(t, newHandler(e)), "nvidia_gpu_energy_joules_total"+train+" 10000")
		d.allocate()
		text = scrape(t, newHandler(e))
		assertSeries(t, text, "nvidia_gpu_energy_joules_total"+unknown+" 20000")
		assertSeries(t, text, "nvidia_gpu_allocated"+unknown+" 0")
	})
}

func TestScrapeWithoutFailedGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		d.readErr["GPU-1"] = device.ErrStalled
		d.stalled["GPU-1"] = true
		d.statuses[1].Healthy, d.statuses[1].Reason, d.statuses[1].Action = false, "xid_79", "reboot"
		d.statuses[1].Xids = []device.Xid{{Code: 79, Count: 2, Last: time.Unix(1e9, 0)}}
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		assertSeries(t, text, "nvidia_gpu_up"+seriesLabels("GPU-0", "0", "", "", "")+" 1")
		assertSeries(t, text, "nvidia_gpu_up"+seriesLabels("GPU-1", "1", "", "", "")+" 0")
		assertSeries(t, text, "nvidia_gpu_stalled"+seriesLabels("GPU-1", "1", "", "", "")+" 1")
		assertSeries(t, text, "nvidia_gpu_healthy"+seriesLabels("GPU-1", "1", "", "", "")+" 0")
		assertSeries(t, text, "nvidia_gpu_power_watts"+seriesLabels("GPU-0", "0", "", "", "")+" 0")
		assertAbsent(t, text, "nvidia_gpu_power_watts"+seriesLabels("GPU-1", "1", "", "", ""))
		assertSeries(t, text, `nvidia_gpu_unhealthy_info{action="reboot",container="",gpu="1",mig_uuid="",namespace="",pod="",reason="xid_79",uuid="GPU-1"} 1`)
		assertSeries(t, text, `nvidia_gpu_xid_errors_total{container="",gpu="1",mig_uuid="",namespace="",pod="",uuid="GPU-1",xid="79"} 2`)
		assertSeries(t, text, `nvidia_gpu_xid_last_timestamp_seconds{container="",gpu="1",mig_uuid="",namespace="",pod="",uuid="GPU-1",xid="79"} 1e+09`)
	})
}

func TestLabelsAreEscaped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.statuses[0].Model = "a \"quoted\"\nmodel\xff"
		d.allocate("GPU-0=te\"am/po\nd/c\xff")
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		assertSeries(t, text, "nvidia_gpu_power_watts"+seriesLabels("GPU-0", "0", `te\"am`, `po\nd`, "c\uFFFD")+" 0")
		if !strings.Contains(text, `model="a \"quoted\"\nmodel`+"\uFFFD\"") {
			t.Errorf("model is not escaped in\n%s", text)
		}
	})
}

func TestScrapesShareCollection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		h := newHandler(New(d.sources(), Options{}))
		scrapeAll := func(n int) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() { scrape(t, h) })
			}
			all.Wait()
		}
		for _, c := range []struct {
			what  string
			first func()
			reads int
		}{
			{"concurrent scrapes", func() {}, 1},
			{"repeated within a second", func() { time.Sleep(900 * time.Millisecond) }, 1},
			{"after a second", func() { time.Sleep(200 * time.Millisecond) }, 2},
			{"after a pod was added", func() { d.allocate("GPU-0=n/p/c") }, 3},
			{"after a GPU failed", func() { d.publish(func(s *device.Status) { s.Healthy, s.Reason = false, "xid_79" }) }, 4},
			{"after an Xid count rose", func() { d.publish(func(s *device.Status) { s.Xids = []device.Xid{{Code: 31, Count: 9}} }) }, 4},
			{"after it rose again", func() { d.publish(func(s *device.Status) { s.Xids = []device.Xid{{Code: 31, Count: 10}} }) }, 4},
			{"after a GPU was added", func() { d.node.Devices.Set(append(slices.Clone(d.statuses), newScrapeFixture(2).statuses[1])) }, 5},
		} {
			c.first()
			scrapeAll(5)
			if d.readCalls != c.reads || d.listCalls != c.reads {
				t.Errorf("%s: got %d reads and %d calls of List, want %d", c.what, d.readCalls, d.listCalls, c.reads)
			}
		}
	})
}

func TestScrapeTimeout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.hang = make(chan struct{})
		e := New(d.sources(), Options{})
		h := newHandler(e)
		began := time.Now()
		assertAbsent(t, scrape(t, h, "X-Prometheus-Scrape-Timeout-Seconds", "0.5"), "nvidia_gpu")
		if took := time.Since(began); took != 450*time.Millisecond {
			t.Errorf("scrape with a timeout of 0.5 s: got %s", took)
		}
		text := scrape(t, h, "X-Prometheus-Scrape-Timeout-Seconds", "10")
		if took := time.Since(began); took != collectionTimeout {
			t.Errorf("collection: got %s, want at most %s", took, collectionTimeout)
		}
		assertSeries(t, text, "nvidia_gpu_up"+seriesLabels("GPU-0", "0", "", "", "")+" 0")
		assertAbsent(t, text, "nvidia_gpu_power_watts")
		if d.readCalls != 1 {
			t.Errorf("got %d reads, want one collection for both scrapes", d.readCalls)
		}
		e.Drain()
	})
}

// waitingResolver is a ProcessResolver that blocks, like files on a disk that hangs.
type waitingResolver struct {
	*scrapeFixture
	files chan struct{}
}

func (r waitingResolver) Owner(uint32, []device.Owner) (device.Owner, bool) {
	<-r.files
	return device.Owner{}, false
}

// TestScrapeTimeoutWhileRendering checks that podgauge's own metrics are exported while a disk hangs.
func TestScrapeTimeoutWhileRendering(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.uses = map[device.GPU][]device.ProcessUsage{"GPU-0": {memoryOnlyUse("GPU-0", 1, 100)}}
		sources, files := d.sources(), make(chan struct{})
		sources.Processes = waitingResolver{d, files}
		h := newHandler(New(sources, Options{}))
		assertAbsent(t, scrape(t, h, "X-Prometheus-Scrape-Timeout-Seconds", "2"), "nvidia_gpu")
		close(files)
		assertSeries(t, scrape(t, h), "nvidia_gpu_up"+seriesLabels("GPU-0", "0", "", "", "")+" 1")
	})
}

func TestEnergyIsAttributedToOwner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		e := New(d.sources(), Options{})
		h := newHandler(e)
		at := func(joules float64, allocated ...string) string {
			d.addEnergy("GPU-0", joules)
			d.allocate(allocated...)
			return scrape(t, h)
		}
		const name = "nvidia_gpu_energy_joules_total"
		a, b := seriesLabels("GPU-0", "0", "n", "a", "c"), seriesLabels("GPU-0", "0", "n", "b", "c")
		noOwner := seriesLabels("GPU-0", "0", "", "", "")
		assertSeries(t, at(5000), name+noOwner+" 0")           // energy from before the start is not counted
		assertSeries(t, at(1, "GPU-0=n/a/c"), name+a+" 0")     // a counter starts at 0
		assertSeries(t, at(100, "GPU-0=n/a/c"), name+a+" 100") // then the counter grows by the increase
		assertSeries(t, at(10), name+noOwner+" 1")             // the rest is the pod's
		assertSeries(t, at(0, "GPU-0="), name+noOwner+" 1")    // Allocate
		assertSeries(t, at(40, "GPU-0="), name+noOwner+" 1")   // pending until the owner is known
		assertSeries(t, at(2, "GPU-0=n/b/c"), name+b+" 42")    // then attributed to this owner
		text := at(500, "GPU-0=n/b/c")
		assertSeries(t, text, name+b+" 542")
		assertAbsent(t, text, `pod="a",uuid="GPU-0"} 1`)     // the series of pod a has ended
		assertSeries(t, at(0, "GPU-0=n/a/c"), name+a+" 110") // the counter continues with the pod
	})
}

// TestEnergyIsDividedAtAllocate allocates a GPU after a running collection has read it, while the collection waits for the kubelet or another
// GPU. The energy before Allocate belongs to the previous owner, to the joule.
func TestEnergyIsDividedAtAllocate(t *testing.T) {
	for name, c := range map[string]struct {
		list  time.Duration // duration of List
		hangs bool          // another GPU hangs
	}{
		"the kubelet takes 300 ms":            {list: 300 * time.Millisecond},
		"the kubelet takes 1.5 s":             {list: 1500 * time.Millisecond},
		"another GPU hangs":                   {hangs: true},
		"another GPU hangs, and this GPU too": {list: 300 * time.Millisecond, hangs: true},
		"nothing is slow":                     {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				d := newScrapeFixture(2)
				d.joulesPerMillisecond = 1
				d.onList = func(ctx context.Context) {
					select {
					case <-time.After(c.list):
					case <-ctx.Done():
					}
				}
				d.onRead = func(ctx context.Context, readings []device.Reading) {
					if c.hangs {
						<-ctx.Done()
						readings[1] = device.Reading{GPU: readings[1].GPU, Err: device.ErrStalled}
					}
				}
				e := New(d.sources(), Options{})
				h := newHandler(e)
				const name = "nvidia_gpu_energy_joules_total"
				noOwner, b := seriesLabels("GPU-0", "0", "", "", ""), seriesLabels("GPU-0", "0", "n", "b", "c")
				at := func(offset time.Duration) { time.Sleep(time.Until(d.started.Add(offset))) }
				scrape(t, h)

				at(10 * time.Second)
				var slow sync.WaitGroup
				slow.Go(func() { scrape(t, h) }) // reads at 10 s
				at(10*time.Second + 100*time.Millisecond)
				onAllocated(e, func() { d.allocate("GPU-0=") }, "GPU-0")

				at(20 * time.Second)
				d.allocate("GPU-0=n/b/c")
				assertSeries(t, scrape(t, h), name+b+" 9900") // read at 20 s
				at(30 * time.Second)
				d.allocate()
				assertSeries(t, scrape(t, h), name+noOwner+" 10100")
				at(40 * time.Second)
				d.allocate("GPU-0=n/b/c")
				assertSeries(t, scrape(t, h), name+b+" 19900")
				slow.Wait()
				e.Drain()
			})
		})
	}
}

// TestEnergyIsDividedIfOwnerIsKnownEarly covers a collection that starts before Allocate but already lists the new owner.
func TestEnergyIsDividedIfOwnerIsKnownEarly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.joulesPerMillisecond = 1
		list := time.Duration(0)
		d.onList = func(context.Context) { time.Sleep(list) }
		e := New(d.sources(), Options{})
		h := newHandler(e)
		const name = "nvidia_gpu_energy_joules_total"
		noOwner, b := seriesLabels("GPU-0", "0", "", "", ""), seriesLabels("GPU-0", "0", "n", "b", "c")
		scrape(t, h)
		time.Sleep(time.Second)
		list = 500 * time.Millisecond
		early := make(chan string, 1)
		go func() { early <- scrape(t, h) }()
		time.Sleep(100 * time.Millisecond)
		onAllocated(e, func() { d.allocate("GPU-0=n/b/c") }, "GPU-0") // at 1.1 s
		assertSeries(t, <-early, name+b+" 0")                         // at 1.5 s, from a reading at 1 s
		list = 0
		time.Sleep(1500 * time.Millisecond)
		assertSeries(t, scrape(t, h), name+b+" 1900")
		d.allocate()
		assertSeries(t, scrape(t, h), name+noOwner+" 1100")
		e.Drain()
	})
}

// TestAllocateReadsOneGPU checks that an Allocate reads only its GPU, and reads nothing if counters have the driver's values.
func TestAllocateReadsOneGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, stable := range []bool{false, true} {
			d := newScrapeFixture(8)
			var readGPUs []device.GPU
			d.onReadOne = func(gpu device.GPU) { readGPUs = append(readGPUs, gpu) }
			e := New(d.sources(), Options{StableSeries: stable})
			recorded := false
			onAllocated(e, func() { recorded = true }, "GPU-3", "GPU-3", "GPU-unknown")
			e.Drain()
			if want := map[bool]int{false: 1, true: 0}[stable]; !recorded || len(readGPUs) != want || d.readCalls != 0 || d.listCalls != 0 {
				t.Errorf("stable %v: got reads %v, %d collections and %d List calls", stable, readGPUs, d.readCalls, d.listCalls)
			}
		}
	})
}

// TestEnergyOfUnlistedOwnerIsUnattributed allocates a device to a pod that List never contains, and then to another pod.
func TestEnergyOfUnlistedOwnerIsUnattributed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		e := New(d.sources(), Options{})
		h := newHandler(e)
		const name = "nvidia_gpu_energy_joules_total"
		scrape(t, h)
		for range 2 {
			onAllocated(e, func() { d.allocate("GPU-0=") }, "GPU-0")
			synctest.Wait()
			d.addEnergy("GPU-0", 500)
		}
		d.allocate("GPU-0=n/b/c")
		assertSeries(t, scrape(t, h), name+seriesLabels("GPU-0", "0", "n", "b", "c")+" 500")
		d.allocate()
		assertSeries(t, scrape(t, h), name+seriesLabels("GPU-0", "0", "", "", "")+" 500")
		e.Drain()
	})
}

// TestInfoFollowsDevice covers a restarted driver that returns a different description of a GPU.
func TestInfoFollowsDevice(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		h := newHandler(New(d.sources(), Options{}))
		const was, is = `pci_bus_id="0000:1a:00.0"`, `pci_bus_id="0000:9a:00.0"`
		if text := scrape(t, h); !strings.Contains(text, was) {
			t.Errorf("missing %s in\n%s", was, text)
		}
		d.statuses = slices.Clone(d.statuses)
		d.statuses[0].PCI, d.statuses[0].Index = "0000:9a:00.0", 3
		d.node.Devices.Set(d.statuses)
		text := scrape(t, h)
		if !strings.Contains(text, is) {
			t.Errorf("missing %s in\n%s", is, text)
		}
		assertAbsent(t, text, was)
		assertAbsent(t, text, `gpu="0"`)
	})
}

// TestEmptyInfoLabels checks that an empty value adds no label to the info series.
func TestEmptyInfoLabels(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		s := slices.Clone(d.statuses)
		s[0].Model, s[0].InfoLabels = "", []device.Label{{Name: "chassis_serial"}, {Name: "serial", Value: "1650"}}
		d.node.Devices.Set(s)
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		assertSeries(t, text, `nvidia_gpu_info{container="",gpu="0",mig_uuid="",minor="0",namespace="",numa_node="0",pci_bus_id="0000:1a:00.0",pod="",serial="1650",uuid="GPU-0"} 1`)
	})
}

func TestAllocatedPartitionedGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.partition()
		d.watts = 300
		d.allocate("GPU-0=team/train/main")
		assertSeries(t, scrape(t, newHandler(New(d.sources(), Options{}))), "nvidia_gpu_power_watts"+seriesLabels("GPU-0", "0", "team", "train", "main")+" 300")
	})
}
