package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

func getMemory(d nvml.Device, r *valueSet) nvml.Return {
	m, ret := d.GetMemoryInfo_v2()
	r.set(ret, memoryTotal, float64(m.Total))
	r.set(ret, memoryReserved, float64(m.Reserved))
	r.set(ret, memoryUsed, float64(m.Used))
	r.set(ret, memoryFree, float64(m.Free))
	return ret
}

// This one counts as used what is reserved, and does not say how much that is.
func getMemoryV1(d nvml.Device, r *valueSet) nvml.Return {
	m, ret := d.GetMemoryInfo()
	r.set(ret, memoryTotal, float64(m.Total))
	r.set(ret, memoryUsed, float64(m.Used))
	r.set(ret, memoryFree, float64(m.Free))
	return ret
}

func getBAR1Memory(d nvml.Device, r *valueSet) nvml.Return {
	m, ret := d.GetBAR1MemoryInfo()
	r.set(ret, bar1Total, float64(m.Bar1Total))
	r.set(ret, bar1Used, float64(m.Bar1Used))
	return ret
}

// It is not supported while MIG is on (nvml.h, nvmlDeviceGetUtilizationRates).
func getUtilization(d nvml.Device, r *valueSet) nvml.Return {
	u, ret := d.GetUtilizationRates()
	r.set(ret, gpuUtilization, float64(u.Gpu))
	r.set(ret, memoryUtilization, float64(u.Memory))
	return ret
}

// getEngineUtilization is for functions that give a percentage, and the period that it is of.
func getEngineUtilization(id valueID, call func(nvml.Device) (uint32, uint32, nvml.Return)) getter {
	return func(d nvml.Device, r *valueSet) nvml.Return {
		percent, _, ret := call(d)
		r.set(ret, id, float64(percent))
		return ret
	}
}

func getInt(id valueID, call func(nvml.Device) (int, nvml.Return)) getter {
	return func(d nvml.Device, r *valueSet) nvml.Return {
		n, ret := call(d)
		r.set(ret, id, float64(n))
		return ret
	}
}

func getClock(id valueID, clockType nvml.ClockType) getter {
	return func(d nvml.Device, r *valueSet) nvml.Return {
		mhz, ret := d.GetClockInfo(clockType)
		r.set(ret, id, float64(mhz))
		return ret
	}
}

func getMaxClock(id valueID, clockType nvml.ClockType) getter {
	return func(d nvml.Device, r *valueSet) nvml.Return {
		mhz, ret := d.GetMaxClockInfo(clockType)
		r.set(ret, id, float64(mhz))
		return ret
	}
}

func getTemperatureThreshold(id valueID, kind nvml.TemperatureThresholds) getter {
	return func(d nvml.Device, r *valueSet) nvml.Return {
		celsius, ret := d.GetTemperatureThreshold(kind)
		r.set(ret, id, float64(celsius))
		return ret
	}
}

// Of a slice NVML counts these errors alone, and of a partitioned GPU none that are
// volatile (nvml.h, nvmlDeviceGetMemoryErrorCounter).
func getMIGDeviceErrors(d nvml.Device, r *valueSet) nvml.Return {
	n, ret := d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_SRAM)
	r.set(ret, sramVolatileUncorrected, float64(n))
	return ret
}

// nvml.h prefers GetTemperatureV, which says the same and which older drivers lack.
func getTemperature(d nvml.Device, r *valueSet) nvml.Return {
	t, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
	r.set(ret, temperature, float64(t))
	return ret
}

func getTemperatureMargin(d nvml.Device, r *valueSet) nvml.Return {
	m, ret := d.GetMarginTemperature()
	r.set(ret, temperatureMargin, float64(m.MarginTemperature))
	return ret
}

// From Ampere on, GA100 apart, it is the average of a second.
func getPowerUsage(d nvml.Device, r *valueSet) nvml.Return {
	p, ret := d.GetPowerUsage()
	r.set(ret, powerUsage, float64(p))
	return ret
}

func getPowerLimit(d nvml.Device, r *valueSet) nvml.Return {
	p, ret := d.GetEnforcedPowerLimit()
	r.set(ret, powerLimit, float64(p))
	return ret
}

func getClockEventReasons(d nvml.Device, r *valueSet) nvml.Return {
	mask, ret := d.GetCurrentClocksEventReasons()
	r.set(ret, clockEventReasons, float64(mask))
	return ret
}

func getClockThrottleReasons(d nvml.Device, r *valueSet) nvml.Return {
	mask, ret := d.GetCurrentClocksThrottleReasons()
	r.set(ret, clockEventReasons, float64(mask))
	return ret
}

func getPerformanceState(d nvml.Device, r *valueSet) nvml.Return {
	p, ret := d.GetPerformanceState()
	r.set(ret, performanceState, float64(p))
	return ret
}

