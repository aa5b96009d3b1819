package nvml

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// What a fault can ask for.
const (
	restartApp = "restart_app"
	resetGPU   = "reset_gpu"
	reboot     = "reboot"
	restartVM  = "restart_vm"
	replaceGPU = "replace"
	inspect    = "inspect"
)

// checkedFields are asked for in each check, in one call.
var checkedFields = [...]uint32{
	energyAt:   energyField, // that it answers is enough; resets are told from it
	recoveryAt: recoveryField,
	failureAt:  nvml.FI_DEV_REMAPPED_FAILURE,
	pendingAt:  nvml.FI_DEV_REMAPPED_PENDING,
	retiringAt: nvml.FI_DEV_RETIRED_PENDING, // the same, up to Turing
}

// Where they stand.
const (
	energyAt = iota
	recoveryAt
	failureAt
	pendingAt
	retiringAt
)

// checked are their keys, in the same order.
var checked = func() batch {
	b := newBatch()
	for _, id := range checkedFields {
		b.addKey(key{id: id})
	}
	return b
}()

// check is one thing that a GPU is judged by.
type check struct {
	name string
	// at is where its field stands in checkedFields; 0: it has none, and slot is what a
	// call leaves that is made for it now and then.
	at   int
	slot slot
	// judge is given a value that the GPU has, and returns nil where there is nothing wrong.
	judge judge
	// finds is what it finds, for people.
	finds device.Fault
	when  string
}

// checks are the rows. The first that finds something names the fault: who has to replace
// the GPU need not reset it before. A GPU that is lost, and one that answers
// RESET_REQUIRED, has no need of a row (see answers).
//
// An NVLink that is down is none. The links of a GPU are down for many a reason, from
// who wired the board to the other end's reset, and programs that do not use them run.
// Where one of them makes the GPU unfit the driver says so: by its recovery action.
var checks = [...]check{
	{
		name: "row_remap_failure", at: failureAt, when: "a row of memory could not be replaced by a spare one",
		judge: isTrue, finds: device.Fault{Reason: "row_remap_failure", Action: replaceGPU, ByReset: true},
	},
	{
		name: "sram_threshold", slot: sramThreshold, when: "SRAM has had too many uncorrected errors",
		judge: isTrue, finds: device.Fault{Reason: "sram_threshold_exceeded", Action: replaceGPU},
	},
	{
		name: "unrepairable_memory", slot: unrepairable, when: "memory has errors that cannot be repaired",
		judge: isTrue, finds: device.Fault{Reason: "unrepairable_memory", Action: replaceGPU},
	},
	{
		name: "recovery_action", at: recoveryAt, when: "the driver asks for anything but none",
		judge: recovery, finds: device.Fault{Reason: "recovery_action_…", Action: "as the driver says"},
	},
	{
		name: "fabric", slot: fabricFailed, when: "joining the fabric of NVSwitches has ended with an error",
		judge: isTrue, finds: device.Fault{Reason: "fabric", Action: resetGPU},
	},
	{
		name: "fabric_joined", slot: fabricApart, when: "the GPU, which has NVLinks and is not partitioned, has not joined the fabric for 5 minutes",
		judge: unjoined, finds: device.Fault{Reason: "fabric_not_joined", Action: inspect},
	},
}

// judge says what a value means for the GPU.
type judge func(g *gpu, c *check, value float64, now time.Time) *device.Fault

func isTrue(_ *gpu, c *check, value float64, _ time.Time) *device.Fault {
	if value == 0 {
		return nil
	}
	fault := c.finds
	return &fault
}

// recoveryField is the driver's word on what the GPU needs.
const recoveryField = nvml.FI_DEV_GET_GPU_RECOVERY_ACTION

// recoveries are the values of nvmlDeviceGpuRecoveryAction_t, by which a driver
// from 565 on says what its GPU needs before it can be used again.
var recoveries = map[nvml.DeviceGpuRecoveryAction]device.Fault{
	nvml.GPU_RECOVERY_ACTION_GPU_RESET:           {Reason: "gpu_reset", Action: resetGPU},
	nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         {Reason: "node_reboot", Action: reboot},
	nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           {Reason: "drain_p2p", Action: "drain_p2p"},
	nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     {Reason: "drain_and_reset", Action: "drain_and_reset"},
	nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: {Reason: "recover_imex_domain", Action: "recover_imex_domain"},
	nvml.GPU_RECOVERY_ACTION_BUS_RESET:           {Reason: "bus_reset", Action: "reset_bus"},
	nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       {Reason: "system_reboot", Action: reboot},
}

// recovery passes on what the driver asks for. A value that NVML does not define is no
// fault.
func recovery(_ *gpu, _ *check, value float64, _ time.Time) *device.Fault {
	if !isRecoveryAction(value) || value == float64(nvml.GPU_RECOVERY_ACTION_NONE) {
		return nil
	}
	fault := recoveries[nvml.DeviceGpuRecoveryAction(value)]
	fault.Reason = "recovery_action_" + fault.Reason
	return &fault
}

// isRecoveryAction reports whether NVML defines a value of the field.
func isRecoveryAction(value float64) bool {
	_, ok := inRecoveryAction.convert(value)
	return ok && value == math.Trunc(value)
}

// joinBy is how long a GPU may take to join the fabric, which begins when the node's
// fabric manager does.
const joinBy = 5 * time.Minute

// unjoined is patient: a GPU that is on its way is what a node looks like that boots, and
// pods that are waiting there would be turned away for good. After that CUDA does not
// start on it. But a partitioned GPU, and one whose NVLinks are turned off, has no use
// for the fabric.
func unjoined(g *gpu, c *check, apart float64, now time.Time) *device.Fault {
	since := &g.history.apartSince
	if apart == 0 || g.links[ofLink] == 0 || g.parts.Load().mig {
		*since = time.Time{}
		return nil
	}
	if since.IsZero() {
		*since = now
	}
	if now.Sub(*since) < joinBy {
		return nil
	}
	return isTrue(g, c, apart, now)
}

