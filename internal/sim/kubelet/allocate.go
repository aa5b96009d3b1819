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
func (kp *kubeletProcess) allocatePod(ctx context.Context, p *pod) error {
	reusable := map[string]idSet{}
	for _, c := range p.orderedContainers() {
		if err := kp.allocateContainer(ctx, p, c, reusable); err != nil {
			return err
		}
		kp.k.mu.Lock()
		for resource, h := range kp.allocations[p.uid][c.Name] {
			if reusable[resource] == nil {
				reusable[resource] = idSet{}
			}
			if c.init && !c.Sidecar {
				reusable[resource].add(h.deviceIDs()...)
			} else {
				reusable[resource] = reusable[resource].without(newIDSet(h.deviceIDs()))
			}
		}
		kp.k.mu.Unlock()
	}
	return nil
}

func newIDSet(list []string) idSet {
	s := idSet{}
	s.add(list...)
	return s
}

// allocateContainer makes one Allocate call for each resource. A resource that no plugin has
// registered is nobody's business: the container will run without it (manager.go:880, and
// pkg/kubelet/lifecycle/predicate.go:346, which lets it pass). What was allocated is written
// down when all of them have: where one fails, what the others gave is in memory alone, until
// somebody has it freed (manager.go:958).
func (kp *kubeletProcess) allocateContainer(ctx context.Context, p *pod, c orderedContainer, reusable map[string]idSet) error {
	kp.k.update(kp.releaseEnded)
	allocated := false
	for resource, n := range c.Limits {
		kp.k.mu.Lock()
		managed := kp.isDeviceResource(resource)
		kp.k.mu.Unlock()
		if !managed {
			continue
		}
		chosen, err := kp.pickDevices(ctx, p, c, resource, n, reusable[resource])
		if err != nil {
			return err
		}
		if len(chosen) == 0 {
			continue
		}
		if err := kp.allocate(ctx, p, c, resource, chosen); err != nil {
			return err
		}
		allocated = true
	}
	if allocated {
		kp.k.update(kp.writeCheckpoint)
	}
	return nil
}

// releaseEnded frees what pods hold that are listed no more. It is called where somebody needs to
// know, and does nothing until all pods have been read after a start (manager.go:582).
func (kp *kubeletProcess) releaseEnded() {
	if !kp.podsRead {
		return
	}
	listed := map[string]bool{}
	for _, p := range kp.k.pods {
		listed[p.uid] = kp.isListed(p)
	}
	before := len(kp.allocations)
	maps.DeleteFunc(kp.allocations, func(uid string, _ map[string]map[string]containerAllocation) bool { return !listed[uid] })
	if len(kp.allocations) < before {
		kp.recountAllocated()
	}
}

// pickDevices picks n devices, or none where the container has its devices already (manager.go:604).
// They count as allocated from here on.
func (kp *kubeletProcess) pickDevices(ctx context.Context, p *pod, c orderedContainer, resource string, n int, reusable idSet) (idSet, error) {
	kp.k.mu.Lock()
	defer kp.k.mu.Unlock()
	need, err := kp.devicesNeeded(p, c, resource, n)
	if err != nil || need == 0 {
		return nil, err
	}
	chosen := idSet{}
	take := func(from idSet) {
		if kp.allocated[resource] == nil {
			kp.allocated[resource] = idSet{}
		}
		for id := range from {
			if len(chosen) < need {
				chosen.add(id)
				kp.allocated[resource].add(id)
			}
		}
	}
	if take(reusable); len(chosen) == need {
		return chosen, nil
	}
	available := kp.healthy[resource].without(kp.allocated[resource])
	if missing := need - len(chosen); len(available) < missing {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", resource, missing, len(available))
	}
	preferred, err := kp.preferredDevices(ctx, resource, available, chosen, n)
	if err != nil {
		return nil, err
	}
	take(available.without(available.without(preferred)))
	take(available)
	return chosen, nil
}

