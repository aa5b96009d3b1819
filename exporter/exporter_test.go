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
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is what a test has the exporter ask. Its zero value is a node of which
// nothing is known.
type node struct {
	mu       sync.Mutex
	board    device.Board
	holders  device.Holders
	changed  chan struct{}
	watts    float64
	joules   map[device.ID]float64
	draw     float64 // of each GPU, in joules a millisecond, from born on
	born     time.Time
	reads    int
	lists    int
	hang     chan struct{} // reads do not return before it is closed
	readErr  map[device.GPU]error
	stalled  map[device.GPU]bool
	driver   device.Driver
	metrics  []device.Metric
	statuses []device.Status
	more     []device.Sample // of any device
	uses     map[device.GPU][]device.Use
	runsIn   map[uint32]device.Owner // the container of each process that is in one
	hidden   bool                    // no process can be looked up
	pods     map[string]device.PodMeta
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

var rows = []device.Metric{
	powerRow:    {Name: "nvidia_gpu_power_watts", Help: "Power."},
	energyRow:   {Name: "nvidia_gpu_energy_joules_total", Help: "Energy.", Kind: device.HolderCounter},
	replayRow:   {Name: "nvidia_gpu_pcie_replays_total", Help: "Replays.", Kind: device.FaultCounter},
	smClockRow:  {Name: "nvidia_gpu_clock_hertz", Help: "Clock.", Labels: []device.Label{{Name: "clock", Value: "sm"}}},
	memClockRow: {Name: "nvidia_gpu_clock_hertz", Help: "Clock.", Labels: []device.Label{{Name: "clock", Value: "memory"}}},
	memoryRow:   {Name: "nvidia_gpu_memory_used_bytes", Help: "Memory."},
	widthRow:    {Name: "nvidia_gpu_pcie_link_width", Help: "Lanes.", Kind: device.State},
}

// newNode is a node of n idle GPUs.
func newNode(n int) *node {
	d := &node{
		changed: make(chan struct{}), joules: map[device.ID]float64{}, born: time.Now(), metrics: rows,
		driver: device.Driver{State: device.DriverUp}, readErr: map[device.GPU]error{}, stalled: map[device.GPU]bool{},
	}
	for i := range n {
		id := device.ID(fmt.Sprintf("GPU-%d", i))
		d.statuses = append(d.statuses, device.Status{
			Device:  device.Device{ID: id, GPU: device.GPU(id), Index: i, Minor: i, Model: "NVIDIA H100", PCI: "0000:1a:00.0", NUMANode: 0},
			Healthy: true,
		})
	}
	d.board.Post(d.statuses)
	d.hold()
	return d
}

// expire has the next scrape make a collection of its own.
func (d *node) expire() { time.Sleep(sharedFor) }

// post publishes the first GPU changed.
func (d *node) post(change func(*device.Status)) {
	d.statuses = slices.Clone(d.statuses) // what is posted is not written
	change(&d.statuses[0])
	d.board.Post(d.statuses)
}

// hold says who holds what: rows of "id=namespace/pod/container"; "id=" is an
// allocation without a name.
func (d *node) hold(held ...string) {
	h := device.Holders{At: time.Now(), Settled: true}
	for _, row := range held {
		id, owner, _ := strings.Cut(row, "=")
		holding := device.Holding{Resource: "nvidia.com/gpu", Offered: device.OfferedID(id)}
		if owner != "" {
			part := strings.Split(owner, "/")
			holding.Owner = device.Owner{Namespace: part[0], Pod: part[1], Container: part[2]}
			h.Recent = append(h.Recent, device.Seen{Device: holding.Offered.Device(), Owner: holding.Owner, Last: h.At})
		}
		h.Held = append(h.Held, holding)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holders = h
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *node) sources() Sources {
	return Sources{
		Metrics: d.metrics, Look: d.board.Look, Read: d.read, ReadOne: d.readOne, Owners: d.owners,
		Stalled: func(g device.GPU) bool { return d.stalled[g] },
		Held: func() (device.Holders, <-chan struct{}) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.holders, d.changed
		},
		Driver:    func() device.Driver { return d.driver },
		Processes: d,
		Pod:       func(namespace, pod string) device.PodMeta { return d.pods[namespace+"/"+pod] },
	}
}

func (d *node) Visible() bool { return !d.hidden }

func (d *node) Sweep() {}

func (d *node) Owner(pid uint32, holders []device.Owner) (device.Owner, bool) {
	owner, ok := d.runsIn[pid]
	return owner, ok && slices.Contains(holders, owner)
}

func (d *node) owners(context.Context) device.Holders {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lists++
	return d.holders
}

func (d *node) read(ctx context.Context, gpus []device.GPU) []device.Reading {
	d.mu.Lock()
	d.reads++
	hang := d.hang
	d.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil
		}
	}
	return d.readings(gpus)
}

