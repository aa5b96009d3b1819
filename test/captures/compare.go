package captures

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

// rule is the requirement for the value of a model with a reading. All rules
// require the series exactly if the GPU has the reading.
type rule uint8

const (
	// equal requires the same value, but for rounding: a property of the model.
	equal rule = iota
	// similar requires a value between half of the lower and twice the higher
	// one of the idle and the busy GPU.
	similar
	// present requires any value: a setting, or the GPU's past.
	present
	// orNone marks a reading that nvidia-smi leaves out if the GPU has another
	// one instead. Without the mark it may be unknown to this nvidia-smi.
	orNone rule = 1 << 2
)

// row relates a reading to a series without "nvidia_gpu_".
type row struct {
	reading, series string
	rule            rule
}

var gpuRows = []row{
	{"FB Memory Usage/Total", "memory_total_bytes", equal},
	{"FB Memory Usage/Reserved", "memory_reserved_bytes", similar}, // depends on the driver
	{"FB Memory Usage/Used", "memory_used_bytes", present},
	{"FB Memory Usage/Free", "memory_free_bytes", similar},
	{"BAR1 Memory Usage/Total", "bar1_memory_total_bytes", equal},
	{"BAR1 Memory Usage/Used", "bar1_memory_used_bytes", similar},

	{"Utilization/GPU", "utilization_ratio", present},
	{"Utilization/Memory", "memory_controller_utilization_ratio", present},
	{"Utilization/Encoder", "encoder_utilization_ratio", present},
	{"Utilization/Decoder", "decoder_utilization_ratio", present},
	{"Utilization/JPEG", "jpeg_utilization_ratio", present},
	{"Utilization/OFA", "ofa_utilization_ratio", present},

	{"power.draw.instant", "power_watts", similar},
	{"power.draw.average", "power_average_watts", similar},
	{"Module Power Readings/Instantaneous Power Draw", "module_power_watts", similar},
	{"enforced.power.limit", `power_limit_watts{type="enforced"}`, equal},
	{"power.limit", `power_limit_watts{type="requested"}`, equal},
	{"power.default_limit", `power_limit_watts{type="default"}`, equal},
	{"power.min_limit", `power_limit_watts{type="min"}`, equal},
	{"power.max_limit", `power_limit_watts{type="max"}`, equal},

	{"Temperature/GPU Current Temp", `temperature_celsius{sensor="gpu"}`, similar},
	{"Temperature/Memory Current Temp", `temperature_celsius{sensor="memory"}`, similar},
	{"temperature.gpu.tlimit", "temperature_margin_celsius", similar},
	{"Temperature/GPU Shutdown Temp", `temperature_limit_celsius{type="shutdown"}`, equal | orNone},
	{"Temperature/GPU Slowdown Temp", `temperature_limit_celsius{type="slowdown"}`, equal | orNone},
	{"Temperature/GPU Max Operating Temp", `temperature_limit_celsius{type="gpu_max"}`, equal | orNone},
	{"Temperature/Memory Max Operating Temp", `temperature_limit_celsius{type="memory_max"}`, equal | orNone},
	{"Temperature/GPU Shutdown T.Limit Temp", `temperature_margin_limit_celsius{type="shutdown"}`, equal | orNone},
	{"Temperature/GPU Slowdown T.Limit Temp", `temperature_margin_limit_celsius{type="slowdown"}`, equal | orNone},
	{"Temperature/GPU Max Operating T.Limit Temp", `temperature_margin_limit_celsius{type="gpu_max"}`, equal | orNone},
	{
		"Temperature/Memory Max Operating T.Limit Temp",
		`temperature_margin_limit_celsius{type="memory_max"}`, equal | orNone,
	},
	{"Fan Speed", `fan_speed_ratio{fan="0"}`, present},

	{"Clocks/SM", `clock_hertz{clock="sm"}`, similar},
	{"Clocks/Memory", `clock_hertz{clock="memory"}`, similar},
	{"Clocks/Graphics", `clock_hertz{clock="graphics"}`, similar},
	{"Clocks/Video", `clock_hertz{clock="video"}`, similar},
	{"Max Clocks/SM", `clock_max_hertz{clock="sm"}`, equal},
	{"Max Clocks/Memory", `clock_max_hertz{clock="memory"}`, equal},
	{"Max Clocks/Graphics", `clock_max_hertz{clock="graphics"}`, equal},
	{"Max Clocks/Video", `clock_max_hertz{clock="video"}`, equal},
	{"Performance State", "performance_state", present},
	{"Clocks Event Reasons/Applications Clocks Setting", `throttle_active{reason="applications_clocks"}`, equal},
	{"Clocks Event Reasons/SW Power Cap", `throttle_active{reason="sw_power_cap"}`, equal},
	{"Clocks Event Reasons/HW Slowdown/HW Thermal Slowdown", `throttle_active{reason="hw_thermal"}`, equal},
	{"Clocks Event Reasons/HW Slowdown/HW Power Brake Slowdown", `throttle_active{reason="hw_power_brake"}`, equal},
	{"Clocks Event Reasons/SW Thermal Slowdown", `throttle_active{reason="sw_thermal"}`, equal},
	{"Clocks Event Reasons/Display Clock Setting", `throttle_active{reason="display_clock"}`, equal},
	{"Clocks Event Reasons Counters/SW Power Capping", `throttle_seconds_total{reason="sw_power_cap"}`, present},
	{"Clocks Event Reasons Counters/Sync Boost", `throttle_seconds_total{reason="sync_boost"}`, present},
	{"Clocks Event Reasons Counters/SW Thermal Slowdown", `throttle_seconds_total{reason="sw_thermal"}`, present},
	{"Clocks Event Reasons Counters/HW Thermal Slowdown", `throttle_seconds_total{reason="hw_thermal"}`, present},
	{"Clocks Event Reasons Counters/HW Power Braking", `throttle_seconds_total{reason="hw_power_brake"}`, present},

	{"PCI/GPU Link Info/PCIe Generation/Current", "pcie_link_generation", similar},
	{"PCI/GPU Link Info/PCIe Generation/Max", "pcie_link_generation_max", equal},
	{"PCI/GPU Link Info/Link Width/Current", "pcie_link_width", equal},
	{"PCI/GPU Link Info/Link Width/Max", "pcie_link_width_max", equal},
	{"PCI/Replays Since Reset", "pcie_replays_total", present},
	{"PCI/Replay Number Rollovers", "pcie_replay_rollovers_total", present},

	{"NVLinks", "nvlink_links_up", equal},
	{"NVLink Speed", "nvlink_speed_bytes_per_second", equal},
	{"fabric.state", `fabric_state{state="completed"}`, equal},
	{"fabric.status", "fabric_healthy", present},
	{"fabric.health.bandwidth", `fabric_fault{fault="degraded_bandwidth"}`, equal},
	{"fabric.health.route_recovery_in_progress", `fabric_fault{fault="route_recovery"}`, equal},
	{"fabric.health.route_unhealthy", `fabric_fault{fault="route_unhealthy"}`, equal},
	{"fabric.health.access_timeout_recovery", `fabric_fault{fault="access_timeout_recovery"}`, equal},
	{"fabric.health.incorrect_configuration", `fabric_fault{fault="incorrect_configuration"}`, equal},

	{"ecc.errors.corrected.volatile.total", `ecc_volatile_errors_total{severity="corrected"}`, present},
	{"ecc.errors.uncorrected.aggregate.total", `ecc_aggregate_errors_total{severity="uncorrected"}`, present},
	{
		"ecc.errors.uncorrected.volatile.dram",
		`ecc_volatile_location_errors_total{location="dram",severity="uncorrected"}`, present,
	},
	{
		"ecc.errors.uncorrected.volatile.sram.parity",
		`ecc_volatile_location_errors_total{location="sram",severity="uncorrected"}`, present,
	},
	{
		"ecc.errors.corrected.aggregate.l2_cache",
		`ecc_aggregate_location_errors_total{location="l2",severity="corrected"}`, present,
	},
	{"ecc.errors.uncorrected.aggregate.sram.l2", `ecc_sram_aggregate_unit_errors_total{unit="l2"}`, present},
	{"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", "ecc_sram_threshold_exceeded", equal},
	{"retired_pages.double_bit.count", `retired_pages{cause="double_bit"}`, present},
	{"remapped_rows.uncorrectable", `remapped_rows{cause="uncorrectable"}`, present},
	{"remapped_rows.uncorrectable_inactive", `remapped_rows_inactive{cause="uncorrectable"}`, present},
	{"remapped_rows.pending", "row_remap_pending", equal},
	{"remapped_rows.failure", "row_remap_failure", equal},
	{"remapped_rows.histogram.max", `row_remap_banks{availability="max"}`, equal},
	{"remapped_rows.histogram.none", `row_remap_banks{availability="none"}`, equal},
	{"ECC Errors/Channel Repair Pending", `repair_pending{unit="channel"}`, equal},
	{"ECC Errors/TPC Repair Pending", `repair_pending{unit="tpc"}`, equal},
	{"ECC Errors/Unrepairable Memory", "unrepairable_memory", equal},
	{"gpu_recovery_action", `recovery_action{action="none"}`, equal},

	{"Persistence Mode", "persistence_mode_enabled", present},
	{"Compute Mode", `compute_mode{mode="default"}`, equal},
	{"ECC Mode/Current", `ecc_enabled{when="now"}`, equal},
	{"ECC Mode/Pending", `ecc_enabled{when="after_reset"}`, equal},
	{"MIG Mode/Current", `mig_enabled{when="now"}`, equal},
	{"MIG Mode/Pending", `mig_enabled{when="after_reset"}`, equal},
}

