package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/xid"
)

const (
	// eventWaitTimeout is the duration of a wait in the driver. The wait cannot
	// be canceled, so the end of the process waits as long.
	eventWaitTimeout = 2 * time.Second
	// minEventWait is the minimum duration of a wait without an event: an
	// interrupt may end the driver's wait at once, again and again.
	minEventWait = 50 * time.Millisecond
	// gpuLockTimeout is the time for locking GPUs before their registration.
	gpuLockTimeout = 20 * time.Millisecond
	// registerTimeout is the time for registering a GPU. Events of the other
	// GPUs wait.
	registerTimeout = time.Second
	// The interval between registrations of a GPU that refuses. Each may break
	// the set.
	minRegisterInterval, maxRegisterInterval = 10 * time.Second, 10 * time.Minute
)

// undeterminedXid is NVML's number for an Xid without a known number.
const undeterminedXid = 999

// The driver delivers an event once, and only to sets registered before it. So
// a sound set is kept, and an error is no event: in NVIDIA's device plugin a
// single lost GPU fails each wait, and each failure marks all GPUs of the node
// unhealthy.

// Wait waits for an event, for two seconds at most. The GPUs of the set follow
// the listings. Only one Wait may run at a time.
func (b *Backend) Wait(ctx context.Context) (device.Event, error) {
	if !b.eventsMu.TryLock() {
		return device.Event{}, errors.New("an earlier wait has not returned")
	}
	defer b.eventsMu.Unlock()
	inv := b.inventory.Load()
	if inv == nil {
		return device.Event{}, device.ErrNoDriver
	}
	if ctx.Err() != nil {
		return device.Event{}, nil
	}
	began := time.Now()
	supported := inv.Symbols.HasAll(lib.EventFunctions)
	if supported {
		if err := b.eventSet.update(ctx, inv); err != nil {
			return device.Event{}, err
		}
	}
	if !supported || len(b.eventSet.registered) == 0 {
		_ = retry.Sleep(ctx, retry.Aligned(eventWaitTimeout)) // the caller waits again at once
		return device.Event{}, nil
	}
	timeout := retry.Aligned(eventWaitTimeout) + time.Millisecond
	event, ret := b.eventSet.set.Wait(uint32(timeout.Milliseconds())) //nolint:gosec // seconds
	switch ret {
	case nvml.SUCCESS:
		return b.toEvent(event), nil
	case nvml.ERROR_TIMEOUT:
		_ = retry.Sleep(ctx, minEventWait-time.Since(began))
		return device.Event{}, nil
	}
	err := fmt.Errorf("nvmlEventSetWait: %w", lib.Error(ret))
	if ret == nvml.ERROR_UNINITIALIZED { // the set is gone with the library
		b.eventSet.abandon()
		return device.Event{}, err
	}
	// A lost GPU, unnamed by NVML, would fail each further wait at once. A new
	// set, without the lost GPU, is made here: until the next wait the events
	// of the others would be lost.
	b.eventSet.free()
	if retryErr := b.eventSet.update(ctx, inv); retryErr != nil {
		err = fmt.Errorf("%w; %w", err, retryErr)
	}
	return device.Event{}, err
}

// toEvent returns the meaning of the driver's report. A report about an
// unlisted GPU has no GPU.
func (b *Backend) toEvent(data nvml.EventData) device.Event {
	inv := b.inventory.Load() // a listing may have ended during the wait
	var g *gpu
	var id device.GPU
	if inv != nil {
		if g = inv.byHandle[data.Device]; g != nil {
			id = g.ID
		}
	}
	switch data.EventType {
	case nvml.EventTypeXidCriticalError:
		gi, ci := data.GpuInstanceId, data.ComputeInstanceId
		if inv == nil || !inv.eventsNameInstances {
			gi, ci = collect.NoInstanceID, collect.NoInstanceID
		}
		return g.xidEvent(data.EventData, gi, ci)
	case nvml.EventMigConfigChange:
		if g != nil {
			g.reportsLayout.Store(false)
		}
		return device.Event{GPU: id, PartitionChanged: true}
	}
	for _, k := range EventTypes {
		if k.Mask == data.EventType {
			e := g.classEvent(k.Class)
			e.GPU, e.Kind = id, k.Kind
			return e
		}
	}
	return device.Event{}
}

// xidEvent returns the event of an Xid. The GPU is nil if unknown.
func (g *gpu) xidEvent(number uint64, gi, ci uint32) device.Event {
	number = cmp.Or(number, undeterminedXid)
	class := xid.ClassOf(number)
	e := g.classEvent(class)
	e.Xid, e.Severity = number, xid.SeverityOf(number)
	if g == nil {
		return e
	}
	e.GPU = g.ID
	if !class.WholeGPU() {
		e.Device = g.MIG.Load().DeviceID(gi, ci)
	}
	return e
}

// classEvent returns the event of a class. The GPU is nil if unknown.
func (g *gpu) classEvent(c xid.Class) device.Event {
	e := c.Event()
	if c == xid.Memory && g != nil && g.ReportsRecovery.Load() {
		undecided := xid.Undecided.Event()
		e.Recovery, e.Action = undecided.Recovery, undecided.Action
	}
	return e
}

