package metric

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

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

// Call is a function for reading values. The collector makes a call for a value
// still missing after the calls before.
type Call struct {
	Symbol  string
	Pace    device.ReadPace
	Targets Target
	Values  []ValueID
	read    func(nvml.Device) (numbers, nvml.Return) // in the order of Values
	// SparedBy is a field with the call's only value, or nil.
	SparedBy *FieldKey
	// IsFallback marks the older form of the previous call, with fewer values.
	IsFallback bool
	// Part is the number of a part of the GPU, below the value PartCount;
	// NoValue: the call is about the GPU as a whole.
	Part      int
	PartCount ValueID
}

// numbers are the results of a call; NaN: no value.
type numbers [14]float64

// Provides reports whether the call reads a value.
func (c *Call) Provides(id ValueID) bool { return slices.Contains(c.Values, id) }

// Get makes the call and stores the values, unless the call fails.
func (c *Call) Get(d nvml.Device, values *Values) nvml.Return {
	results, ret := c.read(d)
	for i, id := range c.Values {
		if ret == nvml.SUCCESS && !math.IsNaN(results[i]) {
			values.Set(id, results[i])
		}
	}
	return ret
}

// MissesAny reports whether a value of a call is absent.
func (vs *Values) MissesAny(c *Call) bool {
	return slices.ContainsFunc(c.Values, func(id ValueID) bool { return !vs.Present[id] })
}

// sharedCalls read several values, or a value for more than a row. A fallback
// follows the newer form.
var sharedCalls = []Call{
	newCall("nvmlDeviceGetMemoryInfo_v2", device.PaceFast, getMemory, memoryTotal, memoryUsed, memoryFree,
		memoryReserved).forMIGDevices(),
	newCall("nvmlDeviceGetMemoryInfo", device.PaceFast, getMemoryV1, memoryTotal, memoryUsed, memoryFree).
		forMIGDevices().asFallback(),
	newCall("nvmlDeviceGetUtilizationRates", device.PaceFast, getUtilization, gpuUtilization, memoryUtilization),
	newCall("nvmlDeviceGetCurrentClocksEventReasons", device.PaceFast,
		single(getter(nvml.Device.GetCurrentClocksEventReasons)), ClockEventReasons),
	newCall("nvmlDeviceGetCurrentClocksThrottleReasons", device.PaceFast,
		single(getter(nvml.Device.GetCurrentClocksThrottleReasons)), ClockEventReasons).
		asFallback(), // up to driver 530
	newCall("nvmlDeviceGetSupportedClocksEventReasons", device.PaceStatic,
		single(getter(nvml.Device.GetSupportedClocksEventReasons)), SupportedClockReasons),
	newCall("nvmlDeviceGetSupportedClocksThrottleReasons", device.PaceStatic,
		single(getter(nvml.Device.GetSupportedClocksThrottleReasons)), SupportedClockReasons).
		asFallback(),
	newCall("nvmlGpmQueryDeviceSupport", device.PaceStatic, single(getGPMSupport), GPMSupport),
	newCall("nvmlDeviceGetNumFans", device.PaceStatic, single(getter(nvml.Device.GetNumFans)), fanCount),
	newCall("nvmlDeviceGetBAR1MemoryInfo", device.PaceSlow, getBAR1Memory, bar1Total, bar1Used).forMIGDevices(),
	newCall("nvmlDeviceGetSramEccErrorStatus", device.PaceSlow, getSRAMErrors,
		valueRange(sramVolatileCorrected, SRAMThresholdExceeded)...),
	newCall("nvmlDeviceGetRowRemapperHistogram", device.PaceSlow, getRemapBanks, valueRange(banksMax, banksNone)...),
	newCall("nvmlDeviceGetRepairStatus", device.PaceSlow, getRepairStatus, channelRepairPending, tpcRepairPending),
	newCall("nvmlDeviceGetUnrepairableMemoryFlag_v1", device.PaceSlow, getUnrepairableMemory, UnrepairableMemory),
	newCall("nvmlDeviceGetGpuFabricInfoV", device.PaceSlow, getFabricInfo, valueRange(fabricState, fabricClique)...),
	newCall("nvmlDeviceGetGpuFabricInfoV", device.PaceSlow, getFabricInfoV2, valueRange(fabricState, fabricClique)...).
		asFallback(),
	newCall("nvmlDeviceGetNvLinkState", device.PaceSlow, single(getActiveNVLinks), ActiveNVLinks),
	// NVML counts only uncorrected SRAM errors of a MIG device, and no volatile
	// ones of a MIG-enabled GPU (nvml.h, nvmlDeviceGetMemoryErrorCounter).
	{
		Symbol: "nvmlDeviceGetMemoryErrorCounter", Pace: device.PaceSlow, Targets: TargetMIG,
		read: single(getMIGDeviceErrors), Values: []ValueID{sramVolatileUncorrected},
	},
}

