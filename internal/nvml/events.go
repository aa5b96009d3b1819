package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/xid"
)

const (
	// eventWaitTimeout is how long the driver is waited for at a time. A call into it cannot
	// be cancelled, so this is also how long the end of the process may have to wait.
	eventWaitTimeout = time.Second
	// minEventWait is how long a wait that brought nothing lasts. The driver's may end at
	// once, on an interrupt, and the next one follows on its heels.
	minEventWait = 50 * time.Millisecond
	// gpuLockTimeout is how long calls about GPUs that are to be registered are waited for.
	gpuLockTimeout = 20 * time.Millisecond
	// registerTimeout is how long a GPU may take to be registered. What the others report is
	// not heard meanwhile.
	registerTimeout = time.Second
)

// undeterminedXid is the number that NVML gives an Xid that it cannot tell.
const undeterminedXid = 999

// An event is told only to who has registered before it happens, and only once. So
// the set is kept as long as it is sound, and no error is taken for an event: in
// NVIDIA's own device plugin one lost GPU has Wait fail for ever, and each failure
// condemns all GPUs of the node.

// eventSet is an event set and the GPUs that are registered with it. The zero events
// has no set.
type eventSet struct {
	session       *nvmlSession // whose Init the set belongs to
	set           nvml.EventSet
	registrations map[*gpu]registration
}

// registration is how a GPU stands with the set.
type registration struct {
	state registrationState
	// refusedIn is the listing during which the GPU could not be registered; nil: none.
	refusedIn *inventory
	// breaksSet says that the GPU has spoiled a set.
	breaksSet bool
}

type registrationState uint8

const (
	unregistered registrationState = iota
	registered
	unsupported // it has no such events, and is not asked again
)

// Wait waits for a second at most. The set of GPUs that it listens to follows the
// listings. Only one Wait may run at a time.
func (b *Backend) Wait(ctx context.Context) (device.Event, error) {
	if !b.eventsMu.TryLock() {
		return device.Event{}, errors.New("an earlier wait has not come back")
	}
	defer b.eventsMu.Unlock()
	inv := b.inventory.Load()
	if inv == nil {
		return device.Event{}, device.ErrNoDriver
	}
	if ctx.Err() != nil {
		return device.Event{}, nil
	}
	// Where there is nothing to wait for it takes its time all the same: the caller
	// begins the next one at once.
	began := time.Now()
	if !inv.Symbols.SupportsEvents() {
		sleepUntil(ctx, began.Add(eventWaitTimeout))
		return device.Event{}, nil
	}
	if b.eventSet.outdated(inv) { // to free the set would lose what it has still to tell
		if data, ret := b.eventSet.set.Wait(0); ret == nvml.SUCCESS {
			return b.toEvent(data), nil
		}
	}
	if err := b.eventSet.update(inv); err != nil {
		return device.Event{}, err
	}
	if !b.eventSet.hasRegistered() {
		sleepUntil(ctx, began.Add(eventWaitTimeout))
		return device.Event{}, nil
	}
	data, ret := b.eventSet.set.Wait(uint32(eventWaitTimeout.Milliseconds()))
	switch ret {
	case nvml.SUCCESS:
		return b.toEvent(data), nil
	case nvml.ERROR_TIMEOUT:
		sleepUntil(ctx, began.Add(minEventWait))
		return device.Event{}, nil
	}
	err := fmt.Errorf("nvmlEventSetWait: %w", lib.Error(ret))
	if ret == nvml.ERROR_UNINITIALIZED { // then the set went with the library
		b.eventSet.abandon()
		return device.Event{}, err
	}
	// It may be one lost GPU, for which each further wait would fail at once, and it
	// is not said which. A new set is made, and that GPU does not get into it. It is
	// made here: the next wait may begin a while later, and what the others report
	// meanwhile would be told to nobody.
	b.eventSet.free()
	if retryErr := b.eventSet.update(inv); retryErr != nil {
		err = fmt.Errorf("%w; %w", err, retryErr)
	}
	return device.Event{}, err
}

