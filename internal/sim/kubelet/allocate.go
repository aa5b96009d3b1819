package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// allocatePod gives every container of a pod its devices, or says why not. What an init
// container has got is there for the containers after it, unless it is a sidecar
// (manager.go:392).
func (l *life) allocatePod(ctx context.Context, p *pod) error {
	spare := map[string]ids{}
	if err := l.portionOutPod(p); err != nil {
		return err
	}
	for _, c := range p.all() {
		if err := l.allocateContainer(ctx, p, c, spare); err != nil {
			return err
		}
		l.k.mu.Lock()
		if !c.init || c.Sidecar {
			if err := l.k.portionOut(p, c.Name, c.CPUs, c.Memory); err != nil {
				l.k.mu.Unlock()
				return err
			}
		}
		for resource, h := range l.held[p.uid][c.Name] {
			if spare[resource] == nil {
				spare[resource] = ids{}
			}
			if c.init && !c.Sidecar {
				spare[resource].add(h.ids()...)
			} else {
				spare[resource] = spare[resource].without(setOf(h.ids()))
			}
		}
		l.k.mu.Unlock()
	}
	return nil
}

// portionOutPod gives a pod what it asks for as a whole.
func (l *life) portionOutPod(p *pod) error {
	if !l.k.options.PodLevel || l.k.options.Version == V136 {
		return nil
	}
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	return l.k.portionOut(p, "", p.CPUs, p.Memory)
}

func setOf(list []string) ids {
	s := ids{}
	s.add(list...)
	return s
}

// allocateContainer makes one Allocate call for each resource. A resource that no plugin has
// registered is nobody's business: the container will run without it (manager.go:880, and
// pkg/kubelet/lifecycle/predicate.go:346, which lets it pass). What was allocated is written
// down when all of them have: where one fails, what the others gave is in memory alone, until
// somebody has it freed (manager.go:958).
func (l *life) allocateContainer(ctx context.Context, p *pod, c container, spare map[string]ids) error {
	l.k.update(l.freeEnded)
	allocated := false
	for resource, n := range c.Limits {
		l.k.mu.Lock()
		ours := l.isDeviceResource(resource)
		l.k.mu.Unlock()
		if !ours {
			continue
		}
		chosen, err := l.choose(ctx, p, c, resource, n, spare[resource])
		if err != nil {
			return err
		}
		if len(chosen) == 0 {
			continue
		}
		if err := l.allocate(ctx, p, c, resource, chosen); err != nil {
			return err
		}
		allocated = true
	}
	if allocated {
		l.k.update(l.writeCheckpoint)
	}
	return nil
}

// freeEnded frees what pods hold that are listed no more. It is called where somebody needs to
// know, and does nothing until all pods have been read after a start (manager.go:582).
func (l *life) freeEnded() {
	if !l.ready {
		return
	}
	listed := map[string]bool{}
	for _, p := range l.k.pods {
		listed[p.uid] = l.lists(p)
	}
	maps.DeleteFunc(l.k.portions, func(uid string, _ map[string]portion) bool { return !listed[uid] })
	before := len(l.held)
	maps.DeleteFunc(l.held, func(uid string, _ map[string]map[string]holding) bool { return !listed[uid] })
	if len(l.held) < before {
		l.recount()
	}
}

// choose picks n devices, or none where the container has its devices already (manager.go:604).
// They count as allocated from here on.
func (l *life) choose(ctx context.Context, p *pod, c container, resource string, n int, spare ids) (ids, error) {
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	need, err := l.need(p, c, resource, n)
	if err != nil || need == 0 {
		return nil, err
	}
	chosen := ids{}
	take := func(from ids) {
		if l.allocated[resource] == nil {
			l.allocated[resource] = ids{}
		}
		for id := range from {
			if len(chosen) < need {
				chosen.add(id)
				l.allocated[resource].add(id)
			}
		}
	}
	if take(spare); len(chosen) == need {
		return chosen, nil
	}
	available := l.healthy[resource].without(l.allocated[resource])
	if missing := need - len(chosen); len(available) < missing {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", resource, missing, len(available))
	}
	preferred, err := l.prefer(ctx, resource, available, chosen, n)
	if err != nil {
		return nil, err
	}
	take(available.without(available.without(preferred)))
	take(available)
	return chosen, nil
}

// need is how many devices a container still needs. Its errors are those that a pod meets when
// it comes before its plugin, as after a reboot.
func (l *life) need(p *pod, c container, resource string, n int) (int, error) {
	have := ids{}
	if h, ok := l.held[p.uid][c.Name][resource]; ok {
		have.add(h.ids()...)
		if len(have) != n {
			return 0, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", p.uid, c.Name, resource, len(have), n)
		}
	}
	if !l.ready && p.state[c.Name].running {
		return 0, nil // the kubelet was restarted under it
	}
	healthy, registered := l.healthy[resource]
	switch {
	case !registered:
		return 0, fmt.Errorf("cannot allocate unregistered device %s", resource)
	case len(healthy) == 0:
		return 0, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", resource)
	case len(have.without(healthy)) > 0:
		return 0, fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", resource)
	}
	return n - len(have), nil
}

