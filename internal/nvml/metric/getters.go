package metric

import "github.com/NVIDIA/go-nvml/pkg/nvml"

func getMemory(d nvml.Device, r *Values) nvml.Return {
	m, ret := d.GetMemoryInfo_v2()
	r.Set(ret, memoryTotal, float64(m.Total))
	r.Set(ret, memoryReserved, float64(m.Reserved))
	r.Set(ret, memoryUsed, float64(m.Used))
	r.Set(ret, memoryFree, float64(m.Free))
	return ret
}

// This one counts as used what is reserved, and does not say how much that is.
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

// It is not supported while MIG is on (nvml.h, nvmlDeviceGetUtilizationRates).
func getUtilization(d nvml.Device, r *Values) nvml.Return {
	u, ret := d.GetUtilizationRates()
	r.Set(ret, gpuUtilization, float64(u.Gpu))
	r.Set(ret, memoryUtilization, float64(u.Memory))
	return ret
}

// getEngineUtilization is for functions that give a percentage, and the period that it is of.
func getEngineUtilization(id ValueID, call func(nvml.Device) (uint32, uint32, nvml.Return)) getter {
	return func(d nvml.Device, r *Values) nvml.Return {
		percent, _, ret := call(d)
		r.Set(ret, id, float64(percent))
		return ret
	}
}

func getInt(id ValueID, call func(nvml.Device) (int, nvml.Return)) getter {
	return func(d nvml.Device, r *Values) nvml.Return {
		n, ret := call(d)
		r.Set(ret, id, float64(n))
		return ret
	}
}

func getClock(id ValueID, clockType nvml.ClockType) getter {
	return func(d nvml.Device, r *Values) nvml.Return {
		mhz, ret := d.GetClockInfo(clockType)
		r.Set(ret, id, float64(mhz))
		return ret
	}
}

func getMaxClock(id ValueID, clockType nvml.ClockType) getter {
	return func(d nvml.Device, r *Values) nvml.Return {
		mhz, ret := d.GetMaxClockInfo(clockType)
		r.Set(ret, id, float64(mhz))
		return ret
	}
}

func getTemperatureThreshold(id ValueID, kind nvml.TemperatureThresholds) getter {
	return func(d nvml.Device, r *Values) nvml.Return {
		celsius, ret := d.GetTemperatureThreshold(kind)
		r.Set(ret, id, float64(celsius))
		return ret
	}
}

// Of a slice NVML counts these errors alone, and of a partitioned GPU none that are
// volatile (nvml.h, nvmlDeviceGetMemoryErrorCounter).
func getMIGDeviceErrors(d nvml.Device, r *Values) nvml.Return {
	n, ret := d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_SRAM)
	r.Set(ret, sramVolatileUncorrected, float64(n))
	return ret
}

// nvml.h prefers GetTemperatureV, which says the same and which older drivers lack.
func getTemperature(d nvml.Device, r *Values) nvml.Return {
	t, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
	r.Set(ret, temperature, float64(t))
	return ret
}

func getTemperatureMargin(d nvml.Device, r *Values) nvml.Return {
	m, ret := d.GetMarginTemperature()
	r.Set(ret, temperatureMargin, float64(m.MarginTemperature))
	return ret
}

// From Ampere on, GA100 apart, it is the average of a second.
func getPowerUsage(d nvml.Device, r *Values) nvml.Return {
	p, ret := d.GetPowerUsage()
	r.Set(ret, powerUsage, float64(p))
	return ret
}

func getPowerLimit(d nvml.Device, r *Values) nvml.Return {
	p, ret := d.GetEnforcedPowerLimit()
	r.Set(ret, powerLimit, float64(p))
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

func getPerformanceState(d nvml.Device, r *Values) nvml.Return {
	p, ret := d.GetPerformanceState()
	r.Set(ret, performanceState, float64(p))
	return ret
}

func getPersistenceMode(d nvml.Device, r *Values) nvml.Return {
	mode, ret := d.GetPersistenceMode()
	r.Set(ret, persistenceMode, float64(mode))
	return ret
}

func getComputeMode(d nvml.Device, r *Values) nvml.Return {
	mode, ret := d.GetComputeMode()
	r.Set(ret, computeMode, float64(mode))
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
	r.Set(ret, banksMax, float64(b.Max))
	r.Set(ret, banksHigh, float64(b.High))
	r.Set(ret, banksPartial, float64(b.Partial))
	r.Set(ret, banksLow, float64(b.Low))
	r.Set(ret, banksNone, float64(b.None))
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

// Drivers up to 570 know no summary.
func getFabricInfoV2(d nvml.Device, r *Values) nvml.Return {
	f, ret := d.GetGpuFabricInfoV().V2()
	r.setFabric(ret, f.State, f.Status, f.HealthMask)
	return ret
}

// setFabric reads the mask by nvml.h's NVML_GPU_FABRIC_HEALTH_MASK_…: two bits each,
// 0 for what cannot be told, 1 for yes and 2 for no; but the configuration has four, 1
// where it is right and more where it is wrong. Until the GPU has joined the fabric
// neither they nor the status mean anything.
func (vs *Values) setFabric(ret nvml.Return, state uint8, status, mask uint32) {
	if ret != nvml.SUCCESS {
		return
	}
	vs.SetBool(ret, HasFabric, state != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED)
	joined := state == nvml.GPU_FABRIC_STATE_COMPLETED
	vs.SetBool(ret, FabricFailed, joined && nvml.Return(status) != nvml.SUCCESS)
	vs.SetBool(ret, FabricNotJoined, state == nvml.GPU_FABRIC_STATE_NOT_STARTED || state == nvml.GPU_FABRIC_STATE_IN_PROGRESS)
	if state == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		return
	}
	vs.Set(ret, fabricState, float64(state))
	if !joined {
		return
	}
	healthy := nvml.Return(status) == nvml.SUCCESS
	for _, f := range [...]struct {
		s              ValueID
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
		vs.SetBool(ret, f.s, bad)
		healthy = healthy && !bad
	}
	vs.SetBool(ret, fabricHealthy, healthy)
}
