// Package plugin offers the devices to the kubelet and keeps the offer standing.
//
// It speaks the kubelet's device-plugin API v1beta1. What is offered follows from
// the device.Board and the Rules, and outlasts everything else. Each resource has
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

// beatEvery is how long Run sleeps where nothing changes.
const beatEvery = 10 * time.Second

// Trace is told of what the plugin does. A nil func is not called. They are
// called on the goroutine at work and must be quick.
type Trace struct {
	Offers     func(resource string)                                              // a resource is offered that was not before
	Registered func(resource string, err error)                                   // Register has returned
	Streaming  func(resource string, streams int)                                 // how many ListAndWatch streams are live
	Sent       func(resource string, devices, healthy int)                        // a list went to the kubelet
	Answered   func(method string, took time.Duration, err error)                 // a call of the kubelet was answered
	Allocated  func(resource string, ids []device.OfferedID)                      // Allocate granted these
	Refused    func(resource string, ids []device.OfferedID, why Why, text error) // a container was not given these
	Released   func(resource string)                                              // nothing of it is offered or allocated, and it is not registered
}

// Options say what is offered, and where.
type Options struct {
	Dir string // the kubelet's device-plugins folder
	// Look is the Board's. Nothing is registered before its first verdict, nor
	// for a resource that has no device.
	Look func() ([]device.Status, <-chan struct{})
	// Rules are as of now, with a channel that is closed when there are others.
	// Nil has the zero Rules hold for ever.
	Rules func() (Rules, <-chan struct{})
	// Links are how the GPUs are connected, as far as that is known. The slice is
	// not written, and another one is another answer. Nil knows nothing.
	Links func() []device.Link
	// Holders are the allocations of the node, with a channel that is closed when there are
	// others. Allocate calls it: it must not wait. Nil: there is none.
	Holders func() (device.Holders, <-chan struct{})
	// Fit says, within ctx, why a container should not start on a device. Nil: no
	// device is ever asked.
	Fit   func(ctx context.Context, a Ask) error
	Log   *slog.Logger
	Trace Trace
}

// Ask is a question whether a container can start on a device.
type Ask struct {
	device.Device
	Alone bool // nobody else may be using it
}

// Plugin offers all resources of the node.
type Plugin struct {
	Options
	device.Pulse

	mu        sync.Mutex
	endpoints map[string]*endpoint // by resource; guarded by mu, written by Run, and none ever goes

	// All below belong to Run.
	served *served
	said   []string  // what the newest rules cannot serve, as logged
	basis  basis     // of the newest turn
	due    time.Time // when the next turn is, whatever changes; zero: none is needed
}

// New makes a plugin. It does nothing before Run.
func New(o Options) *Plugin {
	if o.Rules == nil {
		o.Rules = func() (Rules, <-chan struct{}) { return Rules{}, nil }
	}
	if o.Links == nil {
		o.Links = func() []device.Link { return nil }
	}
	if o.Holders == nil {
		o.Holders = func() (device.Holders, <-chan struct{}) { return device.Holders{}, nil }
	}
	return &Plugin{Options: o, endpoints: map[string]*endpoint{}}
}

// Ready says so while there is a resource whose first registration is under way.
// One that failed, or has no kubelet to go to, was logged, and is tried again.
func (p *Plugin) Ready() error {
	return p.each(func(e *endpoint) error { return e.ready() })
}

// Alive says which of its loops has stopped.
func (p *Plugin) Alive() error {
	return errors.Join(p.Pulse.Alive(), p.each(func(e *endpoint) error { return e.Alive() }))
}

func (p *Plugin) each(ask func(*endpoint) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, resource := range slices.Sorted(maps.Keys(p.endpoints)) {
		if err := ask(p.endpoints[resource]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", resource, err))
		}
	}
	return errors.Join(errs...)
}

// Run offers the devices until ctx is done.
func (p *Plugin) Run(ctx context.Context) error {
	lives, ctx := errgroup.WithContext(ctx)
	p.served = readServed(p.Dir, p.Log)
	for ctx.Err() == nil {
		p.Beat()
		statuses, changed := p.Look()
		rules, ruled := p.Rules()
		holders, allocated := p.Holders()
		if statuses != nil && (!p.basisOf(statuses, ruled, holders).equal(p.basis) || p.overdue(time.Now())) {
			p.due = p.offer(ctx, lives, rules, statuses, holders)
			p.basis = p.basisOf(statuses, ruled, holders)
		}
		again := beatEvery
		if !p.due.IsZero() {
			again = min(again, time.Until(p.due))
		}
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-ruled:
		case <-allocated:
		case <-timer.C:
		}
		timer.Stop()
	}
	return lives.Wait()
}

