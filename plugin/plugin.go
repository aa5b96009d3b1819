// Package plugin is a device plugin: it lists the node's devices for the
// kubelet and keeps the resources registered.
//
// The API is the kubelet's device-plugin API v1beta1; the lists follow from the
// published devices, rules and allocations. Each resource has an endpoint, and
// each endpoint runs a sequence of servers: a restarted kubelet, a deleted
// socket, a rejected registration and a broken stream all end a server, and the
// next server is the only recovery.
package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	"golang.org/x/sync/errgroup"
)

// Plugin serves all resources of the node.
type Plugin struct {
	Options
	device.Heartbeat

	newWatcher func() (*fsnotify.Watcher, error)

	mu        sync.Mutex
	endpoints map[string]*endpoint // by resource; guarded by mu; Run adds endpoints and removes none
	listed    []device.Status      // of the newest update; guarded by mu

	// All below belong to Run.
	sockets        *folderWatch
	loggedWarnings []string
}

// New returns a plugin.
func New(o Options) *Plugin {
	o.Rules = cmp.Or(o.Rules, new(pubsub.Value[Rules]))
	o.Allocations = cmp.Or(o.Allocations, new(pubsub.Value[allocation.Snapshot]))
	o.Resources = cmp.Or(o.Resources, new(pubsub.Value[[]Resource]))
	return &Plugin{Options: o, newWatcher: fsnotify.NewWatcher, endpoints: map[string]*endpoint{}}
}

// Ready returns the reasons why resources with devices are not registered. A
// resource that a foreign plugin serves is no reason: otherwise nodes that wait
// for a migration would stop the rollout.
func (p *Plugin) Ready() error {
	statuses := p.Devices.Newest()
	if rules := p.Rules.Newest(); len(statuses) > 0 && rules.NotReady != nil {
		return rules.NotReady
	}
	p.mu.Lock()
	listed := p.listed
	p.mu.Unlock()
	if len(statuses) > 0 && !sameBacking(statuses, listed) {
		return errors.New("device lists not updated yet")
	}
	return p.eachEndpoint((*endpoint).ready)
}

// sameBacking reports whether two slices share memory.
func sameBacking[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// Alive returns an error if a loop has stopped.
func (p *Plugin) Alive() error {
	return errors.Join(p.Heartbeat.Alive(), p.eachEndpoint(func(e *endpoint) error { return e.Alive() }))
}

func (p *Plugin) eachEndpoint(check func(*endpoint) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, resource := range slices.Sorted(maps.Keys(p.endpoints)) {
		if err := check(p.endpoints[resource]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", resource, err))
		}
	}
	return errors.Join(errs...)
}

// Run serves the devices until ctx is done.
func (p *Plugin) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	p.sockets = &folderWatch{dir: p.Dir, newWatcher: p.newWatcher, log: p.Log}
	group.Go(func() error { return p.sockets.run(ctx) })
	var last updateInput
	var next time.Time // of an update with the same input; zero: never
	for ctx.Err() == nil {
		p.Beat()
		statuses, statusesChanged := p.Devices.Get()
		rules, rulesChanged := p.Rules.Get()
		allocations, allocationsChanged := p.Allocations.Get()
		wait := retry.Aligned(heartbeatInterval)
		if statuses != nil && rules.NotReady == nil {
			input := updateInput{statuses, rulesChanged, allocations.All}
			isDue := !next.IsZero() && !time.Now().Before(next)
			if isDue || !input.equal(last) {
				next = p.update(ctx, group, rules, statuses, allocations)
				last = input
			}
			if !next.IsZero() {
				wait = min(wait, time.Until(next))
			}
		}
		select {
		case <-ctx.Done():
		case <-statusesChanged:
		case <-rulesChanged:
		case <-allocationsChanged:
		case <-time.After(wait):
		}
	}
	return group.Wait()
}

// updateInput is the input of an update. The kubelet's answers change all the
// time, and an update with many replicas takes tens of milliseconds, so Run
// leaves out an update with the same input.
type updateInput struct {
	statuses     []device.Status
	rulesChanged <-chan struct{}
	allocations  []allocation.Allocation
}

func (u updateInput) equal(other updateInput) bool {
	sameDevice := func(a, b allocation.Allocation) bool { return a.Resource == b.Resource && a.DeviceID == b.DeviceID }
	return sameBacking(u.statuses, other.statuses) && u.rulesChanged == other.rulesChanged &&
		slices.EqualFunc(u.allocations, other.allocations, sameDevice)
}

// update publishes each resource's list. The result is the time of the next
// update with the same input; zero: never.
func (p *Plugin) update(
	ctx context.Context, group *errgroup.Group, rules Rules, statuses []device.Status, allocations allocation.Snapshot,
) (next time.Time) {
	lists, warnings := rules.deviceLists(statuses)
	for _, w := range warnings {
		if !slices.Contains(p.loggedWarnings, w) {
			p.Log.Warn("devices not listed", "reason", w)
		}
	}
	p.loggedWarnings = warnings
	var added []*endpoint
	for _, resource := range slices.AppendSeq(withdrawnResources(lists, statuses, allocations), maps.Keys(lists)) {
		if p.endpoints[resource] != nil {
			continue
		}
		e := newEndpoint(p.Options, resource, p.sockets)
		p.mu.Lock()
		p.endpoints[resource] = e
		p.mu.Unlock()
		added = append(added, e)
	}
	for resource, e := range p.endpoints {
		list := lists[resource]
		if list == nil {
			list = &deviceList{rules: rules, withdrawn: true}
		}
		next = earlier(next, e.setDevices(list, statuses, allocations, time.Now()))
	}
	p.mu.Lock()
	p.listed = statuses
	p.mu.Unlock()
	for _, e := range added {
		group.Go(func() error { return e.run(ctx) })
	}
	return next
}