// Check asks for a few fields in one call. A GPU that says that it does not have
// them has answered, and so can be used. What has no field is judged as a call has left
// it, for which a second one may be made, once a minute.
func (b *Backend) Check(id device.GPU) (device.Vitals, error) {
	_, g, err := b.gpu(id)
	if err != nil {
		return device.Vitals{}, err
	}
	if !g.enter() {
		return g.vitals(), device.ErrStalled
	}
	defer g.leave()
	fault, err := g.examine(time.Now())
	if err == nil {
		g.takeWindows(time.Now())
	}
	if err != nil || fault == nil && g.ailing { // what it said meanwhile is no word to go by
		g.askAll()
	}
	g.ailing = err != nil || fault != nil
	g.answering.Store(err == nil || isFault(err))
	if err == nil && fault != nil {
		err = fault
	}
	return g.vitals(), err
}

func (g *gpu) vitals() device.Vitals {
	return device.Vitals{Resets: g.history.resets.Load(), Odometer: g.history.energy.Load(), Pending: g.pending.Load()}
}

func isFault(err error) bool {
	var fault *device.Fault
	return errors.As(err, &fault)
}

// examine asks, and judges what was answered. The error is that of a call.
func (g *gpu) examine(now time.Time) (*device.Fault, error) {
	ret := g.check.ask(g.handle, now)
	action, says := g.check.value(recoveryAt)
	g.saysRecovery.Store(says && isRecoveryAction(action))
	if ret != nvml.SUCCESS && !notHere(ret) {
		return nil, failure{fieldValues, ret}.err()
	}
	if ret != nvml.ERROR_NOT_SUPPORTED && !g.check.answered() { // it has none of them: then anything will do to see that it answers
		if err := g.probe(); err != nil {
			return nil, err
		}
	} else {
		g.noteEnergy(&g.check, energyAt)
	}
	pending, _ := g.check.value(pendingAt)
	retiring, _ := g.check.value(retiringAt)
	g.pending.Store(pending > 0 || retiring > 0 || g.pending.Load() && (g.check.failed(pendingAt) || g.check.failed(retiringAt)))
	if f := g.askJudged(now); f.ret != nvml.SUCCESS {
		return nil, f.err()
	}
	return g.judge(now), nil
}

// judge goes through the rows. What was found stands until the GPU says otherwise: what
// it does not tell any more, as a partitioned one does not tell of its rows, is not mended.
// But a recovery action is the driver's, and goes with it.
func (g *gpu) judge(now time.Time) (first *device.Fault) {
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	found := g.history.found
	for i := range checks {
		c := &checks[i]
		value, told := g.judged(c)
		switch {
		case told:
			found[c.name] = c.judge(g, c, value, now)
		case c.at == recoveryAt && !g.check.failed(c.at):
			found[c.name] = nil
		}
		if first == nil {
			first = found[c.name]
		}
	}
	return first
}

// judged is the newest value of what a check judges.
func (g *gpu) judged(c *check) (value float64, told bool) {
	if c.at != 0 {
		return g.check.value(c.at)
	}
	return g.reading.values[c.slot], g.reading.filled[c.slot]
}

const (
	// judgedEvery is how old what a call has left may be before it is made for a check.
	// Flights make it too, and more often: then no check has to.
	judgedEvery = time.Minute
	// doubtedEvery is the same where it has left a fault.
	doubtedEvery = 10 * time.Second
)

// judgedCalls are the calls that leave what checks judge, and which these are.
var judgedCalls = func() map[int][]string {
	of := map[int][]string{}
	for i := range calls {
		for j := range checks {
			if c := &checks[j]; c.at == 0 && calls[i].fills(c.slot) {
				of[i] = append(of[i], c.name)
			}
		}
	}
	return of
}()

// askJudged makes one call, if one is overdue, for what has no field. That it fails is a
// failure of the check only where the GPU is gone.
func (g *gpu) askJudged(now time.Time) failure {
	most, what := time.Duration(-1), -1
	for i, names := range judgedCalls {
		late := now.Sub(g.turns[i].asked) - g.judgedEvery(names)
		if late > most && g.may(i, gpus, &g.turns, now) {
			most, what = late, i
		}
	}
	if what < 0 {
		return failure{}
	}
	under := g.flight // that of a reading whose processes are still to be asked for
	defer func() { g.flight = under }()
	g.flight = flight{}
	g.askCall(what, g.handle, &g.reading, &g.turns, now)
	if g.failing() {
		return g.flight.failed
	}
	return failure{}
}

func (g *gpu) judgedEvery(names []string) time.Duration {
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	for _, name := range names {
		if g.history.found[name] != nil {
			return doubtedEvery
		}
	}
	return judgedEvery
}

// Checked is a row of what GPUs are judged by.
type Checked struct {
	Name   string
	When   string // it finds something
	Source string // the field or the call
	Finds  device.Fault
}

// Checks are the rows, in the order in which they name a fault.
func Checks() []Checked {
	list := make([]Checked, 0, len(checks))
	for i := range checks {
		c := &checks[i]
		row := Checked{Name: c.name, When: c.when, Finds: c.finds}
		if c.at != 0 {
			id := checkedFields[c.at]
			row.Source = strings.Join([]string{"field", strconv.Itoa(int(id)), fieldNames[id]}, " ")
		}
		for j := range calls {
			if c.at == 0 && calls[j].fills(c.slot) && row.Source == "" {
				row.Source = calls[j].symbol
			}
		}
		list = append(list, row)
	}
	return list
}
