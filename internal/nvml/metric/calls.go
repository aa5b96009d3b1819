package metric

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// ValueID is where something other than a field leaves a number for the rows.
type ValueID uint8

const (
	NoValue ValueID = iota
	memoryTotal
	memoryReserved
	memoryUsed
	memoryFree
	bar1Total
	bar1Used
	gpuUtilization
	memoryUtilization
	encoderUtilization
	decoderUtilization
	jpegUtilization
	ofaUtilization
	temperature
	temperatureMargin
	thresholdShutdown
	thresholdSlowdown
	thresholdMemory
	thresholdGPU
	powerUsage
	powerLimit
	smClock
	memoryClock
	graphicsClock
	videoClock
	maxSMClock
	maxMemoryClock
	maxGraphicsClock
	maxVideoClock
	ClockEventReasons
	performanceState
	pcieGeneration
	pcieWidth
	maxPCIeGeneration
	maxPCIeWidth
	sramVolatileCorrected
	sramVolatileUncorrected
	sramAggregateCorrected
	sramAggregateUncorrected
	sramInL2
	sramInSM
	sramInPCIe
	sramInMCU
	sramInOther
	SRAMThresholdExceeded
	banksMax
	banksHigh
	banksPartial
	banksLow
	banksNone
	channelRepairPending
	tpcRepairPending
	UnrepairableMemory
	fabricState
	fabricHealthy
	fabricDegradedBandwidth
	fabricRouteRecovery
	fabricRouteUnhealthy
	fabricAccessTimeout
	fabricMisconfigured
	FabricFailed    // by its status
	FabricNotJoined // it has not joined yet
	persistenceMode
	computeMode

	// What is known without a call of its own: see features.go.
	MigEnabled
	MigPending
	HasC2C
	HasECC
	HasFabric
	HasGPM
	HasMIG
	HasNVLink
	HasRetirement
	HasRemapping

	// What two samples of the GPU's counters give: see gpm.go.
	GPMGraphics
	GPMSM
	gpmOccupancy
	gpmInteger
	gpmTensor
	gpmDFMA
	gpmHMMA
	gpmIMMA
	gpmDRAM
	gpmFP64
	gpmFP32
	gpmFP16

	ValueIDCount
)

// Target is whom a call can be made about.
type Target uint8

const (
	TargetGPU Target = 1 << iota
	TargetMIG
)

// Call is a function that fills slots. It is made when one of them is wanted that
// nothing before it has filled.
type Call struct {
	Symbol  string
	Pace    device.ReadPace
	Targets Target
	Get     getter
	Values  []ValueID
	// IsFallback says that it is the older form of the call before it, which says more.
	IsFallback bool
}

// getter makes a call, and leaves in the reading what it gives.
type getter func(nvml.Device, *Values) nvml.Return

