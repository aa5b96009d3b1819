package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

func askMemory(d nvml.Device, r *reading) nvml.Return {
	m, ret := d.GetMemoryInfo_v2()
	r.set(ret, memoryTotal, float64(m.Total))
	r.set(ret, memoryReserved, float64(m.Reserved))
	r.set(ret, memoryUsed, float64(m.Used))
	r.set(ret, memoryFree, float64(m.Free))
	return ret
}

// This one counts as used what is reserved, and does not say how much that is.
func askOldMemory(d nvml.Device, r *reading) nvml.Return {
	m, ret := d.GetMemoryInfo()
	r.set(ret, memoryTotal, float64(m.Total))
	r.set(ret, memoryUsed, float64(m.Used))
	r.set(ret, memoryFree, float64(m.Free))
	return ret
}

func askBAR1(d nvml.Device, r *reading) nvml.Return {
	m, ret := d.GetBAR1MemoryInfo()
	r.set(ret, bar1Total, float64(m.Bar1Total))
	r.set(ret, bar1Used, float64(m.Bar1Used))
	return ret
}

// It is not supported while MIG is on (nvml.h, nvmlDeviceGetUtilizationRates).
func askUtilization(d nvml.Device, r *reading) nvml.Return {
	u, ret := d.GetUtilizationRates()
	r.set(ret, busy, float64(u.Gpu))
	r.set(ret, memoryBusy, float64(u.Memory))
	return ret
}

// engine is for functions that give a percentage, and the period that it is of.
func engine(s slot, call func(nvml.Device) (uint32, uint32, nvml.Return)) ask {
	return func(d nvml.Device, r *reading) nvml.Return {
		percent, _, ret := call(d)
		r.set(ret, s, float64(percent))
		return ret
	}
}

func whole(s slot, call func(nvml.Device) (int, nvml.Return)) ask {
	return func(d nvml.Device, r *reading) nvml.Return {
		n, ret := call(d)
		r.set(ret, s, float64(n))
		return ret
	}
}

func clock(s slot, of nvml.ClockType) ask {
	return func(d nvml.Device, r *reading) nvml.Return {
		mhz, ret := d.GetClockInfo(of)
		r.set(ret, s, float64(mhz))
		return ret
	}
}

func maxClock(s slot, of nvml.ClockType) ask {
	return func(d nvml.Device, r *reading) nvml.Return {
		mhz, ret := d.GetMaxClockInfo(of)
		r.set(ret, s, float64(mhz))
		return ret
	}
}

func threshold(s slot, of nvml.TemperatureThresholds) ask {
	return func(d nvml.Device, r *reading) nvml.Return {
		celsius, ret := d.GetTemperatureThreshold(of)
		r.set(ret, s, float64(celsius))
		return ret
	}
}

// Of a slice NVML counts these errors alone, and of a partitioned GPU none that are
// volatile (nvml.h, nvmlDeviceGetMemoryErrorCounter).
func askSliceErrors(d nvml.Device, r *reading) nvml.Return {
	n, ret := d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_SRAM)
	r.set(ret, sramUncorrected, float64(n))
	return ret
}

// nvml.h prefers GetTemperatureV, which says the same and which older drivers lack.
func askTemperature(d nvml.Device, r *reading) nvml.Return {
	t, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
	r.set(ret, temperature, float64(t))
	return ret
}

func askMargin(d nvml.Device, r *reading) nvml.Return {
	m, ret := d.GetMarginTemperature()
	r.set(ret, margin, float64(m.MarginTemperature))
	return ret
}

// From Ampere on, GA100 apart, it is the average of a second.
func askPower(d nvml.Device, r *reading) nvml.Return {
	p, ret := d.GetPowerUsage()
	r.set(ret, power, float64(p))
	return ret
}

func askPowerLimit(d nvml.Device, r *reading) nvml.Return {
	p, ret := d.GetEnforcedPowerLimit()
	r.set(ret, powerLimit, float64(p))
	return ret
}

func askReasons(d nvml.Device, r *reading) nvml.Return {
	mask, ret := d.GetCurrentClocksEventReasons()
	r.set(ret, reasons, float64(mask))
	return ret
}

func askOldReasons(d nvml.Device, r *reading) nvml.Return {
	mask, ret := d.GetCurrentClocksThrottleReasons()
	r.set(ret, reasons, float64(mask))
	return ret
}

func askPerformance(d nvml.Device, r *reading) nvml.Return {
	p, ret := d.GetPerformanceState()
	r.set(ret, performance, float64(p))
	return ret
}

func askPersistence(d nvml.Device, r *reading) nvml.Return {
	mode, ret := d.GetPersistenceMode()
	r.set(ret, persistence, float64(mode))
	return ret
}

