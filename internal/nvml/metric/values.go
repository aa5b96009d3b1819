package metric

// ValueID is the place of a number from a source without fields.
type ValueID uint8

// The values of shared calls and of derived states. The values of rows' own
// functions follow firstOwnValue.
const (
	NoValue ValueID = iota
	memoryTotal
	memoryReserved
	memoryUsed
	memoryFree
	fanCount
	GPMSupport
	bar1Total
	bar1Used
	gpuUtilization
	memoryUtilization
	ClockEventReasons
	SupportedClockReasons
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
	HasFabric
	fabricDomainFirst // the cluster UUID in three values, then the clique
	fabricDomainSecond
	fabricDomainThird
	fabricClique
	ActiveNVLinks // the number of them
	MIGEnabled
	MIGPending
	HasGPM
	HasMIG
	firstOwnValue
)

// MaxValues is above the number of values; the catalogue panics otherwise.
const MaxValues = 128

// Values are the numbers of a GPU or of a GPU instance.
type Values struct {
	Present [MaxValues]bool
	Values  [MaxValues]float64
}

// Set stores a value.
func (vs *Values) Set(id ValueID, v float64) { vs.Values[id], vs.Present[id] = v, true }

// SetBool stores 1 or 0, or no value.
func (vs *Values) SetBool(id ValueID, known, b bool) {
	vs.Values[id], vs.Present[id] = boolNumber(b), known
}

func boolNumber(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Unset drops values.
func (vs *Values) Unset(ids []ValueID) {
	for _, id := range ids {
		vs.Present[id] = false
	}
}

// FieldKey identifies a field in a request.
type FieldKey struct {
	ID    uint32
	Scope FieldScope
	N     uint32 // number of the scope
}

// FieldScope is the meaning of a field's scope number.
type FieldScope uint8

// The scopes.
const (
	ScopeGPU     FieldScope = iota // with numbers of the field's own
	ScopeNVLink                    // NVLink N
	ScopeC2CLink                   // link N to the CPU
)