func (d *node) readOne(_ context.Context, gpu device.GPU) device.Reading {
	return d.readings([]device.GPU{gpu})[0]
}

func (d *node) readings(gpus []device.GPU) []device.Reading {
	d.mu.Lock()
	defer d.mu.Unlock()
	readings := []device.Reading{}
	for _, g := range gpus {
		id := device.ID(g)
		uses, peopled := d.uses[g]
		readings = append(readings, device.Reading{GPU: g, Err: d.readErr[g], Uses: uses, Peopled: peopled, Samples: append([]device.Sample{
			{Device: id, Metric: powerRow, Value: d.watts},
			{Device: id, Metric: energyRow, Value: d.joules[id] + d.draw*float64(time.Since(d.born).Milliseconds())},
			{Device: id, Metric: replayRow, Value: 7},
			{Device: id, Metric: smClockRow, Value: 1980e6},
			{Device: id, Metric: memClockRow, Value: 2619e6},
		}, d.more...)})
	}
	return readings
}

func (d *node) burn(id device.ID, joules float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.joules[id] += joules
}

// serve is the exporter's handler, with a registry that is empty.
func serve(e *Exporter) http.Handler {
	return e.Handler(Server{TelemetryPath: "/metrics", Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
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

// has tells whether the text has a series: its name and labels, and its value.
func has(t *testing.T, text, series string) {
	t.Helper()
	if !strings.Contains("\n"+text, "\n"+series+"\n") {
		t.Errorf("no series %s in\n%s", series, text)
	}
}

func hasNot(t *testing.T, text, part string) {
	t.Helper()
	if strings.Contains(text, part) {
		t.Errorf("unexpected %q in\n%s", part, text)
	}
}

func labels(uuid, gpu, namespace, pod, container string) string {
	return fmt.Sprintf(`{container="%s",gpu="%s",mig_uuid="",namespace="%s",pod="%s",uuid="%s"}`, container, gpu, namespace, pod, uuid)
}

func TestScrapeShowsTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(2)
		d.watts = 300
		d.hold("GPU-0=team/train/main")
		text := scrape(t, serve(New(d.sources(), Options{})))
		has(t, text, "nvidia_gpu_power_watts"+labels("GPU-0", "0", "team", "train", "main")+" 300")
		has(t, text, "nvidia_gpu_power_watts"+labels("GPU-1", "1", "", "", "")+" 300")
		has(t, text, "nvidia_gpu_healthy"+labels("GPU-0", "0", "team", "train", "main")+" 1")
		has(t, text, "nvidia_gpu_allocated"+labels("GPU-0", "0", "team", "train", "main")+" 1")
		has(t, text, "nvidia_gpu_allocated"+labels("GPU-1", "1", "", "", "")+" 0")
		has(t, text, "nvidia_gpu_pcie_replays_total"+labels("GPU-0", "0", "", "", "")+" 7")
		has(t, text, `nvidia_gpu_clock_hertz{clock="sm",container="main",gpu="0",mig_uuid="",namespace="team",pod="train",uuid="GPU-0"} 1.98e+09`)
		has(t, text, `nvidia_gpu_allocation_info{container="main",device_id="GPU-0",mig_uuid="",namespace="team",pod="train",resource="nvidia.com/gpu",uuid="GPU-0"} 1`)
		has(t, text, "podgauge_kubelet_up 1")
		has(t, text, "podgauge_nvml_up 1")
	})
}

