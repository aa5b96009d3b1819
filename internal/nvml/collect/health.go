package collect

import (
	"errors"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/nvml/xid"
)

// checkedFields are asked for in each check, in one call.
var checkedFields = [...]uint32{
	energyIndex:            metric.EnergyField, // that it answers is enough; resets are told from it
	recoveryIndex:          metric.RecoveryField,
	remapFailureIndex:      nvml.FI_DEV_REMAPPED_FAILURE,
	remapPendingIndex:      nvml.FI_DEV_REMAPPED_PENDING,
	retirementPendingIndex: nvml.FI_DEV_RETIRED_PENDING, // the same, up to Turing
}

// Where they stand.
const (
	energyIndex = iota
	recoveryIndex
	remapFailureIndex
	remapPendingIndex
	retirementPendingIndex
)

// checkBatch are their keys, in the same order.
var checkBatch = func() metric.FieldBatch {
	var keys []metric.FieldKey
	for _, id := range checkedFields {
		keys = append(keys, metric.FieldKey{ID: id})
	}
	return metric.NewFieldBatch(keys...)
}()

// healthCheck is one thing that a GPU is judged by.
type healthCheck struct {
	name string
	// fieldIndex is where its field stands in checkedFields; 0: it has none, and slot is what a
	// call leaves that is made for it now and then.
	fieldIndex int
	valueID    metric.ValueID
	// evaluate is given a value that the GPU has, and returns nil where there is nothing wrong.
	evaluate evaluateFunc
	// fault is what it finds, for people.
	fault     device.Fault
	condition string
}

// healthChecks are the rows. The first that finds something names the fault: who has to replace
// the GPU need not reset it before. A GPU that is lost, and one that answers
// RESET_REQUIRED, has no need of a row (see answers).
//
// An NVLink that is down is none. The links of a GPU are down for many a reason, from
// who wired the board to the other end's reset, and programs that do not use them run.
// Where one of them makes the GPU unfit the driver says so: by its recovery action.
var healthChecks = [...]healthCheck{
	{
		name: "row_remap_failure", fieldIndex: remapFailureIndex, condition: "a row of memory could not be replaced by a spare one",
		evaluate: faultIfSet, fault: device.Fault{Reason: "row_remap_failure", Action: xid.ActionReplaceGPU, NeedsReset: true},
	},
	{
		name: "sram_threshold", valueID: metric.SRAMThresholdExceeded, condition: "SRAM has had too many uncorrected errors",
		evaluate: faultIfSet, fault: device.Fault{Reason: "sram_threshold_exceeded", Action: xid.ActionReplaceGPU},
	},
	{
		name: "unrepairable_memory", valueID: metric.UnrepairableMemory, condition: "memory has errors that cannot be repaired",
		evaluate: faultIfSet, fault: device.Fault{Reason: "unrepairable_memory", Action: xid.ActionReplaceGPU},
	},
	{
		name: "recovery_action", fieldIndex: recoveryIndex, condition: "the driver asks for anything but none",
		evaluate: evaluateRecoveryAction, fault: device.Fault{Reason: "recovery_action_…", Action: "as the driver says"},
	},
	{
		name: "fabric", valueID: metric.FabricFailed, condition: "joining the fabric of NVSwitches has ended with an error",
		evaluate: faultIfSet, fault: device.Fault{Reason: "fabric", Action: xid.ActionResetGPU},
	},
	{
		name: "fabric_joined", valueID: metric.FabricNotJoined, condition: "the GPU, which has NVLinks and is not partitioned, has not joined the fabric for 5 minutes",
		evaluate: evaluateFabricJoin, fault: device.Fault{Reason: "fabric_not_joined", Action: xid.ActionInspect},
	},
}

// evaluateFunc says what a value means for the GPU.
type evaluateFunc func(g *GPUReader, c *healthCheck, value float64, now time.Time) *device.Fault

func faultIfSet(_ *GPUReader, c *healthCheck, value float64, _ time.Time) *device.Fault {
	if value == 0 {
		return nil
	}
	fault := c.fault
	return &fault
}

