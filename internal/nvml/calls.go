package nvml

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// valueID is where something other than a field leaves a number for the rows.
type valueID uint8

const (
	noValue valueID = iota
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
	clockEventReasons
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
	sramThresholdExceeded
	banksMax
	banksHigh
	banksPartial
	banksLow
	banksNone
	channelRepairPending
	tpcRepairPending
	unrepairableMemory
	fabricState
	fabricHealthy
	fabricDegradedBandwidth
	fabricRouteRecovery
	fabricRouteUnhealthy
	fabricAccessTimeout
	fabricMisconfigured
	fabricFailed    // by its status
	fabricNotJoined // it has not joined yet
	persistenceMode
	computeMode

	// What is known without a call of its own: see features.go.
	migEnabled
	migPending
	hasC2C
	hasECC
	hasFabric
	hasGPM
	hasMIG
	hasNVLink
	hasRetirement
	hasRemapping

	// What two samples of the GPU's counters give: see gpm.go.
	gpmGraphics
	gpmSM
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

	valueIDCount
)

// callTarget is whom a call can be made about.
type callTarget uint8

const (
	targetGPU callTarget = 1 << iota
	targetMIG
)

// nvmlCall is a function that fills slots. It is made when one of them is wanted that
// nothing before it has filled.
type nvmlCall struct {
	symbol  string
	pace    device.ReadPace
	targets callTarget
	get     getter
	values  []valueID
	// isFallback says that it is the older form of the call before it, which says more.
	isFallback bool
}

// getter makes a call, and leaves in the reading what it gives.
type getter func(nvml.Device, *valueSet) nvml.Return

// calls are what cannot be had by fields. Of two that fill the same slot the newer
// one, which says more, stands first. What is slow here is made one by one, as a
// flight has calls to spare, and what is static when the GPU is found.
var calls = [...]nvmlCall{
	{"nvmlDeviceGetMemoryInfo_v2", device.PaceFast, targetGPU | targetMIG, getMemory, []valueID{memoryTotal, memoryReserved, memoryUsed, memoryFree}, false},
	{"nvmlDeviceGetMemoryInfo", device.PaceFast, targetGPU | targetMIG, getMemoryV1, []valueID{memoryTotal, memoryUsed, memoryFree}, true},
	{"nvmlDeviceGetUtilizationRates", device.PaceFast, targetGPU, getUtilization, []valueID{gpuUtilization, memoryUtilization}, false},
	{"nvmlDeviceGetEncoderUtilization", device.PaceFast, targetGPU, getEngineUtilization(encoderUtilization, nvml.Device.GetEncoderUtilization), []valueID{encoderUtilization}, false},
	{"nvmlDeviceGetDecoderUtilization", device.PaceFast, targetGPU, getEngineUtilization(decoderUtilization, nvml.Device.GetDecoderUtilization), []valueID{decoderUtilization}, false},
	{"nvmlDeviceGetJpgUtilization", device.PaceFast, targetGPU, getEngineUtilization(jpegUtilization, nvml.Device.GetJpgUtilization), []valueID{jpegUtilization}, false},
	{"nvmlDeviceGetOfaUtilization", device.PaceFast, targetGPU, getEngineUtilization(ofaUtilization, nvml.Device.GetOfaUtilization), []valueID{ofaUtilization}, false},
	{"nvmlDeviceGetTemperature", device.PaceFast, targetGPU, getTemperature, []valueID{temperature}, false},
	{"nvmlDeviceGetPowerUsage", device.PaceFast, targetGPU, getPowerUsage, []valueID{powerUsage}, false},
	{"nvmlDeviceGetClockInfo", device.PaceFast, targetGPU, getClock(smClock, nvml.CLOCK_SM), []valueID{smClock}, false},
	{"nvmlDeviceGetClockInfo", device.PaceFast, targetGPU, getClock(memoryClock, nvml.CLOCK_MEM), []valueID{memoryClock}, false},
	{"nvmlDeviceGetCurrentClocksEventReasons", device.PaceFast, targetGPU, getClockEventReasons, []valueID{clockEventReasons}, false},
	{"nvmlDeviceGetCurrentClocksThrottleReasons", device.PaceFast, targetGPU, getClockThrottleReasons, []valueID{clockEventReasons}, true},

	{"nvmlDeviceGetBAR1MemoryInfo", device.PaceSlow, targetGPU | targetMIG, getBAR1Memory, []valueID{bar1Total, bar1Used}, false},
	{"nvmlDeviceGetPerformanceState", device.PaceSlow, targetGPU, getPerformanceState, []valueID{performanceState}, false},
	{"nvmlDeviceGetClockInfo", device.PaceSlow, targetGPU, getClock(graphicsClock, nvml.CLOCK_GRAPHICS), []valueID{graphicsClock}, false},
	{"nvmlDeviceGetClockInfo", device.PaceSlow, targetGPU, getClock(videoClock, nvml.CLOCK_VIDEO), []valueID{videoClock}, false},
	{"nvmlDeviceGetMarginTemperature", device.PaceSlow, targetGPU, getTemperatureMargin, []valueID{temperatureMargin}, false},
	{"nvmlDeviceGetEnforcedPowerLimit", device.PaceSlow, targetGPU, getPowerLimit, []valueID{powerLimit}, false},
	{"nvmlDeviceGetCurrPcieLinkGeneration", device.PaceSlow, targetGPU, getInt(pcieGeneration, nvml.Device.GetCurrPcieLinkGeneration), []valueID{pcieGeneration}, false},
	{"nvmlDeviceGetCurrPcieLinkWidth", device.PaceSlow, targetGPU, getInt(pcieWidth, nvml.Device.GetCurrPcieLinkWidth), []valueID{pcieWidth}, false},
	{"nvmlDeviceGetSramEccErrorStatus", device.PaceSlow, targetGPU, getSRAMErrors, []valueID{
		sramVolatileCorrected, sramVolatileUncorrected, sramAggregateCorrected, sramAggregateUncorrected,
		sramInL2, sramInSM, sramInPCIe, sramInMCU, sramInOther, sramThresholdExceeded,
	}, false},
	{"nvmlDeviceGetRowRemapperHistogram", device.PaceSlow, targetGPU, getRemapBanks, []valueID{banksMax, banksHigh, banksPartial, banksLow, banksNone}, false},
	{"nvmlDeviceGetRepairStatus", device.PaceSlow, targetGPU, getRepairStatus, []valueID{channelRepairPending, tpcRepairPending}, false},
	{"nvmlDeviceGetUnrepairableMemoryFlag_v1", device.PaceSlow, targetGPU, getUnrepairableMemory, []valueID{unrepairableMemory}, false},
	{"nvmlDeviceGetGpuFabricInfoV", device.PaceSlow, targetGPU, getFabricInfo, fabricValues, false},
	{"nvmlDeviceGetGpuFabricInfoV", device.PaceSlow, targetGPU, getFabricInfoV2, fabricValues, true},
	{"nvmlDeviceGetPersistenceMode", device.PaceSlow, targetGPU, getPersistenceMode, []valueID{persistenceMode}, false},
	{"nvmlDeviceGetComputeMode", device.PaceSlow, targetGPU, getComputeMode, []valueID{computeMode}, false},
	{"nvmlDeviceGetMemoryErrorCounter", device.PaceSlow, targetMIG, getMIGDeviceErrors, []valueID{sramVolatileUncorrected}, false},

	{"nvmlDeviceGetMaxClockInfo", device.PaceStatic, targetGPU, getMaxClock(maxSMClock, nvml.CLOCK_SM), []valueID{maxSMClock}, false},
	{"nvmlDeviceGetMaxClockInfo", device.PaceStatic, targetGPU, getMaxClock(maxMemoryClock, nvml.CLOCK_MEM), []valueID{maxMemoryClock}, false},
	{"nvmlDeviceGetMaxClockInfo", device.PaceStatic, targetGPU, getMaxClock(maxGraphicsClock, nvml.CLOCK_GRAPHICS), []valueID{maxGraphicsClock}, false},
	{"nvmlDeviceGetMaxClockInfo", device.PaceStatic, targetGPU, getMaxClock(maxVideoClock, nvml.CLOCK_VIDEO), []valueID{maxVideoClock}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.PaceStatic, targetGPU, getTemperatureThreshold(thresholdShutdown, nvml.TEMPERATURE_THRESHOLD_SHUTDOWN), []valueID{thresholdShutdown}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.PaceStatic, targetGPU, getTemperatureThreshold(thresholdSlowdown, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN), []valueID{thresholdSlowdown}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.PaceStatic, targetGPU, getTemperatureThreshold(thresholdMemory, nvml.TEMPERATURE_THRESHOLD_MEM_MAX), []valueID{thresholdMemory}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.PaceStatic, targetGPU, getTemperatureThreshold(thresholdGPU, nvml.TEMPERATURE_THRESHOLD_GPU_MAX), []valueID{thresholdGPU}, false},
	{"nvmlDeviceGetMaxPcieLinkGeneration", device.PaceStatic, targetGPU, getInt(maxPCIeGeneration, nvml.Device.GetMaxPcieLinkGeneration), []valueID{maxPCIeGeneration}, false},
	{"nvmlDeviceGetMaxPcieLinkWidth", device.PaceStatic, targetGPU, getInt(maxPCIeWidth, nvml.Device.GetMaxPcieLinkWidth), []valueID{maxPCIeWidth}, false},
}

