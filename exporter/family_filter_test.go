package exporter_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/require"
)

func newFilter(t *testing.T, set, include, exclude string) exporter.FamilyFilter {
	t.Helper()
	split := func(list string) []string { return strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) }
	filter, err := exporter.NewFamilyFilter(set, split(include), split(exclude))
	require.NoError(t, err)
	return filter
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
			text := scrape(t, exporter.New(d.sources(), exporter.Options{Filter: newFilter(t, c.set, c.include, c.exclude)}).Handler(o))
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
		if n := strings.Count(text, "\npodgauge_resource_device_info{"); n != 7 {
			t.Errorf("got %d devices, want 7", n)
		}
	})
}
