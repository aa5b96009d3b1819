package metric

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ValueID is the place of a number from a source without fields.
type ValueID uint8

// The values of shared calls and of derived states. The values of rows' own functions
// follow firstOwnValue.
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
	ClockEventReasons
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
	FabricNotJoined // not yet
	MIGEnabled
	MIGPending
	HasC2C
	HasECC
	HasFabric
	HasGPM
	HasMIG
	HasNVLink
	HasRetirement
	HasRemapping
	firstOwnValue
)

// MaxValues is above the number of values; the catalogue panics otherwise.
const MaxValues = 128

// Values are the numbers of a GPU or of a GPU instance.
type Values struct {
	Present [MaxValues]bool
	Values  [MaxValues]float64
}

// Set stores a value if the call succeeded.
func (vs *Values) Set(ret nvml.Return, id ValueID, v float64) {
	if ret == nvml.SUCCESS {
		vs.Values[id], vs.Present[id] = v, true
	}
}

// SetBool stores 1 or 0 if the call succeeded.
func (vs *Values) SetBool(ret nvml.Return, id ValueID, b bool) {
	v := 0.0
	if b {
		v = 1
	}
	vs.Set(ret, id, v)
}

// Unset drops values.
func (vs *Values) Unset(ids []ValueID) {
	for _, id := range ids {
		vs.Present[id] = false
	}
}

// HasAny reports whether any value of a call is present.
func (vs *Values) HasAny(c *Call) bool {
	for _, id := range c.Values {
		if vs.Present[id] {
			return true
		}
	}
	return false
}

// MissesAny reports whether a value of a call is neither present nor spared.
func (vs *Values) MissesAny(c *Call, spared *[MaxValues]bool) bool {
	for _, id := range c.Values {
		if !vs.Present[id] && !spared[id] {
			return true
		}
	}
	return false
}
