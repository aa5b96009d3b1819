package nvml

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// slot is where something other than a field leaves a number for the rows.
type slot uint8

const (
	noSlot slot = iota
	memoryTotal
	memoryReserved
	memoryUsed
	memoryFree
	bar1Total
	bar1Used
	busy
	memoryBusy
	encoderBusy
	decoderBusy
	jpegBusy
	ofaBusy
	temperature
	margin
	limitShutdown
	limitSlowdown
	limitMemory
	limitGPU
	power
	powerLimit
	smClock
	memoryClock
	graphicsClock
	videoClock
	smClockMost
	memoryClockMost
	graphicsClockMost
	videoClockMost
	reasons
	performance
	pcieGeneration
	pcieWidth
	pcieGenerationMost
	pcieWidthMost
	sramCorrected
	sramUncorrected
	sramEverCorrected
	sramEverUncorrected
	sramInL2
	sramInSM
	sramInPCIe
	sramInMCU
	sramElsewhere
	sramThreshold
	banksMax
	banksHigh
	banksPartial
	banksLow
	banksNone
	repairChannel
	repairTPC
	unrepairable
	fabricState
	fabricHealthy
	fabricDegraded
	fabricRecovery
	fabricUnhealthy
	fabricTimeout
	fabricMisled
	fabricFailed // by its status
	fabricApart  // it has not joined yet
	persistence
	computeMode

	// What is known without a call of its own: see features.go.
	migNow
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

	slotCount
)

// target is whom a call can be made about.
type target uint8

const (
	gpus target = 1 << iota
	migSlices
)

// call is a function that fills slots. It is made when one of them is wanted that
// nothing before it has filled.
type call struct {
	symbol string
	pace   device.Pace
	about  target
	ask    ask
	slots  []slot
	// older says that it is the older form of the call before it, which says more.
	older bool
}

// ask makes a call, and leaves in the reading what it gives.
type ask func(nvml.Device, *reading) nvml.Return

