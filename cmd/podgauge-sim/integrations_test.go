package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// families are the metric families of a scrape by name.
type families map[string]*dto.MetricFamily

// values returns the values of a family by GPU, of series with the label value, if any.
func (f families) values(name, label, value string) map[string]float64 {
	all := map[string]float64{}
	for _, m := range f[name].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if label == "" || labels[label] == value {
			all[labels["uuid"]] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// scrapeNode runs a script on a simulated node, and returns the first scrape for which a condition holds.
func scrapeNode(t *testing.T, script, what string, holds func(f families) bool, args ...string) (found families) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(file, []byte(script), 0o600))
	p := program.Start(t, nil, append(args, "--simulate=script:"+file)...)
	program.WaitUntil(t, what, func() bool {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		scraped, err := parser.TextToMetricFamilies(strings.NewReader(p.Scrape(t)))
		require.NoError(t, err)
		found = scraped
		return holds(found)
	})
	return found
}

// TestAcceleratorMetrics checks each requirement of KAR-0059 of Kubernetes AI conformance, whose automated test scrapes before and during a
// workload (https://github.com/kubernetes-sigs/ai-conformance/tree/main/kars/0059-accelerator-performance-metrics).
func TestAcceleratorMetrics(t *testing.T) {
	haveUtilization := func(pod string, used bool) func(f families) bool {
		return func(f families) bool {
			utilization := slices.Collect(maps.Values(f.values("nvidia_gpu_utilization_ratio", "pod", pod)))
			return len(utilization) == 8 && !slices.ContainsFunc(utilization, func(v float64) bool { return v > 0 != used })
		}
	}
	before := scrapeNode(t, "machine h100\n", "the eight GPUs are idle", haveUtilization("", false))
	during := scrapeNode(t, "machine h100\n0s pod team/train main=8\n", "the workload uses the eight GPUs", haveUtilization("train", true))
	gpus := slices.Sorted(maps.Keys(before.values("nvidia_gpu_info", "", "")))
	for _, r := range []struct{ requirement, family, label, value string }{
		{"MUST: utilization of each accelerator", "nvidia_gpu_utilization_ratio", "", ""},
		{"MUST: memory usage of each accelerator", "nvidia_gpu_memory_used_bytes", "", ""},
		{"MUST: memory usage of each accelerator", "nvidia_gpu_memory_total_bytes", "", ""},
		{"SHOULD: temperature", "nvidia_gpu_temperature_celsius", "sensor", "gpu"},
		{"SHOULD: power draw", "nvidia_gpu_power_watts", "", ""},
		{"SHOULD: interconnect bandwidth", "nvidia_gpu_nvlink_transmit_bytes_total", "", ""},
		{"SHOULD: interconnect bandwidth", "nvidia_gpu_nvlink_receive_bytes_total", "", ""},
		{"SHOULD: interconnect bandwidth", "nvidia_gpu_pcie_transmit_bytes_total", "", ""},
		{"SHOULD: interconnect bandwidth", "nvidia_gpu_pcie_receive_bytes_total", "", ""},
	} {
		if got := slices.Sorted(maps.Keys(during.values(r.family, r.label, r.value))); !slices.Equal(got, gpus) {
			t.Errorf("%s: %s has GPUs %q, want %q", r.requirement, r.family, got, gpus)
		}
	}
}