func getPersistenceMode(d nvml.Device, r *valueSet) nvml.Return {
	mode, ret := d.GetPersistenceMode()
	r.set(ret, persistenceMode, float64(mode))
	return ret
}

func getComputeMode(d nvml.Device, r *valueSet) nvml.Return {
	mode, ret := d.GetComputeMode()
	r.set(ret, computeMode, float64(mode))
	return ret
}

func getSRAMErrors(d nvml.Device, r *valueSet) nvml.Return {
	s, ret := d.GetSramEccErrorStatus()
	r.set(ret, sramVolatileCorrected, float64(s.VolatileCor))
	r.set(ret, sramVolatileUncorrected, float64(s.VolatileUncParity)+float64(s.VolatileUncSecDed))
	r.set(ret, sramAggregateCorrected, float64(s.AggregateCor))
	r.set(ret, sramAggregateUncorrected, float64(s.AggregateUncParity)+float64(s.AggregateUncSecDed))
	r.set(ret, sramInL2, float64(s.AggregateUncBucketL2))
	r.set(ret, sramInSM, float64(s.AggregateUncBucketSm))
	r.set(ret, sramInPCIe, float64(s.AggregateUncBucketPcie))
	r.set(ret, sramInMCU, float64(s.AggregateUncBucketMcu))
	r.set(ret, sramInOther, float64(s.AggregateUncBucketOther))
	r.setBool(ret, sramThresholdExceeded, s.BThresholdExceeded != 0)
	return ret
}

func getRemapBanks(d nvml.Device, r *valueSet) nvml.Return {
	b, ret := d.GetRowRemapperHistogram()
	r.set(ret, banksMax, float64(b.Max))
	r.set(ret, banksHigh, float64(b.High))
	r.set(ret, banksPartial, float64(b.Partial))
	r.set(ret, banksLow, float64(b.Low))
	r.set(ret, banksNone, float64(b.None))
	return ret
}

func getRepairStatus(d nvml.Device, r *valueSet) nvml.Return {
	s, ret := d.GetRepairStatus()
	r.setBool(ret, channelRepairPending, s.BChannelRepairPending != 0)
	r.setBool(ret, tpcRepairPending, s.BTpcRepairPending != 0)
	return ret
}

func getUnrepairableMemory(d nvml.Device, r *valueSet) nvml.Return {
	s, ret := d.GetUnrepairableMemoryFlag_v1()
	r.setBool(ret, unrepairableMemory, s.BUnrepairableMemory != 0)
	return ret
}

func getFabricInfo(d nvml.Device, r *valueSet) nvml.Return {
	f, ret := d.GetGpuFabricInfoV().V3()
	r.setFabric(ret, f.State, f.Status, f.HealthMask)
	if r.present[fabricHealthy] && f.HealthSummary > nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY {
		r.values[fabricHealthy] = 0
	}
	return ret
}

// Drivers up to 570 know no summary.
func getFabricInfoV2(d nvml.Device, r *valueSet) nvml.Return {
	f, ret := d.GetGpuFabricInfoV().V2()
	r.setFabric(ret, f.State, f.Status, f.HealthMask)
	return ret
}

// setFabric reads the mask by nvml.h's NVML_GPU_FABRIC_HEALTH_MASK_…: two bits each,
// 0 for what cannot be told, 1 for yes and 2 for no; but the configuration has four, 1
// where it is right and more where it is wrong. Until the GPU has joined the fabric
// neither they nor the status mean anything.
func (vs *valueSet) setFabric(ret nvml.Return, state uint8, status, mask uint32) {
	if ret != nvml.SUCCESS {
		return
	}
	vs.setBool(ret, hasFabric, state != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED)
	joined := state == nvml.GPU_FABRIC_STATE_COMPLETED
	vs.setBool(ret, fabricFailed, joined && nvml.Return(status) != nvml.SUCCESS)
	vs.setBool(ret, fabricNotJoined, state == nvml.GPU_FABRIC_STATE_NOT_STARTED || state == nvml.GPU_FABRIC_STATE_IN_PROGRESS)
	if state == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		return
	}
	vs.set(ret, fabricState, float64(state))
	if !joined {
		return
	}
	healthy := nvml.Return(status) == nvml.SUCCESS
	for _, f := range [...]struct {
		s              valueID
		shift, bits    uint32
		least, mostBad uint32
	}{
		{fabricDegradedBandwidth, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW, 1, 1},
		{fabricRouteRecovery, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY, 1, 1},
		{fabricRouteUnhealthy, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY, 1, 1},
		{fabricAccessTimeout, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY, 1, 1},
		{fabricMisconfigured, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION, 2, 15},
	} {
		v := mask >> f.shift & f.bits
		if v == 0 {
			continue
		}
		bad := v >= f.least && v <= f.mostBad
		vs.setBool(ret, f.s, bad)
		healthy = healthy && !bad
	}
	vs.setBool(ret, fabricHealthy, healthy)
}