// notInMIGMode are readings of functions that fail in MIG mode. podgauge reads
// the fields with the same values, about which nvidia-smi shows nothing.
var notInMIGMode = map[string]bool{
	"remapped_rows.uncorrectable": true, "remapped_rows.pending": true, "remapped_rows.failure": true,
}

// migRows are the rows of a GPU instance.
var migRows = []row{
	{"Shared FB Memory Usage/Total", "memory_total_bytes", equal},
	{"Shared FB Memory Usage/Reserved", "memory_reserved_bytes", equal},
	{"Shared FB Memory Usage/Used", "memory_used_bytes", present},
	{"Shared BAR1 Memory/Total", "bar1_memory_total_bytes", equal},
	{"Shared BAR1 Memory/Used", "bar1_memory_used_bytes", equal},
	{
		"ECC Errors/Volatile/SRAM Uncorrectable",
		`ecc_volatile_location_errors_total{location="sram",severity="uncorrected"}`, equal,
	},
}

// Scenario returns the lines of the stand-in's scenario with the MIG devices,
// and with the processes of the busy GPU.
func (c *Capture) Scenario() []string {
	lines := []string{"gpus 1", "gpu 0 model " + c.Model}
	for _, d := range c.Idle.MIGDevices {
		lines = append(lines, "gpu 0 mig_mode 1",
			fmt.Sprintf("gpu 0 slice %d %s gi %d ci %d", d.Index, d.Profile, d.GI, d.CI))
	}
	kinds := map[string]string{"C": "compute", "G": "graphics", "C+G": "compute+graphics"}
	for _, p := range c.Load.Processes {
		line := fmt.Sprintf("gpu 0 process %d %d type %s", p.PID, p.MemoryMiB<<20, kinds[p.Kind])
		if p.GI >= 0 {
			line += fmt.Sprintf(" gi %d ci %d", p.GI, p.CI)
		}
		lines = append(lines, line)
	}
	return lines
}