// devicesNeeded is how many devices a container still needs. Its errors are those that a pod meets when
// it comes before its plugin, as after a reboot.
func (kp *kubeletProcess) devicesNeeded(p *pod, c orderedContainer, resource string, n int) (int, error) {
	have := idSet{}
	if h, ok := kp.allocations[p.uid][c.Name][resource]; ok {
		have.add(h.deviceIDs()...)
		if len(have) != n {
			return 0, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", p.uid, c.Name, resource, len(have), n)
		}
	}
	if !kp.podsRead && p.state[c.Name].running {
		return 0, nil // the kubelet was restarted under it
	}
	healthy, registered := kp.healthy[resource]
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

// preferredDevices asks the plugin which devices it would take, if it has said that it wants to be asked:
// also where there is nothing to choose. mu is held, and released during the call, which has no
// deadline (manager.go:1053).
func (kp *kubeletProcess) preferredDevices(ctx context.Context, resource string, available, chosen idSet, n int) (idSet, error) {
	e := kp.endpoints[resource]
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
	err := e.stoppedErr()
	kp.k.mu.Unlock()
	var answer *pluginapi.PreferredAllocationResponse
	if err == nil {
		answer, err = e.client.api.GetPreferredAllocation(ctx, request)
	}
	kp.k.mu.Lock()
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	preferred := idSet{}
	if len(answer.ContainerResponses) > 0 {
		preferred.add(answer.ContainerResponses[0].DeviceIDs...)
	}
	return preferred, nil
}

// stoppedErr is an error where the plugin has gone. mu is held.
func (e *pluginEndpoint) stoppedErr() error {
	if e.stoppedAt.IsZero() {
		return nil
	}
	return fmt.Errorf("endpoint %v has been stopped", e.resource)
}

// allocate tells the plugin, without a lock and without a deadline, and records the allocation
// when the plugin has answered and no earlier: who calls List from within Allocate sees the pod
// without its device (manager.go:898-953).
func (kp *kubeletProcess) allocate(ctx context.Context, p *pod, c orderedContainer, resource string, chosen idSet) error {
	kp.k.mu.Lock()
	e, err := kp.endpoints[resource], error(nil)
	if e == nil {
		err = fmt.Errorf("unknown Device Plugin %s", resource)
	} else {
		err = e.stoppedErr()
	}
	kp.k.mu.Unlock()
	var answer *pluginapi.AllocateResponse
	if err == nil {
		answer, err = e.client.api.Allocate(ctx, &pluginapi.AllocateRequest{
			ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: chosen.list()}},
		})
	}
	kp.k.mu.Lock()
	defer kp.k.mu.Unlock()
	defer kp.k.notify()
	if err != nil {
		kp.recountAllocated()
		return err
	}
	if len(answer.ContainerResponses) == 0 {
		return fmt.Errorf("no containers return in allocation response %v", answer)
	}
	for id := range chosen {
		if kp.devices[resource][id] == nil {
			return kp.failProcess(fmt.Errorf("kubelet crashed: device %s of %s was dropped from the list during its Allocate (manager.go:945)", id, resource))
		}
	}
	kp.recordAllocation(p.uid, c.Name, resource, containerAllocation{devices: kp.groupByNode(resource, chosen), response: answer.ContainerResponses[0]})
	return nil
}

// failProcess ends Run with an error. The real kubelet looks up each device's Topology after Allocate
// without asking whether it is still there, and dies of a nil pointer (v1.37.1, tried). A
// plugin must never drop a device that may be in an Allocate. mu is held.
func (kp *kubeletProcess) failProcess(err error) error {
	for _, c := range kp.conns {
		c.cutConnections()
	}
	kp.tasks.Go(func() error { return err })
	<-kp.ctx.Done() // so that nobody takes err for the pod's fault
	return err
}

// groupByNode sorts devices by their NUMA nodes. A device may be on several; one whose Topology has
// no nodes is as good as one without.
func (kp *kubeletProcess) groupByNode(resource string, chosen idSet) map[int64][]string {
	sorted := map[int64][]string{}
	for id := range chosen {
		nodes := kp.devices[resource][id].GetTopology().GetNodes()
		if len(nodes) == 0 {
			sorted[noNUMANode] = append(sorted[noNUMANode], id)
		}
		for _, node := range nodes {
			sorted[node.ID] = append(sorted[node.ID], id)
		}
	}
	return sorted
}

// preStart is what happens to a container's devices before each of its starts (manager.go:980):
// PreStartContainer where the plugin wants it, and a late allocation where the resource was
// nobody's business at admission and is now.
func (kp *kubeletProcess) preStart(ctx context.Context, p *pod, c orderedContainer) error {
	late := false
	for resource, n := range c.Limits {
		kp.k.mu.Lock()
		managed := n > 0 && kp.isDeviceResource(resource)
		e, h := kp.endpoints[resource], kp.allocations[p.uid][c.Name][resource]
		kp.k.mu.Unlock()
		if !managed {
			continue
		}
		if e == nil { // five minutes after the plugin went
			return fmt.Errorf("endpoint not found in cache for a registered resource: %s", resource)
		}
		if e.options.GetPreStartRequired() {
			if err := kp.callPreStart(ctx, p, c, e, h); err != nil {
				return err
			}
		}
		late = late || h.devices == nil
	}
	if !late {
		return nil
	}
	return kp.allocateContainer(ctx, p, c, nil)
}

func (kp *kubeletProcess) callPreStart(ctx context.Context, p *pod, c orderedContainer, e *pluginEndpoint, h containerAllocation) error {
	if h.devices == nil {
		return fmt.Errorf("no devices found allocated in local cache for pod %s, container %s, resource %s", p.uid, c.Name, e.resource)
	}
	kp.k.mu.Lock()
	err := e.stoppedErr()
	kp.k.mu.Unlock()
	if err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, preStartTimeout, errors.New("PreStartContainer took too long"))
		defer cancel()
		_, err = e.client.api.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: h.deviceIDs()})
	}
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}