// calls are what cannot be had by fields. Of two that fill the same slot the newer
// one, which says more, stands first. What is slow here is made one by one, as a
// flight has calls to spare, and what is static when the GPU is found.
var calls = [...]call{
	{"nvmlDeviceGetMemoryInfo_v2", device.Fast, gpus | migSlices, askMemory, []slot{memoryTotal, memoryReserved, memoryUsed, memoryFree}, false},
	{"nvmlDeviceGetMemoryInfo", device.Fast, gpus | migSlices, askOldMemory, []slot{memoryTotal, memoryUsed, memoryFree}, true},
	{"nvmlDeviceGetUtilizationRates", device.Fast, gpus, askUtilization, []slot{busy, memoryBusy}, false},
	{"nvmlDeviceGetEncoderUtilization", device.Fast, gpus, engine(encoderBusy, nvml.Device.GetEncoderUtilization), []slot{encoderBusy}, false},
	{"nvmlDeviceGetDecoderUtilization", device.Fast, gpus, engine(decoderBusy, nvml.Device.GetDecoderUtilization), []slot{decoderBusy}, false},
	{"nvmlDeviceGetJpgUtilization", device.Fast, gpus, engine(jpegBusy, nvml.Device.GetJpgUtilization), []slot{jpegBusy}, false},
	{"nvmlDeviceGetOfaUtilization", device.Fast, gpus, engine(ofaBusy, nvml.Device.GetOfaUtilization), []slot{ofaBusy}, false},
	{"nvmlDeviceGetTemperature", device.Fast, gpus, askTemperature, []slot{temperature}, false},
	{"nvmlDeviceGetPowerUsage", device.Fast, gpus, askPower, []slot{power}, false},
	{"nvmlDeviceGetClockInfo", device.Fast, gpus, clock(smClock, nvml.CLOCK_SM), []slot{smClock}, false},
	{"nvmlDeviceGetClockInfo", device.Fast, gpus, clock(memoryClock, nvml.CLOCK_MEM), []slot{memoryClock}, false},
	{"nvmlDeviceGetCurrentClocksEventReasons", device.Fast, gpus, askReasons, []slot{reasons}, false},
	{"nvmlDeviceGetCurrentClocksThrottleReasons", device.Fast, gpus, askOldReasons, []slot{reasons}, true},

	{"nvmlDeviceGetBAR1MemoryInfo", device.Slow, gpus | migSlices, askBAR1, []slot{bar1Total, bar1Used}, false},
	{"nvmlDeviceGetPerformanceState", device.Slow, gpus, askPerformance, []slot{performance}, false},
	{"nvmlDeviceGetClockInfo", device.Slow, gpus, clock(graphicsClock, nvml.CLOCK_GRAPHICS), []slot{graphicsClock}, false},
	{"nvmlDeviceGetClockInfo", device.Slow, gpus, clock(videoClock, nvml.CLOCK_VIDEO), []slot{videoClock}, false},
	{"nvmlDeviceGetMarginTemperature", device.Slow, gpus, askMargin, []slot{margin}, false},
	{"nvmlDeviceGetEnforcedPowerLimit", device.Slow, gpus, askPowerLimit, []slot{powerLimit}, false},
	{"nvmlDeviceGetCurrPcieLinkGeneration", device.Slow, gpus, whole(pcieGeneration, nvml.Device.GetCurrPcieLinkGeneration), []slot{pcieGeneration}, false},
	{"nvmlDeviceGetCurrPcieLinkWidth", device.Slow, gpus, whole(pcieWidth, nvml.Device.GetCurrPcieLinkWidth), []slot{pcieWidth}, false},
	{"nvmlDeviceGetSramEccErrorStatus", device.Slow, gpus, askSRAM, []slot{
		sramCorrected, sramUncorrected, sramEverCorrected, sramEverUncorrected,
		sramInL2, sramInSM, sramInPCIe, sramInMCU, sramElsewhere, sramThreshold,
	}, false},
	{"nvmlDeviceGetRowRemapperHistogram", device.Slow, gpus, askBanks, []slot{banksMax, banksHigh, banksPartial, banksLow, banksNone}, false},
	{"nvmlDeviceGetRepairStatus", device.Slow, gpus, askRepair, []slot{repairChannel, repairTPC}, false},
	{"nvmlDeviceGetUnrepairableMemoryFlag_v1", device.Slow, gpus, askUnrepairable, []slot{unrepairable}, false},
	{"nvmlDeviceGetGpuFabricInfoV", device.Slow, gpus, askFabric, fabricSlots, false},
	{"nvmlDeviceGetGpuFabricInfoV", device.Slow, gpus, askOldFabric, fabricSlots, true},
	{"nvmlDeviceGetPersistenceMode", device.Slow, gpus, askPersistence, []slot{persistence}, false},
	{"nvmlDeviceGetComputeMode", device.Slow, gpus, askComputeMode, []slot{computeMode}, false},
	{"nvmlDeviceGetMemoryErrorCounter", device.Slow, migSlices, askSliceErrors, []slot{sramUncorrected}, false},

	{"nvmlDeviceGetMaxClockInfo", device.Static, gpus, maxClock(smClockMost, nvml.CLOCK_SM), []slot{smClockMost}, false},
	{"nvmlDeviceGetMaxClockInfo", device.Static, gpus, maxClock(memoryClockMost, nvml.CLOCK_MEM), []slot{memoryClockMost}, false},
	{"nvmlDeviceGetMaxClockInfo", device.Static, gpus, maxClock(graphicsClockMost, nvml.CLOCK_GRAPHICS), []slot{graphicsClockMost}, false},
	{"nvmlDeviceGetMaxClockInfo", device.Static, gpus, maxClock(videoClockMost, nvml.CLOCK_VIDEO), []slot{videoClockMost}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.Static, gpus, threshold(limitShutdown, nvml.TEMPERATURE_THRESHOLD_SHUTDOWN), []slot{limitShutdown}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.Static, gpus, threshold(limitSlowdown, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN), []slot{limitSlowdown}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.Static, gpus, threshold(limitMemory, nvml.TEMPERATURE_THRESHOLD_MEM_MAX), []slot{limitMemory}, false},
	{"nvmlDeviceGetTemperatureThreshold", device.Static, gpus, threshold(limitGPU, nvml.TEMPERATURE_THRESHOLD_GPU_MAX), []slot{limitGPU}, false},
	{"nvmlDeviceGetMaxPcieLinkGeneration", device.Static, gpus, whole(pcieGenerationMost, nvml.Device.GetMaxPcieLinkGeneration), []slot{pcieGenerationMost}, false},
	{"nvmlDeviceGetMaxPcieLinkWidth", device.Static, gpus, whole(pcieWidthMost, nvml.Device.GetMaxPcieLinkWidth), []slot{pcieWidthMost}, false},
}

var fabricSlots = []slot{hasFabric, fabricState, fabricHealthy, fabricDegraded, fabricRecovery, fabricUnhealthy, fabricTimeout, fabricMisled, fabricFailed, fabricApart}

func (c *call) fills(s slot) bool { return slices.Contains(c.slots, s) }

// reading is what calls have left of a GPU, or of a slice.
type reading struct {
	filled [slotCount]bool
	values [slotCount]float64
}

// set takes a value, if the call that was to bring it succeeded.
func (r *reading) set(ret nvml.Return, s slot, v float64) {
	if ret == nvml.SUCCESS {
		r.values[s], r.filled[s] = v, true
	}
}

func (r *reading) setTruth(ret nvml.Return, s slot, is bool) {
	v := 0.0
	if is {
		v = 1
	}
	r.set(ret, s, v)
}

func (r *reading) empty(slots []slot) {
	for _, s := range slots {
		r.filled[s] = false
	}
}

// shows reports whether anything is there that a call brings.
func (r *reading) shows(c *call) bool {
	return slices.ContainsFunc(c.slots, func(s slot) bool { return r.filled[s] })
}

// lacks tells whether a call would bring something that nothing has brought.
func (r *reading) lacks(c *call, spared *[slotCount]bool) bool {
	for _, s := range c.slots {
		if !r.filled[s] && !spared[s] {
			return true
		}
	}
	return false
}
