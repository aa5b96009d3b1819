package exporter_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

func TestScrapesShareCollection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		h := d.handler(exporter.Options{})
		setXids := func(count uint64) func() {
			return func() {
				d.publish(func(s []device.Status) { s[0].Xids = []device.Xid{{Code: 31, Count: count}} })
			}
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
			{"after a GPU failed", func() {
				d.publish(func(s []device.Status) { s[0].Healthy, s[0].Reason = false, "xid_79" })
			}, 4},
			{"after an Xid count rose", setXids(9), 4},
			{"after it rose again", setXids(10), 4},
			{"after a GPU was added", func() { d.node.Devices.Set(append(slices.Clone(d.statuses), newScrapeFixture(2).statuses[1])) }, 5},
		} {
			c.first()
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() { scrape(t, h) })
			}
			all.Wait()
			if d.readCalls != c.reads || d.listCalls != c.reads {
				t.Errorf("%s: got %d reads and %d calls of List, want %d", c.what, d.readCalls, d.listCalls, c.reads)
			}
		}
	})
}

const timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"

func TestScrapeTimeout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.onRead = func(ctx context.Context, readings []health.Reading) {
			<-ctx.Done()
			clear(readings)
		}
		h := d.handler(exporter.Options{})
		began := time.Now()
		assertAbsent(t, scrape(t, h, timeoutHeader, "0.5"), "nvidia_gpu")
		expect.Equal(t, time.Since(began), 450*time.Millisecond, "scrape with a timeout of 0.5 s")
		text := scrape(t, h, timeoutHeader, "10")
		if took := time.Since(began); took != time.Second {
			t.Errorf("collection: got %s, want at most 1 s", took)
		}
		assertSeries(t, text, "up GPU-0 - 0", "!nvidia_gpu_power_watts")
		if d.readCalls != 1 {
			t.Errorf("got %d reads, want one collection for both scrapes", d.readCalls)
		}
	})
}

// allocateOnNode is an Allocate of a device: rows are published as allocations.
func allocateOnNode(e *exporter.Exporter, d *scrapeFixture, id device.ID, rows ...string) {
	defer e.BeginAllocate(id)()
	d.allocate(rows...)
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
		bubble.Run(t, name, func(t *testing.T) {
			d := newScrapeFixture(2)
			d.joulesPerMillisecond = 1
			d.onList = func(ctx context.Context) {
				select {
				case <-time.After(c.list):
				case <-ctx.Done():
				}
			}
			d.onRead = func(ctx context.Context, readings []health.Reading) {
				if c.hangs {
					<-ctx.Done()
					readings[1] = health.Reading{GPU: readings[1].GPU, Err: device.ErrStalled}
				}
			}
			e := exporter.New(d.sources(), exporter.Options{})
			h := e.Handler(handlerOptions())
			at := func(offset time.Duration) { time.Sleep(time.Until(d.started.Add(offset))) }
			scrape(t, h)

			at(10 * time.Second)
			var slow sync.WaitGroup
			slow.Go(func() { scrape(t, h) }) // reads at 10 s
			at(10*time.Second + 100*time.Millisecond)
			allocateOnNode(e, d, "GPU-0", "GPU-0=")

			for _, step := range []struct {
				seconds           time.Duration
				allocations, want string
			}{{20, "GPU-0=n/b/c", "n/b/c 9900"}, {30, "", "- 10100"}, {40, "GPU-0=n/b/c", "n/b/c 19900"}} {
				at(step.seconds * time.Second)
				d.allocate(strings.Fields(step.allocations)...)
				assertSeries(t, scrape(t, h), "energy_joules_total GPU-0 "+step.want)
			}
			slow.Wait()
			e.Drain()
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
		e := exporter.New(d.sources(), exporter.Options{})
		h := e.Handler(handlerOptions())
		scrape(t, h)
		time.Sleep(time.Second)
		list = 500 * time.Millisecond
		early := make(chan string, 1)
		go func() { early <- scrape(t, h) }()
		time.Sleep(100 * time.Millisecond)
		allocateOnNode(e, d, "GPU-0", "GPU-0=n/b/c")                  // at 1.1 s
		assertSeries(t, <-early, "energy_joules_total GPU-0 n/b/c 0") // at 1.5 s, from a reading at 1 s
		list = 0
		time.Sleep(1500 * time.Millisecond)
		assertSeries(t, scrape(t, h), "energy_joules_total GPU-0 n/b/c 1900")
		d.allocate()
		assertSeries(t, scrape(t, h), "energy_joules_total GPU-0 - 1100")
		e.Drain()
	})
}

