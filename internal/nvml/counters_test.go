package nvml_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/bubble"
)

const (
	sentPCIe    = "nvidia_gpu_pcie_transmit_bytes_total"
	sentNVLink  = "nvidia_gpu_nvlink_transmit_bytes_total"
	replays     = `nvidia_gpu_nvlink_errors_total{type="replay"}`
	linksUp     = "nvidia_gpu_nvlink_links_up"
	computeMode = `nvidia_gpu_compute_mode{mode="default"}`
)

// TestCounters lets counters of the driver wrap, restart, disappear and return.
func TestCounters(t *testing.T) {
	const first = 4294967000
	type step struct {
		what, line string
		wait       time.Duration
		want       float64
	}
	for name, c := range map[string]struct {
		lines []string
		steps []step
	}{
		sentPCIe: {[]string{"gpu 0 energy 1000000", "gpu 0 field 197 4294967000 u32"}, []step{
			{"at first", "", time.Second, first}, // a link can transfer 4 GiB
			{"wrapped", "gpu 0 field 197 704 u32", time.Second, first + 1000},
			{"increased", "gpu 0 field 197 1704 u32", time.Second, first + 2000},
			{"before a reload", "gpu 0 energy 5", 0, first + 2000 + 1704},
			{"driver reloaded", "gpu 0 field 197 1754 u32", time.Second, first + 2000 + 1754},
			{"Init, not a restart of the counter", "init", 0, first + 2000 + 1754},
			{"absent", "gpu 0 field 197 none", 0, -1},
			{"back", "gpu 0 field 197 1764 u32", 0, -1}, // not requested
			{"back and requested", "", deniedInterval, first + 2000 + 1764},
			{"64 bits: restarted, not wrapped", "gpu 0 field 197 7 u64", time.Second, first + 2000 + 1771},
		}},
		// Counters of single links, as from Blackwell on.
		sentNVLink: {[]string{"gpu 0 model b200", "gpu 0 link 4-17 none", "gpu 0 field 202/link 1000"}, []step{
			{"four links", "", 0, 4000},
			{"increased", "gpu 0 field 202/1 2000", 0, 5000},
			{"one link does not respond", "gpu 0 field 202/1 none", 0, 5000},
			{"another link increased", "gpu 0 field 202/0 2500", 0, 6500},
			{"link responds again", "gpu 0 field 202/1 3000", deniedInterval, 7500},
			{"another source fails", "fail field:138 gpu 0 UNKNOWN", 0, 7500},
			{"increased during the failure", "gpu 0 field 202/2 1500", 0, 8000},
		}},
		// nvidia-smi nvlink -re sets errors to 0.
		replays: {[]string{"gpu 0 field 52 40 u32"}, []step{
			{"at first", "", 0, 40},
			{"set to 0", "gpu 0 field 52 2 u32", slowInterval, 42},
			{"increased", "gpu 0 field 52 5 u32", slowInterval, 45},
		}},
	} {
		bubble.Test(t, func(t *testing.T) {
			s := newListedFixture(t, append([]string{"gpus 1"}, c.lines...)...)
			for _, step := range c.steps {
				switch step.line {
				case "":
				case "init":
					s.Close()
					s.list(1)
				default:
					s.set(step.line)
				}
				time.Sleep(step.wait)
				s.wantValue(step.what, 0, name, step.want)
			}
		})
	}
}

// TestResetBetweenReadings resets a GPU so fast that no reading fails, or while
// the driver is released. Slow values of before are not exported as current,
// and not counted twice.
func TestResetBetweenReadings(t *testing.T) {
	for _, first := range []string{"Read", "Check", "Release"} {
		bubble.Test(t, func(t *testing.T) {
			s := newListedFixture(t, "gpus 1", "gpu 0 energy 1000000", "gpu 0 field 52 40 u64", "gpu 0 remapped_pending 1")
			s.wantValue("at first", 0, replays, 40)
			s.wantValue("at first", 0, remapRows, 1)
			if first == "Release" {
				s.Close()
			}
			s.set("gpu 0 energy 5", "gpu 0 field 52 3 u64", "gpu 0 remapped_pending 0")
			switch first {
			case "Release":
				s.list(1)
			case "Check":
				s.resets(0)
			}
			for range 3 {
				s.wantValue(first, 0, replays, 43)
				s.wantValue(first, 0, remapRows, 0)
				s.wantValue(first, 0, computeMode, 1)
			}
		})
	}
}

// TestPerLink checks the rows of single links in both generations, with links
// in each state of nvml.h's NVML_NVLINK_STATE_…. A link with disabled traffic is
// active, and carries nothing.
func TestPerLink(t *testing.T) {
	for model, c := range map[string]struct {
		lines []string
		kind  string
	}{
		"h100": {[]string{"gpu 0 field 138/3 7", "gpu 0 field 161/3 5"}, "replay"},
		"b200": {[]string{"gpu 0 field 202/3 7168", "gpu 0 field 206/3 5"}, "malformed_packet"},
	} {
		bubble.Test(t, func(t *testing.T) {
			s := newFixture(t, nvml.Options{PerLink: true}, append([]string{
				"gpus 1", "gpu 0 model " + model, "gpu 0 field 165/0 0 u32", "gpu 0 field 165/2 2 u32",
				"gpu 0 field 165/4 3 u32",
			}, c.lines...)...)
			s.list(1)
			for name, want := range map[string]float64{
				`nvidia_gpu_nvlink_link_transmit_bytes_total{link="3"}`:               7168,
				`nvidia_gpu_nvlink_link_receive_bytes_total{link="17"}`:               0,
				`nvidia_gpu_nvlink_link_errors_total{link="3",type="` + c.kind + `"}`: 5,
				`nvidia_gpu_nvlink_up{link="18"}`:                                     -1,
				linksUp:                                                               16,
			} {
				s.wantValue(model, 0, name, want)
			}
			for link, want := range []float64{0, 1, 1, 1, 0} {
				s.wantValue(model, 0, fmt.Sprintf(`nvidia_gpu_nvlink_up{link="%d"}`, link), want)
			}
			s.set("gpu 0 field 165 3 u32")
			time.Sleep(slowInterval)
			s.wantValue("all traffic disabled", 0, `nvidia_gpu_nvlink_up{link="3"}`, 0)
		})
	}
	for i, m := range metric.Metrics() {
		if p := metric.MetricsPerLink()[i]; seriesName(p) != seriesName(m) {
			t.Fatalf("row %d: got %s with links, want %s as without", i, p.Name, m.Name)
		}
	}
}