// dcgmCheckNames are the names that Datadog's check dcgm reads
// (https://github.com/DataDog/integrations-core/blob/master/dcgm/datadog_checks/dcgm/metrics.py, 2026-09), without "DCGM_FI_".
const dcgmCheckNames = `DEV_DEC_UTIL DEV_ENC_UTIL DEV_FB_FREE DEV_FB_USED DEV_GPU_TEMP DEV_GPU_UTIL DEV_NVLINK_BANDWIDTH_TOTAL
	DEV_PCIE_REPLAY_COUNTER DEV_POWER_USAGE DEV_SM_CLOCK DEV_TOTAL_ENERGY_CONSUMPTION DEV_VGPU_LICENSE_STATUS DEV_XID_ERRORS
	DEV_MEM_CLOCK DEV_MEM_COPY_UTIL DEV_MEMORY_TEMP DEV_COUNT DEV_FAN_SPEED
	DEV_CORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_FAILURE DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_CLOCK_THROTTLE_REASONS DEV_FB_RESERVED
	DEV_FB_TOTAL DEV_FB_USED_PERCENT DEV_POWER_MGMT_LIMIT DEV_PSTATE DEV_SLOWDOWN_TEMP PROF_DRAM_ACTIVE PROF_GR_ENGINE_ACTIVE
	PROF_PCIE_RX_BYTES PROF_PCIE_TX_BYTES PROF_PIPE_FP16_ACTIVE PROF_PIPE_FP32_ACTIVE PROF_PIPE_FP64_ACTIVE PROF_PIPE_TENSOR_ACTIVE PROF_SM_ACTIVE PROF_SM_OCCUPANCY`

// datadogInstance has the used fields of an instance of a check of Datadog's agent.
type datadogInstance struct {
	Metrics      []map[string]string
	RenameLabels map[string]string `json:"rename_labels"`
}

// TestDatadog checks that podgauge exports the names and labels that the examples in docs/how-to/integrate.md read, and that the page lists
// the names of the check dcgm that podgauge lacks.
func TestDatadog(t *testing.T) {
	counters := filepath.Join(t.TempDir(), "counters.csv")
	lines := regexp.MustCompile(`(\S+)\s*`).ReplaceAllString(dcgmCheckNames, "DCGM_FI_$1,gauge,Help.\n")
	require.NoError(t, os.WriteFile(counters, []byte(lines), 0o600))
	exported := scrapeNode(t, "machine h100\n0s pod team/train main=1\n1s xid team/train 79\n", "the device has failed", func(f families) bool {
		return f["nvidia_gpu_allocation_device_failures_total"] != nil
	}, "--metrics.dcgm-counters="+counters)
	page := testfile.Read(t, "../../docs/how-to/integrate.md")
	read := map[string]bool{}
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		var values struct {
			PodAnnotations map[string]string `yaml:"podAnnotations"`
		}
		require.NoError(t, yaml.Unmarshal([]byte(block[1]), &values))
		for _, text := range values.PodAnnotations {
			var checks map[string]struct{ Instances []datadogInstance }
			require.NoError(t, json.Unmarshal([]byte(text), &checks))
			for check, c := range checks {
				read[check] = true
				exported.checkDatadog(t, map[string]string{"openmetrics": "nvidia_gpu_power_watts", "dcgm": "DCGM_FI_DEV_POWER_USAGE"}[check], c.Instances[0])
			}
		}
	}
	if !read["openmetrics"] || !read["dcgm"] {
		t.Errorf("the page has the checks %v, want openmetrics and dcgm", read)
	}
	_, list, _ := strings.Cut(page, "does not export these names of the check")
	var missing []string
	for _, m := range exported["podgauge_dcgm_counters_unserved"].GetMetric() {
		missing = append(missing, "`"+m.GetLabel()[0].GetValue()+"`")
	}
	listed := regexp.MustCompile("`DCGM_FI_[A-Z0-9_]+`").FindAllString(list, -1)
	slices.Sort(missing)
	slices.Sort(listed)
	if !slices.Equal(missing, listed) {
		t.Errorf("names that podgauge lacks: the page has %q, want %q", listed, missing)
	}
}

// checkDatadog checks the names of an instance, with _total for counters, and the labels that it renames on a family.
func (f families) checkDatadog(t *testing.T, family string, instance datadogInstance) {
	t.Helper()
	for _, metrics := range instance.Metrics {
		for name := range metrics {
			if f[name].GetType() != dto.MetricType_GAUGE && f[name+"_total"] == nil {
				t.Errorf("podgauge exports neither a gauge %s nor a counter %s_total", name, name)
			}
		}
	}
	for label := range instance.RenameLabels {
		for _, m := range f[family].GetMetric() {
			if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == label }) {
				t.Errorf("%s lacks the label %s", family, label)
			}
		}
	}
}
