package collect

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
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
	{
		valueID: metric.ActiveNVLinks,
		Condition: "before Hopper, with NVSwitches: no GPU has an active NVLink for 5 minutes, " +
			"and at least two unpartitioned ones have inactive NVLinks",
		evaluate: evaluateLinks, Fault: device.Fault{Reason: "fabric_not_ready", Action: xid.ActionInspect},
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

// isCheckCall reports whether a check of the GPU needs the i-th call.
func (g *GPUReader) isCheckCall(i int) bool {
	return checkCalls[i] && (g.CheckFabricManager || !metric.Calls[i].Provides(metric.ActiveNVLinks))
}

func faultIfSet(_ *GPUReader, c *HealthCheck, value float64, _ time.Time) *device.Fault {
	if value == 0 {
		return nil
	}
	return new(c.Fault)
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

// evaluateLinks is for GPUs without a state of the fabric: up to HGX A100, the
// Fabric Manager trains the links to the NVSwitches
// (docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide, "NVSwitch and
// NVLink Initialization"), and CUDA does not start before
// (cudaErrorSystemNotReady, 802). The Fabric Manager disables the links of a
// single GPU with a broken link, which stays usable, so all GPUs count.
func evaluateLinks(g *GPUReader, c *HealthCheck, active float64, now time.Time) *device.Fault {
	if active == 0 && g.MIG.Load().Enabled { // a partitioned GPU needs no links
		active = unknownLinks
	}
	if g.history.recordLinks(g.ID, active, now) < fabricJoinTimeout {
		return nil
	}
	return faultIfSet(g, c, 1, now)
}

// Check returns an error if the GPU is unhealthy. A single call reads a few
// fields; denials are answers. Values without a field come from the newest
// call, of a check or of a collection.
func (g *GPUReader) Check() (device.ResetEvidence, error) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	fault, err := g.runChecks(time.Now())
	if err != nil {
		g.forget()
		g.history.recordLinks(g.ID, unknownLinks, time.Now())
	} else {
		g.takeSamples(time.Now())
	}
	if fault != nil {
		err = fault
	}
	_, isFault := errors.AsType[*device.Fault](err)
	g.Responsive.Store(err == nil || isFault)
	return device.ResetEvidence{
		Resets: g.history.resets.Load(), EnergyCounter: g.history.energyMillijoules.Load(),
		RepairPending: g.repairPending,
	}, err
}

// runChecks reads and evaluates. The error is a call's.
func (g *GPUReader) runChecks(now time.Time) (*device.Fault, error) {
	f := &g.checkFields
	answered, ret := f.read(g.Handle, now)
	action, reported := f.value(recoveryIndex)
	g.ReportsRecovery.Store(reported && metric.IsRecoveryAction(action))
	if ret != nvml.SUCCESS && !lib.IsNotSupported(ret) {
		return nil, callError(lib.FieldValuesSymbol, ret)
	}
	if ret != nvml.ERROR_NOT_SUPPORTED && !answered { // the GPU may support no field
		if err := g.ping(); err != nil {
			return nil, err
		}
	} else {
		g.detectReset(f)
	}
	remap, _ := f.value(remapPendingIndex)
	retirement, _ := f.value(retirementPendingIndex)
	unknown := f.failed(remapPendingIndex) || f.failed(retirementPendingIndex)
	g.repairPending = remap > 0 || retirement > 0 || unknown && g.repairPending
	g.results = callResults{}
	g.makeCalls(&g.target, g.isCheckCall, now)
	if g.results.aborted {
		return nil, g.results.failure
	}
	return g.evaluateChecks(now), nil
}

// evaluateChecks returns the first fault. A fault stands until a value without
// fault: a partitioned GPU hides remapped rows without repairing them. A
// recovery action ends with the driver's report, and a fault of inactive links
// with an unknown number.
func (g *GPUReader) evaluateChecks(now time.Time) (first *device.Fault) {
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	found := g.history.faults
	for i := range healthChecks {
		c := &healthChecks[i]
		value, known := g.latest.Values[c.valueID], g.latest.Present[c.valueID]
		if c.fieldIndex != 0 {
			value, known = g.checkFields.value(c.fieldIndex)
		}
		switch {
		case c.valueID == metric.ActiveNVLinks && !known:
			found[i] = c.evaluate(g, c, unknownLinks, now)
		case known:
			found[i] = c.evaluate(g, c, value, now)
		case c.fieldIndex == recoveryIndex && !g.checkFields.failed(c.fieldIndex):
			found[i] = nil
		}
		if first == nil {
			first = found[i]
		}
	}
	return first
}

// Checks returns all checks, in order of precedence.
func Checks() []HealthCheck { return slices.Clone(healthChecks[:]) }

// Source returns the field or function of a check.
func (c *HealthCheck) Source() string {
	if c.fieldIndex != 0 {
		return "field " + strconv.Itoa(int(checkedFields[c.fieldIndex].ID))
	}
	return metric.Calls[slices.IndexFunc(metric.Calls,
		func(call metric.Call) bool { return call.Provides(c.valueID) })].Symbol
}
