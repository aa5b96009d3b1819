package nvmltest

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/podgauge/podgauge/test/helpers/expect"
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

func ecc(e nvml.MemoryErrorType, c nvml.EccCounterType) func(nvml.Device) (uint64, nvml.Return) {
	return asUint64(func(d nvml.Device) (uint64, nvml.Return) { return d.GetTotalEccErrors(e, c) })
}

func location(e nvml.MemoryErrorType, c nvml.EccCounterType, l nvml.MemoryLocation) func(nvml.Device) (uint64, nvml.Return) {
	return asUint64(func(d nvml.Device) (uint64, nvml.Return) { return d.GetMemoryErrorCounter(e, c, l) })
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
	{"power 123456", 123456, asUint64(nvml.Device.GetPowerUsage)},
	{"power 123457", 123457, fieldValue(nvml.FI_DEV_POWER_INSTANT, u32)},
	{"power_limit 600000", 600000, asUint64(nvml.Device.GetEnforcedPowerLimit)},
	{"power_limit_min 1", 1, fieldValue(nvml.FI_DEV_POWER_MIN_LIMIT, u32)},
	{"power_limit_max 2", 2, fieldValue(nvml.FI_DEV_POWER_MAX_LIMIT, u32)},
	{"power_limit_default 3", 3, asUint64(nvml.Device.GetPowerManagementDefaultLimit)},
	{"throttle_ns_sw_power 11", 11, fieldValue(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, u64)},
	{"throttle_ns_sync_boost 12", 12, fieldValue(nvml.FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, u64)},
	{"throttle_ns_sw_thermal 13", 13, fieldValue(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, u64)},
	{"throttle_ns_hw_thermal 14", 14, fieldValue(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, u64)},
	{"throttle_ns_hw_power_brake 15", 15, fieldValue(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, u64)},
	{"ecc_mode 0", 0, fieldValue(nvml.FI_DEV_ECC_CURRENT, u32)},
	{"ecc_volatile_corrected 31", 31, ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)},
	{"ecc_volatile_uncorrected 32", 32, ecc(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)},
	{"ecc_aggregate_corrected 33", 33, ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC)},
	{"ecc_aggregate_uncorrected 34", 34, fieldValue(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, u64)},
	{"event_types 0x8", 0x8, asUint64(nvml.Device.GetSupportedEventTypes)},
	{"numa 1", 1, asUint64(nvml.Device.GetNumaNodeId)},
	{"architecture 7", 7, asUint64(nvml.Device.GetArchitecture)},
	{"pci_id 0x20B210DE", 0x20B210DE, fieldOf(nvml.Device.GetPciInfo, func(p nvml.PciInfo) uint64 { return uint64(p.PciDeviceId) })},
	{"cores 6912", 6912, asUint64(nvml.Device.GetNumGpuCores)},
	{"memory_bus_width 256", 256, asUint64(nvml.Device.GetMemoryBusWidth)},
	{"virtualization 1", 1, asUint64(nvml.Device.GetVirtualizationMode)},
	{"addressing_mode 2", 2, fieldOf(nvml.Device.GetAddressingMode, func(m nvml.DeviceAddressingMode) uint64 { return uint64(m.Value) })},
	{"gpm 0", 0, fieldOf(nvml.Device.GpmQueryDeviceSupport, func(s nvml.GpmSupport) uint64 { return uint64(s.IsSupportedDevice) })},
	{"power 123458", 123458, fieldValue(nvml.FI_DEV_POWER_AVERAGE, u32)},
	{"throttle_ns_board_limit 16", 16, fieldValue(nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, u64)},
	{"throttle_ns_reliability 17", 17, fieldValue(nvml.FI_DEV_PERF_POLICY_RELIABILITY, u64)},
	{"nvlink_version 7", 7, asUint64(func(d nvml.Device) (uint32, nvml.Return) { return d.GetNvLinkVersion(17) })},
	{"c2c 1", 1, fieldOf(func(d nvml.Device) (nvml.C2cModeInfo_v1, nvml.Return) { return d.GetC2cModeInfoV().V1() }, func(m nvml.C2cModeInfo_v1) uint64 { return uint64(m.IsC2cEnabled) })},
	{"ecc_aggregate_uncorrected 300", 300, location(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC, nvml.MEMORY_LOCATION_DRAM)},
	{"ecc_aggregate_uncorrected 301", 301, fieldValue(nvml.FI_DEV_ECC_DBE_AGG_DEV, u64)},
	{"ecc_aggregate_uncorrected 302", 302, fieldValue(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, u64)},
	{"retired_single 5", 5, fieldOf(func(d nvml.Device) ([]uint64, nvml.Return) {
		return d.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
	}, func(p []uint64) uint64 { return uint64(len(p)) })},
	{"retired_double 6", 6, fieldValue(nvml.FI_DEV_RETIRED_DBE, u32)},
	{"retired_pending 1", 1, asUint64(nvml.Device.GetRetiredPagesPendingStatus)},
	{"fabric_status 999", 999, fabric(func(f nvml.GpuFabricInfo_v3) uint64 { return uint64(f.Status) })},
	{"fabric_clique 4", 4, fabric(func(f nvml.GpuFabricInfo_v3) uint64 { return uint64(f.CliqueId) })},
	{"field 182 9 u32", 9, fieldValue(nvml.FI_DEV_PCIE_COUNT_LCRC_ERROR, u32)},
	{"field 173-175 8 u32", 8, fieldValue(nvml.FI_DEV_PCIE_COUNT_NAKS_RECEIVED, u32)},
	{"field 164 26562 u32", 26562, fieldValue(nvml.FI_DEV_NVLINK_GET_SPEED, u32)},
	{"field 9997 -5 i32", 0xFFFFFFFB, fieldValue(9997, i32)},
	{"field 4 77", 77, fieldValue(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, u64)}, // has a key
	{"field 9998 99 f64", 99, fieldValue(9998, f64)},
	{"field 9999 0xFFFFFFFFFFFFFFFF", 1<<64 - 1, fieldValue(9999, u64)},
	{"mig_mode 1", 1, asUint64(func(d nvml.Device) (int, nvml.Return) { mode, _, ret := d.GetMigMode(); return mode, ret })}, // last, because MIG mode removes some readings
}

