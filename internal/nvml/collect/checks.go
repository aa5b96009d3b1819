package collect

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/xid"
)

// checkedFields are read by each check, in one call.
var checkedFields = [...]metric.FieldKey{
	energyIndex:            {ID: metric.EnergyField}, // an answer is enough; a decrease shows a reset
	recoveryIndex:          {ID: metric.RecoveryField},
	remapFailureIndex:      {ID: nvml.FI_DEV_REMAPPED_FAILURE},
	remapPendingIndex:      {ID: nvml.FI_DEV_REMAPPED_PENDING},
	retirementPendingIndex: {ID: nvml.FI_DEV_RETIRED_PENDING}, // the same, up to Turing
}

const (
	energyIndex = iota
	recoveryIndex
	remapFailureIndex
	remapPendingIndex
	retirementPendingIndex
)

// HealthCheck is a condition of an unhealthy GPU.
type HealthCheck struct {
	fieldIndex int            // in checkedFields; 0: no field
	valueID    metric.ValueID // of a call, otherwise
	// evaluate returns the fault for a value, or nil.
	evaluate  func(g *GPUReader, c *HealthCheck, value float64, now time.Time) *device.Fault
	Fault     device.Fault
	Condition string
}

// healthChecks name the fault in this order: a GPU in need of replacement needs
// no reset before. Lost GPUs and those with RESET_REQUIRED need no row
// (lib.Error).
//
// A down NVLink is no fault: links are down for many reasons, from the wiring
// of the board to a reset of the other end, and programs without NVLink run.
// For an unusable GPU the driver has a recovery action.
var healthChecks = [...]HealthCheck{
	{
		fieldIndex: remapFailureIndex, Condition: "remapping a memory row failed",
		evaluate: faultIfSet, Fault: device.Fault{
			Reason: "row_remap_failure", Action: xid.ActionReplaceGPU,
			NeedsReset: true,
		},
	},
	{
		valueID:   metric.SRAMThresholdExceeded,
		Condition: "uncorrected SRAM errors exceed the threshold for replacement",
		evaluate:  faultIfSet, Fault: device.Fault{Reason: "sram_threshold_exceeded", Action: xid.ActionReplaceGPU},
	},
	{
		valueID: metric.UnrepairableMemory, Condition: "the memory has unrepairable errors",
		evaluate: faultIfSet, Fault: device.Fault{Reason: "unrepairable_memory", Action: xid.ActionReplaceGPU},
	},
	{
		fieldIndex: recoveryIndex, Condition: "the driver requires a recovery action",
		evaluate: evaluateRecoveryAction,
		Fault:    device.Fault{Reason: "recovery_action_…", Action: "as the driver reports"},
	},
	{
		valueID: metric.FabricFailed, Condition: "joining the NVSwitch fabric failed",
		evaluate: faultIfSet, Fault: device.Fault{Reason: "fabric", Action: xid.ActionResetGPU},
	},
	{
		valueID:   metric.FabricNotJoined,
		Condition: "an unpartitioned GPU with NVLinks did not join the NVSwitch fabric within 5 minutes",
		evaluate:  evaluateFabricJoin, Fault: device.Fault{Reason: "fabric_not_joined", Action: xid.ActionInspect},
	},
}

// checkCalls is set for each of metric.Calls with a value for a check.
var checkCalls = func() []bool {
	calls := make([]bool, len(metric.Calls))
	for i := range metric.Calls {
		calls[i] = slices.ContainsFunc(healthChecks[:], func(c HealthCheck) bool {
			return c.fieldIndex == 0 && metric.Calls[i].Provides(c.valueID)
		})
	}
	return calls
}()

func isCheckCall(i int) bool { return checkCalls[i] }

func faultIfSet(_ *GPUReader, c *HealthCheck, value float64, _ time.Time) *device.Fault {
	if value == 0 {
		return nil
	}
	fault := c.Fault
	return &fault
}

// recoveryActions are the faults of nvmlDeviceGpuRecoveryAction_t, reported by
// drivers from 565 on.
var recoveryActions = map[nvml.DeviceGpuRecoveryAction]device.Fault{
	nvml.GPU_RECOVERY_ACTION_GPU_RESET:           {Reason: "gpu_reset", Action: xid.ActionResetGPU},
	nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         {Reason: "node_reboot", Action: xid.ActionReboot},
	nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           {Reason: "drain_p2p", Action: "drain_p2p"},
	nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     {Reason: "drain_and_reset", Action: "drain_and_reset"},
	nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: {Reason: "recover_imex_domain", Action: "recover_imex_domain"},
	nvml.GPU_RECOVERY_ACTION_BUS_RESET:           {Reason: "bus_reset", Action: "reset_bus"},
	nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       {Reason: "system_reboot", Action: xid.ActionReboot},
}

// evaluateRecoveryAction passes the driver's action on. An undefined value is
// no fault.
func evaluateRecoveryAction(_ *GPUReader, _ *HealthCheck, value float64, _ time.Time) *device.Fault {
	if !metric.IsRecoveryAction(value) || value == float64(nvml.GPU_RECOVERY_ACTION_NONE) {
		return nil
	}
	fault := recoveryActions[nvml.DeviceGpuRecoveryAction(value)]
	fault.Reason = "recovery_action_" + fault.Reason
	return &fault
}

// fabricJoinTimeout is the time for joining the fabric, beginning with the
// node's fabric manager.
const fabricJoinTimeout = 5 * time.Minute

// evaluateFabricJoin waits, since pods of a booting node would be rejected for
// good. After the timeout CUDA does not start on the GPU. A partitioned GPU,
// and a GPU with disabled NVLinks, needs no fabric.
func evaluateFabricJoin(g *GPUReader, c *HealthCheck, notJoined float64, now time.Time) *device.Fault {
	since := &g.history.notJoinedSince
	if notJoined == 0 || g.links[metric.ScopeNVLink] == 0 || g.MIG.Load().Enabled {
		*since = time.Time{}
		return nil
	}
	if since.IsZero() {
		*since = now
	}
	if now.Sub(*since) < fabricJoinTimeout {
		return nil
	}
	return faultIfSet(g, c, notJoined, now)
}