// Profiles returns the profiles of the MIG devices in order.
func (c *Capture) Profiles() (profiles []string) {
	for _, d := range c.Idle.MIGDevices {
		profiles = append(profiles, d.Profile)
	}
	return profiles
}

// CompareProcesses reports differences of the usage of processes. In MIG mode
// the driver reports their memory alone.
func (c *Capture) CompareProcesses(t testing.TB, devices []device.Device, uses []device.ProcessUsage) {
	t.Helper()
	if len(uses) != len(c.Load.Processes) {
		t.Errorf("got %d processes, want %d", len(uses), len(c.Load.Processes))
	}
	for _, p := range c.Load.Processes {
		want := device.ProcessUsage{PID: uint32(p.PID), MemoryBytes: float64(p.MemoryMiB << 20)}
		for _, d := range devices {
			if d.GI == p.GI && d.CI == p.CI {
				want.Device = d.ID
			}
		}
		if p.GI >= 0 {
			want.SM, want.MemoryController, want.Encoder, want.Decoder = -1, -1, -1, -1
		}
		if !slices.Contains(uses, want) {
			t.Errorf("got processes %+v, want %+v", uses, want)
		}
	}
}

// factRows relate readings to the labels of a GPU. A GPU without the reading
// has an empty label.
var factRows = []struct{ reading, label string }{
	{"Serial Number", "serial"},
	{"VBIOS Version", "vbios_version"},
	{"Platform Info/Chassis Serial Number", "chassis_serial"},
	{"Platform Info/Slot Number", "chassis_slot"},
	{"Platform Info/Tray Index", "chassis_tray"},
	{"Platform Info/Host ID", "host_id"},
	{"Platform Info/Module Id", "module_id"},
}

