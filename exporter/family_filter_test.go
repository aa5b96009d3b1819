package exporter

import (
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/prometheus/client_golang/prometheus"
)

func TestFamilyFilter(t *testing.T) {
	for _, c := range []struct {
		set, include, exclude string
		includes, excludes    []string
	}{
		{"full", "", "", []string{"nvidia_gpu_power_watts", "go_goroutines"}, nil},
		{"none", "nvidia_gpu_power_*", "", []string{"nvidia_gpu_power_watts", "nvidia_gpu_power_limit_watts"}, []string{"nvidia_gpu_clock_hertz", "go_goroutines"}},
		{"full", "", "nvidia_gpu_*_total,go_*", []string{"nvidia_gpu_power_watts"}, []string{"nvidia_gpu_energy_joules_total", "go_goroutines"}},
		{"minimal", "", "", []string{"nvidia_gpu_healthy", "podgauge_build_info"}, []string{"process_cpu_seconds_total", "nvidia_gpu_nvlink_links"}},
		{"default", "go_*", "", []string{"nvidia_gpu_healthy", "process_cpu_seconds_total", "go_goroutines"}, []string{"nvidia_gpu_compute_mode", "DCGM_FI_DEV_GPU_UTIL"}},
		{"none", "nvidia_*", "nvidia_gpu_clock_hertz", []string{"nvidia_gpu_power_watts"}, []string{"nvidia_gpu_clock_hertz", "podgauge_nvml_up"}},
	} {
		choice, err := NewFamilyFilter(c.set, split(c.include), split(c.exclude))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.includes {
			if !choice.Matches(name) {
				t.Errorf("%+v excludes %s", c, name)
			}
		}
		for _, name := range c.excludes {
			if choice.Matches(name) {
				t.Errorf("%+v includes %s", c, name)
			}
		}
	}
	for _, bad := range []string{"nvidia_[", "a\\", " "} {
		if _, err := NewFamilyFilter("full", nil, []string{strings.TrimSpace(bad)}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", strings.TrimSpace(bad))) {
			t.Errorf("%q: got error %v", bad, err)
		}
	}
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// TestScrapeWithFilter checks that excluded families are not exported.
func TestScrapeWithFilter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		choice, err := NewFamilyFilter("full", nil, []string{"nvidia_gpu_power_watts", "nvidia_gpu_info", "podgauge_simulated"})
		if err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewRegistry()
		NewSelfMetrics(registry, "v", false)
		e := New(newScrapeFixture(1).sources(), Options{Filter: choice})
		h := e.Handler(HandlerOptions{TelemetryPath: "/metrics", Registry: registry, Log: slog.New(slog.DiscardHandler)})
		text := scrape(t, h)
		for _, excluded := range []string{"nvidia_gpu_power_watts", "nvidia_gpu_info", "podgauge_simulated"} {
			assertAbsent(t, text, excluded)
		}
		assertSeries(t, text, "nvidia_gpu_healthy"+seriesLabels("GPU-0", "0", "", "", "")+" 1")
		if !strings.Contains(text, "podgauge_build_info{") {
			t.Error("podgauge_build_info is missing")
		}
	})
}

// TestRuntimeMetrics checks the families of the Go runtime and of the process in each set.
func TestRuntimeMetrics(t *testing.T) {
	for _, c := range []struct {
		set, include, exclude string
		goFamilies            bool
		processFamilies       []string // some of them; all if at most two
	}{
		{"full", "", "", true, []string{"process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes"}},
		{"full", "", "go_*,process_*", false, nil},
		{"default", "", "", false, []string{"process_cpu_seconds_total", "process_resident_memory_bytes"}},
		{"default", "", "process_cpu_seconds_total", false, []string{"process_resident_memory_bytes"}},
		{"default", "process_open_fds", "", false, []string{"process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes"}},
		{"default", "go_*", "", true, []string{"process_cpu_seconds_total", "process_resident_memory_bytes"}},
		{"minimal", "", "", false, nil},
	} {
		filter, err := NewFamilyFilter(c.set, split(c.include), split(c.exclude))
		if err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewRegistry()
		NewSelfMetrics(registry, "v", false)
		e := New(newScrapeFixture(1).sources(), Options{Filter: filter})
		text := scrape(t, e.Handler(HandlerOptions{TelemetryPath: "/metrics", Registry: registry, Log: slog.New(slog.DiscardHandler)}))
		hasGo := strings.Contains(text, "\ngo_")
		var names []string // in order
		for _, sample := range regexp.MustCompile(`(?m)^(process_\w+) (.*)$`).FindAllStringSubmatch(text, -1) {
			names = append(names, sample[1])
			if strings.HasPrefix(sample[2], "-") { // CPU time has ticks of 10 ms
				t.Errorf("%+v: got %s", c, sample[0])
			}
		}
		missing := slices.ContainsFunc(c.processFamilies, func(name string) bool { return !slices.Contains(names, name) })
		if hasGo != c.goFamilies || missing || len(c.processFamilies) < 3 && len(names) != len(c.processFamilies) {
			t.Errorf("%+v: got %v, go_* exported: %v", c, names, hasGo)
		}
	}
}