func TestScrapeShowsNoHolderWhereThereAreSeveralOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(2)
		d.hold("GPU-0::0=team/a/main", "GPU-0::1=team/b/main", "GPU-1=")
		text := scrape(t, serve(New(d.sources(), Options{})))
		has(t, text, "nvidia_gpu_allocated"+labels("GPU-0", "0", "", "", "")+" 1")
		has(t, text, "nvidia_gpu_allocated"+labels("GPU-1", "1", "", "", "")+" 1")
		has(t, text, `nvidia_gpu_allocation_info{container="main",device_id="GPU-0::1",mig_uuid="",namespace="team",pod="b",resource="nvidia.com/gpu",uuid="GPU-0"} 1`)
		hasNot(t, text, `device_id="GPU-1"`)
	})
}

// TestScrapeKeepsThePodOfItsContainers: only the container label is empty where one pod
// has several containers on a device.
func TestScrapeKeepsThePodOfItsContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		d.hold("GPU-0::0=team/a/main", "GPU-0::1=team/a/side")
		text := scrape(t, serve(New(d.sources(), Options{})))
		for family, value := range map[string]string{"allocated": " 1", "healthy": " 1", "power_watts": " 0", "energy_joules_total": " 0"} {
			has(t, text, "nvidia_gpu_"+family+labels("GPU-0", "0", "team", "a", "")+value)
		}
		d.partition()
		d.statuses[1].GI, d.statuses[2].GI = 1, 1
		d.more = []device.Sample{{Device: "MIG-0", Metric: memoryRow, Value: 1000}}
		d.hold("MIG-0=team/a/main", "MIG-1=team/a/side")
		text = scrape(t, serve(New(d.sources(), Options{})))
		has(t, text, "nvidia_gpu_memory_used_bytes"+sliceLabels("MIG-0", "team", "a", "")+" 1000")
	})
}

// sliceLabels are those of a slice of GPU-0.
func sliceLabels(id, namespace, pod, container string) string {
	return strings.Replace(labels("GPU-0", "0", namespace, pod, container), `mig_uuid=""`, `mig_uuid="`+id+`"`, 1)
}

// partition makes two slices of GPU-0.
func (d *node) partition() {
	gpu := d.statuses[0]
	gpu.MIG = true
	d.statuses = []device.Status{gpu}
	for i, profile := range []string{"1g.10gb", "1c.3g.40gb+me"} {
		slice := gpu
		slice.MIG, slice.ID = false, device.ID(fmt.Sprintf("MIG-%d", i))
		slice.Slice, slice.GI, slice.CI, slice.Profile = i, 7+i, i, profile
		d.statuses = append(d.statuses, slice)
	}
	d.board.Post(d.statuses)
}

func TestScrapeOfAPartitionedGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		d.partition()
		d.watts = 300
		d.hold("MIG-1=team/train/main")
		e := New(d.sources(), Options{})
		text := scrape(t, serve(e))
		parent, idle, held := labels("GPU-0", "0", "", "", ""), sliceLabels("MIG-0", "", "", ""), sliceLabels("MIG-1", "team", "train", "main")
		// What the GPU reads goes on, once and without a holder: its slices share it.
		has(t, text, "nvidia_gpu_power_watts"+parent+" 300")
		has(t, text, "nvidia_gpu_energy_joules_total"+parent+" 0")
		has(t, text, "nvidia_gpu_pcie_replays_total"+parent+" 7")
		has(t, text, "nvidia_gpu_up"+parent+" 1")
		// What the kubelet is told is of its slices, and sums over it count no GPU twice.
		has(t, text, "nvidia_gpu_healthy"+idle+" 1")
		has(t, text, "nvidia_gpu_healthy"+held+" 1")
		has(t, text, "nvidia_gpu_allocated"+idle+" 0")
		has(t, text, "nvidia_gpu_allocated"+held+" 1")
		has(t, text, `nvidia_gpu_allocation_info{container="main",device_id="MIG-1",mig_uuid="MIG-1",namespace="team",pod="train",resource="nvidia.com/gpu",uuid="GPU-0"} 1`)
		for name, n := range map[string]int{"power_watts": 1, "energy_joules_total": 1, "up": 1, "stalled": 1, "healthy": 2, "allocated": 2, "info": 3} {
			if got := strings.Count(text, "\nnvidia_gpu_"+name+"{"); got != n {
				t.Errorf("%d series of nvidia_gpu_%s, want %d", got, name, n)
			}
		}
		const facts = `model="NVIDIA H100",namespace="",numa_node="0",pci_bus_id="0000:1a:00.0",pod="",uuid="GPU-0"} 1`
		has(t, text, `nvidia_gpu_info{ci="1",container="",gi="8",gpu="0",mig_profile="1c.3g.40gb+me",mig_uuid="MIG-1",minor="0",`+facts)
		has(t, text, `nvidia_gpu_info{container="",gpu="0",mig_uuid="",minor="0",`+facts)

		d.statuses = slices.Clone(d.statuses) // what is posted is not written
		d.statuses[1].Profile = "2g.20gb"     // the same id, partitioned anew
		d.board.Post(d.statuses)
		text = scrape(t, serve(e))
		has(t, text, `nvidia_gpu_info{ci="0",container="",gi="7",gpu="0",mig_profile="2g.20gb",mig_uuid="MIG-0",minor="0",`+facts)
		hasNot(t, text, `"1g.10gb"`)

		d.holders = device.Holders{Err: errors.New("no kubelet")}
		time.Sleep(time.Minute)
		text = scrape(t, serve(e))
		has(t, text, "nvidia_gpu_power_watts"+parent+" 300") // that nobody holds it is known
		hasNot(t, text, "nvidia_gpu_allocated")
	})
}

// TestScrapeOfABrokenPartitionedGPU has one without a slice, too: what is wrong
// with it is shown.
func TestScrapeOfABrokenPartitionedGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		d.partition()
		d.statuses = slices.Clone(d.statuses[:1])
		d.statuses[0].Healthy, d.statuses[0].Reason, d.statuses[0].Action = false, "xid_79", "reboot"
		d.statuses[0].Xids = []device.Xid{{Code: 79, Count: 1, Last: time.Unix(1e9, 0)}}
		d.board.Post(d.statuses)
		text := scrape(t, serve(New(d.sources(), Options{})))
		has(t, text, `nvidia_gpu_unhealthy_info{action="reboot",container="",gpu="0",mig_uuid="",namespace="",pod="",reason="xid_79",uuid="GPU-0"} 1`)
		has(t, text, `nvidia_gpu_xid_errors_total{container="",gpu="0",mig_uuid="",namespace="",pod="",uuid="GPU-0",xid="79"} 1`)
		hasNot(t, text, "nvidia_gpu_healthy")
	})
}