// recoveryActions are the values of nvmlDeviceGpuRecoveryAction_t, by which a driver
// from 565 on says what its GPU needs before it can be used again.
var recoveryActions = map[nvml.DeviceGpuRecoveryAction]device.Fault{
	nvml.GPU_RECOVERY_ACTION_GPU_RESET:           {Reason: "gpu_reset", Action: xid.ActionResetGPU},
	nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         {Reason: "node_reboot", Action: xid.ActionReboot},
	nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           {Reason: "drain_p2p", Action: "drain_p2p"},
	nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     {Reason: "drain_and_reset", Action: "drain_and_reset"},
	nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: {Reason: "recover_imex_domain", Action: "recover_imex_domain"},
	nvml.GPU_RECOVERY_ACTION_BUS_RESET:           {Reason: "bus_reset", Action: "reset_bus"},
	nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       {Reason: "system_reboot", Action: xid.ActionReboot},
}

// evaluateRecoveryAction passes on what the driver asks for. A value that NVML does not define is no
// fault.
func evaluateRecoveryAction(_ *GPUReader, _ *healthCheck, value float64, _ time.Time) *device.Fault {
	if !metric.IsRecoveryAction(value) || value == float64(nvml.GPU_RECOVERY_ACTION_NONE) {
		return nil
	}
	fault := recoveryActions[nvml.DeviceGpuRecoveryAction(value)]
	fault.Reason = "recovery_action_" + fault.Reason
	return &fault
}

// fabricJoinTimeout is how long a GPU may take to join the fabric, which begins when the node's
// fabric manager does.
const fabricJoinTimeout = 5 * time.Minute