// TestRows checks the rows of a set, of an included family and of an excluded
// family. Of an enumeration, a set exports states while they are 1.
func TestRows(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		state := func(name string, always bool) device.Metric {
			return device.Metric{
				Name: "state", Help: "State.", Labels: []device.Label{{Name: "is", Value: name}},
				Enum: true, Set: device.SetMinimal, AlwaysInSet: always,
			}
		}
		d.metrics = slices.Concat(testMetrics, []device.Metric{
			{Name: "rare", Help: "Rare."},
			{Name: "usual", Help: "Usual.", Set: device.SetDefault},
			state("on", false), state("off", false), state("always", true),
		})
		for i, value := range []float64{1, 1, 1, 0, 0} {
			d.extraSamples = append(d.extraSamples, device.Sample{Device: "GPU-0", Metric: len(testMetrics) + i, Value: value})
		}
		for _, c := range []struct{ set, include, exclude, want string }{
			{"full", "", "", "rare usual on off always"},
			{"default", "", "", "usual on always"},
			{"default", "rare,state", "", "rare usual on off always"},
			{"minimal", "", "", "on always"},
			{"minimal", "state,usual", "state", "usual"},
			{"none", "", "", ""},
		} {
			filter, err := NewFamilyFilter(c.set, split(c.include), split(c.exclude))
			if err != nil {
				t.Fatal(err)
			}
			text := scrape(t, newHandler(New(d.sources(), Options{Filter: filter})))
			var got []string
			for _, row := range []string{"rare{", "usual{", `is="on"`, `is="off"`, `is="always"`} {
				if strings.Contains(text, row) {
					got = append(got, strings.Trim(strings.TrimPrefix(row, "is="), `"{`))
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%+v: got %v", c, got)
			}
		}
	})
	if _, err := NewFamilyFilter("most", nil, nil); err == nil || !strings.Contains(err.Error(), "minimal") {
		t.Errorf("unknown set: got error %v", err)
	}
}

// TestSeriesLimit checks that series above the limit are dropped and counted.
func TestSeriesLimit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(8)
		for _, limit := range []int{10, 50, 1000} {
			text := scrape(t, newHandler(New(d.sources(), Options{SeriesLimit: limit})))
			series := 0
			for line := range strings.Lines(text) {
				if !strings.HasPrefix(line, "#") {
					series++
				}
			}
			all := 8*15 + 2 + 7 // 8 idle GPUs, incidents, and the node
			assertSeries(t, text, fmt.Sprintf("podgauge_series %d", series))
			assertSeries(t, text, fmt.Sprintf("podgauge_series_dropped %d", max(0, all-7-limit)))
			if want := min(limit+7, all); series != want {
				t.Errorf("limit %d: got %d series, want %d\n%s", limit, series, want, text)
			}
			assertSeries(t, text, "podgauge_nvml_up 1") // exempt from the limit
		}
	})
}

func TestAllocationInfoHasPodMeta(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.allocate("GPU-0=n/p/c")
		d.node.Pods.Set(pods.NewPods(&pods.Pod{Namespace: "n", Name: "p", UID: "u-1", Labels: []device.Label{
			{Name: "app.kubernetes.io/name", Value: "a \"b\""}, {Name: "app_kubernetes_io/name", Value: "other"},
		}}))
		e := New(d.sources(), Options{PodUID: true})
		row := `nvidia_gpu_allocation_info{container="c",device_id="GPU-0",%smig_uuid="",namespace="n",pod="p",%sresource="nvidia.com/gpu",uuid="GPU-0"} 1`
		assertSeries(t, scrape(t, newHandler(e)), fmt.Sprintf(row, `label_app_kubernetes_io_name="a \"b\"",label_app_kubernetes_io_name_conflict2="other",`, `pod_uid="u-1",`))
		d.node.Pods.Set(pods.NewPods(&pods.Pod{Namespace: "n", Name: "p", UID: "u-2"})) // a later pod of the same name
		d.expireCollection()
		assertSeries(t, scrape(t, newHandler(e)), fmt.Sprintf(row, "", `pod_uid="u-2",`))
		assertSeries(t, scrape(t, newHandler(New(d.sources(), Options{}))), fmt.Sprintf(row, "", ""))
	})
}