// TestAllocateReadsOneGPU checks that an Allocate reads only its GPU, and reads nothing if counters have the driver's values.
func TestAllocateReadsOneGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for stable, want := range map[bool]int{false: 1, true: 0} {
			d := newScrapeFixture(8)
			reads := 0
			d.onReadOne = func(*health.Reading) { reads++ }
			e := exporter.New(d.sources(), exporter.Options{StableSeries: stable})
			e.BeginAllocate("GPU-3", "GPU-3", "GPU-unknown")()
			e.Drain()
			if reads != want || d.readCalls != 0 || d.listCalls != 0 {
				t.Errorf("stable %v: got %d reads, %d collections and %d List calls", stable, reads, d.readCalls, d.listCalls)
			}
		}
	})
}

// TestNewestFailuresAreShown checks that a scrape has the newest 500 failures, also after as many newer application errors.
func TestNewestFailuresAreShown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(0)
		var affected []incident.EventCount
		add := func(reason string, n, begin int) {
			for i := range n {
				affected = append(affected, incident.EventCount{
					Device: "GPU-0", GPU: "GPU-0", Reason: reason, Count: 1, Last: time.Unix(int64(begin+i), 0),
					Owner: allocation.Owner{Namespace: "n", Pod: fmt.Sprint("p", i), Container: "c"},
				})
			}
		}
		add("xid_31", 500, 100_000)
		add("xid_79", 507, 0)
		d.node.Incidents.Set(incident.Snapshot{Affected: affected})
		text := scrape(t, d.handler(exporter.Options{}))
		expect.Equal(t, strings.Count(text, "\nnvidia_gpu_allocation_device_failures_total{"), 500, "failures")
		assertSeries(t, text, "!allocation_device_failures_total GPU-0 n/p6/c reason=xid_79",
			"allocation_device_failures_total GPU-0 n/p7/c 1 reason=xid_79", "allocation_device_failures_total GPU-0 n/p506/c 1 reason=xid_79",
			"podgauge_allocation_device_failures_dropped 7")
	})
}

// TestAllocationRatio checks the parts of a GPU that containers have. The parts of a device never add up to more than the device's.
func TestAllocationRatio(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name, partition, advertised, rows string
			slices                            int
			want                              []string
		}{
			{"whole GPU", "", "GPU-0", "GPU-0=a/p/c", 0, []string{"GPU-0 a/p/c 1"}},
			{"replicas of four", "", "GPU-0::0 GPU-0::1 GPU-0::2 GPU-0::3", "GPU-0::0=a/p/c GPU-0::1=a/p/c GPU-0::2=b/q/c", 0, []string{"GPU-0 a/p/c 0.5", "GPU-0 b/q/c 0.25"}},
			{"unhealthy replicas keep their number", "", "", "GPU-0::0=a/p/c GPU-0::1=b/q/c", 0, []string{"GPU-0 a/p/c 0.25", "GPU-0 b/q/c 0.25"}},
			{"unhealthy, then forgotten", "", "", "GPU-0::0=a/p/c GPU-0::1=b/q/c", 0, []string{"GPU-0 a/p/c 0.5", "GPU-0 b/q/c 0.5"}},
			{"two resources with the GPU", "", "GPU-0 example.com/gpu=GPU-0", "GPU-0=a/p/c", 0, []string{"GPU-0 a/p/c 1"}},
			{"a claim on a GPU with replicas", "", "GPU-0::0 GPU-0::1 GPU-0::2 GPU-0::3", "dra:GPU-0=a/p/c", 0, []string{"GPU-0 a/p/c 1"}},
			{"an unnamed owner", "", "GPU-0::0 GPU-0::1", "GPU-0::0= GPU-0::1=a/p/c", 0, []string{"GPU-0 a/p/c 0.5"}},
			{"shares of claims", "", "GPU-0", "dra:GPU-0=a/p/c dra:GPU-0=b/q/c dra:GPU-0=b/r/c dra:GPU-0=b/s/c", 0, []string{"GPU-0 a/p/c 0.25", "GPU-0 b/q/c 0.25", "GPU-0 b/r/c 0.25", "GPU-0 b/s/c 0.25"}},
			{"a claim beside a device plugin", "", "GPU-0", "GPU-0=a/p/c dra:GPU-0=b/q/c", 0, []string{"GPU-0 a/p/c 1"}},
			{"MIG devices", "1g.10gb 3g.40gb 1c.3g.40gb", "MIG-0 MIG-1 MIG-2", "MIG-0=a/p/c MIG-1=b/q/c MIG-2=b/r/c", 7, []string{"MIG-0 a/p/c 0.14285714285714285", "MIG-1 b/q/c 0.42857142857142855", "MIG-2 b/r/c 0.14285714285714285"}},
			{"an A30", "1g.6gb+me 4g.24gb", "", "MIG-0=a/p/c MIG-1=b/q/c", 4, []string{"MIG-0 a/p/c 0.25", "MIG-1 b/q/c 1"}},
			{"replicas of a MIG device", "1g.6gb", "MIG-0::0 MIG-0::1", "MIG-0::1=a/p/c", 4, []string{"MIG-0 a/p/c 0.125"}},
			{"unknown slices", "2g.20gb", "", "MIG-0=a/p/c", 0, []string{"MIG-0 a/p/c 1"}},
		} {
			d := newScrapeFixture(1)
			if c.partition != "" {
				d.partition(strings.Fields(c.partition)...)
				d.publish(func(statuses []device.Status) {
					for i := range statuses {
						statuses[i].ComputeSlices = c.slices
					}
				})
			}
			handler := d.handler(exporter.Options{})
			if strings.HasPrefix(c.name, "unhealthy") {
				d.advertise("GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-0::3")
				scrape(t, handler)
				time.Sleep(time.Minute)
			}
			if strings.HasSuffix(c.name, "forgotten") {
				all := d.statuses
				d.publish(func([]device.Status) { d.statuses = nil })
				scrape(t, handler)
				d.publish(func([]device.Status) { d.statuses = all })
			}
			d.allocate(strings.Fields(c.rows)...)
			d.advertise(strings.Fields(c.advertised)...)
			text := scrape(t, handler)
			expect.Equal(t, strings.Count(text, "\nnvidia_gpu_allocation_ratio{"), len(c.want), c.name)
			for _, want := range c.want {
				resource := "nvidia.com/gpu"
				if strings.HasPrefix(c.rows, "dra:") {
					resource = "gpu.nvidia.com"
				}
				assertSeries(t, text, "allocation_ratio "+want+" resource="+resource)
			}
		}
	})
}

