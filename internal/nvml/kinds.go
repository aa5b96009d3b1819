package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Kind is a type of event that is no Xid.
type Kind struct {
	Name  string // as device.Event has it
	Type  uint64 // NVML's
	Class string
	Means string
}

// kinds are the types of event that are asked for besides Xids and the partitioning of a
// GPU, where the GPU has them. Most come with an Xid, which has its own verdict: so those
// that have the class information say no more than that something was mended, and for
// what the GPU needs its recovery action is asked, which drivers that know the newer
// types have.
//
// Single-bit errors, clocks, P-states and power sources are for metrics.
var kinds = [...]struct {
	mask  uint64
	kind  string
	class class
}{
	{nvml.EventTypeDoubleBitEccError, "double_bit_ecc", undecided}, // with Xid 48
	{nvml.EventTypeSingleBitEccErrorStorm, "single_bit_ecc_storm", information},
	{nvml.EventTypeDramRetirementEvent, "dram_retirement", information}, // with 63
	{nvml.EventTypeDramRetirementFailure, "dram_retirement_failure", memory},
	{nvml.EventTypeNonFatalPoisonError, "non_fatal_poison", contained}, // with 94
	{nvml.EventTypeFatalPoisonError, "fatal_poison", memory},           // with 95
	{nvml.EventTypeGpuUnavailableError, "gpu_unavailable", undecided},
	{nvml.EventTypeGpuRecoveryAction, "recovery_action", undecided}, // with 154
}

// needed are the types without which nothing would be heard, and wanted are all that are
// asked for.
const needed uint64 = nvml.EventTypeXidCriticalError | nvml.EventMigConfigChange

var wanted = func() uint64 {
	types := needed
	for _, k := range kinds {
		types |= k.mask
	}
	return types
}()

// Kinds are the rows.
func Kinds() []Kind {
	var list []Kind
	for _, k := range kinds {
		list = append(list, Kind{k.kind, k.mask, classes[k.class].name, classes[k.class].means})
	}
	return list
}