// TestSeriesLimitOfResources checks that the counts of devices come before devices, up to the limit.
func TestSeriesLimitOfResources(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(0)
		d.allocations.Resources.AllocatableKnown = true
		for i := range 1000 {
			row := device.ResourceDevice{Resource: "r", ID: strconv.Itoa(i)}
			d.allocations.Resources.Allocatable.Devices = append(d.allocations.Resources.Allocatable.Devices, row)
		}
		text := scrape(t, newHandler(New(d.sources(), Options{SeriesLimit: 10})))
		assertSeries(t, text, `podgauge_resource_allocatable_devices{numa_node="",resource="r"} 1000`)
		assertSeries(t, text, "podgauge_series_dropped 993")
		if n := strings.Count(text, "\npodgauge_resource_device_info{"); n != 7 {
			t.Errorf("got %d devices, want 7", n)
		}
	})
}

// TestPodLabels checks that label names are unique: a repeated label would invalidate the whole scrape.
func TestPodLabels(t *testing.T) {
	for names, want := range map[string]string{
		"app.kubernetes.io/name":    "label_app_kubernetes_io_name",
		"nodePool jobUID2Hash GPU":  "label_node_pool label_job_uid2_hash label_gpu", // as in kube-state-metrics
		"a-b a.b a_b a_b_conflict2": "label_a_b label_a_b_conflict2 label_a_b_conflict3 label_a_b_conflict2_conflict2",
		"a-b a_b_conflict2 a.b a/b": "label_a_b label_a_b_conflict2 label_a_b_conflict3 label_a_b_conflict4",
	} {
		var of []device.Label
		for name := range strings.FieldsSeq(names) {
			of = append(of, device.Label{Name: name})
		}
		var got []string
		for _, l := range podLabels(of) {
			got = append(got, l.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %s, want %s", names, got, want)
		}
	}
}

// TestStableSeries checks that series have no owner labels and that counters have the driver's values.
func TestStableSeries(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		h := newHandler(New(d.sources(), Options{StableSeries: true, DCGM: true}))
		noOwner := seriesLabels("GPU-0", "0", "", "", "")
		for _, allocations := range [][]string{{"GPU-0=n/a/c"}, nil, {"GPU-0::0=n/a/c", "GPU-0::1=n/b/c"}} {
			d.addEnergy("GPU-0", 1000)
			d.allocate(allocations...)
			text := scrape(t, h)
			assertSeries(t, text, fmt.Sprintf("nvidia_gpu_energy_joules_total%s %v", noOwner, d.joules["GPU-0"]))
			assertSeries(t, text, "nvidia_gpu_power_watts"+noOwner+" 0")
			assertSeries(t, text, "nvidia_gpu_healthy"+noOwner+" 1")
			if !strings.Contains(text, "\nDCGM_FI_DEV_POWER_USAGE{") {
				t.Error("no family of dcgm-exporter")
			}
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "DCGM") && !strings.Contains(line, `,pod=""}`) {
					t.Errorf("got a dcgm-exporter series with a pod: %s", line)
				}
			}
		}
		d.allocate("GPU-0=n/a/c")
		text := scrape(t, h)
		assertSeries(t, text, `nvidia_gpu_allocation_info{container="c",device_id="GPU-0",mig_uuid="",namespace="n",pod="a",resource="nvidia.com/gpu",uuid="GPU-0"} 1`)
		d.mu.Lock()
		d.allocations = device.Allocations{}
		d.mu.Unlock()
		d.expireCollection()
		text = scrape(t, h) // without owners
		assertSeries(t, text, "nvidia_gpu_power_watts"+noOwner+" 0")
		assertAbsent(t, text, "nvidia_gpu_allocated")
	})
}

// TestStateGaugesHaveNoOwner checks that state gauges, such as limits and modes, are independent of owners.
func TestStateGaugesHaveNoOwner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.extraSamples = []device.Sample{{Device: "GPU-0", Metric: widthRow, Value: 16}}
		d.allocate("GPU-0=n/p/c")
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		assertSeries(t, text, "nvidia_gpu_pcie_link_width"+seriesLabels("GPU-0", "0", "", "", "")+" 16")
		if !strings.Contains(text, "# TYPE nvidia_gpu_pcie_link_width gauge\n") {
			t.Error("state is not exported as a gauge")
		}
	})
}
