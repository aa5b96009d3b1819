package nvml

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// slot is where a call leaves a number for the rows.
type slot uint8

const (
	noSlot slot = iota
	memoryTotal
	memoryReserved
	memoryUsed
	memoryFree
	busy
	memoryBusy
	temperature
	power
	powerLimit
	smClock
	memoryClock
	reasons
	slotCount
)

// call is a function that fills slots. It is made when one of them is wanted that
// nothing before it has filled.
type call struct {
	symbol string
	slots  []slot
	ask    func(nvml.Device, *reading) nvml.Return
}

// calls are what cannot be had by fields. Of two that fill the same slot the newer
// one, which says more, stands first.
var calls = [...]call{
	{"nvmlDeviceGetMemoryInfo_v2", []slot{memoryTotal, memoryReserved, memoryUsed, memoryFree}, askMemory},
	{"nvmlDeviceGetMemoryInfo", []slot{memoryTotal, memoryUsed, memoryFree}, askOldMemory},
	{"nvmlDeviceGetUtilizationRates", []slot{busy, memoryBusy}, askUtilization},
	{"nvmlDeviceGetTemperature", []slot{temperature}, askTemperature},
	{"nvmlDeviceGetPowerUsage", []slot{power}, askPower},
	{"nvmlDeviceGetEnforcedPowerLimit", []slot{powerLimit}, askPowerLimit},
	{"nvmlDeviceGetClockInfo", []slot{smClock}, askSMClock},
	{"nvmlDeviceGetClockInfo", []slot{memoryClock}, askMemoryClock},
	{"nvmlDeviceGetCurrentClocksEventReasons", []slot{reasons}, askReasons},
	{"nvmlDeviceGetCurrentClocksThrottleReasons", []slot{reasons}, askOldReasons},
}

func (c *call) fills(s slot) bool { return slices.Contains(c.slots, s) }

// reading is what the calls of one Read left.
type reading struct {
	wanted, filled [slotCount]bool
	values         [slotCount]uint64
}

// set takes a value, if the call that was to bring it succeeded.
func (r *reading) set(ret nvml.Return, s slot, v uint64) {
	if ret == nvml.SUCCESS {
		r.values[s], r.filled[s] = v, true
	}
}

// wants tells whether a call would bring something that is wanted.
func (r *reading) wants(c *call) bool {
	return slices.ContainsFunc(c.slots, func(s slot) bool { return r.wanted[s] && !r.filled[s] })
}

func askMemory(d nvml.Device, r *reading) nvml.Return {
	m, ret := d.GetMemoryInfo_v2()
	r.set(ret, memoryTotal, m.Total)
	r.set(ret, memoryReserved, m.Reserved)
	r.set(ret, memoryUsed, m.Used)
	r.set(ret, memoryFree, m.Free)
	return ret
}

// This one counts as used what is reserved, and does not say how much that is.
func askOldMemory(d nvml.Device, r *reading) nvml.Return {
	m, ret := d.GetMemoryInfo()
	r.set(ret, memoryTotal, m.Total)
	r.set(ret, memoryUsed, m.Used)
	r.set(ret, memoryFree, m.Free)
	return ret
}

// It is not supported while MIG is on (nvml.h, nvmlDeviceGetUtilizationRates).
func askUtilization(d nvml.Device, r *reading) nvml.Return {
	u, ret := d.GetUtilizationRates()
	r.set(ret, busy, uint64(u.Gpu))
	r.set(ret, memoryBusy, uint64(u.Memory))
	return ret
}

// nvml.h prefers GetTemperatureV, which says the same and which older drivers lack.
func askTemperature(d nvml.Device, r *reading) nvml.Return {
	t, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
	r.set(ret, temperature, uint64(t))
	return ret
}

// From Ampere on, GA100 apart, it is the average of a second.
func askPower(d nvml.Device, r *reading) nvml.Return {
	p, ret := d.GetPowerUsage()
	r.set(ret, power, uint64(p))
	return ret
}

func askPowerLimit(d nvml.Device, r *reading) nvml.Return {
	p, ret := d.GetEnforcedPowerLimit()
	r.set(ret, powerLimit, uint64(p))
	return ret
}

func askSMClock(d nvml.Device, r *reading) nvml.Return {
	c, ret := d.GetClockInfo(nvml.CLOCK_SM)
	r.set(ret, smClock, uint64(c))
	return ret
}

func askMemoryClock(d nvml.Device, r *reading) nvml.Return {
	c, ret := d.GetClockInfo(nvml.CLOCK_MEM)
	r.set(ret, memoryClock, uint64(c))
	return ret
}

func askReasons(d nvml.Device, r *reading) nvml.Return {
	mask, ret := d.GetCurrentClocksEventReasons()
	r.set(ret, reasons, mask)
	return ret
}

func askOldReasons(d nvml.Device, r *reading) nvml.Return {
	mask, ret := d.GetCurrentClocksThrottleReasons()
	r.set(ret, reasons, mask)
	return ret
}