func askComputeMode(d nvml.Device, r *reading) nvml.Return {
	mode, ret := d.GetComputeMode()
	r.set(ret, computeMode, float64(mode))
	return ret
}

func askSRAM(d nvml.Device, r *reading) nvml.Return {
	s, ret := d.GetSramEccErrorStatus()
	r.set(ret, sramCorrected, float64(s.VolatileCor))
	r.set(ret, sramUncorrected, float64(s.VolatileUncParity)+float64(s.VolatileUncSecDed))
	r.set(ret, sramEverCorrected, float64(s.AggregateCor))
	r.set(ret, sramEverUncorrected, float64(s.AggregateUncParity)+float64(s.AggregateUncSecDed))
	r.set(ret, sramInL2, float64(s.AggregateUncBucketL2))
	r.set(ret, sramInSM, float64(s.AggregateUncBucketSm))
	r.set(ret, sramInPCIe, float64(s.AggregateUncBucketPcie))
	r.set(ret, sramInMCU, float64(s.AggregateUncBucketMcu))
	r.set(ret, sramElsewhere, float64(s.AggregateUncBucketOther))
	r.setTruth(ret, sramThreshold, s.BThresholdExceeded != 0)
	return ret
}

func askBanks(d nvml.Device, r *reading) nvml.Return {
	b, ret := d.GetRowRemapperHistogram()
	r.set(ret, banksMax, float64(b.Max))
	r.set(ret, banksHigh, float64(b.High))
	r.set(ret, banksPartial, float64(b.Partial))
	r.set(ret, banksLow, float64(b.Low))
	r.set(ret, banksNone, float64(b.None))
	return ret
}

func askRepair(d nvml.Device, r *reading) nvml.Return {
	s, ret := d.GetRepairStatus()
	r.setTruth(ret, repairChannel, s.BChannelRepairPending != 0)
	r.setTruth(ret, repairTPC, s.BTpcRepairPending != 0)
	return ret
}

func askUnrepairable(d nvml.Device, r *reading) nvml.Return {
	s, ret := d.GetUnrepairableMemoryFlag_v1()
	r.setTruth(ret, unrepairable, s.BUnrepairableMemory != 0)
	return ret
}

func askFabric(d nvml.Device, r *reading) nvml.Return {
	f, ret := d.GetGpuFabricInfoV().V3()
	r.setFabric(ret, f.State, f.Status, f.HealthMask)
	if r.filled[fabricHealthy] && f.HealthSummary > nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY {
		r.values[fabricHealthy] = 0
	}
	return ret
}

// Drivers up to 570 know no summary.
func askOldFabric(d nvml.Device, r *reading) nvml.Return {
	f, ret := d.GetGpuFabricInfoV().V2()
	r.setFabric(ret, f.State, f.Status, f.HealthMask)
	return ret
}

// setFabric reads the mask by nvml.h's NVML_GPU_FABRIC_HEALTH_MASK_…: two bits each,
// 0 for what cannot be told, 1 for yes and 2 for no; but the configuration has four, 1
// where it is right and more where it is wrong. Until the GPU has joined the fabric
// neither they nor the status mean anything.
func (r *reading) setFabric(ret nvml.Return, state uint8, status, mask uint32) {
	if ret != nvml.SUCCESS {
		return
	}
	r.setTruth(ret, hasFabric, state != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED)
	joined := state == nvml.GPU_FABRIC_STATE_COMPLETED
	r.setTruth(ret, fabricFailed, joined && nvml.Return(status) != nvml.SUCCESS)
	r.setTruth(ret, fabricApart, state == nvml.GPU_FABRIC_STATE_NOT_STARTED || state == nvml.GPU_FABRIC_STATE_IN_PROGRESS)
	if state == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		return
	}
	r.set(ret, fabricState, float64(state))
	if !joined {
		return
	}
	healthy := nvml.Return(status) == nvml.SUCCESS
	for _, f := range [...]struct {
		s              slot
		shift, bits    uint32
		least, mostBad uint32
	}{
		{fabricDegraded, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW, 1, 1},
		{fabricRecovery, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY, 1, 1},
		{fabricUnhealthy, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY, 1, 1},
		{fabricTimeout, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY, 1, 1},
		{fabricMisled, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION, 2, 15},
	} {
		v := mask >> f.shift & f.bits
		if v == 0 {
			continue
		}
		bad := v >= f.least && v <= f.mostBad
		r.setTruth(ret, f.s, bad)
		healthy = healthy && !bad
	}
	r.setTruth(ret, fabricHealthy, healthy)
}
