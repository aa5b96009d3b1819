// Package plugin offers the devices to the kubelet and keeps the offer standing.
//
// It speaks the kubelet's device-plugin API v1beta1. What is offered follows from
// the device.Inventory and the Rules, and outlasts everything else. Each resource has
// an endpoint, which is a loop over lives: a kubelet restarts, wipes the socket
// directory, refuses, or drops the stream without a word, and none of that is
// handled case by case. A life serves on a fresh socket, registers, and watches;
// whatever goes wrong ends it and starts another.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"golang.org/x/sync/errgroup"
)

// heartbeatInterval is how long Run sleeps where nothing changes.
const heartbeatInterval = 10 * time.Second

// EndpointHooks is told of what the plugin does. A nil func is not called. They are
// called on the goroutine at work and must be quick.
type EndpointHooks struct {
	OnResourceAdded    func(resource string)                                                          // a resource is offered that was not before
	OnRegistered       func(resource string, err error)                                               // Register has returned
	OnStreamCount      func(resource string, streams int)                                             // how many ListAndWatch streams are live
	OnListSent         func(resource string, devices, healthy int)                                    // a list went to the kubelet
	OnCallServed       func(method string, took time.Duration, err error)                             // a call of the kubelet was answered
	OnAllocated        func(resource string, ids []device.AdvertisedID)                               // Allocate granted these
	OnRejected         func(resource string, ids []device.AdvertisedID, why RejectReason, text error) // a container was not given these
	OnResourceReleased func(resource string)                                                          // nothing of it is offered or allocated, and it is not registered
}

// Options say what is offered, and where.
type Options struct {
	Dir string // the kubelet's device-plugins folder
	// Statuses is the Board's. Nothing is registered before its first verdict, nor
	// for a resource that has no device.
	Statuses func() ([]device.Status, <-chan struct{})
	// Rules are as of now, with a channel that is closed when there are others.
	// Nil has the zero Rules hold for ever.
	Rules func() (Rules, <-chan struct{})
	// Links are how the GPUs are connected, as far as that is known. The slice is
	// not written, and another one is another answer. Nil knows nothing.
	Links func() []device.Link
	// Allocations are the allocations of the node, with a channel that is closed when there are
	// others. Allocate calls it: it must not wait. Nil: there is none.
	Allocations func() (device.Allocations, <-chan struct{})
	// CheckUsable says, within ctx, why a container should not start on a device. Nil: no
	// device is ever asked.
	CheckUsable func(ctx context.Context, a UsabilityCheck) error
	Log         *slog.Logger
	Hooks       EndpointHooks
}

// UsabilityCheck is a question whether a container can start on a device.
type UsabilityCheck struct {
	device.Device
	Exclusive bool // nobody else may be using it
}

// Plugin offers all resources of the node.
type Plugin struct {
	Options
	device.Heartbeat

	mu        sync.Mutex
	endpoints map[string]*endpoint // by resource; guarded by mu, written by Run, and none ever goes

	// All below belong to Run.
	registered     *registeredResources
	loggedWarnings []string    // what the newest rules cannot serve, as logged
	lastInput      updateInput // of the newest turn
	nextUpdate     time.Time   // when the next turn is, whatever changes; zero: none is needed
}

// New makes a plugin. It does nothing before Run.
func New(o Options) *Plugin {
	if o.Rules == nil {
		o.Rules = func() (Rules, <-chan struct{}) { return Rules{}, nil }
	}
	if o.Links == nil {
		o.Links = func() []device.Link { return nil }
	}
	if o.Allocations == nil {
		o.Allocations = func() (device.Allocations, <-chan struct{}) { return device.Allocations{}, nil }
	}
	return &Plugin{Options: o, endpoints: map[string]*endpoint{}}
}

// Ready says so while there is a resource whose first registration is under way.
// One that failed, or has no kubelet to go to, was logged, and is tried again.
func (p *Plugin) Ready() error {
	return p.eachEndpoint(func(e *endpoint) error { return e.ready() })
}

// Alive says which of its loops has stopped.
func (p *Plugin) Alive() error {
	return errors.Join(p.Heartbeat.Alive(), p.eachEndpoint(func(e *endpoint) error { return e.Alive() }))
}

func (p *Plugin) eachEndpoint(fn func(*endpoint) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, resource := range slices.Sorted(maps.Keys(p.endpoints)) {
		if err := fn(p.endpoints[resource]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", resource, err))
		}
	}
	return errors.Join(errs...)
}

// Run offers the devices until ctx is done.
func (p *Plugin) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	p.registered = loadRegistered(p.Dir, p.Log)
	for ctx.Err() == nil {
		p.Beat()
		statuses, statusesChanged := p.Statuses()
		rules, rulesChanged := p.Rules()
		allocations, allocationsChanged := p.Allocations()
		if statuses != nil && (!p.inputOf(statuses, rulesChanged, allocations).equal(p.lastInput) || p.updateDue(time.Now())) {
			p.nextUpdate = p.update(ctx, group, rules, statuses, allocations)
			p.lastInput = p.inputOf(statuses, rulesChanged, allocations)
		}
		wait := heartbeatInterval
		if !p.nextUpdate.IsZero() {
			wait = min(wait, time.Until(p.nextUpdate))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-statusesChanged:
		case <-rulesChanged:
		case <-allocationsChanged:
		case <-timer.C:
		}
		timer.Stop()
	}
	return group.Wait()
}