// Calls are what cannot be had by fields. Of two that fill the same slot the newer
// one, which says more, stands first. What is slow here is made one by one, as a
// flight has calls to spare, and what is static when the GPU is found.
var Calls = [...]Call{
	{"nvmlDeviceGetMemoryInfo_v2", device.PaceFast, TargetGPU | TargetMIG, getMemory, []ValueID{memoryTotal, memoryReserved, memoryUsed, memoryFree}, false},
	{"nvmlDeviceGetMemoryInfo", device.PaceFast, TargetGPU | TargetMIG, getMemoryV1, []ValueID{memoryTotal, memoryUsed, memoryFree}, true},
	{"nvmlDeviceGetUtilizationRates", device.PaceFast, TargetGPU, getUtilization, []ValueID{gpuUtilization, memoryUtilization}, false},
	{"nvmlDeviceGetEncoderUtilization", device.PaceFast, TargetGPU, getEngineUtilization(encoderUtilization, nvml.Device.GetEncoderUtilization), []ValueID{encoderUtilization}, false},
	{"nvmlDeviceGetDecoderUtilization", device.PaceFast, TargetGPU, getEngineUtilization(decoderUtilization, nvml.Device.GetDecoderUtilization), []ValueID{decoderUtilization}, false},
	{"nvmlDeviceGetJpgUtilization", device.PaceFast, TargetGPU, getEngineUtilization(jpegUtilization, nvml.Device.GetJpgUtilization), []ValueID{jpegUtilization}, false},
	{"nvmlDeviceGetOfaUtilization", device.PaceFast, TargetGPU, getEngineUtilization(ofaUtilization, nvml.Device.GetOfaUtilization), []ValueID{ofaUtilization}, false},
	{"nvmlDeviceGetTemperature", device.PaceFast, TargetGPU, getTemperature, []ValueID{temperature}, false},
	{"nvmlDeviceGetPowerUsage", device.PaceFast, TargetGPU, getPowerUsage, []ValueID{powerUsage}, false},
	{"nvmlDeviceGetClockInfo", device.PaceFast, TargetGPU, getClock(smClock, nvml.CLOCK_SM), []ValueID{smClock}, false},
	{"nvmlDeviceGetClockInfo", device.PaceFast, TargetGPU, getClock(memoryClock, nvml.CLOCK_MEM), []ValueID{memoryClock}, false},
	{"nvmlDeviceGetCurrentClocksEventReasons", device.PaceFast, TargetGPU, getClockEventReasons, []ValueID{ClockEventReasons}, false},
	{"nvmlDeviceGetCurrentClocksThrottleReasons", device.PaceFast, TargetGPU, getClockThrottleReasons, []ValueID{ClockEventReasons}, true},

	{"nvmlDeviceGetBAR1MemoryInfo", device.PaceSlow, TargetGPU | TargetMIG, getBAR1Memory, []ValueID{bar1Total, bar1Used}, false},
	{"nvmlDeviceGetPerformanceState", device.PaceSlow, TargetGPU, getPerformanceState, []ValueID{performanceState}, false},
	{"nvmlDeviceGetClockInfo", device.PaceSlow, TargetGPU, getClock(graphicsClock, nvml.CLOCK_GRAPHICS), []ValueID{graphicsClock}, false},
	{"nvmlDeviceGetClockInfo", device.PaceSlow, TargetGPU, getClock(videoClock, nvml.CLOCK_VIDEO), []ValueID{videoClock}, false},
	{"nvmlDeviceGetMarginTemperature", device.PaceSlow, TargetGPU, getTemperatureMargin, []ValueID{temperatureMargin}, false},
	{"nvmlDeviceGetEnforcedPowerLimit", device.PaceSlow, TargetGPU, getPowerLimit, []ValueID{powerLimit}, false},
	{"nvmlDeviceGetCurrPcieLinkGeneration", device.PaceSlow, TargetGPU, getInt(pcieGeneration, nvml.Device.GetCurrPcieLinkGeneration), []ValueID{pcieGeneration}, false},
	{"nvmlDeviceGetCurrPcieLinkWidth", device.PaceSlow, TargetGPU, getInt(pcieWidth, nvml.Device.GetCurrPcieLinkWidth), []ValueID{pcieWidth}, false},
	{"nvmlDeviceGetSramEccErrorStatus", device.PaceSlow, TargetGPU, getSRAMErrors, []ValueID{
		sramVolatileCorrected, sramVolatileUncorrected, sramAggregateCorrected, sramAggregateUncorrected,
		sramInL2, sramInSM, sramInPCIe, sramInMCU, sramInOther, SRAMThresholdExceeded,
	}, false},
	{"nvmlDeviceGetRowRemapperHistogram", device.PaceSlow, TargetGPU, getRemapBanks, []ValueID{banksMax, banksHigh, banksPartial, banksLow, banksNone}, false},
	{"nvmlDeviceGetRepairStatus", device.PaceSlow, TargetGPU, getRepairStatus, []ValueID{channelRepairPending, tpcRepairPending}, false},
	{"nvmlDeviceGetUnrepairableMemoryFlag_v1", device.PaceSlow, TargetGPU, getUnrepairableMemory, []ValueID{UnrepairableMemory}, false},
	{"nvmlDeviceGetGpuFabricInfoV", device.PaceSlow, TargetGPU, getFabricInfo, FabricValues, false},
	{"nvmlDeviceGetGpuFabricInfoV", device.PaceSlow, TargetGPU, getFabricInfoV2, FabricValues, true},
	{"nvmlDeviceGetPersistenceMode", device.PaceSlow, TargetGPU, getPersistenceMode, []ValueID{persistenceMode}, false},
	{"nvmlDeviceGetComputeMode", device.PaceSlow, TargetGPU, getComputeMode, []ValueID{computeMode}, false},
	{"nvmlDeviceGetMemoryErrorCounter", device.PaceSlow, TargetMIG, getMIGDeviceErrors, []ValueID{sramVolatileUncorrected}, false},

	{"nvmlDeviceGetMaxClockInfo", device.PaceStatic, TargetGPU, getMaxClock(maxSMClock, nvml.CLOCK_SM), []ValueID{maxSMClock}, false},
	{"nvmlDeviceGetMaxClockInfo", device.PaceStatic, TargetGPU, getMaxClock(maxMemoryClock, nvml.CLOCK_MEM), []ValueID{maxMemoryClock}, false},
	{"nvmlDeviceGetMaxClockInfo", device.PaceStatic, TargetGPU, getMaxClock(maxGraphicsClock, nvml.CLOCK_GRAPHICS), []ValueID{maxGraphicsClock}, false},
	{"nvmlDeviceGetMaxClockInfo", device.PaceStatic, TargetGPU, getMaxClock(maxVideoClock, nvml.CLOCK_VIDEO), []ValueID{maxVideoClock}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.PaceStatic, TargetGPU, getTemperatureThreshold(thresholdShutdown, nvml.TEMPERATURE_THRESHOLD_SHUTDOWN), []ValueID{thresholdShutdown}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.PaceStatic, TargetGPU, getTemperatureThreshold(thresholdSlowdown, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN), []ValueID{thresholdSlowdown}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.PaceStatic, TargetGPU, getTemperatureThreshold(thresholdMemory, nvml.TEMPERATURE_THRESHOLD_MEM_MAX), []ValueID{thresholdMemory}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.PaceStatic, TargetGPU, getTemperatureThreshold(thresholdGPU, nvml.TEMPERATURE_THRESHOLD_GPU_MAX), []ValueID{thresholdGPU}, false},
	{"nvmlDeviceGetMaxPcieLinkGeneration", device.PaceStatic, TargetGPU, getInt(maxPCIeGeneration, nvml.Device.GetMaxPcieLinkGeneration), []ValueID{maxPCIeGeneration}, false},
	{"nvmlDeviceGetMaxPcieLinkWidth", device.PaceStatic, TargetGPU, getInt(maxPCIeWidth, nvml.Device.GetMaxPcieLinkWidth), []ValueID{maxPCIeWidth}, false},
}

