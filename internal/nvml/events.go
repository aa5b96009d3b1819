package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

const (
	// waitFor is how long the driver is waited for at a time. A call into it cannot
	// be cancelled, so this is also how long the end of the process may have to wait.
	waitFor = time.Second
	// atLeast is how long a wait that brought nothing lasts. The driver's may end at
	// once, on an interrupt, and the next one follows on its heels.
	atLeast = 50 * time.Millisecond
	// claimBy is how long calls about GPUs that are to be registered are waited for.
	claimBy = 20 * time.Millisecond
	// registerBy is how long a GPU may take to be registered. What the others report is
	// not heard meanwhile.
	registerBy = time.Second
)

// unknownXid is the number that NVML gives an Xid that it cannot tell.
const unknownXid = 999

// An event is told only to who has registered before it happens, and only once. So
// the set is kept as long as it is sound, and no error is taken for an event: in
// NVIDIA's own device plugin one lost GPU has Wait fail for ever, and each failure
// condemns all GPUs of the node.

// events is an event set and the GPUs that are registered with it. The zero events
// has no set.
type events struct {
	driver *driver // whose Init the set belongs to
	set    nvml.EventSet
	gpus   map[*gpu]registration
}

// registration is how a GPU stands with the set.
type registration struct {
	state state
	// refused is the listing during which the GPU could not be registered; nil: none.
	refused *table
	// spoils says that the GPU has spoiled a set.
	spoils bool
}

type state uint8

const (
	notYet state = iota
	registered
	never // it has no such events, and is not asked again
)

// Wait waits for a second at most. The set of GPUs that it listens to follows the
// listings. Only one Wait may run at a time.
func (b *Backend) Wait(ctx context.Context) (device.Event, error) {
	if !b.waiting.TryLock() {
		return device.Event{}, errors.New("an earlier wait has not come back")
	}
	defer b.waiting.Unlock()
	t := b.table.Load()
	if t == nil {
		return device.Event{}, device.ErrNoDriver
	}
	if ctx.Err() != nil {
		return device.Event{}, nil
	}
	// Where there is nothing to wait for it takes its time all the same: the caller
	// begins the next one at once.
	began := time.Now()
	if !t.has.events() {
		rest(ctx, began.Add(waitFor))
		return device.Event{}, nil
	}
	if b.events.outdated(t) { // to free the set would lose what it has still to tell
		if data, ret := b.events.set.Wait(0); ret == nvml.SUCCESS {
			return b.event(data), nil
		}
	}
	if err := b.events.follow(t); err != nil {
		return device.Event{}, err
	}
	if !b.events.any() {
		rest(ctx, began.Add(waitFor))
		return device.Event{}, nil
	}
	data, ret := b.events.set.Wait(uint32(waitFor.Milliseconds()))
	switch ret {
	case nvml.SUCCESS:
		return b.event(data), nil
	case nvml.ERROR_TIMEOUT:
		rest(ctx, began.Add(atLeast))
		return device.Event{}, nil
	}
	err := fmt.Errorf("nvmlEventSetWait: %w", answer(ret))
	if ret == nvml.ERROR_UNINITIALIZED { // then the set went with the library
		b.events.forget()
		return device.Event{}, err
	}
	// It may be one lost GPU, for which each further wait would fail at once, and it
	// is not said which. A new set is made, and that GPU does not get into it. It is
	// made here: the next wait may begin a while later, and what the others report
	// meanwhile would be told to nobody.
	b.events.free()
	if again := b.events.follow(t); again != nil {
		err = fmt.Errorf("%w; %w", err, again)
	}
	return device.Event{}, err
}