// TestHealthTimes checks that a scrape has the time in the current state until now.
func TestHealthTimes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.publish(func(s []device.Status) {
			s[0].Times = s[0].Times.Enter(device.Healthy, "", time.Now().Add(-90*time.Second)).
				Enter(device.Unhealthy, "xid_79", time.Now().Add(-30*time.Second))
		})
		handler := d.handler(exporter.Options{})
		for _, seconds := range []int{30, 75} {
			assertSeries(t, scrape(t, handler), "health_state_seconds_total GPU-0 - 60 state=healthy reason=",
				fmt.Sprint("health_state_seconds_total GPU-0 - ", seconds, " state=unhealthy reason=xid_79"))
			time.Sleep(45 * time.Second)
		}
	})
}

// TestHealthTimesNeverDecrease covers a scrape between the time of a change and its publication.
func TestHealthTimesNeverDecrease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.publish(func(s []device.Status) { s[0].Times = s[0].Times.Enter(device.Healthy, "", time.Now()) })
		handler := d.handler(exporter.Options{})
		time.Sleep(10 * time.Second)
		change := time.Now()
		time.Sleep(2 * time.Second)
		assertSeries(t, scrape(t, handler), "health_state_seconds_total GPU-0 - 12 state=healthy reason=")
		d.publish(func(s []device.Status) { s[0].Times = s[0].Times.Enter(device.Unhealthy, "xid_79", change) })
		assertSeries(t, scrape(t, handler), "health_state_seconds_total GPU-0 - 12 state=healthy reason=",
			"health_state_seconds_total GPU-0 - 2 state=unhealthy reason=xid_79")
		d.publish(func(s []device.Status) { s[0].Times = s[0].Times.Enter(device.Healthy, "", time.Now()) })
		time.Sleep(5 * time.Second)
		assertSeries(t, scrape(t, handler), "health_state_seconds_total GPU-0 - 15 state=healthy reason=")
	})
}