// updateInput is what a turn follows from: with the same basis it changes nothing. Pods come and go
// all the time, and with many replicas a turn takes tens of milliseconds.
type updateInput struct {
	statuses     []device.Status
	rulesChanged <-chan struct{}
	settled      bool
	allocations  []device.Allocation // those that matter, without their owners
}

func (u updateInput) equal(other updateInput) bool {
	return sameBacking(u.statuses, other.statuses) && u.rulesChanged == other.rulesChanged && u.settled == other.settled && slices.Equal(u.allocations, other.allocations)
}

func (p *Plugin) inputOf(statuses []device.Status, rulesChanged <-chan struct{}, allocations device.Allocations) updateInput {
	input := updateInput{statuses: statuses, rulesChanged: rulesChanged, settled: allocations.Complete}
	for _, h := range allocations.All {
		if p.affectsList(statuses, h) {
			input.allocations = append(input.allocations, device.Allocation{Resource: h.Resource, DeviceID: h.DeviceID})
		}
	}
	return input
}

// affectsList reports whether an allocation may change what is offered. That of a replica that is
// offered does not, nor does that of another plugin's device.
func (p *Plugin) affectsList(statuses []device.Status, h device.Allocation) bool {
	if e := p.endpoints[h.Resource]; e != nil {
		list := e.list()
		if i, found := list.find(h.DeviceID); found {
			return !i.replica || !i.removeAt.IsZero()
		}
	}
	_, known := findStatus(statuses, h.DeviceID.Device())
	return known
}

func (p *Plugin) updateDue(now time.Time) bool {
	return !p.nextUpdate.IsZero() && !now.Before(p.nextUpdate)
}

// update hands each resource's endpoint what it now offers, and returns when to do so again if
// nothing changes; never is zero.
func (p *Plugin) update(ctx context.Context, group *errgroup.Group, rules Rules, statuses []device.Status, allocations device.Allocations) (due time.Time) {
	lists, warnings := rules.deviceLists(statuses)
	p.logWarnings(warnings)
	var added []*endpoint
	for resource := range lists {
		if p.endpoints[resource] == nil {
			added = append(added, p.addEndpoint(resource))
		}
	}
	for _, resource := range p.registered.list() {
		if lists[resource] == nil && p.endpoints[resource] == nil && hasAllocation(allocations, resource, statuses) {
			added = append(added, p.addEndpoint(resource))
		}
	}
	for resource, e := range p.endpoints {
		list := lists[resource]
		if list == nil {
			list = &deviceList{rules: rules, withdrawn: true, foreign: !p.registered.has(resource)}
		}
		due = earlier(due, e.setDevices(list, statuses, allocations, time.Now()))
	}
	p.releaseUnused(lists, allocations)
	for _, e := range added {
		group.Go(func() error { return e.run(ctx) })
	}
	return due
}

// earlier returns the earlier of two times, of which the zero time is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// hasAllocation reports whether a container has a device that is there as a resource.
func hasAllocation(allocations device.Allocations, resource string, statuses []device.Status) bool {
	return slices.ContainsFunc(allocations.DeviceIDs(resource), func(id device.AdvertisedID) bool {
		_, known := findStatus(statuses, id.Device())
		return known
	})
}

// releaseUnused drops the resources that are neither offered nor allocated: from here on they may be
// another plugin's.
func (p *Plugin) releaseUnused(lists map[string]*deviceList, allocations device.Allocations) {
	for _, resource := range p.registered.list() {
		listed := false
		if e := p.endpoints[resource]; e != nil {
			list := e.list()
			listed = len(list.items) > 0
		}
		if lists[resource] == nil && !listed && allocations.Complete && len(allocations.DeviceIDs(resource)) == 0 {
			p.registered.remove(resource)
		}
	}
}

// addEndpoint makes the endpoint of a resource.
func (p *Plugin) addEndpoint(resource string) *endpoint {
	e := newEndpoint(p.Options, resource)
	e.registered = p.registered
	p.mu.Lock()
	p.endpoints[resource] = e
	p.mu.Unlock()
	if p.Hooks.OnResourceAdded != nil {
		p.Hooks.OnResourceAdded(resource)
	}
	return e
}

// logWarnings logs what the rules ask for and the devices do not allow, once.
func (p *Plugin) logWarnings(warnings []string) {
	for _, line := range warnings {
		if !slices.Contains(p.loggedWarnings, line) {
			p.Log.Warn("not offered", "why", line)
		}
	}
	p.loggedWarnings = warnings
}
