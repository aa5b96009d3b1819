package metric

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// Target is the subject of a call.
type Target uint8

// The targets.
const (
	TargetGPU Target = 1 << iota
	TargetMIG
)

// Call is a function for reading values. The collector makes a call for a value still missing after the calls before.
type Call struct {
	Symbol  string
	Pace    device.ReadPace
	Targets Target
	Get     func(nvml.Device, *Values) nvml.Return
	Values  []ValueID
	// IsFallback marks the older form of the previous call, with fewer values.
	IsFallback bool
	// Part is the number of a part of the GPU, below the count of Parts; Parts is nil for the GPU as a whole.
	Part  int
	Parts *PartCount
}

// PartCount counts the parts of a GPU, such as fans.
type PartCount struct {
	Symbol string
	Read   readFunc
}

// Provides reports whether the call reads a value.
func (c *Call) Provides(id ValueID) bool { return slices.Contains(c.Values, id) }

// sharedCalls read several values, or a value for more than a row. A fallback follows the newer form.
var sharedCalls = []Call{
	newCall("nvmlDeviceGetMemoryInfo_v2", device.PaceFast, TargetGPU|TargetMIG, getMemory, []ValueID{memoryTotal, memoryReserved, memoryUsed, memoryFree}),
	newFallback("nvmlDeviceGetMemoryInfo", device.PaceFast, TargetGPU|TargetMIG, getMemoryV1, []ValueID{memoryTotal, memoryUsed, memoryFree}),
	newCall("nvmlDeviceGetUtilizationRates", device.PaceFast, TargetGPU, getUtilization, []ValueID{gpuUtilization, memoryUtilization}),
	newCall("nvmlDeviceGetCurrentClocksEventReasons", device.PaceFast, TargetGPU, getClockEventReasons, []ValueID{ClockEventReasons}),
	newFallback("nvmlDeviceGetCurrentClocksThrottleReasons", device.PaceFast, TargetGPU, getClockThrottleReasons, []ValueID{ClockEventReasons}), // up to driver 530
	newCall("nvmlDeviceGetBAR1MemoryInfo", device.PaceSlow, TargetGPU|TargetMIG, getBAR1Memory, []ValueID{bar1Total, bar1Used}),
	newCall("nvmlDeviceGetSramEccErrorStatus", device.PaceSlow, TargetGPU, getSRAMErrors, valueRange(sramVolatileCorrected, SRAMThresholdExceeded)),
	newCall("nvmlDeviceGetRowRemapperHistogram", device.PaceSlow, TargetGPU, getRemapBanks, valueRange(banksMax, banksNone)),
	newCall("nvmlDeviceGetRepairStatus", device.PaceSlow, TargetGPU, getRepairStatus, []ValueID{channelRepairPending, tpcRepairPending}),
	newCall("nvmlDeviceGetUnrepairableMemoryFlag_v1", device.PaceSlow, TargetGPU, getUnrepairableMemory, []ValueID{UnrepairableMemory}),
	newCall("nvmlDeviceGetGpuFabricInfoV", device.PaceSlow, TargetGPU, getFabricInfo, fabricValues),
	newFallback("nvmlDeviceGetGpuFabricInfoV", device.PaceSlow, TargetGPU, getFabricInfoV2, fabricValues),
	// NVML counts only uncorrected SRAM errors of a MIG device, and no volatile ones of a MIG-enabled GPU (nvml.h, nvmlDeviceGetMemoryErrorCounter).
	newCall("nvmlDeviceGetMemoryErrorCounter", device.PaceSlow, TargetMIG, getMIGDeviceErrors, []ValueID{sramVolatileUncorrected}),
}

func newCall(symbol string, pace device.ReadPace, targets Target, get func(nvml.Device, *Values) nvml.Return, values []ValueID) Call {
	return Call{Symbol: symbol, Pace: pace, Targets: targets, Get: get, Values: values}
}

func newFallback(symbol string, pace device.ReadPace, targets Target, get func(nvml.Device, *Values) nvml.Return, values []ValueID) Call {
	c := newCall(symbol, pace, targets, get, values)
	c.IsFallback = true
	return c
}

var fabricValues = append(valueRange(fabricState, FabricNotJoined), HasFabric)

// valueRange returns the values from first to last.
func valueRange(first, last ValueID) (ids []ValueID) {
	for id := first; id <= last; id++ {
		ids = append(ids, id)
	}
	return ids
}

// readFunc reads a row's only value.
type readFunc func(nvml.Device) (float64, nvml.Return)