// Compare reports differences of an idle model: its devices, and their values
// for metrics. Values of a GPU instance are on its first MIG device.
func (c *Capture) Compare(
	t testing.TB, model string, devices []device.Device, metrics []device.Metric, samples []device.Sample,
) {
	t.Helper()
	values := map[device.ID]map[string]float64{}
	for _, s := range samples {
		if values[s.Device] == nil {
			values[s.Device] = map[string]float64{}
		}
		values[s.Device][series(metrics[s.Metric])] = s.Value
	}
	if len(devices) != 1+len(c.Idle.MIGDevices) {
		t.Fatalf("%s: got %d devices, want a GPU with %d MIG devices", model, len(devices), len(c.Idle.MIGDevices))
	}
	gpu := values[devices[0].ID]
	found := slices.Concat(c.factDifferences(devices[0]), differences(gpuRows, c.Idle.Readings, c.Load.Readings, gpu))
	for i, want := range c.Idle.MIGDevices {
		got := devices[1+i]
		if got.MIGDeviceIndex != want.Index || got.Profile != want.Profile || got.GI != want.GI || got.CI != want.CI {
			found = append(found, fmt.Sprintf("got %s at index %d, instances %d/%d, want %s at %d, %d/%d",
				got.Profile, got.MIGDeviceIndex, got.GI, got.CI, want.Profile, want.Index, want.GI, want.CI))
		}
		if want.CI == 0 {
			found = append(found, differences(migRows, want.Readings, want.Readings, values[got.ID])...)
		}
	}
	for _, line := range found {
		t.Errorf("%s: %s", model, line)
	}
}

// series returns the name of a metric without "nvidia_gpu_".
func series(m device.Metric) string {
	var labels []string
	for _, l := range m.Labels {
		labels = append(labels, fmt.Sprintf("%s=%q", l.Name, l.Value))
	}
	name := strings.TrimPrefix(m.Name, "nvidia_gpu_")
	if labels == nil {
		return name
	}
	return name + "{" + strings.Join(labels, ",") + "}"
}

// factDifferences compares the constant facts of a GPU.
func (c *Capture) factDifferences(gpu device.Device) (found []string) {
	if want := c.Idle.Readings["Product Name"]; gpu.Model != want {
		found = append(found, fmt.Sprintf("model: got %q, want %q", gpu.Model, want))
	}
	for _, l := range gpu.InfoLabels {
		for _, r := range factRows {
			if has := c.Idle.Readings[r.reading] != "N/A"; r.label == l.Name && has != (l.Value != "") {
				found = append(found,
					fmt.Sprintf("label %s: got %q, want %q", l.Name, l.Value, c.Idle.Readings[r.reading]))
			}
		}
		if want := c.Idle.Readings["compute_cap"]; l.Name == "compute_capability" && l.Value != want {
			found = append(found, fmt.Sprintf("label %s: got %q, want %q", l.Name, l.Value, want))
		}
	}
	return found
}

func differences(rows []row, idle, load Readings, values map[string]float64) (found []string) {
	for _, r := range rows {
		got, has := values[r.series]
		text, known := idle.text(r.reading)
		if notInMIGMode[r.reading] && idle["MIG Mode/Current"] == "Enabled" {
			known = false
		}
		exists := known && text != "N/A"
		switch {
		case !known && r.rule&orNone == 0:
		case exists != has:
			found = append(found, fmt.Sprintf("%s: got a value: %t (%v), want %q", r.series, has, got, text))
		case exists:
			if err := r.check(got, text, load[r.reading]); err != nil {
				found = append(found, fmt.Sprintf("%s: %v", r.series, err))
			}
		}
	}
	return found
}

func (r row) check(got float64, idle, load string) error {
	if r.rule == present {
		return nil
	}
	low, digit, err := value(idle)
	if err != nil {
		return err
	}
	high := low
	if r.rule == similar {
		if high, _, err = value(load); err != nil {
			return err
		}
		low, high = min(low, high)/2, 2*max(low, high)
	}
	if got < low-digit || got > high+digit || math.IsNaN(got) {
		return fmt.Errorf("got %v, want %v to %v (idle %s, busy %s)", got, low, high, idle, load)
	}
	return nil
}
