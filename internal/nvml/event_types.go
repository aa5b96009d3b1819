package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/xid"
)

// EventTypeInfo is a type of event that is no Xid.
type EventTypeInfo struct {
	Name   string // as device.Event has it
	Mask   uint64 // NVML's
	Class  string
	Effect string
}

// eventTypes are the types of event that are asked for besides Xids and the partitioning of a
// GPU, where the GPU has them. Most come with an Xid, which has its own verdict: so those
// that have the class information say no more than that something was mended, and for
// what the GPU needs its recovery action is asked, which drivers that know the newer
// types have.
//
// Single-bit errors, clocks, P-states and power sources are for metrics.
var eventTypes = [...]struct {
	mask  uint64
	kind  string
	class xid.Class
}{
	{nvml.EventTypeDoubleBitEccError, "double_bit_ecc", xid.Undecided}, // with Xid 48
	{nvml.EventTypeSingleBitEccErrorStorm, "single_bit_ecc_storm", xid.Information},
	{nvml.EventTypeDramRetirementEvent, "dram_retirement", xid.Information}, // with 63
	{nvml.EventTypeDramRetirementFailure, "dram_retirement_failure", xid.Memory},
	{nvml.EventTypeNonFatalPoisonError, "non_fatal_poison", xid.Contained}, // with 94
	{nvml.EventTypeFatalPoisonError, "fatal_poison", xid.Memory},           // with 95
	{nvml.EventTypeGpuUnavailableError, "gpu_unavailable", xid.Undecided},
	{nvml.EventTypeGpuRecoveryAction, "recovery_action", xid.Undecided}, // with 154
}

// requiredEventTypes are the types without which nothing would be heard, and wanted are all that are
// asked for.
const requiredEventTypes uint64 = nvml.EventTypeXidCriticalError | nvml.EventMigConfigChange

var subscribedEventTypes = func() uint64 {
	types := requiredEventTypes
	for _, k := range eventTypes {
		types |= k.mask
	}
	return types
}()

// EventTypes are the rows.
func EventTypes() []EventTypeInfo {
	var list []EventTypeInfo
	for _, k := range eventTypes {
		list = append(list, EventTypeInfo{k.kind, k.mask, k.class.Event().Class, k.class.Effect()})
	}
	return list
}