// prefer asks the plugin which devices it would take, if it has said that it wants to be asked:
// also where there is nothing to choose. mu is held, and released during the call, which has no
// deadline (manager.go:1053).
func (l *life) prefer(ctx context.Context, resource string, available, chosen ids, n int) (ids, error) {
	e := l.endpoints[resource]
	if e == nil {
		return nil, fmt.Errorf("endpoint not found in cache for a registered resource: %s", resource)
	}
	if !e.options.GetGetPreferredAllocationAvailable() {
		return nil, nil
	}
	all := maps.Clone(available)
	maps.Copy(all, chosen)
	request := &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: all.list(), MustIncludeDeviceIDs: chosen.list(), AllocationSize: int32(n),
	}}}
	err := e.isStopped()
	l.k.mu.Unlock()
	var answer *pluginapi.PreferredAllocationResponse
	if err == nil {
		answer, err = e.client.api.GetPreferredAllocation(ctx, request)
	}
	l.k.mu.Lock()
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	preferred := ids{}
	if len(answer.ContainerResponses) > 0 {
		preferred.add(answer.ContainerResponses[0].DeviceIDs...)
	}
	return preferred, nil
}

// isStopped is an error where the plugin has gone. mu is held.
func (e *endpoint) isStopped() error {
	if e.stopped.IsZero() {
		return nil
	}
	return fmt.Errorf("endpoint %v has been stopped", e.resource)
}

// allocate tells the plugin, without a lock and without a deadline, and records the allocation
// when the plugin has answered and no earlier: who calls List from within Allocate sees the pod
// without its device (manager.go:898-953).
func (l *life) allocate(ctx context.Context, p *pod, c container, resource string, chosen ids) error {
	l.k.mu.Lock()
	e, err := l.endpoints[resource], error(nil)
	if e == nil {
		err = fmt.Errorf("unknown Device Plugin %s", resource)
	} else {
		err = e.isStopped()
	}
	l.k.mu.Unlock()
	var answer *pluginapi.AllocateResponse
	if err == nil {
		answer, err = e.client.api.Allocate(ctx, &pluginapi.AllocateRequest{
			ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: chosen.list()}},
		})
	}
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	defer l.k.tell()
	if err != nil {
		l.recount()
		return err
	}
	if len(answer.ContainerResponses) == 0 {
		return fmt.Errorf("no containers return in allocation response %v", answer)
	}
	for id := range chosen {
		if l.devices[resource][id] == nil {
			return l.crash(fmt.Errorf("kubelet crashed: device %s of %s was dropped from the list during its Allocate (manager.go:945)", id, resource))
		}
	}
	l.hold(p.uid, c.Name, resource, holding{devices: l.byNode(resource, chosen), answer: answer.ContainerResponses[0]})
	return nil
}

// crash ends Run with an error. The real kubelet looks up each device's Topology after Allocate
// without asking whether it is still there, and dies of a nil pointer (v1.37.1, tried). A
// plugin must never drop a device that may be in an Allocate. mu is held.
func (l *life) crash(err error) error {
	for _, c := range l.conns {
		c.cut()
	}
	l.tasks.Go(func() error { return err })
	<-l.ctx.Done() // so that nobody takes err for the pod's fault
	return err
}

// byNode sorts devices by their NUMA nodes. A device may be on several; one whose Topology has
// no nodes is as good as one without.
func (l *life) byNode(resource string, chosen ids) map[int64][]string {
	sorted := map[int64][]string{}
	for id := range chosen {
		nodes := l.devices[resource][id].GetTopology().GetNodes()
		if len(nodes) == 0 {
			sorted[noNode] = append(sorted[noNode], id)
		}
		for _, node := range nodes {
			sorted[node.ID] = append(sorted[node.ID], id)
		}
	}
	return sorted
}

// prestart is what happens to a container's devices before each of its starts (manager.go:980):
// PreStartContainer where the plugin wants it, and a late allocation where the resource was
// nobody's business at admission and is now.
func (l *life) prestart(ctx context.Context, p *pod, c container) error {
	late := false
	for resource, n := range c.Limits {
		l.k.mu.Lock()
		ours := n > 0 && l.isDeviceResource(resource)
		e, h := l.endpoints[resource], l.held[p.uid][c.Name][resource]
		l.k.mu.Unlock()
		if !ours {
			continue
		}
		if e == nil { // five minutes after the plugin went
			return fmt.Errorf("endpoint not found in cache for a registered resource: %s", resource)
		}
		if e.options.GetPreStartRequired() {
			if err := l.callPreStart(ctx, p, c, e, h); err != nil {
				return err
			}
		}
		late = late || h.devices == nil
	}
	if !late {
		return nil
	}
	return l.allocateContainer(ctx, p, c, nil)
}

func (l *life) callPreStart(ctx context.Context, p *pod, c container, e *endpoint, h holding) error {
	if h.devices == nil {
		return fmt.Errorf("no devices found allocated in local cache for pod %s, container %s, resource %s", p.uid, c.Name, e.resource)
	}
	l.k.mu.Lock()
	err := e.isStopped()
	l.k.mu.Unlock()
	if err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, prestartTimeout, errors.New("PreStartContainer took too long"))
		defer cancel()
		_, err = e.client.api.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: h.ids()})
	}
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}