// evaluateFabricJoin is patient: a GPU that is on its way is what a node looks like that boots, and
// pods that are waiting there would be turned away for good. After that CUDA does not
// start on it. But a partitioned GPU, and one whose NVLinks are turned off, has no use
// for the fabric.
func evaluateFabricJoin(g *GPUReader, c *healthCheck, notJoined float64, now time.Time) *device.Fault {
	since := &g.history.notJoinedSince
	if notJoined == 0 || g.links[metric.ScopeNVLink] == 0 || g.mig.Load().Enabled {
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

// Check asks for a few fields in one call. A GPU that says that it does not have
// them has answered, and so can be used. What has no field is judged as a call has left
// it, for which a second one may be made, once a minute.
func (g *GPUReader) Check() (device.ResetEvidence, error) {
	if !g.tryAcquire() {
		return g.resetEvidence(), device.ErrStalled
	}
	defer g.release()
	fault, err := g.runChecks(time.Now())
	if err == nil {
		g.takeSamples(time.Now())
	}
	if err != nil || fault == nil && g.hadFault { // what it said meanwhile is no word to go by
		g.forgetAbsences()
	}
	g.hadFault = err != nil || fault != nil
	g.responsive.Store(err == nil || isFault(err))
	if err == nil && fault != nil {
		err = fault
	}
	return g.resetEvidence(), err
}

func (g *GPUReader) resetEvidence() device.ResetEvidence {
	return device.ResetEvidence{Resets: g.history.resets.Load(), EnergyCounter: g.history.energyMillijoules.Load(), RepairPending: g.repairPending.Load()}
}

func isFault(err error) bool {
	var fault *device.Fault
	return errors.As(err, &fault)
}

// runChecks asks, and judges what was answered. The error is that of a call.
func (g *GPUReader) runChecks(now time.Time) (*device.Fault, error) {
	ret := g.checkFields.read(g.Handle, now)
	action, reported := g.checkFields.value(recoveryIndex)
	g.reportsRecovery.Store(reported && metric.IsRecoveryAction(action))
	if ret != nvml.SUCCESS && !lib.IsNotSupported(ret) {
		return nil, callFailure{lib.FieldValuesSymbol, ret}.err()
	}
	if ret != nvml.ERROR_NOT_SUPPORTED && !g.checkFields.anyAnswered() { // it has none of them: then anything will do to see that it answers
		if err := g.ping(); err != nil {
			return nil, err
		}
	} else {
		g.detectReset(&g.checkFields, energyIndex)
	}
	pending, _ := g.checkFields.value(remapPendingIndex)
	retirementPending, _ := g.checkFields.value(retirementPendingIndex)
	g.repairPending.Store(pending > 0 || retirementPending > 0 || g.repairPending.Load() && (g.checkFields.failed(remapPendingIndex) || g.checkFields.failed(retirementPendingIndex)))
	if f := g.makeCheckCall(now); f.ret != nvml.SUCCESS {
		return nil, f.err()
	}
	return g.evaluateChecks(now), nil
}

// evaluateChecks goes through the rows. What was found stands until the GPU says otherwise: what
// it does not tell any more, as a partitioned one does not tell of its rows, is not mended.
// But a recovery action is the driver's, and goes with it.
func (g *GPUReader) evaluateChecks(now time.Time) (first *device.Fault) {
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	found := g.history.faults
	for i := range healthChecks {
		c := &healthChecks[i]
		value, known := g.checkValue(c)
		switch {
		case known:
			found[c.name] = c.evaluate(g, c, value, now)
		case c.fieldIndex == recoveryIndex && !g.checkFields.failed(c.fieldIndex):
			found[c.name] = nil
		}
		if first == nil {
			first = found[c.name]
		}
	}
	return first
}

// checkValue is the newest value of what a check judges.
func (g *GPUReader) checkValue(c *healthCheck) (value float64, known bool) {
	if c.fieldIndex != 0 {
		return g.checkFields.value(c.fieldIndex)
	}
	return g.latest.Values[c.valueID], g.latest.Present[c.valueID]
}

const (
	// healthyCheckCallInterval is how old what a call has left may be before it is made for a check.
	// Flights make it too, and more often: then no check has to.
	healthyCheckCallInterval = time.Minute
	// faultyCheckCallInterval is the same where it has left a fault.
	faultyCheckCallInterval = 10 * time.Second
)

// checkCalls are the calls that leave what checks judge, and which these are.
var checkCalls = func() map[int][]string {
	of := map[int][]string{}
	for i := range metric.Calls {
		for j := range healthChecks {
			if c := &healthChecks[j]; c.fieldIndex == 0 && metric.Calls[i].Provides(c.valueID) {
				of[i] = append(of[i], c.name)
			}
		}
	}
	return of
}()

// makeCheckCall makes one call, if one is overdue, for what has no field. That it fails is a
// failure of the check only where the GPU is gone.
func (g *GPUReader) makeCheckCall(now time.Time) callFailure {
	maxLate, callIndex := time.Duration(-1), -1
	for i, names := range checkCalls {
		late := now.Sub(g.callStates[i].calledAt) - g.checkCallInterval(names)
		if late > maxLate && g.canCall(i, metric.TargetGPU, g.callStates, now) {
			maxLate, callIndex = late, i
		}
	}
	if callIndex < 0 {
		return callFailure{}
	}
	outer := g.collection // that of a reading whose processes are still to be asked for
	defer func() { g.collection = outer }()
	g.collection = collection{}
	g.makeCall(callIndex, g.Handle, &g.latest, g.callStates, now)
	if g.isAborted() {
		return g.collection.failure
	}
	return callFailure{}
}

func (g *GPUReader) checkCallInterval(names []string) time.Duration {
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	for _, name := range names {
		if g.history.faults[name] != nil {
			return faultyCheckCallInterval
		}
	}
	return healthyCheckCallInterval
}

// CheckInfo is a row of what GPUs are judged by.
type CheckInfo struct {
	Name      string
	Condition string // it finds something
	Source    string // the field or the call
	Fault     device.Fault
}

// Checks are the rows, in the order in which they name a fault.
func Checks() []CheckInfo {
	list := make([]CheckInfo, 0, len(healthChecks))
	for i := range healthChecks {
		c := &healthChecks[i]
		row := CheckInfo{Name: c.name, Condition: c.condition, Fault: c.fault}
		if c.fieldIndex != 0 {
			id := checkedFields[c.fieldIndex]
			row.Source = "field " + strconv.Itoa(int(id))
		}
		for j := range metric.Calls {
			if c.fieldIndex == 0 && metric.Calls[j].Provides(c.valueID) && row.Source == "" {
				row.Source = metric.Calls[j].Symbol
			}
		}
		list = append(list, row)
	}
	return list
}