var FabricValues = []ValueID{HasFabric, fabricState, fabricHealthy, fabricDegradedBandwidth, fabricRouteRecovery, fabricRouteUnhealthy, fabricAccessTimeout, fabricMisconfigured, FabricFailed, FabricNotJoined}

func (c *Call) Provides(id ValueID) bool { return slices.Contains(c.Values, id) }

// Values is what calls have left of a GPU, or of a slice.
type Values struct {
	Present [ValueIDCount]bool
	Values  [ValueIDCount]float64
}

// Set takes a value, if the call that was to bring it succeeded.
func (vs *Values) Set(ret nvml.Return, id ValueID, v float64) {
	if ret == nvml.SUCCESS {
		vs.Values[id], vs.Present[id] = v, true
	}
}

func (vs *Values) SetBool(ret nvml.Return, id ValueID, b bool) {
	v := 0.0
	if b {
		v = 1
	}
	vs.Set(ret, id, v)
}

func (vs *Values) Unset(ids []ValueID) {
	for _, id := range ids {
		vs.Present[id] = false
	}
}

// HasAny reports whether anything is there that a call brings.
func (vs *Values) HasAny(c *Call) bool {
	return slices.ContainsFunc(c.Values, func(id ValueID) bool { return vs.Present[id] })
}

// MissesAny tells whether a call would bring something that nothing has brought.
func (vs *Values) MissesAny(c *Call, spared *[ValueIDCount]bool) bool {
	for _, id := range c.Values {
		if !vs.Present[id] && !spared[id] {
			return true
		}
	}
	return false
}

func (vs *Values) UnsetGPM() { clear(vs.Present[GPMGraphics:]) }
