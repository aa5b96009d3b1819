package nvmltest

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// scenarioValue is a scenario line and the function that reads its value.
type scenarioValue struct {
	line string
	want uint64
	get  func(nvml.Device) (uint64, nvml.Return)
}

func asUint64[T ~uint32 | ~uint64 | ~int32 | ~int](get func(nvml.Device) (T, nvml.Return)) func(nvml.Device) (uint64, nvml.Return) {
	return func(d nvml.Device) (uint64, nvml.Return) {
		v, ret := get(d)
		return uint64(v), ret
	}
}

// fieldOf reads a number from a struct that a function fills.
func fieldOf[T any](get func(nvml.Device) (T, nvml.Return), pick func(T) uint64) func(nvml.Device) (uint64, nvml.Return) {
	return func(d nvml.Device) (uint64, nvml.Return) {
		v, ret := get(d)
		return pick(v), ret
	}
}

func clockOf(t nvml.ClockType, get func(nvml.Device, nvml.ClockType) (uint32, nvml.Return)) func(nvml.Device) (uint64, nvml.Return) {
	return asUint64(func(d nvml.Device) (uint32, nvml.Return) { return get(d, t) })
}

func ecc(e nvml.MemoryErrorType, c nvml.EccCounterType) func(nvml.Device) (uint64, nvml.Return) {
	return asUint64(func(d nvml.Device) (uint64, nvml.Return) { return d.GetTotalEccErrors(e, c) })
}

func negated(v uint64) uint64 { return -v }

// utilizationOf reads a utilization and requires a sampling period.
func utilizationOf(get func(nvml.Device) (uint32, uint32, nvml.Return)) func(nvml.Device) (uint64, nvml.Return) {
	return func(d nvml.Device) (uint64, nvml.Return) {
		v, period, ret := get(d)
		if ret == nvml.SUCCESS && period == 0 {
			panic("utilization without a sampling period")
		}
		return uint64(v), ret
	}
}

func threshold(t nvml.TemperatureThresholds) func(nvml.Device) (uint64, nvml.Return) {
	return asUint64(func(d nvml.Device) (uint32, nvml.Return) { return d.GetTemperatureThreshold(t) })
}

func location(e nvml.MemoryErrorType, c nvml.EccCounterType, l nvml.MemoryLocation) func(nvml.Device) (uint64, nvml.Return) {
	return asUint64(func(d nvml.Device) (uint64, nvml.Return) { return d.GetMemoryErrorCounter(e, c, l) })
}

func sram(pick func(nvml.EccSramErrorStatus) uint64) func(nvml.Device) (uint64, nvml.Return) {
	return fieldOf(nvml.Device.GetSramEccErrorStatus, pick)
}

func remapBanks(pick func(nvml.RowRemapperHistogramValues) uint32) func(nvml.Device) (uint64, nvml.Return) {
	return fieldOf(nvml.Device.GetRowRemapperHistogram, func(v nvml.RowRemapperHistogramValues) uint64 { return uint64(pick(v)) })
}

func fabric(pick func(nvml.GpuFabricInfo_v3) uint64) func(nvml.Device) (uint64, nvml.Return) {
	return fieldOf(func(d nvml.Device) (nvml.GpuFabricInfo_v3, nvml.Return) { return d.GetGpuFabricInfoV().V3() }, pick)
}

// fieldValue reads a field and requires a value of the given type.
func fieldValue(id uint32, t nvml.ValueType) func(nvml.Device) (uint64, nvml.Return) {
	return func(d nvml.Device) (uint64, nvml.Return) {
		v := []nvml.FieldValue{{FieldId: id}}
		if ret := d.GetFieldValues(v); ret != nvml.SUCCESS {
			return 0, ret
		}
		ret := nvml.Return(v[0].NvmlReturn)
		if got := nvml.ValueType(v[0].ValueType); ret == nvml.SUCCESS && got != t {
			panic(fmt.Sprintf("field %d has type %d, want %d", id, got, t))
		}
		return decodeField(v[0]), ret
	}
}

// decodeField returns the number of a field's value of any type.
func decodeField(v nvml.FieldValue) uint64 {
	bits := binary.NativeEndian.Uint64(v.Value[:])
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		return uint64(math.Float64frombits(bits))
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		return uint64(binary.NativeEndian.Uint32(v.Value[:]))
	default:
		return bits
	}
}