// TestAnUnknownOwnerCostsTheLabels: without an answer of the kubelet each reading is shown, with
// empty labels. Only nvidia_gpu_allocated is absent, so that no device reads as idle.
func TestAnUnknownOwnerCostsTheLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		d.draw, d.watts = 1, 300
		d.statuses[0].Healthy, d.statuses[0].Reason = false, "xid_48"
		d.uses = map[device.GPU][]device.Use{"GPU-0": {{Device: "GPU-0", PID: 1, MemoryBytes: 1}}}
		d.holders = device.Holders{Err: errors.New("no kubelet")}
		e := New(d.sources(), dcgmOn)
		text := scrape(t, serve(e))
		unknown := labels("GPU-0", "0", "", "", "")
		for series, value := range map[string]string{
			"nvidia_gpu_power_watts": "300", "nvidia_gpu_energy_joules_total": "0", "nvidia_gpu_healthy": "0", "nvidia_gpu_up": "1",
			"nvidia_gpu_pcie_replays_total": "7",
		} {
			has(t, text, series+unknown+" "+value)
		}
		has(t, text, `nvidia_gpu_unhealthy_info{action="",container="",gpu="0",mig_uuid="",namespace="",pod="",reason="xid_48",uuid="GPU-0"} 1`)
		has(t, text, "podgauge_kubelet_up 0")
		if !strings.Contains(text, "\nDCGM_FI_DEV_POWER_USAGE{") {
			t.Errorf("no DCGM_FI_DEV_POWER_USAGE in\n%s", text)
		}
		hasNot(t, text, "nvidia_gpu_alloc")
		hasNot(t, text, "nvidia_gpu_unattributed") // whose the processes are cannot be told

		// The kubelet answers, and has just started: who is not listed is not known yet.
		time.Sleep(10 * time.Second)
		d.holders = device.Holders{At: time.Now()}
		text = scrape(t, serve(e))
		has(t, text, "nvidia_gpu_energy_joules_total"+unknown+" 10000")
		has(t, text, "podgauge_kubelet_up 1")
		hasNot(t, text, "nvidia_gpu_alloc")

		// A pod is listed. Both counts go on from where they are, and are what the GPU burned.
		time.Sleep(10 * time.Second)
		d.hold("GPU-0=team/train/main")
		train := labels("GPU-0", "0", "team", "train", "main")
		text = scrape(t, serve(e))
		has(t, text, "nvidia_gpu_energy_joules_total"+train+" 0")
		has(t, text, "nvidia_gpu_allocated"+train+" 1")
		hasNot(t, text, "nvidia_gpu_power_watts"+unknown)
		time.Sleep(10 * time.Second)
		has(t, scrape(t, serve(e)), "nvidia_gpu_energy_joules_total"+train+" 10000")
		d.hold()
		text = scrape(t, serve(e))
		has(t, text, "nvidia_gpu_energy_joules_total"+unknown+" 20000")
		has(t, text, "nvidia_gpu_allocated"+unknown+" 0")
	})
}

func TestScrapeDropsTheGPUThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(2)
		d.readErr["GPU-1"] = device.ErrStalled
		d.stalled["GPU-1"] = true
		d.statuses[1].Healthy, d.statuses[1].Reason, d.statuses[1].Action = false, "xid_79", "reboot"
		d.statuses[1].Xids = []device.Xid{{Code: 79, Count: 2, Last: time.Unix(1e9, 0)}}
		text := scrape(t, serve(New(d.sources(), Options{})))
		has(t, text, "nvidia_gpu_up"+labels("GPU-0", "0", "", "", "")+" 1")
		has(t, text, "nvidia_gpu_up"+labels("GPU-1", "1", "", "", "")+" 0")
		has(t, text, "nvidia_gpu_stalled"+labels("GPU-1", "1", "", "", "")+" 1")
		has(t, text, "nvidia_gpu_healthy"+labels("GPU-1", "1", "", "", "")+" 0")
		has(t, text, "nvidia_gpu_power_watts"+labels("GPU-0", "0", "", "", "")+" 0")
		hasNot(t, text, "nvidia_gpu_power_watts"+labels("GPU-1", "1", "", "", ""))
		has(t, text, `nvidia_gpu_unhealthy_info{action="reboot",container="",gpu="1",mig_uuid="",namespace="",pod="",reason="xid_79",uuid="GPU-1"} 1`)
		has(t, text, `nvidia_gpu_xid_errors_total{container="",gpu="1",mig_uuid="",namespace="",pod="",uuid="GPU-1",xid="79"} 2`)
		has(t, text, `nvidia_gpu_xid_last_timestamp_seconds{container="",gpu="1",mig_uuid="",namespace="",pod="",uuid="GPU-1",xid="79"} 1e+09`)
	})
}

func TestScrapeKeepsLabelsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		d.statuses[0].Model = "a \"quoted\"\nmodel\xff"
		d.hold("GPU-0=te\"am/po\nd/c\xff")
		text := scrape(t, serve(New(d.sources(), Options{})))
		has(t, text, "nvidia_gpu_power_watts"+labels("GPU-0", "0", `te\"am`, `po\nd`, "c\uFFFD")+" 0")
		if !strings.Contains(text, `model="a \"quoted\"\nmodel`+"\uFFFD\"") {
			t.Errorf("the model is not escaped in\n%s", text)
		}
	})
}

func TestScrapesShareAFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		h := serve(New(d.sources(), Options{}))
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
			{"many at once", func() {}, 1},
			{"again within a second", func() { time.Sleep(900 * time.Millisecond) }, 1},
			{"after a second", func() { time.Sleep(200 * time.Millisecond) }, 2},
			{"after a pod came", func() { d.hold("GPU-0=n/p/c") }, 3},
			{"after a GPU failed", func() { d.post(func(s *device.Status) { s.Healthy, s.Reason = false, "xid_79" }) }, 4},
			{"after a count of Xids rose", func() { d.post(func(s *device.Status) { s.Xids = []device.Xid{{Code: 31, Count: 9}} }) }, 4},
			{"after it rose again", func() { d.post(func(s *device.Status) { s.Xids = []device.Xid{{Code: 31, Count: 10}} }) }, 4},
			{"after a GPU came", func() { d.board.Post(append(slices.Clone(d.statuses), newNode(2).statuses[1])) }, 5},
		} {
			c.first()
			scrapeAll(5)
			if d.reads != c.reads || d.lists != c.reads {
				t.Errorf("%s: read %d times and listed %d times, want %d", c.what, d.reads, d.lists, c.reads)
			}
		}
	})
}

func TestScrapeWaitsNoLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		d.hang = make(chan struct{})
		e := New(d.sources(), Options{})
		h := serve(e)
		began := time.Now()
		hasNot(t, scrape(t, h, "X-Prometheus-Scrape-Timeout-Seconds", "0.5"), "nvidia_gpu")
		if took := time.Since(began); took != 450*time.Millisecond {
			t.Errorf("a scrape that may take 0.5 s took %s", took)
		}
		text := scrape(t, h, "X-Prometheus-Scrape-Timeout-Seconds", "10")
		if took := time.Since(began); took != budget {
			t.Errorf("the flight took %s, its budget is %s", took, budget)
		}
		has(t, text, "nvidia_gpu_up"+labels("GPU-0", "0", "", "", "")+" 0")
		hasNot(t, text, "nvidia_gpu_power_watts")
		if d.reads != 1 {
			t.Errorf("read %d times, want one flight for both scrapes", d.reads)
		}
		e.Drain()
	})
}

func TestEnergyIsBookedOnWhoBurnedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		e := New(d.sources(), Options{})
		h := serve(e)
		at := func(joules float64, held ...string) string {
			d.burn("GPU-0", joules)
			d.hold(held...)
			return scrape(t, h)
		}
		const name = "nvidia_gpu_energy_joules_total"
		a, b := labels("GPU-0", "0", "n", "a", "c"), labels("GPU-0", "0", "n", "b", "c")
		nobody := labels("GPU-0", "0", "", "", "")
		has(t, at(5000), name+nobody+" 0")            // what was burned before podgauge came is nobody's
		has(t, at(1, "GPU-0=n/a/c"), name+a+" 0")     // a holding begins at 0
		has(t, at(100, "GPU-0=n/a/c"), name+a+" 100") // and is booked what it burns
		has(t, at(10), name+nobody+" 1")              // its tail is its own, not idle time's
		has(t, at(0, "GPU-0="), name+nobody+" 1")     // Allocate: somebody is about to hold it
		has(t, at(40, "GPU-0="), name+nobody+" 1")    // what burns now waits for a name
		has(t, at(2, "GPU-0=n/b/c"), name+b+" 42")    // and is that container's
		text := at(500, "GPU-0=n/b/c")
		has(t, text, name+b+" 542")
		hasNot(t, text, `pod="a",uuid="GPU-0"} 1`)  // a's counter is gone with it
		has(t, at(0, "GPU-0=n/a/c"), name+a+" 110") // and goes on when it is back
	})
}

