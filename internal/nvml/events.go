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
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// eventWaitTimeout is the duration of a wait in the driver. The wait cannot be canceled, so the end of the process waits as long.
	eventWaitTimeout = time.Second
	// minEventWait is the minimum duration of a wait without an event: an interrupt may end the driver's wait at once, again and again.
	minEventWait = 50 * time.Millisecond
	// gpuLockTimeout is the time for locking GPUs before their registration.
	gpuLockTimeout = 20 * time.Millisecond
	// registerTimeout is the time for registering a GPU. Events of the other GPUs wait.
	registerTimeout = time.Second
)

// undeterminedXid is NVML's number for an Xid without a known number.
const undeterminedXid = 999

// The driver delivers an event once, and only to sets registered before it. So a sound set is kept, and an error is no event: in NVIDIA's
// device plugin a single lost GPU fails each wait, and each failure marks all GPUs of the node unhealthy.

// eventSet is an event set with its GPUs. The zero value has no set.
type eventSet struct {
	session       *nvmlSession // of the set
	set           nvml.EventSet
	registrations map[*gpu]gpuRegistration
}

// gpuRegistration is the state of a GPU in the set.
type gpuRegistration struct {
	state     registrationState
	refusedIn *inventory // listing with a failed registration; nil: none
	breaksSet bool       // the GPU has broken a set
}

type registrationState uint8

const (
	unregistered registrationState = iota
	registered
	unsupported // without events, not asked again
)

// Wait waits for an event, for a second at most. The GPUs of the set follow the listings. Only one Wait may run at a time.
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
	began := time.Now()
	if !inv.Symbols.SupportsEvents() {
		_ = retry.Sleep(ctx, eventWaitTimeout) // the caller waits again at once
		return device.Event{}, nil
	}
	if b.eventSet.outdated(inv) { // freeing the set would lose its events
		if data, ret := b.eventSet.set.Wait(0); ret == nvml.SUCCESS {
			return b.toEvent(data), nil
		}
	}
	if err := b.eventSet.update(inv); err != nil {
		return device.Event{}, err
	}
	if !b.eventSet.hasRegistered() {
		_ = retry.Sleep(ctx, eventWaitTimeout-time.Since(began))
		return device.Event{}, nil
	}
	data, ret := b.eventSet.set.Wait(uint32(eventWaitTimeout.Milliseconds()))
	switch ret {
	case nvml.SUCCESS:
		return b.toEvent(data), nil
	case nvml.ERROR_TIMEOUT:
		_ = retry.Sleep(ctx, minEventWait-time.Since(began))
		return device.Event{}, nil
	}
	err := fmt.Errorf("nvmlEventSetWait: %w", lib.Error(ret))
	if ret == nvml.ERROR_UNINITIALIZED { // the set is gone with the library
		b.eventSet.abandon()
		return device.Event{}, err
	}
	// A lost GPU, unnamed by NVML, would fail each further wait at once. A new set, without the lost GPU, is made here: until the
	// next wait the events of the others would be lost.
	b.eventSet.free()
	if retryErr := b.eventSet.update(inv); retryErr != nil {
		err = fmt.Errorf("%w; %w", err, retryErr)
	}
	return device.Event{}, err
}