func newCall(
	symbol string, pace device.ReadPace, read func(nvml.Device) (numbers, nvml.Return), values ...ValueID,
) Call {
	return Call{Symbol: symbol, Pace: pace, Targets: TargetGPU, read: read, Values: values}
}

func (c Call) forMIGDevices() Call {
	c.Targets |= TargetMIG
	return c
}

func (c Call) asFallback() Call {
	c.IsFallback = true
	return c
}

func valueRange(first, last ValueID) (ids []ValueID) {
	for id := first; id <= last; id++ {
		ids = append(ids, id)
	}
	return ids
}

// readFunc reads a row's only value.
type readFunc func(nvml.Device) (float64, nvml.Return)

// single reads a call's only value.
func single(read readFunc) func(nvml.Device) (numbers, nvml.Return) {
	return func(d nvml.Device) (numbers, nvml.Return) {
		v, ret := read(d)
		return numbers{v}, ret
	}
}

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

// getterOf reads the result of a method with an argument.
func getterOf[A any](get func(nvml.Device, A) (uint32, nvml.Return), argument A) readFunc {
	return func(d nvml.Device) (float64, nvml.Return) { return number(get(d, argument)) }
}

func getTemperatureMargin(d nvml.Device) (float64, nvml.Return) {
	m, ret := d.GetMarginTemperature()
	return float64(m.MarginTemperature), ret
}

func getMemory(d nvml.Device) (numbers, nvml.Return) {
	m, ret := d.GetMemoryInfo_v2()
	return numbers{float64(m.Total), float64(m.Used), float64(m.Free), float64(m.Reserved)}, ret
}

// getMemoryV1 counts reserved memory as used: the older function cannot
// separate both.
func getMemoryV1(d nvml.Device) (numbers, nvml.Return) {
	m, ret := d.GetMemoryInfo()
	return numbers{float64(m.Total), float64(m.Used), float64(m.Free)}, ret
}

func getBAR1Memory(d nvml.Device) (numbers, nvml.Return) {
	m, ret := d.GetBAR1MemoryInfo()
	return numbers{float64(m.Bar1Total), float64(m.Bar1Used)}, ret
}

// getUtilization is not supported in MIG mode (nvml.h,
// nvmlDeviceGetUtilizationRates).
func getUtilization(d nvml.Device) (numbers, nvml.Return) {
	u, ret := d.GetUtilizationRates()
	return numbers{float64(u.Gpu), float64(u.Memory)}, ret
}

func getMIGDeviceErrors(d nvml.Device) (float64, nvml.Return) {
	return number(d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC,
		nvml.MEMORY_LOCATION_SRAM))
}

func getSRAMErrors(d nvml.Device) (numbers, nvml.Return) {
	s, ret := d.GetSramEccErrorStatus()
	return numbers{
		float64(s.VolatileCor), float64(s.VolatileUncParity) + float64(s.VolatileUncSecDed),
		float64(s.AggregateCor), float64(s.AggregateUncParity) + float64(s.AggregateUncSecDed),
		float64(s.AggregateUncBucketL2), float64(s.AggregateUncBucketSm), float64(s.AggregateUncBucketPcie),
		float64(s.AggregateUncBucketMcu), float64(s.AggregateUncBucketOther),
		boolNumber(s.BThresholdExceeded != 0),
	}, ret
}

func getRemapBanks(d nvml.Device) (numbers, nvml.Return) {
	b, ret := d.GetRowRemapperHistogram()
	return numbers{float64(b.Max), float64(b.High), float64(b.Partial), float64(b.Low), float64(b.None)}, ret
}

func getRepairStatus(d nvml.Device) (numbers, nvml.Return) {
	s, ret := d.GetRepairStatus()
	return numbers{boolNumber(s.BChannelRepairPending != 0), boolNumber(s.BTpcRepairPending != 0)}, ret
}

func getGPMSupport(d nvml.Device) (float64, nvml.Return) {
	s, ret := d.GpmQueryDeviceSupport()
	return boolNumber(s.IsSupportedDevice != 0), ret
}

func getUnrepairableMemory(d nvml.Device) (numbers, nvml.Return) {
	s, ret := d.GetUnrepairableMemoryFlag_v1()
	return numbers{boolNumber(s.BUnrepairableMemory != 0)}, ret
}

