package collect_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/bubble"
)

const sentMetric = "nvidia_gpu_pcie_transmit_bytes_total"

// TestWraps lets the counter of PCIe traffic wrap, and restart with the driver.
func TestWraps(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 energy 1000000", "gpu 0 field 197 4294967000 u32")
		want := func(what string, line string, want float64) {
			t.Helper()
			s.set(line)
			time.Sleep(time.Second) // a link can transfer 4 GiB
			if got := s.values(0)[sentMetric]; got != want {
				t.Errorf("%s: got %.0f, want %.0f", what, got, want)
			}
		}
		want("at first", "gpu 0 field 197 4294967000 u32", 4294967000)
		want("wrapped", "gpu 0 field 197 704 u32", 4294967000+1000)
		want("increased", "gpu 0 field 197 1704 u32", 4294967000+2000)
		s.set("gpu 0 energy 5")
		want("driver reloaded", "gpu 0 field 197 50 u32", 4294967000+2050)
		s.Close()
		s.list(1)
		want("Init, not a restart of the counter", "gpu 0 field 197 60 u32", 4294967000+2060)
		want("absent", "gpu 0 field 197 none", 0)
		want("back", "gpu 0 field 197 70 u32", 0) // not requested
		time.Sleep(slowInterval)
		want("back and requested", "gpu 0 field 197 70 u32", 4294967000+2070)
		want("64 bits: restarted, not wrapped", "gpu 0 field 197 7 u64", 4294967000+2077)
	})
}

// TestLinksSummedUp has counters for each link, as from Blackwell on. A link
// that does not respond for a while does not lower the sum.
func TestLinksSummedUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const sent = "nvidia_gpu_nvlink_transmit_bytes_total"
		s := newListedFixture(t, "gpus 1", "gpu 0 model b200", "gpu 0 link 4-17 none", "gpu 0 field 202/link 1000")
		want := func(what string, want float64) {
			t.Helper()
			if got := s.values(0)[sent]; got != want {
				t.Errorf("%s: got %v, want %v", what, got, want)
			}
		}
		want("four links", 4000)
		for i := range 4 {
			s.set(fmt.Sprintf("gpu 0 field 202/%d 2000", i))
		}
		want("four links, increased", 8000)
		s.set("gpu 0 field 202/1 none")
		want("one link does not respond", 8000)
		s.set("gpu 0 field 202/0 2500")
		want("other links increased", 8500)
		time.Sleep(slowInterval)
		s.set("gpu 0 field 202/1 3000")
		want("link responds again", 9500)
	})
}

// TestPerLink checks the rows of single links in both generations.
func TestPerLink(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for model, lines := range map[string][]string{
			"h100": {"gpu 0 field 138/3 7", "gpu 0 field 161/3 5", "gpu 0 link 2 off"},
			"b200": {"gpu 0 field 202/3 7168", "gpu 0 field 206/3 5", "gpu 0 link 2 off"},
		} {
			s := newPlanFixture(t, metric.NewReadPlan(true, nil),
				append([]string{"gpus 1", "gpu 0 model " + model}, lines...)...)
			s.list(1)
			if len(s.Metrics()) != len(metric.MetricsPerLink()) || len(s.Metrics()) <= len(metric.Metrics()) {
				t.Fatalf("got %d rows, want one per link metric", len(s.Metrics()))
			}
			got := s.values(0)
			kind := map[string]string{"h100": "replay", "b200": "malformed_packet"}[model]
			for name, want := range map[string]float64{
				`nvidia_gpu_nvlink_link_transmit_bytes_total{link="3"}`:             7168,
				`nvidia_gpu_nvlink_link_receive_bytes_total{link="17"}`:             0,
				`nvidia_gpu_nvlink_link_errors_total{link="3",type="` + kind + `"}`: 5,
				`nvidia_gpu_nvlink_up{link="2"}`:                                    0,
				`nvidia_gpu_nvlink_up{link="3"}`:                                    1,
				"nvidia_gpu_nvlink_links_up":                                        17,
			} {
				if v, ok := got[name]; !ok || v != want {
					t.Errorf("%s: %s: got %v, %v, want %v", model, name, v, ok, want)
				}
			}
			if _, ok := got[`nvidia_gpu_nvlink_up{link="18"}`]; ok {
				t.Errorf("%s: got a 19th link", model)
			}
		}
		for i, m := range metric.Metrics() {
			if p := metric.MetricsPerLink()[i]; seriesName(p) != seriesName(m) {
				t.Fatalf("row %d: got %s with links, want %s as without", i, p.Name, m.Name)
			}
		}
	})
}