// XidEventAt returns the event of another source's report about the GPU at a
// PCI address, regardless of the function. Known is false without such a GPU.
// After Close the last listing counts: reports may explain the reset to come.
func (b *Backend) XidEventAt(address string, number uint64, gi, ci uint32) (e device.Event, known bool) {
	inv := cmp.Or(b.inventory.Load(), b.lastInventory.Load())
	if inv == nil {
		return device.Event{}, false
	}
	withoutFunction, _, _ := strings.Cut(address, ".")
	i := slices.IndexFunc(inv.gpus, func(g *gpu) bool {
		pci, _, _ := strings.Cut(g.device.PCI, ".")
		return pci == withoutFunction && pci != ""
	})
	if i < 0 {
		return device.Event{}, false
	}
	return inv.gpus[i].xidEvent(number, gi, ci), true
}

// update registers all listed GPUs. NVML cannot remove a GPU from a set, so a
// set may have unlisted GPUs. A GPU that breaks the set is an error; the rest
// gets a new set.
func (e *eventSet) update(ctx context.Context, inv *inventory) error {
	if e.session != inv.nvmlSession { // the set is gone with its Init
		*e = eventSet{session: inv.nvmlSession, registered: map[*gpu]bool{}}
	}
	maps.DeleteFunc(e.registered, func(g *gpu, _ bool) bool { return inv.byID[g.ID] != g })
	var errs []string
	for {
		if e.set == nil {
			set, ret := inv.NVML.EventSetCreate()
			if ret != nvml.SUCCESS {
				return joinErrors(append(errs, fmt.Sprintf("create event set: %v", lib.Error(ret))))
			}
			e.set = set
		}
		err := e.registerAll(ctx, inv)
		if err == nil {
			return joinErrors(errs)
		}
		errs = append(errs, err.Error()) // each GPU breaks one set, so the loop ends
	}
}

// registerAll adds the missing GPUs to the set, except hanging and refused
// GPUs.
func (e *eventSet) registerAll(ctx context.Context, inv *inventory) error {
	deadline := time.Now().Add(gpuLockTimeout)
	for _, g := range inv.gpus {
		if e.registered[g] || time.Now().Before(g.registerAfter) || !g.lockUntil(ctx, deadline) {
			continue
		}
		if err := e.register(inv, g); err != nil {
			return err
		}
	}
	return nil
}

// register adds a locked GPU to the set and unlocks it. A failure is an error
// only if it breaks the set, by nvml.h after UNKNOWN.
func (e *eventSet) register(inv *inventory, g *gpu) error {
	set := e.set
	ret, ok := lib.CallWithTimeout(inv.pendingCalls, registerTimeout, func() nvml.Return {
		defer g.Mu.Unlock()
		return g.registerWith(set)
	}, func(ret nvml.Return) {
		if ret != nvml.ERROR_UNINITIALIZED { // otherwise the set is gone with the library
			_ = set.Free() // failures have no consequences
		}
	})
	if !ok { // the hanging call keeps the set
		g.Responsive.Store(false)
		e.abandon()
		return fmt.Errorf("register events of %s: it does not respond", g.ID)
	}
	switch ret {
	case nvml.SUCCESS:
		e.registered[g] = true
		g.registerBackoff.Reset()
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT:
		g.registerAfter = time.Now().Add(g.registerBackoff.Next())
	case nvml.ERROR_UNKNOWN:
		g.registerAfter = time.Now().Add(g.registerBackoff.Next())
		e.free()
		return fmt.Errorf("register events of %s: %w", g.ID, lib.Error(ret))
	default: // a lost GPU: the next successful Read or Check allows another try
		g.Responsive.Store(false)
	}
	return nil
}

// registerWith subscribes to the GPU's types. A single unsupported type would
// fail the call for all.
func (g *gpu) registerWith(set nvml.EventSet) nvml.Return {
	supported, ret := g.Handle.GetSupportedEventTypes()
	types := supported & subscribedEventTypes
	switch {
	case ret != nvml.SUCCESS:
		return ret
	case types == 0:
		return nvml.ERROR_NOT_SUPPORTED
	}
	ret = g.Handle.RegisterEvents(types, set)
	// false claims of support
	if required := types & requiredEventTypes; ret == nvml.ERROR_NOT_SUPPORTED && required != types {
		ret = g.Handle.RegisterEvents(required, set)
	}
	g.probedAt.Store(&time.Time{})
	g.reportsLayout.Store(ret == nvml.SUCCESS && types&nvml.EventMigConfigChange != 0)
	return ret
}

func (e *eventSet) free() {
	if e.set != nil {
		_ = e.set.Free() // failures have no consequences
	}
	e.abandon()
}

// abandon drops the set without freeing it: the memory of a set is gone with
// its library.
func (e *eventSet) abandon() {
	e.set = nil
	clear(e.registered)
}

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