// basis is what a turn follows from: with the same basis it changes nothing. Pods come and go
// all the time, and with many replicas a turn takes tens of milliseconds.
type basis struct {
	statuses []device.Status
	ruled    <-chan struct{}
	settled  bool
	held     []device.Holding // those that matter, without their owners
}

func (b basis) equal(other basis) bool {
	return sameSlice(b.statuses, other.statuses) && b.ruled == other.ruled && b.settled == other.settled && slices.Equal(b.held, other.held)
}

func (p *Plugin) basisOf(statuses []device.Status, ruled <-chan struct{}, holders device.Holders) basis {
	b := basis{statuses: statuses, ruled: ruled, settled: holders.Settled}
	for _, h := range holders.Held {
		if p.matters(statuses, h) {
			b.held = append(b.held, device.Holding{Resource: h.Resource, Offered: h.Offered})
		}
	}
	return b
}

// matters reports whether an allocation may change what is offered. That of a replica that is
// offered does not, nor does that of another plugin's device.
func (p *Plugin) matters(statuses []device.Status, h device.Holding) bool {
	if e := p.endpoints[h.Resource]; e != nil {
		o, _ := e.look()
		if i, found := o.find(h.Offered); found {
			return !i.shared || !i.until.IsZero()
		}
	}
	_, known := find(statuses, h.Offered.Device())
	return known
}

func (p *Plugin) overdue(now time.Time) bool { return !p.due.IsZero() && !now.Before(p.due) }

// offer hands each resource's endpoint what it now offers, and returns when to do so again if
// nothing changes; never is zero.
func (p *Plugin) offer(ctx context.Context, lives *errgroup.Group, rules Rules, statuses []device.Status, holders device.Holders) (due time.Time) {
	offers, cannot := rules.apply(statuses)
	p.sayCannot(cannot)
	var fresh []*endpoint
	for resource := range offers {
		if p.endpoints[resource] == nil {
			fresh = append(fresh, p.open(resource))
		}
	}
	for _, resource := range p.served.all() {
		if offers[resource] == nil && p.endpoints[resource] == nil && allocated(holders, resource, statuses) {
			fresh = append(fresh, p.open(resource))
		}
	}
	for resource, e := range p.endpoints {
		o := offers[resource]
		if o == nil {
			o = &offer{rules: rules, past: true, foreign: !p.served.has(resource)}
		}
		due = earlier(due, e.offer(o, statuses, holders, time.Now()))
	}
	p.forget(offers, holders)
	for _, e := range fresh {
		lives.Go(func() error { return e.run(ctx) })
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

// allocated reports whether a container has a device that is there as a resource.
func allocated(holders device.Holders, resource string, statuses []device.Status) bool {
	return slices.ContainsFunc(holders.Offered(resource), func(id device.OfferedID) bool {
		_, known := find(statuses, id.Device())
		return known
	})
}

// forget drops the resources that are neither offered nor allocated: from here on they may be
// another plugin's.
func (p *Plugin) forget(offers map[string]*offer, holders device.Holders) {
	for _, resource := range p.served.all() {
		listed := false
		if e := p.endpoints[resource]; e != nil {
			o, _ := e.look()
			listed = len(o.items) > 0
		}
		if offers[resource] == nil && !listed && holders.Settled && len(holders.Offered(resource)) == 0 {
			p.served.drop(resource)
		}
	}
}

// open makes the endpoint of a resource.
func (p *Plugin) open(resource string) *endpoint {
	e := newEndpoint(p.Options, resource)
	e.served = p.served
	p.mu.Lock()
	p.endpoints[resource] = e
	p.mu.Unlock()
	if p.Trace.Offers != nil {
		p.Trace.Offers(resource)
	}
	return e
}

// sayCannot logs what the rules ask for and the devices do not allow, once.
func (p *Plugin) sayCannot(cannot []string) {
	for _, line := range cannot {
		if !slices.Contains(p.said, line) {
			p.Log.Warn("not offered", "why", line)
		}
	}
	p.said = cannot
}