// number converts the result of a getter.
func number[T ~int | ~int32 | ~uint32 | ~uint64](v T, ret nvml.Return) (float64, nvml.Return) {
	return float64(v), ret
}

// getter reads the result of a method without arguments.
func getter[T ~int | ~int32 | ~uint32 | ~uint64](get func(nvml.Device) (T, nvml.Return)) readFunc {
	return func(d nvml.Device) (float64, nvml.Return) { return number(get(d)) }
}

// utilization reads the percentage of a method with a period as second result.
func utilization(get func(nvml.Device) (uint32, uint32, nvml.Return)) readFunc {
	return func(d nvml.Device) (float64, nvml.Return) {
		percent, _, ret := get(d)
		return float64(percent), ret
	}
}

func clock(t nvml.ClockType) readFunc {
	return func(d nvml.Device) (float64, nvml.Return) { return number(d.GetClockInfo(t)) }
}

func maxClock(t nvml.ClockType) readFunc {
	return func(d nvml.Device) (float64, nvml.Return) { return number(d.GetMaxClockInfo(t)) }
}

func threshold(t nvml.TemperatureThresholds) readFunc {
	return func(d nvml.Device) (float64, nvml.Return) { return number(d.GetTemperatureThreshold(t)) }
}

// getTemperature prefers the older function, although nvml.h recommends GetTemperatureV: older drivers lack the latter.
func getTemperature(d nvml.Device) (float64, nvml.Return) {
	return number(d.GetTemperature(nvml.TEMPERATURE_GPU))
}

func getTemperatureMargin(d nvml.Device) (float64, nvml.Return) {
	m, ret := d.GetMarginTemperature()
	return float64(m.MarginTemperature), ret
}

func getMemory(d nvml.Device, r *Values) nvml.Return {
	m, ret := d.GetMemoryInfo_v2()
	r.Set(ret, memoryTotal, float64(m.Total))
	r.Set(ret, memoryReserved, float64(m.Reserved))
	r.Set(ret, memoryUsed, float64(m.Used))
	r.Set(ret, memoryFree, float64(m.Free))
	return ret
}

// getMemoryV1 counts reserved memory as used: the older function cannot separate both.
func getMemoryV1(d nvml.Device, r *Values) nvml.Return {
	m, ret := d.GetMemoryInfo()
	r.Set(ret, memoryTotal, float64(m.Total))
	r.Set(ret, memoryUsed, float64(m.Used))
	r.Set(ret, memoryFree, float64(m.Free))
	return ret
}

func getBAR1Memory(d nvml.Device, r *Values) nvml.Return {
	m, ret := d.GetBAR1MemoryInfo()
	r.Set(ret, bar1Total, float64(m.Bar1Total))
	r.Set(ret, bar1Used, float64(m.Bar1Used))
	return ret
}

// getUtilization is not supported in MIG mode (nvml.h, nvmlDeviceGetUtilizationRates).
func getUtilization(d nvml.Device, r *Values) nvml.Return {
	u, ret := d.GetUtilizationRates()
	r.Set(ret, gpuUtilization, float64(u.Gpu))
	r.Set(ret, memoryUtilization, float64(u.Memory))
	return ret
}

func getClockEventReasons(d nvml.Device, r *Values) nvml.Return {
	mask, ret := d.GetCurrentClocksEventReasons()
	r.Set(ret, ClockEventReasons, float64(mask))
	return ret
}

func getClockThrottleReasons(d nvml.Device, r *Values) nvml.Return {
	mask, ret := d.GetCurrentClocksThrottleReasons()
	r.Set(ret, ClockEventReasons, float64(mask))
	return ret
}

func getMIGDeviceErrors(d nvml.Device, r *Values) nvml.Return {
	n, ret := d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_SRAM)
	r.Set(ret, sramVolatileUncorrected, float64(n))
	return ret
}

func getSRAMErrors(d nvml.Device, r *Values) nvml.Return {
	s, ret := d.GetSramEccErrorStatus()
	r.Set(ret, sramVolatileCorrected, float64(s.VolatileCor))
	r.Set(ret, sramVolatileUncorrected, float64(s.VolatileUncParity)+float64(s.VolatileUncSecDed))
	r.Set(ret, sramAggregateCorrected, float64(s.AggregateCor))
	r.Set(ret, sramAggregateUncorrected, float64(s.AggregateUncParity)+float64(s.AggregateUncSecDed))
	r.Set(ret, sramInL2, float64(s.AggregateUncBucketL2))
	r.Set(ret, sramInSM, float64(s.AggregateUncBucketSm))
	r.Set(ret, sramInPCIe, float64(s.AggregateUncBucketPcie))
	r.Set(ret, sramInMCU, float64(s.AggregateUncBucketMcu))
	r.Set(ret, sramInOther, float64(s.AggregateUncBucketOther))
	r.SetBool(ret, SRAMThresholdExceeded, s.BThresholdExceeded != 0)
	return ret
}