// TestEnergyIsDividedAtAllocate: a GPU is allocated while a collection has read it and waits, for
// the kubelet or for another GPU. What it burned before is its predecessor's, to the joule, and
// what it burns from then on is the new owner's.
func TestEnergyIsDividedAtAllocate(t *testing.T) {
	for name, c := range map[string]struct {
		list  time.Duration // that a List takes
		hangs bool          // another GPU does
	}{
		"the kubelet takes 300 ms":    {list: 300 * time.Millisecond},
		"the kubelet takes 1.5 s":     {list: 1500 * time.Millisecond},
		"another GPU hangs":           {hangs: true},
		"the other hangs, and it too": {list: 300 * time.Millisecond, hangs: true},
		"nothing is slow":             {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(2)
				d.draw = 1
				sources := d.sources()
				sources.Owners = func(ctx context.Context) device.Holders {
					select {
					case <-time.After(c.list):
					case <-ctx.Done():
					}
					return d.owners(ctx)
				}
				sources.Read = func(ctx context.Context, gpus []device.GPU) []device.Reading {
					readings := d.read(ctx, gpus)
					if c.hangs {
						<-ctx.Done()
						readings[1] = device.Reading{GPU: gpus[1], Err: device.ErrStalled}
					}
					return readings
				}
				e := New(sources, Options{})
				h := serve(e)
				const name = "nvidia_gpu_energy_joules_total"
				nobody, b := labels("GPU-0", "0", "", "", ""), labels("GPU-0", "0", "n", "b", "c")
				at := func(offset time.Duration) { time.Sleep(time.Until(d.born.Add(offset))) }
				scrape(t, h)

				at(10 * time.Second)
				var slow sync.WaitGroup
				slow.Go(func() { scrape(t, h) }) // a collection that has read at 10 s
				at(10*time.Second + 100*time.Millisecond)
				e.Mark("GPU-0")
				d.hold("GPU-0=")

				at(20 * time.Second)
				d.hold("GPU-0=n/b/c")
				has(t, scrape(t, h), name+b+" 9900") // read at 20 s
				at(30 * time.Second)
				d.hold()
				has(t, scrape(t, h), name+nobody+" 10100")
				at(40 * time.Second)
				d.hold("GPU-0=n/b/c")
				has(t, scrape(t, h), name+b+" 19900")
				slow.Wait()
				e.Drain()
			})
		})
	}
}

// The kubelet's answer to a collection that began before the Allocate has the new owner's name.
func TestEnergyIsDividedAtAllocateWhenTheNameIsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		d.draw = 1
		sources := d.sources()
		list := time.Duration(0)
		sources.Owners = func(ctx context.Context) device.Holders {
			time.Sleep(list)
			return d.owners(ctx)
		}
		e := New(sources, Options{})
		h := serve(e)
		const name = "nvidia_gpu_energy_joules_total"
		nobody, b := labels("GPU-0", "0", "", "", ""), labels("GPU-0", "0", "n", "b", "c")
		scrape(t, h)
		time.Sleep(time.Second)
		list = 500 * time.Millisecond
		early := make(chan string, 1)
		go func() { early <- scrape(t, h) }()
		time.Sleep(100 * time.Millisecond)
		e.Mark("GPU-0") // at 1.1 s
		d.hold("GPU-0=n/b/c")
		has(t, <-early, name+b+" 0") // at 1.5 s, of a reading at 1 s
		list = 0
		time.Sleep(1500 * time.Millisecond)
		has(t, scrape(t, h), name+b+" 1900")
		d.hold()
		has(t, scrape(t, h), name+nobody+" 1100")
		e.Drain()
	})
}