const (
	f64 = nvml.VALUE_TYPE_DOUBLE
	u32 = nvml.VALUE_TYPE_UNSIGNED_INT
	u64 = nvml.VALUE_TYPE_UNSIGNED_LONG_LONG
	i32 = nvml.VALUE_TYPE_SIGNED_INT
)

var scenarioValues = []scenarioValue{
	{"minor 9", 9, asUint64(nvml.Device.GetMinorNumber)},
	{"memory_used 5000", 5000, fieldOf(nvml.Device.GetMemoryInfo_v2, func(m nvml.Memory_v2) uint64 { return m.Used })},
	{"memory_reserved 700", 5700, fieldOf(nvml.Device.GetMemoryInfo, func(m nvml.Memory) uint64 { return m.Used })},
	{"memory_total 9000", 3300, fieldOf(nvml.Device.GetMemoryInfo_v2, func(m nvml.Memory_v2) uint64 { return m.Free })},
	{"utilization 77", 77, fieldOf(nvml.Device.GetUtilizationRates, func(u nvml.Utilization) uint64 { return uint64(u.Gpu) })},
	{"memory_utilization 66", 66, fieldOf(nvml.Device.GetUtilizationRates, func(u nvml.Utilization) uint64 { return uint64(u.Memory) })},
	{"temperature 55", 55, asUint64(func(d nvml.Device) (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) })},
	{"memory_temperature 88", 88, fieldValue(nvml.FI_DEV_MEMORY_TEMP, u32)},
	{"power 123456", 123456, asUint64(nvml.Device.GetPowerUsage)},
	{"power 123457", 123457, fieldValue(nvml.FI_DEV_POWER_INSTANT, u32)},
	{"power_limit 600000", 600000, asUint64(nvml.Device.GetEnforcedPowerLimit)},
	{"power_limit_min 1", 1, fieldValue(nvml.FI_DEV_POWER_MIN_LIMIT, u32)},
	{"power_limit_max 2", 2, fieldValue(nvml.FI_DEV_POWER_MAX_LIMIT, u32)},
	{"power_limit_default 3", 3, asUint64(nvml.Device.GetPowerManagementDefaultLimit)},
	{"energy 12345678901234", 12345678901234, asUint64(nvml.Device.GetTotalEnergyConsumption)},
	{"energy 12345678901235", 12345678901235, fieldValue(nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION, u64)},
	{"graphics_clock 101", 101, clockOf(nvml.CLOCK_GRAPHICS, nvml.Device.GetClockInfo)},
	{"sm_clock 102", 102, clockOf(nvml.CLOCK_SM, nvml.Device.GetClockInfo)},
	{"mem_clock 103", 103, clockOf(nvml.CLOCK_MEM, nvml.Device.GetClockInfo)},
	{"video_clock 104", 104, clockOf(nvml.CLOCK_VIDEO, nvml.Device.GetClockInfo)},
	{"graphics_clock_max 105", 105, clockOf(nvml.CLOCK_GRAPHICS, nvml.Device.GetMaxClockInfo)},
	{"sm_clock_max 106", 106, clockOf(nvml.CLOCK_SM, nvml.Device.GetMaxClockInfo)},
	{"mem_clock_max 107", 107, clockOf(nvml.CLOCK_MEM, nvml.Device.GetMaxClockInfo)},
	{"video_clock_max 108", 108, clockOf(nvml.CLOCK_VIDEO, nvml.Device.GetMaxClockInfo)},
	{"pstate 8", 8, asUint64(nvml.Device.GetPerformanceState)},
	{"throttle 0x44", 0x44, asUint64(nvml.Device.GetCurrentClocksEventReasons)},
	{"throttle_supported 0xff", 0xff, asUint64(nvml.Device.GetSupportedClocksEventReasons)},
	{"throttle_ns_sw_power 11", 11, fieldValue(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, u64)},
	{"throttle_ns_sync_boost 12", 12, fieldValue(nvml.FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, u64)},
	{"throttle_ns_sw_thermal 13", 13, fieldValue(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, u64)},
	{"throttle_ns_hw_thermal 14", 14, fieldValue(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, u64)},
	{"throttle_ns_hw_power_brake 15", 15, fieldValue(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, u64)},
	{"pcie_generation 4", 4, asUint64(nvml.Device.GetCurrPcieLinkGeneration)},
	{"pcie_generation_max 6", 6, asUint64(nvml.Device.GetMaxPcieLinkGeneration)},
	{"pcie_width 8", 8, asUint64(nvml.Device.GetCurrPcieLinkWidth)},
	{"pcie_width_max 32", 32, asUint64(nvml.Device.GetMaxPcieLinkWidth)},
	{"pcie_replay 21", 21, asUint64(nvml.Device.GetPcieReplayCounter)},
	{"pcie_replay 22", 22, fieldValue(nvml.FI_DEV_PCIE_REPLAY_COUNTER, u32)},
	{"ecc_mode 0", 0, fieldValue(nvml.FI_DEV_ECC_CURRENT, u32)},
	{"ecc_volatile_corrected 31", 31, ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)},
	{"ecc_volatile_uncorrected 32", 32, ecc(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)},
	{"ecc_aggregate_corrected 33", 33, ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC)},
	{"ecc_aggregate_uncorrected 34", 34, fieldValue(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, u64)},
	{"remapped_corrected 41", 41, fieldValue(nvml.FI_DEV_REMAPPED_COR, u32)},
	{"remapped_uncorrected 42", 42, fieldValue(nvml.FI_DEV_REMAPPED_UNC, u32)},
	{"remapped_pending 1", 1, fieldValue(nvml.FI_DEV_REMAPPED_PENDING, u32)},
	{"remapped_failure 1", 1, fieldValue(nvml.FI_DEV_REMAPPED_FAILURE, u32)},
	{"recovery_action 2", 2, fieldValue(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, u32)},
	{"persistence_mode 0", 0, asUint64(nvml.Device.GetPersistenceMode)},
	{"compute_mode 3", 3, asUint64(nvml.Device.GetComputeMode)},
	{"event_types 0x8", 0x8, asUint64(nvml.Device.GetSupportedEventTypes)},
	{"numa 1", 1, asUint64(nvml.Device.GetNumaNodeId)},
	{"architecture 7", 7, asUint64(nvml.Device.GetArchitecture)},
	{"pci_id 0x20B210DE", 0x20B210DE, fieldOf(nvml.Device.GetPciInfo, func(p nvml.PciInfo) uint64 { return uint64(p.PciDeviceId) })},
	{"cores 6912", 6912, asUint64(nvml.Device.GetNumGpuCores)},
	{"memory_bus_width 256", 256, asUint64(nvml.Device.GetMemoryBusWidth)},
	{"virtualization 1", 1, asUint64(nvml.Device.GetVirtualizationMode)},
	{"addressing_mode 2", 2, fieldOf(nvml.Device.GetAddressingMode, func(m nvml.DeviceAddressingMode) uint64 { return uint64(m.Value) })},
	{"bar1_total 4000", 4000, fieldOf(nvml.Device.GetBAR1MemoryInfo, func(m nvml.BAR1Memory) uint64 { return m.Bar1Total })},
	{"bar1_used 1000", 3000, fieldOf(nvml.Device.GetBAR1MemoryInfo, func(m nvml.BAR1Memory) uint64 { return m.Bar1Free })},
	{"encoder_utilization 51", 51, utilizationOf(nvml.Device.GetEncoderUtilization)},
	{"decoder_utilization 52", 52, utilizationOf(nvml.Device.GetDecoderUtilization)},
	{"jpeg_utilization 53", 53, utilizationOf(nvml.Device.GetJpgUtilization)},
	{"ofa_utilization 54", 54, utilizationOf(nvml.Device.GetOfaUtilization)},
	{"gpm 0", 0, fieldOf(nvml.Device.GpmQueryDeviceSupport, func(s nvml.GpmSupport) uint64 { return uint64(s.IsSupportedDevice) })},
	{"temperature_margin -3", negated(3), fieldOf(nvml.Device.GetMarginTemperature, func(m nvml.MarginTemperature) uint64 { return uint64(m.MarginTemperature) })},
	{"temperature_shutdown 96", 96, threshold(nvml.TEMPERATURE_THRESHOLD_SHUTDOWN)},
	{"temperature_slowdown 93", 93, threshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)},
	{"temperature_max 85", 85, threshold(nvml.TEMPERATURE_THRESHOLD_GPU_MAX)},
	{"temperature_memory_max 95", 95, threshold(nvml.TEMPERATURE_THRESHOLD_MEM_MAX)},
	{"margin_shutdown -8", 0xFFFFFFF8, fieldValue(nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, i32)},
	{"margin_slowdown -2", 0xFFFFFFFE, fieldValue(nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, i32)},
	{"margin_max 3", 3, fieldValue(nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, i32)},
	{"margin_memory_max 4", 4, fieldValue(nvml.FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, i32)},
	{"power 123458", 123458, fieldValue(nvml.FI_DEV_POWER_AVERAGE, u32)},
	{"throttle_ns_board_limit 16", 16, fieldValue(nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, u64)},
	{"throttle_ns_reliability 17", 17, fieldValue(nvml.FI_DEV_PERF_POLICY_RELIABILITY, u64)},
	{"pcie_tx 4294967301", 5, fieldValue(nvml.FI_DEV_PCIE_COUNT_TX_BYTES, u32)}, // wrapped
	{"pcie_rx 8589934599", 7, fieldValue(nvml.FI_DEV_PCIE_COUNT_RX_BYTES, u32)},
	{"nvlink_version 7", 7, asUint64(func(d nvml.Device) (uint32, nvml.Return) { return d.GetNvLinkVersion(17) })},
	{"nvlink_speed 53125", 53125, fieldValue(nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON, u32)},
	{"c2c 1", 1, fieldOf(func(d nvml.Device) (nvml.C2cModeInfo_v1, nvml.Return) { return d.GetC2cModeInfoV().V1() }, func(m nvml.C2cModeInfo_v1) uint64 { return uint64(m.IsC2cEnabled) })},
	{"sram_volatile_corrected 100", 131, ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)},
	{"sram_volatile_corrected 101", 101, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.VolatileCor })},
	{"sram_volatile_parity 102", 102, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.VolatileUncParity })},
	{"sram_volatile_secded 103", 103, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.VolatileUncSecDed })},
	{"sram_aggregate_corrected 104", 104, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.AggregateCor })},
	{"sram_aggregate_parity 105", 105, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.AggregateUncParity })},
	{"sram_aggregate_secded 106", 106, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.AggregateUncSecDed })},
	{"sram_l2 107", 107, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.AggregateUncBucketL2 })},
	{"sram_sm 108", 108, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.AggregateUncBucketSm })},
	{"sram_pcie 109", 109, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.AggregateUncBucketPcie })},
	{"sram_mcu 110", 110, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.AggregateUncBucketMcu })},
	{"sram_other 111", 111, sram(func(s nvml.EccSramErrorStatus) uint64 { return s.AggregateUncBucketOther })},
	{"sram_threshold 1", 1, sram(func(s nvml.EccSramErrorStatus) uint64 { return uint64(s.BThresholdExceeded) })},
	{"ecc_aggregate_uncorrected 300", 300, location(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC, nvml.MEMORY_LOCATION_DRAM)},
	{"ecc_aggregate_uncorrected 301", 301, fieldValue(nvml.FI_DEV_ECC_DBE_AGG_DEV, u64)},
	{"ecc_aggregate_uncorrected 302", 302 + 105 + 106, fieldValue(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, u64)},
	{"remapped_corrected_inactive 43", 43, fieldOf(nvml.Device.GetRemappedRows_v2, func(r nvml.RemappedRowsInfo_v2) uint64 { return uint64(r.CorrInactiveRemaps) })},
	{"remapped_uncorrected_inactive 44", 44, fieldValue(nvml.FI_DEV_REMAPPED_ROWS_UNC_INACTIVE, u32)},
	{"remap_banks_max 640", 640, remapBanks(func(v nvml.RowRemapperHistogramValues) uint32 { return v.Max })},
	{"remap_banks_high 45", 45, remapBanks(func(v nvml.RowRemapperHistogramValues) uint32 { return v.High })},
	{"remap_banks_partial 46", 46, remapBanks(func(v nvml.RowRemapperHistogramValues) uint32 { return v.Partial })},
	{"remap_banks_low 47", 47, remapBanks(func(v nvml.RowRemapperHistogramValues) uint32 { return v.Low })},
	{"remap_banks_none 48", 48, remapBanks(func(v nvml.RowRemapperHistogramValues) uint32 { return v.None })},
	{"retired_single 5", 5, fieldOf(func(d nvml.Device) ([]uint64, nvml.Return) {
		return d.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
	}, func(p []uint64) uint64 { return uint64(len(p)) })},
	{"retired_double 6", 6, fieldValue(nvml.FI_DEV_RETIRED_DBE, u32)},
	{"retired_pending 1", 1, asUint64(nvml.Device.GetRetiredPagesPendingStatus)},
	{"repair_channel 1", 1, fieldOf(nvml.Device.GetRepairStatus, func(r nvml.RepairStatus) uint64 { return uint64(r.BChannelRepairPending) })},
	{"repair_tpc 1", 1, fieldOf(nvml.Device.GetRepairStatus, func(r nvml.RepairStatus) uint64 { return uint64(r.BTpcRepairPending) })},
	{"unrepairable 1", 1, fieldOf(nvml.Device.GetUnrepairableMemoryFlag_v1, func(s nvml.UnrepairableMemoryStatus_v1) uint64 { return uint64(s.BUnrepairableMemory) })},
	{"fabric_state 2", 2, fabric(func(f nvml.GpuFabricInfo_v3) uint64 { return uint64(f.State) })},
	{"fabric_status 999", 999, fabric(func(f nvml.GpuFabricInfo_v3) uint64 { return uint64(f.Status) })},
	{"fabric_clique 4", 4, fabric(func(f nvml.GpuFabricInfo_v3) uint64 { return uint64(f.CliqueId) })},
	{"fabric_health 0x1A9", 0x1A9, fabric(func(f nvml.GpuFabricInfo_v3) uint64 { return uint64(f.HealthMask) })},
	{"fabric_summary 2", 2, fabric(func(f nvml.GpuFabricInfo_v3) uint64 { return uint64(f.HealthSummary) })},
	{"field 182 9 u32", 9, fieldValue(nvml.FI_DEV_PCIE_COUNT_LCRC_ERROR, u32)},
	{"field 173-175 8 u32", 8, fieldValue(nvml.FI_DEV_PCIE_COUNT_NAKS_RECEIVED, u32)},
	{"field 164 26562 u32", 26562, fieldValue(nvml.FI_DEV_NVLINK_GET_SPEED, u32)},
	{"field 9997 -5 i32", 0xFFFFFFFB, fieldValue(9997, i32)},
	{"field 4 77", 77, fieldValue(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, u64)}, // has a key
	{"field 9998 99 f64", 99, fieldValue(9998, f64)},
	{"field 9999 0xFFFFFFFFFFFFFFFF", 1<<64 - 1, fieldValue(9999, u64)},
	{"mig_mode 1", 1, asUint64(func(d nvml.Device) (int, nvml.Return) { mode, _, ret := d.GetMigMode(); return mode, ret })}, // last, because MIG mode removes some readings
}