var fabricValues = []valueID{hasFabric, fabricState, fabricHealthy, fabricDegradedBandwidth, fabricRouteRecovery, fabricRouteUnhealthy, fabricAccessTimeout, fabricMisconfigured, fabricFailed, fabricNotJoined}

func (c *nvmlCall) provides(id valueID) bool { return slices.Contains(c.values, id) }

// valueSet is what calls have left of a GPU, or of a slice.
type valueSet struct {
	present [valueIDCount]bool
	values  [valueIDCount]float64
}

// set takes a value, if the call that was to bring it succeeded.
func (vs *valueSet) set(ret nvml.Return, id valueID, v float64) {
	if ret == nvml.SUCCESS {
		vs.values[id], vs.present[id] = v, true
	}
}

func (vs *valueSet) setBool(ret nvml.Return, id valueID, b bool) {
	v := 0.0
	if b {
		v = 1
	}
	vs.set(ret, id, v)
}

func (vs *valueSet) unset(ids []valueID) {
	for _, id := range ids {
		vs.present[id] = false
	}
}

// hasAny reports whether anything is there that a call brings.
func (vs *valueSet) hasAny(c *nvmlCall) bool {
	return slices.ContainsFunc(c.values, func(id valueID) bool { return vs.present[id] })
}

// missesAny tells whether a call would bring something that nothing has brought.
func (vs *valueSet) missesAny(c *nvmlCall, spared *[valueIDCount]bool) bool {
	for _, id := range c.values {
		if !vs.present[id] && !spared[id] {
			return true
		}
	}
	return false
}

func (vs *valueSet) unsetGPM() { clear(vs.present[gpmGraphics:]) }