// toEvent returns the meaning of the driver's report. A report about an unlisted GPU has no GPU.
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
		return device.Event{GPU: id, PartitionChanged: true}
	}
	for _, k := range eventTypes {
		if k.mask == data.EventType {
			e := g.classEvent(k.class)
			e.GPU, e.Kind = id, k.kind
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

// classEvent returns the event of a class. The GPU is nil if unknown.
func (g *gpu) classEvent(c xid.Class) device.Event {
	e := c.Event()
	if c == xid.Memory && g != nil && g.CanReportRecovery() {
		undecided := xid.Undecided.Event()
		e.Recovery, e.Action = undecided.Recovery, undecided.Action
	}
	return e
}

// XidEventAt returns the event of another source's report about the GPU at a PCI address, regardless of the function. Known is false
// without such a GPU. After Close the last listing counts: reports may explain the reset to come.
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

// outdated reports whether the set has a GPU beyond the listing.
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

// update registers all listed GPUs. A set with undelivered events is kept as long as possible. A GPU that breaks the set is an error; the
// rest gets a new set.
func (e *eventSet) update(inv *inventory) error {
	if e.session != inv.nvmlSession { // the set is gone with its Init
		*e = eventSet{session: inv.nvmlSession, registrations: map[*gpu]gpuRegistration{}}
	}
	for g, r := range e.registrations {
		if inv.byID[g.ID] == g {
			continue
		}
		delete(e.registrations, g)
		if r.state == registered { // NVML cannot remove a GPU from a set
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
		brokenErr = err // each GPU breaks a set only once per listing, so the loop ends
	}
}

// tryLockUntil locks the GPU, waiting for short calls: a GPU under check would be registered a second later.
func (g *gpu) tryLockUntil(deadline time.Time) bool {
	for !g.TryLock() {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// registerAll adds the missing GPUs to the set, except hanging GPUs.
func (e *eventSet) registerAll(inv *inventory) error {
	deadline := time.Now().Add(gpuLockTimeout)
	for _, g := range inv.gpus {
		r := e.registrations[g]
		if r.state != unregistered || r.refusedIn == inv || !g.Responsive() || !g.tryLockUntil(deadline) {
			continue
		}
		if err := e.register(inv, g); err != nil {
			return err
		}
	}
	return nil
}

// register adds a locked GPU to the set and unlocks it. A failure is an error only if it breaks the set, by nvml.h after UNKNOWN. A
// refused GPU is tried again after a listing, after a broken set with a disposable set first.
func (e *eventSet) register(inv *inventory, g *gpu) error {
	r := e.registrations[g]
	result, ok := e.registerWithTimeout(inv, g)
	if !ok { // the hanging call keeps the set
		g.SetResponsive(false)
		e.abandon()
		return fmt.Errorf("register events of %s: it does not answer", g.ID)
	}
	switch result.ret {
	case nvml.SUCCESS:
		e.registrations[g] = gpuRegistration{state: registered}
	case nvml.ERROR_NOT_SUPPORTED:
		e.registrations[g] = gpuRegistration{state: unsupported}
	case nvml.ERROR_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT:
		e.registrations[g] = gpuRegistration{refusedIn: inv, breaksSet: result.setBroken || r.breaksSet}
	default: // lost, say: the next answer to Read or Check allows another try
		g.SetResponsive(false)
	}
	if result.setBroken {
		e.free()
		return fmt.Errorf("register events of %s: %w", g.ID, lib.Error(result.ret))
	}
	return nil
}

// registerResult is the result of a registration.
type registerResult struct {
	ret       nvml.Return
	setBroken bool
}

// registerWithTimeout abandons a hanging GPU with the set. The end of the call frees the set.
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
		if result.ret != nvml.ERROR_UNINITIALIZED { // otherwise the set is gone with the library
			_ = set.Free() // failures have no consequences
		}
	})
}

// registerWith subscribes to the GPU's types. A single unsupported type would fail the call for all.
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
	if required := types & requiredEventTypes; ret == nvml.ERROR_NOT_SUPPORTED && required != 0 && required != types { // false claims of support
		ret = g.Handle.RegisterEvents(required, set)
	}
	return registerResult{ret, ret == nvml.ERROR_UNKNOWN}
}

// tryRegister registers the GPU with a disposable set.
func (inv *inventory) tryRegister(g *gpu) nvml.Return {
	set, ret := inv.NVML.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nvml.ERROR_UNKNOWN
	}
	result := g.registerWith(set)
	_ = set.Free() // failures have no consequences
	return result.ret
}

func (e *eventSet) hasRegistered() bool {
	for _, r := range e.registrations {
		if r.state == registered {
			return true
		}
	}
	return false
}

// free frees the set.
func (e *eventSet) free() {
	if e.set != nil {
		_ = e.set.Free() // failures have no consequences
	}
	e.abandon()
}

// abandon drops the set without freeing it: the memory of a set is gone with its library.
func (e *eventSet) abandon() {
	e.set = nil
	for g, r := range e.registrations {
		if r.state == registered {
			e.registrations[g] = gpuRegistration{}
		}
	}
}