// TestValues sets, reads and removes each value.
func TestValues(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		gpu, other := n.gpu(3), n.gpu(4)
		for _, r := range scenarioValues {
			before, beforeRet := r.get(other)
			n.setLines("gpu 3 " + r.line)
			got, ret := r.get(gpu)
			if ret != nvml.SUCCESS || got != r.want {
				n.Errorf("%s: got %d (%v)", r.line, got, ret)
			}
			after, afterRet := r.get(other)
			if rises := strings.HasPrefix(r.line, "energy"); !rises && (before != after || beforeRet != afterRet) {
				n.Errorf("%s on GPU 3 changed GPU 4 from %d to %d", r.line, before, after)
			}
		}
		for _, r := range scenarioValues {
			n.setLines(strings.Join(lineSubject("gpu 3 "+r.line), " ") + " none")
			if _, ret := r.get(gpu); ret != nvml.ERROR_NOT_SUPPORTED {
				n.Errorf("%s: after removal got %v", r.line, ret)
			}
		}
	})
}

// TestEveryValueIsRead checks that TestValues includes each key of scenario.h.
func TestEveryValueIsRead(t *testing.T) {
	read := map[string]bool{}
	for _, r := range scenarioValues {
		read[lineSubject("gpu 0 " + r.line)[2]] = true
	}
	for _, key := range []string{"platform_slot", "platform_tray", "platform_host", "platform_peer", "platform_module", "slice_multiprocessors", "event_types_refused"} {
		read[key] = true // in separate tests
	}
	delete(read, "field")
	if want, got := scenarioKeys(t, "GPU_VALUES"), slices.Sorted(maps.Keys(read)); !slices.Equal(want, got) {
		t.Errorf("keys are\n%v\nTestValues reads\n%v", want, got)
	}
}