// rest returns at a time, or when ctx is done.
func rest(ctx context.Context, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// event says what the driver's report means. One about a GPU that is not listed
// names none.
func (b *Backend) event(data nvml.EventData) device.Event {
	var e device.Event
	var g *gpu
	t := b.table.Load() // the newest: a listing may have run while we waited
	if t != nil {
		g = t.byHandle[data.Device]
	}
	if g != nil {
		e.GPU = g.id
	}
	switch data.EventType {
	case nvml.EventTypeXidCriticalError:
		gi, ci := data.GpuInstanceId, data.ComputeInstanceId
		if t == nil || !t.instances {
			gi, ci = NoInstance, NoInstance
		}
		return t.xid(g, data.EventData, gi, ci)
	case nvml.EventMigConfigChange:
		e.Partitioned = true
		return e
	}
	for _, k := range kinds {
		if k.mask == data.EventType {
			means := g.means(k.class)
			means.GPU, means.Kind = e.GPU, k.kind
			return means
		}
	}
	return device.Event{}
}

// NoInstance stands where the number of a GPU or compute instance would, for a report
// that names none.
const NoInstance = math.MaxUint32

// xid is the report of an Xid of a GPU, which is nil where it is not known.
func (t *table) xid(g *gpu, number uint64, gi, ci uint32) device.Event {
	number = cmp.Or(number, unknownXid)
	class := xids[number].class
	e := g.means(class)
	e.Xid = number
	if g == nil {
		return e
	}
	e.GPU = g.id
	if !classes[class].wholeGPU {
		e.Device = t.sliceOf(g, gi, ci)
	}
	return e
}

// means is what a report of a class means for the GPU, which is nil where it is not known.
func (g *gpu) means(c class) device.Event {
	e := c.event()
	if c == memory && g != nil && g.saysRecovery.Load() {
		e.Heals, e.Action = classes[undecided].heals, classes[undecided].action
	}
	return e
}

// XidAt says what another source's report of an Xid means, as Wait does of the driver's:
// one about the GPU at a PCI address, of which the function does not matter. Known is
// false where no such GPU is listed. While the driver is let go of, those are known that
// were: what is told of them now may be what the reset is for that comes next.
func (b *Backend) XidAt(address string, number uint64, gi, ci uint32) (e device.Event, known bool) {
	t := cmp.Or(b.table.Load(), b.left.Load())
	if t == nil {
		return device.Event{}, false
	}
	at, _, _ := strings.Cut(address, ".")
	i := slices.IndexFunc(t.gpus, func(g *gpu) bool {
		pci, _, _ := strings.Cut(g.device.PCI, ".")
		return pci == at && pci != ""
	})
	if i < 0 {
		return device.Event{}, false
	}
	return t.xid(t.gpus[i], number, gi, ci), true
}

// outdated tells whether the set hears of a GPU that is gone.
func (e *events) outdated(t *table) bool {
	if e.set == nil || e.driver != t.driver {
		return false
	}
	for g, r := range e.gpus {
		if r.state == registered && t.byID[g.id] != g {
			return true
		}
	}
	return false
}

// follow has a set hear of all GPUs listed. To free a set loses what it had to tell,
// so one goes on for as long as it can. Where a GPU has spoiled it, that is an error,
// and the others hear by a new one.
func (e *events) follow(t *table) error {
	if e.driver != t.driver { // the set ended with the Init that it belonged to
		*e = events{driver: t.driver, gpus: map[*gpu]registration{}}
	}
	for g, r := range e.gpus {
		if t.byID[g.id] == g {
			continue
		}
		delete(e.gpus, g)
		if r.state == registered { // no GPU can be taken out of a set
			e.free()
		}
	}
	var spoiled error
	for {
		if e.set == nil {
			set, ret := t.lib.EventSetCreate()
			if ret != nvml.SUCCESS {
				return fmt.Errorf("create event set: %w", answer(ret))
			}
			e.set = set
		}
		err := e.registerAll(t)
		if err == nil {
			return spoiled
		}
		if spoiled != nil {
			err = fmt.Errorf("%w; %w", spoiled, err)
		}
		spoiled = err // by a GPU that is refused from now on, so this ends
	}
}

// claim takes the GPU's turn. Short calls are waited for: a GPU that is checked just now
// would else be heard a second later.
func (g *gpu) claim(by time.Time) bool {
	for !g.turn.TryLock() {
		if time.Now().After(by) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// registerAll adds to the set all GPUs that are not in it and can be asked.
func (e *events) registerAll(t *table) error {
	by := time.Now().Add(claimBy)
	for _, g := range t.gpus {
		r := e.gpus[g]
		if r.state != notYet || r.refused == t || !g.answering.Load() || !g.claim(by) { // it would hang us with it
			continue
		}
		if err := e.register(t, g); err != nil {
			return err
		}
	}
	return nil
}

// register adds a GPU, whose turn is held, to the set, and gives the turn back. That it
// cannot be is no failure, unless the set is spoiled by it, which nvml.h says of UNKNOWN:
// then it has to be made anew. A GPU that was refused has its next chance after a listing,
// and one that has spoiled a set is tried with another one first.
func (e *events) register(t *table, g *gpu) error {
	r := e.gpus[g]
	end, ok := e.tryToRegister(t, g)
	if !ok { // it keeps the set, too
		g.answering.Store(false)
		e.forget()
		return fmt.Errorf("register events of %s: it does not answer", g.id)
	}
	switch end.ret {
	case nvml.SUCCESS:
		e.gpus[g] = registration{state: registered}
	case nvml.ERROR_NOT_SUPPORTED:
		e.gpus[g] = registration{state: never}
	case nvml.ERROR_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT:
		e.gpus[g] = registration{refused: t, spoils: end.spoiled || r.spoils}
	default: // it is lost, say: its turn comes when it answers to Read or Check again
		g.answering.Store(false)
	}
	if end.spoiled {
		e.free()
		return fmt.Errorf("register events of %s: %w", g.id, answer(end.ret))
	}
	return nil
}

// registering is what became of an attempt.
type registering struct {
	ret     nvml.Return
	spoiled bool // the set is
}

// tryToRegister gives up a GPU that hangs, with the set, which is freed when it has
// answered.
func (e *events) tryToRegister(t *table, g *gpu) (end registering, ok bool) {
	spoils, set := e.gpus[g].spoils, e.set
	return inTime(t.asking, registerBy, func() (end registering) {
		defer g.turn.Unlock()
		if spoils {
			end.ret = t.tryEvents(g)
		}
		if end.ret == nvml.SUCCESS {
			end = g.registerWith(set)
		}
		return end
	}, func(end registering) {
		if end.ret != nvml.ERROR_UNINITIALIZED { // else it went with the library
			_ = set.Free() // it is gone for us, whatever this answers
		}
	})
}

// registerWith has a set hear of the GPU, of all that is wanted and that it has. With
// one type too many none would be registered.
func (g *gpu) registerWith(set nvml.EventSet) registering {
	supported, ret := g.handle.GetSupportedEventTypes()
	if ret != nvml.SUCCESS {
		return registering{ret, false}
	}
	types := supported & wanted
	if types == 0 {
		return registering{nvml.ERROR_NOT_SUPPORTED, false}
	}
	ret = g.handle.RegisterEvents(types, set)
	if fewer := types & needed; ret == nvml.ERROR_NOT_SUPPORTED && fewer != 0 && fewer != types { // it claims what it does not have
		ret = g.handle.RegisterEvents(fewer, set)
	}
	return registering{ret, ret == nvml.ERROR_UNKNOWN}
}

// tryEvents registers the GPU with a set of its own, which may be spoiled.
func (t *table) tryEvents(g *gpu) nvml.Return {
	set, ret := t.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nvml.ERROR_UNKNOWN
	}
	end := g.registerWith(set)
	_ = set.Free() // it is gone for us, whatever this answers
	return end.ret
}

// any tells whether the set can hear of anything.
func (e *events) any() bool {
	for _, r := range e.gpus {
		if r.state == registered {
			return true
		}
	}
	return false
}

// free gives the set back.
func (e *events) free() {
	if e.set != nil {
		_ = e.set.Free() // it is gone for us, whatever this answers
	}
	e.forget()
}

// forget leaves the set alone: to free one that went with the library would reach
// into freed memory.
func (e *events) forget() {
	e.set = nil
	for g, r := range e.gpus {
		if r.state == registered {
			e.gpus[g] = registration{}
		}
	}
}
