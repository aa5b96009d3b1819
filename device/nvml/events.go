package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/device"
)

const (
	// waitFor is how long the driver is waited for at a time. A call into it cannot
	// be cancelled, so this is also how long the end of the process may have to wait.
	waitFor = time.Second
	// atLeast is how long a wait that brought nothing lasts. The driver's may end at
	// once, on an interrupt, and the next one follows on its heels.
	atLeast = 50 * time.Millisecond
)

// wanted are the types of event that are asked for, where the GPU has them.
const wanted = nvml.EventTypeXidCriticalError | nvml.EventMigConfigChange

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

type registration uint8

const (
	notYet registration = iota
	registered
	refused // it has no such events, and is not asked again
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
	// It may be one lost GPU, for which each further wait would fail at once, and it
	// is not said which. A new set is made, and that GPU does not get into it.
	if ret == nvml.ERROR_UNINITIALIZED { // then the set went with the library
		b.events.forget()
	} else {
		b.events.free()
	}
	return device.Event{}, fmt.Errorf("nvmlEventSetWait: %w", answer(ret))
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
	alone := false // it is no matter of the whole GPU, where the slice is known
	switch data.EventType {
	case nvml.EventTypeXidCriticalError:
		e.Xid = cmp.Or(data.EventData, unknownXid)
		class := classes[xids[e.Xid]]
		e.Action, e.Fatal = class.action, class.heals == byReset
		alone = !class.hardware
	case nvml.EventMigConfigChange:
		e.Partitioned = true
	default:
		return e
	}
	if t := b.table.Load(); t != nil { // the newest: a listing may have run while we waited
		if g := t.byHandle[data.Device]; g != nil {
			e.GPU, e.Resets = g.id, g.history.resets.Load()
			if alone && t.instances {
				e.Device = t.sliceOf(g, data.GpuInstanceId, data.ComputeInstanceId)
			}
		}
	}
	return e
}

// follow makes a set where there is none, and has it hear of all GPUs listed. To
// free a set loses what it had to tell, so one goes on for as long as it can.
func (e *events) follow(t *table) error {
	if e.driver != t.driver { // the set ended with the Init that it belonged to
		*e = events{driver: t.driver, gpus: map[*gpu]registration{}}
	}
	for g, state := range e.gpus {
		if t.byID[g.id] == g {
			continue
		}
		delete(e.gpus, g)
		if state == registered { // no GPU can be taken out of a set
			e.free()
		}
	}
	if e.set == nil {
		set, ret := t.lib.EventSetCreate()
		if ret != nvml.SUCCESS {
			return fmt.Errorf("create event set: %w", answer(ret))
		}
		e.set = set
	}
	for _, g := range t.gpus {
		if e.gpus[g] != notYet || !g.answering.Load() || g.calling.Load() { // it would hang us with it
			continue
		}
		if err := e.register(g); err != nil {
			return err
		}
	}
	return nil
}

// register adds a GPU to the set. That it cannot be is no failure, unless the set
// is spoiled by it, which nvml.h says of UNKNOWN. Then that GPU is refused and the
// others get a new set.
func (e *events) register(g *gpu) error {
	supported, ret := g.handle.GetSupportedEventTypes()
	if ret == nvml.SUCCESS {
		ret = nvml.ERROR_NOT_SUPPORTED
		if types := supported & wanted; types != 0 { // with one type too many none is registered
			ret = g.handle.RegisterEvents(types, e.set)
			if ret == nvml.ERROR_UNKNOWN {
				e.gpus[g] = refused
				e.free()
				return fmt.Errorf("register events of %s: %w", g.id, answer(ret))
			}
		}
	}
	switch {
	case ret == nvml.SUCCESS:
		e.gpus[g] = registered
	case notHere(ret):
		e.gpus[g] = refused
	default: // it is lost, say: its turn comes when it answers to Read or Check again
		g.answering.Store(false)
	}
	return nil
}

// any tells whether the set can hear of anything.
func (e *events) any() bool {
	for _, state := range e.gpus {
		if state == registered {
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
	for g, state := range e.gpus {
		if state == registered {
			e.gpus[g] = notYet
		}
	}
}