func getFabricInfo(d nvml.Device) (numbers, nvml.Return) {
	f, ret := lib.FabricInfo(d, nvml.GpuFabricInfoHandler.V3)
	results := fabricNumbers(f.State, f.Status, f.HealthMask,
		f.HealthSummary <= nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY)
	results.setFabricDomain(f.State, f.ClusterUuid, f.CliqueId)
	return results, ret
}

// getFabricInfoV2 is for drivers up to 570, without a summary.
func getFabricInfoV2(d nvml.Device) (numbers, nvml.Return) {
	f, ret := lib.FabricInfo(d, nvml.GpuFabricInfoHandler.V2)
	results := fabricNumbers(f.State, f.Status, f.HealthMask, true)
	results.setFabricDomain(f.State, f.ClusterUuid, f.CliqueId)
	return results, ret
}

// setFabricDomain sets the NVLink domain of a GPU that has joined one of several
// nodes. On a single node the UUID is 0. A value is a number, exact up to 53
// bits, so the UUID is three of them.
func (n *numbers) setFabricDomain(state uint8, uuid [16]uint8, clique uint32) {
	if state != nvml.GPU_FABRIC_STATE_COMPLETED || uuid == [16]uint8{} {
		return
	}
	for i, part := range [...][]uint8{uuid[:6], uuid[6:12], uuid[12:]} {
		n[int(fabricDomainFirst-fabricState)+i] = float64(new(big.Int).SetBytes(part).Uint64())
	}
	n[fabricClique-fabricState] = float64(clique)
}

// FabricDomain returns the NVLink domain of the values: the cluster's UUID and
// the clique, as nvidia-smi prints them; empty: none.
func (vs *Values) FabricDomain() (clusterUUID, cliqueID string) {
	if !vs.Present[fabricClique] {
		return "", ""
	}
	hex := fmt.Sprintf("%012x%012x%08x", uint64(vs.Values[fabricDomainFirst]),
		uint64(vs.Values[fabricDomainSecond]), uint64(vs.Values[fabricDomainThird]))
	return strings.Join([]string{hex[:8], hex[8:12], hex[12:16], hex[16:20], hex[20:]}, "-"),
		strconv.Itoa(int(vs.Values[fabricClique]))
}

// fabricFaults are the parts of nvml.h's NVML_GPU_FABRIC_HEALTH_MASK, with the
// bits of a part: 0 is unknown, firstBad to lastBad is a fault. A part of two
// bits has 1 for yes and 2 for no; the configuration has 1 for correct and more
// for each error.
var fabricFaults = [...]struct {
	id                ValueID
	shift, bits       uint32
	firstBad, lastBad uint32
}{
	{fabricDegradedBandwidth, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, 3, 1, 1},
	{fabricRouteRecovery, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, 3, 1, 1},
	{fabricRouteUnhealthy, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, 3, 1, 1},
	{fabricAccessTimeout, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY, 3, 1, 1},
	{fabricMisconfigured, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION, 15, 2, 15},
}

// fabricNumbers reads the fabric's state, status and health. Status, mask and
// summary mean nothing before the GPU has joined.
func fabricNumbers(state uint8, status, mask uint32, healthySummary bool) (results numbers) {
	for i := range results {
		results[i] = math.NaN()
	}
	set := func(id ValueID, v float64) { results[id-fabricState] = v }
	joined := state == nvml.GPU_FABRIC_STATE_COMPLETED
	succeeded := nvml.Return(status) == nvml.SUCCESS
	set(HasFabric, boolNumber(state != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED))
	set(FabricFailed, boolNumber(joined && !succeeded))
	set(FabricNotJoined, boolNumber(state == nvml.GPU_FABRIC_STATE_NOT_STARTED ||
		state == nvml.GPU_FABRIC_STATE_IN_PROGRESS))
	if state != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		set(fabricState, float64(state))
	}
	if !joined {
		return results
	}
	healthy := succeeded && healthySummary
	for _, f := range fabricFaults {
		if v := mask >> f.shift & f.bits; v != 0 {
			bad := v >= f.firstBad && v <= f.lastBad
			set(f.id, boolNumber(bad))
			healthy = healthy && !bad
		}
	}
	set(fabricHealthy, boolNumber(healthy))
	return results
}

// getActiveNVLinks counts the active NVLinks. The first link without an answer
// ends them.
func getActiveNVLinks(d nvml.Device) (active float64, ret nvml.Return) {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.GetNvLinkState(link)
		switch {
		case link > 0 && lib.IsNotSupported(ret):
			return active, nvml.SUCCESS
		case ret != nvml.SUCCESS:
			return 0, ret
		case state == nvml.FEATURE_ENABLED:
			active++
		}
	}
	return active, nvml.SUCCESS
}

// TotalMemory returns the memory of a GPU or of a MIG device in bytes; 0:
// unknown.
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
