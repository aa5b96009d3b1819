package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const preStartTimeout = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second

// allocatePod allocates the devices of a pod's containers. Regular init
// containers pass devices on to later containers (manager.go:392).
func (kp *kubeletProcess) allocatePod(p *pod) error {
	reusable := map[string]idSet{}
	for _, c := range p.orderedContainers() {
		if err := kp.allocateContainer(p, c, reusable); err != nil {
			return err
		}
		kp.mu.Lock()
		for resource := range c.Limits {
			ids := kp.allocations[allocatedTo{p.uid, c.Name, resource}].ids()
			if c.reusable() {
				reusable[resource] = reusable[resource].union(ids)
			} else {
				reusable[resource] = reusable[resource].without(ids)
			}
		}
		kp.mu.Unlock()
	}
	return nil
}

// allocateContainer calls Allocate once for each resource with a plugin, and
// skips resources without (manager.go:880,
// pkg/kubelet/lifecycle/predicate.go:346). Unless all calls succeed the
// checkpoint is not written, and the rejected pod frees the allocations
// (manager.go:958).
func (kp *kubeletProcess) allocateContainer(p *pod, c orderedContainer, reusable map[string]idSet) error {
	kp.update(kp.releaseEnded)
	allocated := false
	for resource, count := range c.Limits {
		chosen, err := kp.pickDevices(p, c, resource, count, reusable[resource])
		if err == nil && len(chosen) > 0 {
			err = kp.allocate(allocatedTo{p.uid, c.Name, resource}, chosen)
			allocated = true
		}
		if err != nil {
			return err
		}
	}
	if allocated {
		kp.update(kp.writeCheckpoint)
	}
	return nil
}

// releaseEnded frees the devices of pods that List no longer includes, after
// all pods are read (manager.go:582).
func (kp *kubeletProcess) releaseEnded() {
	if !kp.podsRead {
		return
	}
	listed := map[string]bool{}
	for _, p := range kp.pods {
		listed[p.uid] = p.isListed()
	}
	before := len(kp.allocations)
	maps.DeleteFunc(kp.allocations, func(to allocatedTo, _ containerAllocation) bool { return !listed[to.podUID] })
	if len(kp.allocations) < before {
		kp.recountAllocated()
	}
}

// pickDevices picks and marks the missing devices of a container
// (manager.go:604).
func (kp *kubeletProcess) pickDevices(
	p *pod, c orderedContainer, resource string, count int, reusable idSet,
) (idSet, error) {
	kp.mu.Lock()
	defer kp.mu.Unlock()
	if !kp.isDeviceResource(resource) {
		return nil, nil
	}
	need, err := kp.devicesNeeded(p, c, resource, count)
	if err != nil || need == 0 {
		return nil, err
	}
	chosen := idSet{}
	take := func(from idSet) {
		for id := range from {
			if len(chosen) < need {
				chosen.add(id)
			}
		}
		kp.allocated[resource] = kp.allocated[resource].union(chosen)
	}
	if take(reusable); len(chosen) == need {
		return chosen, nil
	}
	available := kp.healthy[resource].without(kp.allocated[resource])
	if missing := need - len(chosen); len(available) < missing {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", resource,
			missing, len(available))
	}
	preferred, err := kp.preferredDevices(resource, available, chosen, count)
	if err != nil {
		return nil, err
	}
	take(available.without(available.without(preferred)))
	take(available)
	return chosen, nil
}

// devicesNeeded returns how many devices a container still needs. Pods that
// start before the plugin get an error.
func (kp *kubeletProcess) devicesNeeded(p *pod, c orderedContainer, resource string, count int) (int, error) {
	have := kp.allocations[allocatedTo{p.uid, c.Name, resource}].ids()
	if !kp.podsRead && p.states[c.Name].running { // since before this kubelet
		return 0, nil
	}
	healthy, registered := kp.healthy[resource]
	switch {
	case !registered:
		return 0, fmt.Errorf("cannot allocate unregistered device %s", resource)
	case len(healthy) == 0:
		return 0, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", resource)
	case len(have.without(healthy)) > 0:
		return 0, fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s",
			resource)
	}
	return count - len(have), nil
}

// preferredDevices calls GetPreferredAllocation if the plugin's options ask for
// the call, even without a choice. The call has no deadline (manager.go:1053).
// mu is held, and released during the call.
func (kp *kubeletProcess) preferredDevices(resource string, available, chosen idSet, count int) (idSet, error) {
	e, err := kp.endpoint(resource)
	if e == nil || !e.options.GetGetPreferredAllocationAvailable() {
		return nil, err
	}
	var response *pluginapi.PreferredAllocationResponse
	if err == nil {
		container := &pluginapi.ContainerPreferredAllocationRequest{
			AvailableDeviceIDs: available.union(chosen).list(), MustIncludeDeviceIDs: chosen.list(),
			AllocationSize: int32(count),
		}
		request := &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{container},
		}
		kp.mu.Unlock()
		response, err = e.api.GetPreferredAllocation(kp.ctx, request)
		kp.mu.Lock()
	}
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	preferred := idSet{}
	if len(response.ContainerResponses) > 0 {
		preferred.add(response.ContainerResponses[0].DeviceIDs...)
	}
	return preferred, nil
}

// allocate calls Allocate without a lock or a deadline, and records the
// allocation after the response: List called during Allocate has the pod
// without the device (manager.go:898-953).
func (kp *kubeletProcess) allocate(to allocatedTo, chosen idSet) error {
	kp.mu.Lock()
	e, err := kp.endpoint(to.resource)
	kp.mu.Unlock()
	var response *pluginapi.AllocateResponse
	if err == nil {
		request := &pluginapi.AllocateRequest{
			ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: chosen.list()}},
		}
		response, err = e.api.Allocate(kp.ctx, request)
	}
	kp.mu.Lock()
	defer kp.mu.Unlock()
	defer kp.publish()
	if err != nil {
		kp.recountAllocated()
		return err
	}
	if len(response.ContainerResponses) == 0 {
		return fmt.Errorf("no containers return in allocation response %v", response)
	}
	for id := range chosen {
		if kp.devices[to.resource][id] == nil { // the real kubelet dereferences the Topology of nil (v1.37.1, observed)
			const message = "kubelet crashed: device %s of %s was dropped from the list during its Allocate " +
				"(manager.go:945)"
			return kp.crash(fmt.Errorf(message, id, to.resource))
		}
	}
	kp.allocations[to] = containerAllocation{kp.groupByNode(to.resource, chosen), response.ContainerResponses[0]}
	return nil
}

// preStart calls PreStartContainer before the start of a container, for plugins
// with that option (manager.go:980).
func (kp *kubeletProcess) preStart(p *pod, c orderedContainer) error {
	for resource, count := range c.Limits {
		kp.mu.Lock()
		e, err := kp.endpoint(resource)
		skip := count == 0 || !kp.isDeviceResource(resource) || e != nil && !e.options.GetPreStartRequired()
		ids := slices.Sorted(maps.Keys(kp.allocations[allocatedTo{p.uid, c.Name, resource}].ids()))
		kp.mu.Unlock()
		switch {
		case skip:
			continue
		case e == nil: // since the end of the grace period
			return err
		case len(ids) == 0:
			return fmt.Errorf("no devices found allocated in local cache for pod %s, container %s, resource %s", p.uid,
				c.Name, resource)
		case err == nil:
			ctx, cancel := context.WithTimeoutCause(kp.ctx, preStartTimeout,
				errors.New("PreStartContainer took too long"))
			_, err = e.api.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
			cancel()
		}
		if err != nil {
			return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
		}
	}
	return nil
}
