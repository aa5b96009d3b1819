// Package pubsub publishes values: readers get the newest value and wait for
// changes.
package pubsub

import (
	"context"
	"reflect"
	"sync"
)

// Value is a published value. State is published, never queued: a slow reader
// sees the newest state, and no reader blocks the writer. The zero Value holds
// the zero T and is ready for use.
type Value[T any] struct {
	mu      sync.Mutex
	value   T             // guarded by mu
	changed chan struct{} // guarded by mu; nil until a reader asks
}

// Get returns the value and a channel that the next Set closes. The value is
// read-only.
func (v *Value[T]) Get() (T, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changed == nil {
		v.changed = make(chan struct{})
	}
	return v.value, v.changed
}

// Newest returns the value to a reader that does not wait for the next Set.
func (v *Value[T]) Newest() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.value
}

// Set replaces the value and wakes all readers. The caller must not change the
// value afterwards.
func (v *Value[T]) Set(value T) { v.Update(func(T) T { return value }) }

// Update replaces the value by the result of change and wakes all readers.
// Concurrent updates come one after the other, so change must not use v.
func (v *Value[T]) Update(change func(T) T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.value = change(v.value)
	if v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
}

// Replace replaces the value without waking readers, for changes that need no
// reaction.
func (v *Value[T]) Replace(value T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.value = value
}

// Wait waits until one of the channels of Get is closed, or ctx is done.
func Wait(ctx context.Context, changes ...<-chan struct{}) {
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
	for _, c := range changes {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)})
	}
	reflect.Select(cases)
}

// Notify leaves a request in a channel with room for one. A request that is
// already there covers the new one.
func Notify(requests chan<- struct{}) {
	select {
	case requests <- struct{}{}:
	default:
	}
}

// IsClosed reports whether a channel without values is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