func TestInvalidFilters(t *testing.T) {
	for _, bad := range []string{"nvidia_[", "a\\", ""} {
		_, err := exporter.NewFamilyFilter("full", nil, []string{bad})
		if want := fmt.Sprintf("%q is not a valid name pattern", bad); fmt.Sprint(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	const want = `"most" is not a set: expected none, minimal, default or full`
	if _, err := exporter.NewFamilyFilter("most", nil, nil); fmt.Sprint(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestFamilyFilter checks the families of a scrape, with those of the Go runtime and the process. Of an enumeration, a set
// exports states while they are 1.
func TestFamilyFilter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		state := func(name string, always bool) device.Metric {
			labels := []device.Label{{Name: "a", Value: name}}
			return device.Metric{Name: "state", Help: "State.", Labels: labels, Enum: true, Set: device.SetMinimal, AlwaysInSet: always}
		}
		d.metrics = slices.Concat(testMetrics, []device.Metric{
			{Name: "rare", Help: "Rare."},
			{Name: "usual", Help: "Usual.", Set: device.SetDefault},
			state("on", false), state("off", false), state("always", true),
		})
		for i, value := range []float64{1, 1, 1, 0, 0} {
			d.extraSamples = append(d.extraSamples, device.Sample{Device: "GPU-0", Metric: len(testMetrics) + i, Value: value})
		}
		const on, off, always = `state{a="on"`, `state{a="off"`, `state{a="always"`
		const process = "process_cpu_seconds_total process_resident_memory_bytes"
		for _, c := range []struct{ set, include, exclude, want, absent string }{
			{"full", "", "", "nvidia_gpu_power_watts nvidia_gpu_info podgauge_simulated go_goroutines process_open_fds " + process, ""},
			{"full", "", "nvidia_gpu_*_total,go_*,process_*,podgauge_simulated", "nvidia_gpu_power_watts podgauge_build_info", "nvidia_gpu_energy_joules_total podgauge_simulated go_ process_"},
			{"full", "", "nvidia_gpu_power_watts,nvidia_gpu_info", "nvidia_gpu_healthy rare usual " + on + " " + off + " " + always, "nvidia_gpu_power_watts nvidia_gpu_info"},
			{"default", "", "", "nvidia_gpu_healthy usual " + on + " " + always + " " + process, "go_ process_open_fds rare " + off},
			{"default", "", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_cpu_seconds_total"},
			{"default", "process_open_fds,go_*,rare,state", "", "go_goroutines process_open_fds rare usual " + on + " " + off + " " + process, ""},
			{"minimal", "", "", "nvidia_gpu_healthy podgauge_build_info " + on + " " + always, "go_ process_ podgauge_incidents rare usual " + off},
			{"minimal", "state,usual", "state", "usual", "rare state"},
			{"none", "nvidia_*", "nvidia_gpu_clock_hertz", "nvidia_gpu_power_watts", "nvidia_gpu_clock_hertz podgauge_ go_ rare usual state"},
			{"none", "nvidia_gpu_power_*", "", "nvidia_gpu_power_watts", "nvidia_gpu_clock_hertz go_"},
		} {
			o := handlerOptions()
			exporter.NewSelfMetrics(o.Registry, "v", false)
			split := func(list string) []string { return strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) }
			filter, err := exporter.NewFamilyFilter(c.set, split(c.include), split(c.exclude))
			require.NoError(t, err)
			text := scrape(t, exporter.New(d.sources(), exporter.Options{Filter: filter}).Handler(o))
			for name := range strings.FieldsSeq(c.want) {
				if !strings.Contains(text, "\n"+name) {
					t.Errorf("%+v: missing %s", c, name)
				}
			}
			for name := range strings.FieldsSeq(c.absent) {
				if strings.Contains(text, "\n"+name) {
					t.Errorf("%+v: unexpected %s", c, name)
				}
			}
		}
	})
}

// TestSeriesLimit checks that series above the limit are dropped and counted. Counts of devices come before devices.
func TestSeriesLimit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(8)
		for _, limit := range []int{10, 50, 1000} {
			text := scrape(t, d.handler(exporter.Options{SeriesLimit: limit}))
			series := 0
			for line := range strings.Lines(text) {
				if !strings.HasPrefix(line, "#") {
					series++
				}
			}
			all := 8*15 + 2 + 7 // 8 idle GPUs, incidents, and the node
			if want := min(limit+7, all); series != want {
				t.Errorf("limit %d: got %d series, want %d\n%s", limit, series, want, text)
			}
			assertSeries(t, text, "podgauge_nvml_up 1", // exempt from the limit
				fmt.Sprintf("podgauge_series %d", series), fmt.Sprintf("podgauge_series_dropped %d", max(0, all-7-limit)))
		}

		d = newScrapeFixture(0)
		d.allocations.Resources.AllocatableKnown = true
		for i := range 1000 {
			row := allocation.ResourceDevice{Resource: "r", ID: strconv.Itoa(i)}
			d.allocations.Resources.Allocatable.Devices = append(d.allocations.Resources.Allocatable.Devices, row)
		}
		text := scrape(t, d.handler(exporter.Options{SeriesLimit: 10}))
		assertSeries(t, text, `podgauge_resource_allocatable_devices{numa_node="",resource="r"} 1000`, "podgauge_series_dropped 993")
		expect.Equal(t, strings.Count(text, "\npodgauge_resource_device_info{"), 7, "devices")
	})
}
