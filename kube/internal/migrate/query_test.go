package migrate_test

import (
	"os"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestQueries checks translations of one query.
func TestQueries(t *testing.T) {
	const mig = ` unless on (node, uuid, mig_uuid) nvidia_gpu_mig_enabled{when="now"} == 1`
	const noOwner, ofDevice = `! podgauge has no owner (label `, `) for faults, limits, modes and properties of a device: join nvidia_gpu_allocated by hand`
	const recovery = `sum without (action) (nvidia_gpu_recovery_action{action="bus_reset"} * 6 or nvidia_gpu_recovery_action{action="drain_and_reset"} * 4 or ` +
		`nvidia_gpu_recovery_action{action="drain_p2p"} * 3 or nvidia_gpu_recovery_action{action="gpu_reset"} or nvidia_gpu_recovery_action{action="node_reboot"} * 2 or ` +
		`nvidia_gpu_recovery_action{action="none"} * 0 or nvidia_gpu_recovery_action{action="recover_imex_domain"} * 5 or nvidia_gpu_recovery_action{action="system_reboot"} * 7)`
	const info = ` * on (node, uuid, mig_uuid) group_left (`
	for query, want := range map[string]string{
		// units, in functions and around them
		`DCGM_FI_DEV_GPU_UTIL`:                                `nvidia_gpu_utilization_ratio * 100`,
		`DCGM_FI_DEV_GPU_UTIL_RATIO`:                          `nvidia_gpu_utilization_ratio`,
		`dcgm_gpu_utilization`:                                `nvidia_gpu_utilization_ratio * 100`,
		`avg_over_time(DCGM_FI_DEV_FB_USED[5m] offset 1h)`:    `avg_over_time(nvidia_gpu_memory_used_bytes[5m] offset 1h) / 1048576`,
		`stdvar_over_time(DCGM_FI_DEV_GPU_UTIL[5m])`:          `stdvar_over_time(nvidia_gpu_utilization_ratio[5m]) * 100 * 100`,
		`changes(DCGM_FI_DEV_SM_CLOCK[5m])`:                   `changes(nvidia_gpu_clock_hertz{clock="sm"}[5m])`,
		`quantile_over_time(0.9, DCGM_FI_DEV_GPU_UTIL[1h])`:   `quantile_over_time(0.9, nvidia_gpu_utilization_ratio[1h]) * 100`,
		`timestamp(DCGM_FI_DEV_GPU_UTIL)`:                     `timestamp(nvidia_gpu_utilization_ratio)`,
		`absent(DCGM_FI_DEV_GPU_UTIL{gpu="0"})`:               `absent(nvidia_gpu_utilization_ratio{gpu="0"})`,
		`count(DCGM_FI_DEV_GPU_UTIL)`:                         `count(nvidia_gpu_utilization_ratio)`,
		`1 - DCGM_FI_DEV_GPU_UTIL / 100`:                      `1 - nvidia_gpu_utilization_ratio`,
		`-DCGM_FI_DEV_GPU_UTIL ^ 2`:                           `-(nvidia_gpu_utilization_ratio * 100) ^ 2`,
		`max_over_time((DCGM_FI_DEV_GPU_UTIL > 5)[1h:1m])`:    `max_over_time(((nvidia_gpu_utilization_ratio * 100) > 5)[1h:1m])`,
		`DCGM_FI_DEV_FB_USED * 1024 * 1024`:                   `nvidia_gpu_memory_used_bytes`,
		`rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m])/1000`: `rate(nvidia_gpu_energy_joules_total[5m])`,
		// rates and sums of several series
		`DCGM_FI_PROF_PCIE_TX_BYTES`:                     `rate(nvidia_gpu_pcie_transmit_bytes_total[$__rate_interval])`,
		`avg_over_time(DCGM_FI_PROF_PCIE_TX_BYTES[10m])`: `rate(nvidia_gpu_pcie_transmit_bytes_total[10m])`,
		`max_over_time(DCGM_FI_PROF_PCIE_TX_BYTES[10m])`: `max_over_time((rate(nvidia_gpu_pcie_transmit_bytes_total[$__rate_interval]))[10m:])`,
		`rate(DCGM_FI_PROF_PCIE_TX_BYTES[10m])`:          `! DCGM_FI_PROF_PCIE_TX_BYTES is a rate already, and rate of it has no meaning: use rate(nvidia_gpu_pcie_transmit_bytes_total[10m])`,
		`last_over_time(DCGM_FI_PROF_PCIE_TX_BYTES[5m])`: `last_over_time((rate(nvidia_gpu_pcie_transmit_bytes_total[$__rate_interval]))[5m:])`,
		`first_over_time(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL[5m])`: `first_over_time(((rate(nvidia_gpu_nvlink_transmit_bytes_total[$__rate_interval]) + ` +
			`rate(nvidia_gpu_nvlink_receive_bytes_total[$__rate_interval])) / 1024000)[5m:])`,
		`sum_over_time(DCGM_FI_PROF_PCIE_TX_BYTES[5m])`:               `! sum_over_time depends on samples of DCGM_FI_PROF_PCIE_TX_BYTES, which podgauge computes from other series`,
		`absent_over_time(DCGM_FI_PROF_PCIE_TX_BYTES{gpu="0"}[5m])`:   `absent_over_time(nvidia_gpu_pcie_transmit_bytes_total{gpu="0"}[5m])`,
		`absent(DCGM_FI_PROF_PCIE_TX_BYTES{gpu="0"})`:                 `absent(nvidia_gpu_pcie_transmit_bytes_total{gpu="0"})`,
		`count(DCGM_FI_PROF_PCIE_TX_BYTES)`:                           `count(nvidia_gpu_pcie_transmit_bytes_total)`,
		`absent(DCGM_FI_DEV_CLOCK_THROTTLE_REASONS)`:                  `! absent depends on samples of DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, which podgauge computes from other series`,
		`timestamp(DCGM_FI_DEV_BAR1_FREE)`:                            `! timestamp depends on samples of DCGM_FI_DEV_BAR1_FREE, which podgauge computes from other series`,
		`count_over_time(DCGM_FI_DEV_BAR1_FREE[5m])`:                  `! count_over_time depends on samples of DCGM_FI_DEV_BAR1_FREE, which podgauge computes from other series`,
		`delta(DCGM_FI_DEV_FB_USED_PERCENT[5m])`:                      `delta(((nvidia_gpu_memory_used_bytes) / (nvidia_gpu_memory_total_bytes - nvidia_gpu_memory_reserved_bytes))[5m:])`,
		`avg_over_time(DCGM_FI_DEV_GPU_RECOVERY_ACTION[1h]) or up`:    `avg_over_time((` + recovery + `)[1h:]) or up`,
		`absent(DCGM_FI_DEV_GPU_UTIL{modelName="X"})`:                 `! absent by labels of nvidia_gpu_info: write it by hand`,
		`absent_over_time(DCGM_FI_DEV_POWER_USAGE{GPU_I_ID!=""}[1m])`: `! absent_over_time by labels of nvidia_gpu_info: write it by hand`,
		`DCGM_FI_DEV_BAR1_FREE`:                                       `(nvidia_gpu_bar1_memory_total_bytes - nvidia_gpu_bar1_memory_used_bytes) / 1048576`,
		`min_over_time(DCGM_FI_DEV_BAR1_FREE[1h])`:                    `min_over_time(((nvidia_gpu_bar1_memory_total_bytes - nvidia_gpu_bar1_memory_used_bytes) / 1048576)[1h:])`,
		`DCGM_FI_DEV_FB_USED_PERCENT`:                                 `(nvidia_gpu_memory_used_bytes) / (nvidia_gpu_memory_total_bytes - nvidia_gpu_memory_reserved_bytes)`,
		`increase(DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS[1h])`: `sum without (result) (increase(nvidia_gpu_nvlink_recoveries_total{result="success"}[1h]) or ` +
			`increase(nvidia_gpu_nvlink_recoveries_total{result="failure"}[1h]))`,
		`DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION`: `! DCGM counts from the driver's start, podgauge from its own for each owner: ` +
			`only an increase, as rate(nvidia_gpu_energy_joules_total[5m]), is equal`,
		// labels
		`sum by (Hostname, UUID, exported_pod) (DCGM_FI_DEV_POWER_USAGE)`: `sum by (node, uuid, pod) (nvidia_gpu_power_watts)`,
		`sum without (gpu, UUID, modelName) (DCGM_FI_DEV_SM_CLOCK)`:       `sum without (clock, gpu, mig_uuid, uuid) (nvidia_gpu_clock_hertz{clock="sm"} / 1000000)`,
		`DCGM_FI_DEV_SM_CLOCK / DCGM_FI_DEV_MEM_CLOCK`:                    `(nvidia_gpu_clock_hertz{clock="sm"} / 1000000) / ignoring (clock) (nvidia_gpu_clock_hertz{clock="memory"} / 1000000)`,
		`DCGM_FI_DEV_GPU_TEMP{modelName=~"NVIDIA A.*",device!="nvidia1",pci_bus_id="00000000:1A:00.0"}`: `nvidia_gpu_temperature_celsius{sensor="gpu"}` + info +
			`) nvidia_gpu_info{minor!="1",model=~"NVIDIA A.*",pci_bus_id="0000:1a:00.0"}`,
		`avg by (modelName) (DCGM_FI_DEV_GPU_UTIL offset 1d)`:                               `avg by (model) (nvidia_gpu_utilization_ratio offset 1d` + info + `model) nvidia_gpu_info offset 1d * 100)`,
		`DCGM_FI_DEV_GPU_UTIL{job="nvidia-dcgm-exporter"}`:                                  `nvidia_gpu_utilization_ratio * 100`,
		`DCGM_FI_DEV_GPU_UTIL{namespace="gpu-operator",exported_namespace="team"}`:          `nvidia_gpu_utilization_ratio{namespace="team"} * 100`,
		`DCGM_FI_DEV_GPU_UTIL{container="nvidia-dcgm-exporter",pod!=""}`:                    `nvidia_gpu_utilization_ratio{pod!=""} * 100`,
		`sum by (exported_pod) (DCGM_FI_DEV_GPU_UTIL{namespace="gpu-operator"})`:            `sum by (pod) (nvidia_gpu_utilization_ratio * 100)`,
		`label_replace(DCGM_FI_DEV_GPU_UTIL{pod="a"}, "exported_pod", "$1", "pod", "(.*)")`: `label_replace(nvidia_gpu_utilization_ratio{pod="a"} * 100, "exported_pod", "$1", "pod", "(.*)")`,
		`count_values("v", DCGM_FI_DEV_GPU_TEMP)`:                                           `count_values("v", nvidia_gpu_temperature_celsius{sensor="gpu"})`,
		`kube_pod_labels * on (exported_pod) group_right (label_app) DCGM_FI_DEV_GPU_UTIL`: `kube_pod_labels * on (exported_pod) group_right (label_app) ` +
			`label_replace(nvidia_gpu_utilization_ratio * 100, "exported_pod", "$1", "pod", "(.*)")`,
		`label_replace(DCGM_FI_DEV_GPU_TEMP, "pod", "$1", "exported_pod", "(.*)") * on (pod) group_left () kube_pod_info`: `nvidia_gpu_temperature_celsius{sensor="gpu"} ` +
			`* on (pod) group_left () kube_pod_info`,
		`label_join(DCGM_FI_DEV_GPU_TEMP, "device", "/", "Hostname", "gpu")`:                              `label_join(nvidia_gpu_temperature_celsius{sensor="gpu"}, "device", "/", "node", "gpu")`,
		`label_replace(DCGM_FI_DEV_GPU_TEMP, "n", "$1", "device", "nvidia(.*)")`:                          `! compares or changes values of the label device, and label device (nvidia0) is minor (0)`,
		`node_x * on (pci_bus_id) DCGM_FI_DEV_GPU_TEMP`:                                                   `! compares or changes values of the label pci_bus_id, and values of pci_bus_id are 0000:1a:00.0, not 00000000:1A:00.0`,
		`label_replace(DCGM_FI_DEV_FB_USED, "Hostname", "a", "", "") / on (Hostname) DCGM_FI_DEV_FB_FREE`: `! matches the label Hostname by which one side replaces dcgm-exporter's`,
		`sum by (hpc_job) (DCGM_FI_DEV_GPU_UTIL)`:                                                         `! hpc_job is on nvidia_gpu_allocation_info, which has a series for each job: join it by hand`,
		// families without owners
		`DCGM_FI_DEV_POWER_USAGE / DCGM_FI_DEV_POWER_MGMT_LIMIT`: `nvidia_gpu_power_watts / ignoring (container, namespace, pod, type) group_left () nvidia_gpu_power_limit_watts{type="requested"}`,
		`DCGM_FI_DEV_MAX_SM_CLOCK - DCGM_FI_DEV_SM_CLOCK`: `(nvidia_gpu_clock_max_hertz{clock="sm"} / 1000000) - ignoring (container, namespace, pod) group_right () ` +
			`(nvidia_gpu_clock_hertz{clock="sm"} / 1000000)`,
		`DCGM_FI_DEV_GPU_UTIL > 5 and DCGM_FI_DEV_ROW_REMAP_PENDING == 1`: `(nvidia_gpu_utilization_ratio * 100) > 5 and ignoring (container, namespace, pod) nvidia_gpu_row_remap_pending == 1`,
		`sum by (exported_pod) (DCGM_FI_DEV_GPU_TEMP > on (UUID) group_left () DCGM_FI_DEV_SLOWDOWN_TEMP)`: `sum by (pod) (nvidia_gpu_temperature_celsius{sensor="gpu"} > ` +
			`on (uuid) group_left () nvidia_gpu_temperature_limit_celsius{type="slowdown"})`,
		`increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{exported_namespace="team"}[5m])`:    noOwner + `exported_namespace` + ofDevice,
		`sum by (exported_pod) (DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS)`:           noOwner + `exported_pod` + ofDevice,
		`kube_pod_info * on (pod) group_right () DCGM_FI_DEV_ROW_REMAP_PENDING`:     noOwner + `pod` + ofDevice,
		`sum by (pod) (limitk(3, DCGM_FI_DEV_ROW_REMAP_PENDING))`:                   noOwner + `pod` + ofDevice,
		`up * on (gpu) group_left (pod) DCGM_FI_DEV_ROW_REMAP_PENDING`:              noOwner + `pod` + ofDevice,
		`label_replace(DCGM_FI_DEV_ROW_REMAP_PENDING, "a", "$1", "pod_name", ".*")`: noOwner + `pod_name` + ofDevice,
		// GPU instances
		`DCGM_FI_PROF_SM_ACTIVE{GPU_I_ID=""}`:               `nvidia_gpu_sm_active_ratio{mig_uuid=""}`,
		`DCGM_FI_DEV_FB_USED{GPU_I_PROFILE="1g.10gb"}`:      `nvidia_gpu_memory_used_bytes{mig_uuid!=""}` + info + `) nvidia_gpu_info{mig_profile="1g.10gb"} / 1048576`,
		`sum by (GPU_I_PROFILE) (DCGM_FI_PROF_DRAM_ACTIVE)`: `sum by (mig_profile) ((nvidia_gpu_dram_bandwidth_utilization_ratio` + mig + `)` + info + `mig_profile) nvidia_gpu_info)`,
		`max by (GPU_I_ID) (DCGM_FI_DEV_POWER_USAGE{pod=~"a.*"})`: `max by (gi) ((nvidia_gpu_power_watts{pod=~"a.*"}` + mig +
			` or nvidia_gpu_allocated{mig_uuid!="",pod=~"a.*"} * 0 + on (node, uuid) group_left () nvidia_gpu_power_watts)` + info + `gi) nvidia_gpu_info)`,
		`DCGM_FI_PROF_SM_ACTIVE{GPU_I_ID=~"$gi"}`: `(nvidia_gpu_sm_active_ratio` + mig + `)` + info + `) nvidia_gpu_info{gi=~"$gi"}`,
		`DCGM_FI_DEV_POWER_USAGE{GPU_I_ID!="3"}`: `(nvidia_gpu_power_watts` + mig + ` or nvidia_gpu_allocated{mig_uuid!=""} * 0 + on (node, uuid) group_left () nvidia_gpu_power_watts)` +
			info + `) nvidia_gpu_info{gi!="3"}`,
		// variables of Grafana
		`topk($n, DCGM_FI_DEV_GPU_TEMP{gpu=~"${gpu:regex}",pod=~"[[pod]]"}) > ${limit}`: `topk($n, nvidia_gpu_temperature_celsius{gpu=~"${gpu:regex}",pod=~"[[pod]]",sensor="gpu"}) > ${limit}`,
		`max_over_time(DCGM_FI_DEV_GPU_TEMP[[[range]]] offset $before)`:                 `max_over_time(nvidia_gpu_temperature_celsius{sensor="gpu"}[[[range]]] offset $before)`,
		`rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[${days}d:$__interval])`:                   `rate(nvidia_gpu_pcie_replays_total[${days}d:$__interval])`,
		`sum by ($by) (DCGM_FI_DEV_GPU_TEMP) # "$by`:                                    `sum by ($by) (nvidia_gpu_temperature_celsius{sensor="gpu"})`,
		`DCGM_FI_DEV_SM_CLOCK / $n`:                                                     `(nvidia_gpu_clock_hertz{clock="sm"} / 1000000) / $n`,
		`sum by (UUID) (DCGM_FI_DEV_GPU_TEMP) or vector(0)`:                             `sum by (uuid) (nvidia_gpu_temperature_celsius{sensor="gpu"}) or vector(0)`,
		// no translation
		`DCGM_FI_DEV_$field`:                `! DCGM_FI_DEV_$field: not in podgauge's table of DCGM's fields`,
		`{__name__=~"DCGM_FI_PROF_.*"}`:     `! selects names by a pattern: DCGM_FI_PROF_.*`,
		`DCGM_FI_DEV_BRAND`:                 `! DCGM_FI_DEV_BRAND: podgauge does not read it`,
		`DCGM_FI_DRIVER_VERSION`:            `! DCGM_FI_DRIVER_VERSION is a text: podgauge has it as label driver_version of nvidia_gpu_info`,
		`up{job="nvidia-dcgm-exporter"}==0`: `! selects series of dcgm-exporter's own scrape job`,
		`DCGM_FI_DEV_GPU_UTIL{`:             `! not valid PromQL: 1:22: parse error: unexpected end of input inside braces`,
		// variables of dashboards
		`label_values(DCGM_FI_DEV_GPU_TEMP{Hostname=~"$h"}, UUID)`:                   `label_values(nvidia_gpu_temperature_celsius{node=~"$h",sensor="gpu"}, uuid)`,
		`label_values(DCGM_FI_DEV_GPU_TEMP, modelName)`:                              `label_values(nvidia_gpu_info, model)`,
		`label_values(DCGM_FI_DEV_XID_ERRORS, gpu)`:                                  `label_values(nvidia_gpu_info, gpu)`,
		`label_values(DCGM_FI_DEV_GPU_UTIL{exported_namespace=~"$n"}, modelName)`:    noOwner + `namespace` + ofDevice,
		`label_values(DCGM_FI_DEV_ROW_REMAP_PENDING, exported_pod)`:                  noOwner + `exported_pod` + ofDevice,
		`label_values(DCGM_FI_DEV_GPU_UTIL{namespace="gpu-operator"}, exported_pod)`: `label_values(nvidia_gpu_utilization_ratio, pod)`,
		`label_values(DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gpu)`:                      `label_values(nvidia_gpu_throttle_active, gpu)`,
		`query_result(max(DCGM_FI_DEV_GPU_UTIL))`:                                    `query_result(max(nvidia_gpu_utilization_ratio * 100))`,
	} {
		r := translate(t, false, query)
		if len(r.Queries) != 1 || len(r.Errors) > 0 {
			t.Errorf("%s: got %+v", query, r)
			continue
		}
		got := r.Queries[0].Translation
		if got == "" {
			got = "! " + strings.Join(r.Queries[0].Reasons, "; ")
		}
		if got != want {
			t.Errorf("%s\ngot  %s\nwant %s", query, got, want)
		}
	}
}

// TestPartitioned checks translations for clusters with partitioned GPUs.
func TestPartitioned(t *testing.T) {
	const whole = ` unless on (node, uuid, mig_uuid) nvidia_gpu_mig_enabled{when="now"} == 1 or `
	const spread = `nvidia_gpu_allocated{mig_uuid!=""} * 0 + on (node, uuid) group_left `
	for query, want := range map[string]string{
		`DCGM_FI_DEV_SM_CLOCK`: `(nvidia_gpu_clock_hertz{clock="sm"}` + whole + spread + `(clock) nvidia_gpu_clock_hertz{clock="sm"}) / 1000000`,
		`increase(DCGM_FI_DEV_POWER_VIOLATION[1h])`: `(increase(nvidia_gpu_throttle_seconds_total{reason="sw_power_cap"}[1h])` + whole +
			spread + `(reason) increase(nvidia_gpu_throttle_seconds_total{pod="",reason="sw_power_cap"}[1h])) * 1000000000`,
		`DCGM_FI_DEV_GPU_UTIL`: `nvidia_gpu_utilization_ratio * 100`, // neither exporter has it with MIG devices
		`sum(DCGM_FI_DEV_FB_FREE)`: `sum((nvidia_gpu_memory_free_bytes unless on (node, uuid, mig_uuid) ` +
			`nvidia_gpu_mig_enabled{when="now"} == 1) / 1048576)`,
		`increase(DCGM_FI_DEV_ECC_DBE_VOL_SRM[1h])`: `increase(nvidia_gpu_ecc_volatile_location_errors_total{location="sram",severity="uncorrected"}[1h]) unless ` +
			`on (node, uuid, mig_uuid) nvidia_gpu_mig_enabled{when="now"} == 1`,
	} {
		if r := translate(t, true, query); r.Queries[0].Translation != want {
			t.Errorf("%s\ngot  %s\nwant %s", query, r.Queries[0].Translation, want)
		}
	}
}

// TestOwners checks which fields have no translation by owner: those whose family has none in the documentation.
func TestOwners(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/metrics.md")
	require.NoError(t, err)
	for _, f := range dcgm.Fields() {
		if len(f.Sources) == 0 || f.Xid {
			continue
		}
		_, row, _ := strings.Cut(string(page), "|`"+f.Sources[0].Family()+"`<br>")
		kind := strings.Split(row, "|")[1]
		q := translate(t, false, "count by (pod) (increase("+f.Names[0].Name+"[5m]))").Queries[0]
		if fails := strings.Contains(strings.Join(q.Reasons, "; "), "no owner"); fails != strings.HasPrefix(kind, "device-") {
			t.Errorf("%s of kind %s: %+v", f.Names[0].Name, kind, q)
		}
	}
}

// FuzzQuery checks that any query has an answer, and that a translation is valid and has no name of DCGM left.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{
		`sum by (modelName) (rate(DCGM_FI_PROF_PCIE_TX_BYTES[$__rate_interval]))`, `label_values(DCGM_FI_DEV_GPU_TEMP, gpu)`,
		`DCGM_FI_DEV_GPU_TEMP{device=~"(nvidia"} or up`, `max_over_time(DCGM_FI_DEV_BAR1_FREE[5m:])`, `label_replace(DCGM_FI_DEV_GPU_TEMP,"a","b","c","d")`,
	} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		r := translate(t, len(query)%2 == 0, query)
		if len(r.Queries)+r.Others != 1 {
			t.Fatalf("%q: got %+v", query, r)
		}
		for _, q := range r.Queries {
			if (q.Translation == "") == (len(q.Reasons) == 0) {
				t.Errorf("%q: got %+v", query, q)
			}
		}
	})
}