// TestValues sets, reads and removes each value that no metric reads. The rows of
// metrics are in busy.
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

func TestFieldScopes(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 field 138 none", "gpu 0 field 138/2 222", "gpu 0 field 138/4294967295 999")
		values := []nvml.FieldValue{
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 2},
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 1<<32 - 1},
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 3},
			{FieldId: nvml.FI_DEV_POWER_INSTANT, ScopeId: nvml.POWER_SCOPE_GPU},
			{FieldId: nvml.FI_DEV_POWER_INSTANT, ScopeId: nvml.POWER_SCOPE_MODULE},
		}
		before := time.Now()
		n.want(nvml.SUCCESS, n.gpu(0).GetFieldValues(values))
		for i, want := range []struct {
			ret   nvml.Return
			value uint64
		}{
			{nvml.SUCCESS, 222},
			{nvml.SUCCESS, 999},
			{nvml.ERROR_NOT_SUPPORTED, 0},
			{nvml.SUCCESS, 70000},
			{nvml.ERROR_NOT_SUPPORTED, 0},
		} {
			v := values[i]
			n.want(want.ret, nvml.Return(v.NvmlReturn))
			if want.ret == nvml.SUCCESS && decodeField(v) != want.value {
				n.Errorf("entry %d is %d, want %d", i, decodeField(v), want.value)
			}
			if age := time.UnixMicro(v.Timestamp).Sub(before); age < -time.Second || age > waitTimeout {
				n.Errorf("entry %d has timestamp %v after the start of the call", i, age)
			}
		}
	})
}

// allLinks is the scope of the sum of all NVLinks.
const allLinks = 1<<32 - 1

// readScopes returns the values of a field with several scopes, -1 without a value.
func (n *testNode) readScopes(gpu nvml.Device, id uint32, scopes ...uint32) (got []int64) {
	n.Helper()
	values := make([]nvml.FieldValue, len(scopes))
	for i, scope := range scopes {
		values[i] = nvml.FieldValue{FieldId: id, ScopeId: scope}
	}
	n.want(nvml.SUCCESS, gpu.GetFieldValues(values))
	for _, v := range values {
		if nvml.Return(v.NvmlReturn) != nvml.SUCCESS {
			got = append(got, -1)
			continue
		}
		got = append(got, int64(decodeField(v)))
	}
	return got
}

// TestFieldsOfLinks checks that the sum includes a link with a different value and excludes a link that is off.
func TestFieldsOfLinks(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 field 138/link 100", "gpu 0 field 138/3 7", "gpu 0 link 17 off", "gpu 0 nvlink_speed 26562")
		gpu := n.gpu(0)
		for id, want := range map[uint32][]int64{
			nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX:      {100, 7, -1, -1, 16*100 + 7},
			nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX:      {0, 0, -1, -1, 0},
			nvml.FI_DEV_NVLINK_GET_STATE:               {1, 1, 0, -1, -1},
			nvml.FI_DEV_NVLINK_GET_SPEED:               {26562, 26562, 0, -1, -1},
			nvml.FI_DEV_NVLINK_GET_VERSION:             {6, 6, 6, -1, -1},
			nvml.FI_DEV_NVLINK_LINK_COUNT:              {18, 18, 18, 18, 18},
			nvml.FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:  {17, 17, 17, 17, 17},
			nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES:        {-1, -1, -1, -1, -1},
			nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0: {-1, -1, -1, -1, -1},
		} {
			expect.EqualSlices(n, n.readScopes(gpu, id, 0, 3, 17, 18, allLinks), want, "field", id)
		}
		n.setLines("gpu 0 link 0-17 none")
		for _, id := range []uint32{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_GET_STATE, nvml.FI_DEV_NVLINK_LINK_COUNT} {
			if got := n.readScopes(gpu, id, 0, allLinks); got[0] != -1 || got[1] != -1 {
				n.Errorf("field %d of a GPU without links is %v", id, got)
			}
		}
	})
}

