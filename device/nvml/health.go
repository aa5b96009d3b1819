package nvml

import (
	"errors"
	"math"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/device"
)

// What a fault can ask for.
const (
	restartApp = "restart_app"
	resetGPU   = "reset_gpu"
	reboot     = "reboot"
	restartVM  = "restart_vm"
	inspect    = "inspect"
)

// checks are what is asked of a GPU to tell whether it can be used, in one call.
// judge is given a value that the GPU has.
var checks = [...]struct {
	field uint32
	judge func(value float64) error
}{
	{energyField, func(float64) error { return nil }}, // that it answers is enough; resets are told from it
	{recoveryField, recovery},
}

// checked are their fields, in the same order.
var checked = newBatch(key{id: checks[energyAt].field}, key{id: checks[recoveryAt].field})

// Where they stand.
const (
	energyAt = iota
	recoveryAt
)

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

// recovery passes on what the driver asks for. A value that is newer than this
// program is a fault too, by its number.
func recovery(value float64) error {
	if value == float64(nvml.GPU_RECOVERY_ACTION_NONE) {
		return nil
	}
	fault, known := recoveries[nvml.DeviceGpuRecoveryAction(min(value, math.MaxInt32))]
	if !known {
		fault = device.Fault{Reason: strconv.FormatFloat(value, 'f', -1, 64), Action: inspect}
	}
	fault.Reason = "recovery_action_" + fault.Reason
	return &fault
}

// Check asks for a few fields in one call. A GPU that says that it does not have
// them has answered, and so can be used.
func (b *Backend) Check(id device.GPU) (device.Vitals, error) {
	_, g, err := b.gpu(id)
	if err != nil {
		return device.Vitals{}, err
	}
	if !g.enter() {
		return g.vitals(), device.ErrStalled
	}
	defer g.leave()
	if err = g.judge(); err != nil {
		g.askAll()
	}
	g.answering.Store(err == nil || isFault(err))
	return g.vitals(), err
}

func (g *gpu) vitals() device.Vitals { return device.Vitals{Resets: g.history.resets.Load()} }

func isFault(err error) bool {
	var fault *device.Fault
	return errors.As(err, &fault)
}

func (g *gpu) judge() error {
	ret := g.check.ask(g.handle)
	_, says := g.check.value(recoveryAt)
	g.saysRecovery.Store(says)
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return failure{fieldValues, ret}.err()
	}
	if ret == nvml.SUCCESS && !g.check.answered() { // it has none of them: then anything will do to see that it answers
		if _, ret := g.handle.GetUUID(); ret != nvml.SUCCESS {
			return failure{"nvmlDeviceGetUUID", ret}.err()
		}
		return nil
	}
	g.noteEnergy(&g.check, energyAt)
	for i, c := range checks {
		if value, ok := g.check.value(i); ok {
			if err := c.judge(value); err != nil {
				return err
			}
		}
	}
	return nil
}

// Means says whether an Xid is fatal, what it asks for, and whether it hits alone the
// slice that its report names. Of one that depends on the GPU it says the worst.
func Means(xid uint64) (e device.Event, alone bool) {
	c := classes[xids[xid]]
	return device.Event{Heals: c.heals, Action: c.action}, !c.hardware
}

// class is what the driver's report of an Xid means for the GPU.
type class uint8

const (
	// unknown Xids are too new, or never seen: somebody has to look.
	unknown class = iota
	// application: a program did something wrong, and the next one will run.
	application
	// information: a report that accompanies another one, or of something mended.
	information
	// contained: memory failed under a program, which alone is hit.
	contained
	// asks: what it means stands in the driver's recovery action, which Check reads.
	asks
	// memory: as the recovery action says, or broken where the driver has none.
	memory
	// broken: nothing runs before the GPU was reset.
	broken
	// fallen: nothing runs before the node was booted.
	fallen
	// locked: nothing runs before the virtual machine was started anew.
	locked
	// unpowered: somebody has to look at the machine.
	unpowered
)

// classes say what an Xid's class asks for, and whether it is of the hardware: then
// all slices of a GPU share it, whichever the driver names. It is fatal where only a
// reset heals.
var classes = [...]struct {
	action   string
	heals    device.Heals
	hardware bool
}{
	unknown:     {inspect, device.ByReset, false},
	application: {restartApp, device.ByItself, false},
	information: {"", device.ByItself, false},
	contained:   {restartApp, device.ByItself, false},
	asks:        {"", device.ByCheck, true},
	memory:      {resetGPU, device.ByReset, true},
	broken:      {resetGPU, device.ByReset, true},
	fallen:      {reboot, device.ByReset, true},
	locked:      {restartVM, device.ByReset, true},
	unpowered:   {inspect, device.ByReset, true},
}

// xids are NVIDIA's catalogue of error reports
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), each with what it
// means here. Where the catalogue gives a workflow, those of NVLink ask, and so does 48
// where the driver can say whether the error was contained.
var xids = map[uint64]class{
	8:   application, // GPU stopped processing
	11:  application, // invalid or corrupted push buffer stream
	13:  application, // graphics engine exception
	25:  application, // invalid or illegal push buffer stream
	31:  application, // memory page fault
	32:  application, // invalid or corrupted push buffer stream
	37:  information,
	38:  information, // driver firmware error
	39:  application,
	40:  application,
	41:  application,
	43:  information, // a program's work was stopped
	44:  information,
	45:  information, // a program's work was cleaned up, after another error
	46:  broken,      // GPU stopped processing
	48:  memory,      // double-bit ECC error
	54:  unpowered,   // auxiliary power is not connected
	60:  application,
	62:  broken,      // internal micro-controller halt
	63:  information, // a row was remapped, or a page retired
	64:  broken,      // that failed
	66:  information,
	67:  information,
	68:  application, // video decoder exception
	69:  application, // graphics engine class error
	70:  application,
	71:  application,
	72:  application,
	74:  asks, // NVLink error
	75:  application,
	76:  application,
	77:  application,
	78:  information, // vGPU start error
	79:  fallen,      // fallen off the bus
	80:  application,
	82:  application,
	83:  application,
	84:  application,
	85:  application,
	86:  application,
	88:  application,
	89:  application,
	92:  information, // many single-bit ECC errors
	93:  information,
	94:  contained, // contained ECC error
	95:  broken,    // uncontained ECC error
	96:  application,
	97:  application,
	98:  application,
	99:  application,
	100: application,
	101: application,
	102: application,
	103: application,
	104: application,
	105: application,
	106: information,
	107: information,
	109: asks,        // context switch timeout; heavy time-slicing makes them too
	110: broken,      // security fault
	119: broken,      // GSP does not answer
	120: broken,      // GSP error
	121: information, // C2C link error, corrected
	126: application,
	127: application,
	128: application,
	129: application,
	130: application,
	131: application,
	132: application,
	133: application,
	134: application,
	135: application,
	136: broken,
	137: information, // NVLink privilege error
	139: application,
	140: broken, // ECC error that was not recovered
	141: information,
	143: broken, // GPU does not initialise
	144: asks,   // 144 to 150: NVLink 5
	145: asks,
	146: asks,
	147: asks,
	148: asks,
	149: asks,
	150: asks,
	151: locked, // key rotation
	152: information,
	153: information,
	154: asks, // the recovery action changed
	155: broken,
	156: broken,
	157: information,
	158: broken,
	159: information,
	160: information,
	161: information,
	167: fallen, // PCIe fatal timeout
	168: information,
	169: broken, // internal micro-controller halt
	170: information,
	171: information, // with 48: it was in DRAM
	172: information, // with 48: it was in SRAM
}