// An Allocate costs the reading of its GPU, and neither a question to the kubelet nor a
// collection. Nothing has to be asked where counters are the driver's own.
func TestMarkReadsOneGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, stable := range []bool{false, true} {
			d := newNode(8)
			sources := d.sources()
			var asked []device.GPU
			sources.ReadOne = func(ctx context.Context, gpu device.GPU) device.Reading {
				asked = append(asked, gpu)
				return d.readOne(ctx, gpu)
			}
			e := New(sources, Options{StableSeries: stable})
			e.Mark("GPU-3", "GPU-3", "GPU-that-is-not-there")
			e.Drain()
			if want := map[bool]int{false: 1, true: 0}[stable]; len(asked) != want || d.reads != 0 || d.lists != 0 {
				t.Errorf("stable %v: %v were read, beside %d collections and %d questions", stable, asked, d.reads, d.lists)
			}
		}
	})
}

// A pod is turned away after its Allocate, nobody ever names it, and the device is allocated to
// the next one.
func TestEnergyOfWhoWasNeverNamedIsNobodys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		e := New(d.sources(), Options{})
		h := serve(e)
		const name = "nvidia_gpu_energy_joules_total"
		scrape(t, h)
		for range 2 {
			e.Mark("GPU-0")
			synctest.Wait()
			d.hold("GPU-0=")
			d.burn("GPU-0", 500)
		}
		d.hold("GPU-0=n/b/c")
		has(t, scrape(t, h), name+labels("GPU-0", "0", "n", "b", "c")+" 500")
		d.hold()
		has(t, scrape(t, h), name+labels("GPU-0", "0", "", "", "")+" 500")
		e.Drain()
	})
}

// A driver that was started anew may say other things of a GPU.
func TestInfoFollowsTheDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		h := serve(New(d.sources(), Options{}))
		const was, is = `pci_bus_id="0000:1a:00.0"`, `pci_bus_id="0000:9a:00.0"`
		if text := scrape(t, h); !strings.Contains(text, was) {
			t.Errorf("no %s in\n%s", was, text)
		}
		d.statuses = slices.Clone(d.statuses)
		d.statuses[0].PCI, d.statuses[0].Index = "0000:9a:00.0", 3
		d.board.Post(d.statuses)
		text := scrape(t, h)
		if !strings.Contains(text, is) {
			t.Errorf("no %s in\n%s", is, text)
		}
		hasNot(t, text, was)
		hasNot(t, text, `gpu="0"`)
	})
}

// Where slices are not offered a partitioned GPU is held as a whole.
// TestEmptyFacts: what the driver does not tell of a device has no label on its info series.
func TestEmptyFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		s := slices.Clone(d.statuses)
		s[0].Model, s[0].Facts = "", []device.Label{{Name: "chassis_serial"}, {Name: "serial", Value: "1650"}}
		d.board.Post(s)
		text := scrape(t, serve(New(d.sources(), Options{})))
		has(t, text, `nvidia_gpu_info{container="",gpu="0",mig_uuid="",minor="0",namespace="",numa_node="0",pci_bus_id="0000:1a:00.0",pod="",serial="1650",uuid="GPU-0"} 1`)
	})
}

func TestAPartitionedGPUThatIsHeldAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(1)
		d.partition()
		d.watts = 300
		d.hold("GPU-0=team/train/main")
		has(t, scrape(t, serve(New(d.sources(), Options{}))), "nvidia_gpu_power_watts"+labels("GPU-0", "0", "team", "train", "main")+" 300")
	})
}