// timedSample is a GPM sample with its earliest and latest possible time.
type timedSample struct {
	nvml.GpmSample
	notBefore, notAfter time.Time
}

func (n *testNode) takeSample(d nvml.Device) timedSample {
	n.Helper()
	s, ret := n.GpmSampleAlloc()
	n.want(nvml.SUCCESS, ret)
	taken := timedSample{GpmSample: s, notBefore: time.Now()}
	n.want(nvml.SUCCESS, s.Get(d))
	taken.notAfter = time.Now()
	return taken
}

// metrics computes metrics from two samples.
func (n *testNode) metrics(from, to timedSample, ids ...nvml.GpmMetricId) []nvml.GpmMetric {
	n.Helper()
	get := nvml.GpmMetricsGetType{NumMetrics: uint32(len(ids)), Sample1: from.GpmSample, Sample2: to.GpmSample}
	for i, id := range ids {
		get.Metrics[i].MetricId = uint32(id)
	}
	n.want(nvml.SUCCESS, n.GpmMetricsGet(&get))
	return get.Metrics[:len(ids)]
}

// waitAfter waits until the given time has passed since a sample, for a window of that length.
func (n *testNode) waitAfter(s timedSample, while time.Duration) {
	n.Helper()
	n.waitUntil("the window is over", func() bool { return time.Since(s.notAfter) > while })
}

// wantNear checks a metric's value.
func (n *testNode) wantNear(m nvml.GpmMetric, want, slack float64) {
	n.Helper()
	n.want(nvml.SUCCESS, nvml.Return(m.NvmlReturn))
	if math.Abs(m.Value-want) > slack {
		n.Errorf("metric %d is %f, want %f", m.MetricId, m.Value, want)
	}
}

func TestGPM(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		epoch := time.Now().Truncate(time.Second)
		// A wave with a period of 2 ms. Its mean over longer windows is the middle.
		n.setup("gpu 1 metric 1-2 40", "gpu 1 metric 2 20~60/0.002s", "gpu 1 metric 20 100+1000/s", fmt.Sprintf("epoch %d", epoch.Unix()),
			"gpu 1 metric 5 none", "fail metric:3 gpu 1 UNKNOWN")
		first := n.takeSample(n.gpu(1))
		n.waitAfter(first, 100*time.Millisecond)
		last := n.takeSample(n.gpu(1))
		got := n.metrics(first, last, nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_SM_OCCUPANCY, nvml.GPM_METRIC_INTEGER_UTIL,
			nvml.GPM_METRIC_ANY_TENSOR_UTIL, nvml.GPM_METRIC_FP16_UTIL, nvml.GPM_METRIC_C2C_TOTAL_TX_PER_SEC, nvml.GPM_METRIC_PCIE_TX_PER_SEC)
		n.wantNear(got[0], 40, 1e-6)
		n.wantNear(got[1], 40, 1)
		n.want(nvml.ERROR_UNKNOWN, nvml.Return(got[2].NvmlReturn))
		n.wantNear(got[3], 0, 0)
		n.want(nvml.ERROR_NOT_SUPPORTED, nvml.Return(got[4].NvmlReturn))
		n.wantNear(got[5], 0, 0)
		n.want(nvml.ERROR_NOT_SUPPORTED, nvml.Return(got[6].NvmlReturn))
		// The mean of a rising value is the value at the middle of the window.
		middle := first.notBefore.Add(last.notAfter.Sub(first.notBefore) / 2)
		n.wantNear(got[7], 100+1000*middle.Sub(epoch).Seconds(), 100)

		// A changed line is weighted with the time before the change.
		n.setLines("gpu 1 metric 1 80")
		n.takeSample(n.gpu(1))
		n.waitAfter(last, last.notAfter.Sub(first.notBefore))
		end := n.takeSample(n.gpu(1))
		whole := n.metrics(first, end, nvml.GPM_METRIC_GRAPHICS_UTIL)[0]
		if whole.Value < 45 || whole.Value > 75 {
			n.Errorf("mean of 40, then 80, is %f", whole.Value)
		}
	})
}