func getRemapBanks(d nvml.Device, r *Values) nvml.Return {
	b, ret := d.GetRowRemapperHistogram()
	for i, n := range [...]uint32{b.Max, b.High, b.Partial, b.Low, b.None} {
		r.Set(ret, banksMax+ValueID(i), float64(n))
	}
	return ret
}

func getRepairStatus(d nvml.Device, r *Values) nvml.Return {
	s, ret := d.GetRepairStatus()
	r.SetBool(ret, channelRepairPending, s.BChannelRepairPending != 0)
	r.SetBool(ret, tpcRepairPending, s.BTpcRepairPending != 0)
	return ret
}

func getUnrepairableMemory(d nvml.Device, r *Values) nvml.Return {
	s, ret := d.GetUnrepairableMemoryFlag_v1()
	r.SetBool(ret, UnrepairableMemory, s.BUnrepairableMemory != 0)
	return ret
}

func getFabricInfo(d nvml.Device, r *Values) nvml.Return {
	f, ret := d.GetGpuFabricInfoV().V3()
	r.setFabric(ret, f.State, f.Status, f.HealthMask)
	if r.Present[fabricHealthy] && f.HealthSummary > nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY {
		r.Values[fabricHealthy] = 0
	}
	return ret
}

// getFabricInfoV2 is for drivers up to 570, without a summary.
func getFabricInfoV2(d nvml.Device, r *Values) nvml.Return {
	f, ret := d.GetGpuFabricInfoV().V2()
	r.setFabric(ret, f.State, f.Status, f.HealthMask)
	return ret
}

// fabricFaults are the parts of nvml.h's NVML_GPU_FABRIC_HEALTH_MASK: 0 is unknown, firstBad to lastBad is a fault. A part of two bits
// has 1 for yes and 2 for no; the configuration has 1 for correct and more for each error.
var fabricFaults = [...]struct {
	id                ValueID
	shift, bits       uint32
	firstBad, lastBad uint32
}{
	{fabricDegradedBandwidth, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW, 1, 1},
	{fabricRouteRecovery, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY, 1, 1},
	{fabricRouteUnhealthy, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY, 1, 1},
	{fabricAccessTimeout, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY, 1, 1},
	{fabricMisconfigured, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION, 2, 15},
}

// setFabric reads the fabric's state, status and health mask. The mask and the status mean nothing before the GPU has joined.
func (vs *Values) setFabric(ret nvml.Return, state uint8, status, mask uint32) {
	if ret != nvml.SUCCESS {
		return
	}
	joined := state == nvml.GPU_FABRIC_STATE_COMPLETED
	healthy := nvml.Return(status) == nvml.SUCCESS
	vs.SetBool(ret, HasFabric, state != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED)
	vs.SetBool(ret, FabricFailed, joined && !healthy)
	vs.SetBool(ret, FabricNotJoined, state == nvml.GPU_FABRIC_STATE_NOT_STARTED || state == nvml.GPU_FABRIC_STATE_IN_PROGRESS)
	if state == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		return
	}
	vs.Set(ret, fabricState, float64(state))
	if !joined {
		return
	}
	for _, f := range fabricFaults {
		v := mask >> f.shift & f.bits
		if v == 0 {
			continue
		}
		bad := v >= f.firstBad && v <= f.lastBad
		vs.SetBool(ret, f.id, bad)
		healthy = healthy && !bad
	}
	vs.SetBool(ret, fabricHealthy, healthy)
}

// TotalMemory returns the memory of a GPU or of a MIG device in bytes; 0: unknown.
func TotalMemory(handle nvml.Device, has lib.Symbols) uint64 {
	var r Values
	for i := range sharedCalls {
		if c := &sharedCalls[i]; has[c.Symbol] && c.Provides(memoryTotal) && !r.Present[memoryTotal] {
			_ = c.Get(handle, &r) // a failure leaves the value absent
		}
	}
	v, _ := inBytes.Convert(r.Values[memoryTotal])
	return uint64(v)
}
