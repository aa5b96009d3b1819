package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/xid"
)

// EventTypes are subscribed besides Xids and partitioning, on GPUs with these
// types. Most accompany an Xid with a separate class, so repairs are
// information; the recovery action of the same drivers decides the rest.
// Single-bit errors, clocks, P-states and power sources are metrics.
var EventTypes = [...]struct {
	Mask  uint64 // NVML's
	Kind  string // device.Event.Kind
	Class xid.Class
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

// requiredEventTypes are subscribed alone if the driver rejects the rest.
const requiredEventTypes uint64 = nvml.EventTypeXidCriticalError | nvml.EventMigConfigChange

var subscribedEventTypes = func() uint64 {
	types := requiredEventTypes
	for _, k := range EventTypes {
		types |= k.Mask
	}
	return types
}()