// sleepUntil returns at a time, or when ctx is done.
func sleepUntil(ctx context.Context, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// toEvent says what the driver's report means. One about a GPU that is not listed
// names none.
func (b *Backend) toEvent(data nvml.EventData) device.Event {
	var e device.Event
	var g *gpu
	inv := b.inventory.Load() // the newest: a listing may have run while we waited
	if inv != nil {
		g = inv.byHandle[data.Device]
	}
	if g != nil {
		e.GPU = g.ID
	}
	switch data.EventType {
	case nvml.EventTypeXidCriticalError:
		gi, ci := data.GpuInstanceId, data.ComputeInstanceId
		if inv == nil || !inv.eventsNameInstances {
			gi, ci = collect.NoInstanceID, collect.NoInstanceID
		}
		return inv.xidEvent(g, data.EventData, gi, ci)
	case nvml.EventMigConfigChange:
		e.PartitionChanged = true
		return e
	}
	for _, k := range eventTypes {
		if k.mask == data.EventType {
			means := g.classEvent(k.class)
			means.GPU, means.Kind = e.GPU, k.kind
			return means
		}
	}
	return device.Event{}
}

// xidEvent is the report of an Xid of a GPU, which is nil where it is not known.
func (inv *inventory) xidEvent(g *gpu, number uint64, gi, ci uint32) device.Event {
	number = cmp.Or(number, undeterminedXid)
	class := xid.ClassOf(number)
	e := g.classEvent(class)
	e.Xid = number
	if g == nil {
		return e
	}
	e.GPU = g.ID
	if !class.WholeGPU() {
		e.Device = g.MIGState().DeviceID(gi, ci)
	}
	return e
}

// classEvent is what a report of a class means for the GPU, which is nil where it is not known.
func (g *gpu) classEvent(c xid.Class) device.Event {
	e := c.Event()
	if c == xid.Memory && g != nil && g.CanReportRecovery() {
		undecided := xid.Undecided.Event()
		e.Recovery, e.Action = undecided.Recovery, undecided.Action
	}
	return e
}

// XidEventAt says what another source's report of an Xid means, as Wait does of the driver's:
// one about the GPU at a PCI address, of which the function does not matter. Known is
// false where no such GPU is listed. While the driver is let go of, those are known that
// were: what is told of them now may be what the reset is for that comes next.
func (b *Backend) XidEventAt(address string, number uint64, gi, ci uint32) (e device.Event, known bool) {
	inv := cmp.Or(b.inventory.Load(), b.lastInventory.Load())
	if inv == nil {
		return device.Event{}, false
	}
	addressWithoutFunction, _, _ := strings.Cut(address, ".")
	i := slices.IndexFunc(inv.gpus, func(g *gpu) bool {
		pci, _, _ := strings.Cut(g.device.PCI, ".")
		return pci == addressWithoutFunction && pci != ""
	})
	if i < 0 {
		return device.Event{}, false
	}
	return inv.xidEvent(inv.gpus[i], number, gi, ci), true
}

// outdated tells whether the set hears of a GPU that is gone.
func (e *eventSet) outdated(inv *inventory) bool {
	if e.set == nil || e.session != inv.nvmlSession {
		return false
	}
	for g, r := range e.registrations {
		if r.state == registered && inv.byID[g.ID] != g {
			return true
		}
	}
	return false
}

// update has a set hear of all GPUs listed. To free a set loses what it had to tell,
// so one goes on for as long as it can. Where a GPU has spoiled it, that is an error,
// and the others hear by a new one.
func (e *eventSet) update(inv *inventory) error {
	if e.session != inv.nvmlSession { // the set ended with the Init that it belonged to
		*e = eventSet{session: inv.nvmlSession, registrations: map[*gpu]registration{}}
	}
	for g, r := range e.registrations {
		if inv.byID[g.ID] == g {
			continue
		}
		delete(e.registrations, g)
		if r.state == registered { // no GPU can be taken out of a set
			e.free()
		}
	}
	var brokenErr error
	for {
		if e.set == nil {
			set, ret := inv.NVML.EventSetCreate()
			if ret != nvml.SUCCESS {
				return fmt.Errorf("create event set: %w", lib.Error(ret))
			}
			e.set = set
		}
		err := e.registerAll(inv)
		if err == nil {
			return brokenErr
		}
		if brokenErr != nil {
			err = fmt.Errorf("%w; %w", brokenErr, err)
		}
		brokenErr = err // by a GPU that is refused from now on, so this ends
	}
}

// tryLockUntil takes the GPU's turn. Short calls are waited for: a GPU that is checked just now
// would else be heard a second later.
func (g *gpu) tryLockUntil(deadline time.Time) bool {
	for !g.TryLock() {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// registerAll adds to the set all GPUs that are not in it and can be asked.
func (e *eventSet) registerAll(inv *inventory) error {
	deadline := time.Now().Add(gpuLockTimeout)
	for _, g := range inv.gpus {
		r := e.registrations[g]
		if r.state != unregistered || r.refusedIn == inv || !g.Responsive() || !g.tryLockUntil(deadline) { // it would hang us with it
			continue
		}
		if err := e.register(inv, g); err != nil {
			return err
		}
	}
	return nil
}

// register adds a GPU, whose turn is held, to the set, and gives the turn back. That it
// cannot be is no failure, unless the set is spoiled by it, which nvml.h says of UNKNOWN:
// then it has to be made anew. A GPU that was refused has its next chance after a listing,
// and one that has spoiled a set is tried with another one first.
func (e *eventSet) register(inv *inventory, g *gpu) error {
	r := e.registrations[g]
	result, ok := e.registerWithTimeout(inv, g)
	if !ok { // it keeps the set, too
		g.SetResponsive(false)
		e.abandon()
		return fmt.Errorf("register events of %s: it does not answer", g.ID)
	}
	switch result.ret {
	case nvml.SUCCESS:
		e.registrations[g] = registration{state: registered}
	case nvml.ERROR_NOT_SUPPORTED:
		e.registrations[g] = registration{state: unsupported}
	case nvml.ERROR_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT:
		e.registrations[g] = registration{refusedIn: inv, breaksSet: result.setBroken || r.breaksSet}
	default: // it is lost, say: its turn comes when it answers to Read or Check again
		g.SetResponsive(false)
	}
	if result.setBroken {
		e.free()
		return fmt.Errorf("register events of %s: %w", g.ID, lib.Error(result.ret))
	}
	return nil
}

// registerResult is what became of an attempt.
type registerResult struct {
	ret       nvml.Return
	setBroken bool // the set is
}

// registerWithTimeout gives up a GPU that hangs, with the set, which is freed when it has
// answered.
func (e *eventSet) registerWithTimeout(inv *inventory, g *gpu) (result registerResult, ok bool) {
	breaksSet, set := e.registrations[g].breaksSet, e.set
	return lib.CallWithTimeout(inv.pendingCalls, registerTimeout, func() (result registerResult) {
		defer g.Unlock()
		if breaksSet {
			result.ret = inv.tryRegister(g)
		}
		if result.ret == nvml.SUCCESS {
			result = g.registerWith(set)
		}
		return result
	}, func(result registerResult) {
		if result.ret != nvml.ERROR_UNINITIALIZED { // else it went with the library
			_ = set.Free() // it is gone for us, whatever this answers
		}
	})
}

// registerWith has a set hear of the GPU, of all that is wanted and that it has. With
// one type too many none would be registered.
func (g *gpu) registerWith(set nvml.EventSet) registerResult {
	supported, ret := g.Handle.GetSupportedEventTypes()
	if ret != nvml.SUCCESS {
		return registerResult{ret, false}
	}
	types := supported & subscribedEventTypes
	if types == 0 {
		return registerResult{nvml.ERROR_NOT_SUPPORTED, false}
	}
	ret = g.Handle.RegisterEvents(types, set)
	if required := types & requiredEventTypes; ret == nvml.ERROR_NOT_SUPPORTED && required != 0 && required != types { // it claims what it does not have
		ret = g.Handle.RegisterEvents(required, set)
	}
	return registerResult{ret, ret == nvml.ERROR_UNKNOWN}
}

// tryRegister registers the GPU with a set of its own, which may be spoiled.
func (inv *inventory) tryRegister(g *gpu) nvml.Return {
	set, ret := inv.NVML.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nvml.ERROR_UNKNOWN
	}
	result := g.registerWith(set)
	_ = set.Free() // it is gone for us, whatever this answers
	return result.ret
}

// hasRegistered tells whether the set can hear of anything.
func (e *eventSet) hasRegistered() bool {
	for _, r := range e.registrations {
		if r.state == registered {
			return true
		}
	}
	return false
}

// free gives the set back.
func (e *eventSet) free() {
	if e.set != nil {
		_ = e.set.Free() // it is gone for us, whatever this answers
	}
	e.abandon()
}

// abandon leaves the set alone: to free one that went with the library would reach
// into freed memory.
func (e *eventSet) abandon() {
	e.set = nil
	for g, r := range e.registrations {
		if r.state == registered {
			e.registrations[g] = registration{}
		}
	}
}