// TestLinkStates has a link in each state of nvml.h's NVML_NVLINK_STATE_…. A
// link with disabled traffic is active, and carries nothing.
func TestLinkStates(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newPlanFixture(t, metric.NewReadPlan(true, nil), "gpus 1", "gpu 0 link 4-35 none",
			"gpu 0 field 165/0 0 u32", "gpu 0 field 165/1 1 u32", "gpu 0 field 165/2 2 u32", "gpu 0 field 165/3 3 u32")
		s.list(1)
		got := s.values(0)
		for link, want := range []float64{0, 1, 1, 0} {
			name := fmt.Sprintf(`nvidia_gpu_nvlink_up{link="%d"}`, link)
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s: got %v, %v, want %v", name, v, ok, want)
			}
		}
		if v := got["nvidia_gpu_nvlink_links_up"]; v != 2 {
			t.Errorf("got %v links up, want 2", v)
		}
		s.clear("gpu 0 field")
		s.set("gpu 0 field 165 3 u32")
		time.Sleep(slowInterval)
		for range 4 {
			got = s.values(0)
		}
		if v, ok := got["nvidia_gpu_nvlink_links_up"]; !ok || v != 0 {
			t.Errorf("all traffic disabled: got %v links up, %v, want 0", v, ok)
		}
	})
}

// TestErrorsSetTo0 sets the error counters of a link to 0, as nvidia-smi nvlink
// -re does. Counters of 32 bits have not wrapped then either.
func TestErrorsSetTo0(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const errors = `nvidia_gpu_nvlink_errors_total{type="replay"}`
		s := newListedFixture(t, "gpus 1", "gpu 0 field 52 40 u32")
		want := func(what string, want float64) {
			t.Helper()
			time.Sleep(slowInterval)
			if got := s.values(0)[errors]; got != want {
				t.Errorf("%s: got %.0f, want %.0f", what, got, want)
			}
		}
		want("at first", 40)
		s.set("gpu 0 field 52 2 u32")
		want("set to 0", 42)
		s.set("gpu 0 field 52 5 u32")
		want("increased", 45)
	})
}

// TestResetBetweenReadings resets a GPU so fast that no reading fails. Slow
// values of before are not exported as current, and not counted twice.
func TestResetBetweenReadings(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const errors, rows = `nvidia_gpu_nvlink_errors_total{type="replay"}`, "nvidia_gpu_row_remap_pending"
		for _, first := range []string{"Read", "Check"} {
			s := newListedFixture(t, "gpus 1", "gpu 0 energy 1000000", "gpu 0 field 52 40 u64",
				"gpu 0 remapped_pending 1")
			if got := s.values(0); got[errors] != 40 || got[rows] != 1 {
				t.Fatalf("got %v errors and %v rows, want 40 and 1", got[errors], got[rows])
			}
			s.set("gpu 0 energy 5", "gpu 0 field 52 3 u64", "gpu 0 remapped_pending 0")
			if first == "Check" {
				_, err := s.Check(s.id(0))
				s.must(err)
			}
			for range 8 {
				got := s.values(0)
				if v, ok := got[errors]; ok && v != 43 {
					t.Errorf("%s: got %v errors, want 43", first, v)
				}
				if v, ok := got[rows]; ok && v != 0 {
					t.Errorf("%s: got a row that waits for the past reset", first)
				}
			}
			if got := s.values(0); got[errors] != 43 {
				t.Errorf("%s: got %v errors at the end, want 43", first, got[errors])
			}
			s.Close()
		}
	})
}

// TestResetDuringRelease resets a GPU while the driver is released. Slow values
// are read at the next listing, so the first reading has them.
func TestResetDuringRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const errors, rows = `nvidia_gpu_nvlink_errors_total{type="replay"}`, "nvidia_gpu_row_remap_pending"
		s := newListedFixture(t, "gpus 1", "gpu 0 energy 1000000", "gpu 0 field 52 40 u64", "gpu 0 remapped_pending 1")
		s.values(0)
		s.Close()
		s.set("gpu 0 energy 5", "gpu 0 field 52 3 u64", "gpu 0 remapped_pending 0")
		s.list(1)
		for range 3 {
			got := s.values(0)
			if v, ok := got[rows]; !ok || v != 0 || got[errors] != 43 {
				t.Errorf("got rows %v, %v and %v errors, want 0 and 43", v, ok, got[errors])
			}
			if _, ok := got[`nvidia_gpu_compute_mode{mode="default"}`]; !ok {
				t.Error("the reading lacks static values")
			}
		}
	})
}

// TestSourceFailsOnce repeats the requests for all fields, with one that fails
// once. The counts during the failure are not lost.
func TestSourceFailsOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const sent = "nvidia_gpu_nvlink_transmit_bytes_total"
		s := newListedFixture(t, "gpus 1", "gpu 0 model b200", "gpu 0 field 202/link 1000")
		first := s.values(0)[sent]
		time.Sleep(slowInterval)
		s.set("fail field:138 gpu 0 UNKNOWN")
		s.values(0)
		s.clear("fail")
		s.set("gpu 0 field 202/link 1500")
		if got := s.values(0)[sent]; got != first*1.5 {
			t.Errorf("got %v, want %v", got, first*1.5)
		}
	})
}
