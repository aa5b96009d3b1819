package kubelet

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// AdmissionError is the error of a rejected pod.
type AdmissionError struct {
	Pod             string // namespace/name
	Reason, Message string // of the pod's status
}

func (r *AdmissionError) Error() string {
	return fmt.Sprintf("pod %s: %s: %s", r.Pod, r.Reason, r.Message)
}

// RunPod adds a pod and returns when all containers were started, or with an
// *AdmissionError. Without a kubelet process RunPod waits. If ctx ends first,
// the pod stays.
func (k *Kubelet) RunPod(ctx context.Context, spec PodSpec) error {
	p := newPod(spec)
	if err := k.addPod(p); err != nil {
		return err
	}
	var outcome error
	err := k.node.waitUntil(ctx, func() bool {
		k.node.mu.Lock()
		defer k.node.mu.Unlock()
		switch {
		case p.phase == phaseFailed:
			outcome = &AdmissionError{Pod: p.key(), Reason: p.reason, Message: p.message}
		case p.phase == phasePending && p.removed:
			outcome = fmt.Errorf("run pod %s: deleted: %w", p.key(), ErrNoPod)
		case p.phase == phasePending:
			return false
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("run pod %s: %w", p.key(), err)
	}
	return outcome
}

// addPod replaces an ended pod of the same name.
func (k *Kubelet) addPod(p *pod) error {
	k.node.mu.Lock()
	defer k.node.mu.Unlock()
	if old := k.node.findPod(p.Namespace, p.Name); old != nil {
		if !old.isFinished() {
			return fmt.Errorf("run pod %s: a pod of the name is running", p.key())
		}
		k.node.removePod(old)
	}
	k.node.pods = append(k.node.pods, p)
	k.node.publish()
	return nil
}

// EndPod ends a pod as if the containers had exited with status 0.
func (k *Kubelet) EndPod(spec PodSpec) error { return k.EndPodWith(spec, PodEnd{}) }

// EndPodWith ends a pod in the given way. The pod leaves List and Get and the
// devices are freed; the Pods API returns the pod until deletion or reuse of
// the name.
func (k *Kubelet) EndPodWith(spec PodSpec, end PodEnd) error {
	return k.node.updatePod(spec, func(p *pod) { p.end(end) })
}

// DeletePod deletes a pod. A pod of the API server stays listed with the
// devices until the grace period ends. A static pod leaves List at once, and
// the devices are free while the containers still run.
func (k *Kubelet) DeletePod(spec PodSpec) error {
	return k.node.updatePod(spec, func(p *pod) {
		if p.Static || p.GracePeriod == 0 || p.isFinished() {
			k.node.removePod(p)
		} else if p.deleteAt.IsZero() {
			p.deleteAt = time.Now().Add(p.GracePeriod)
		}
	})
}

// RestartContainer kills a container and returns after the next start.
func (k *Kubelet) RestartContainer(ctx context.Context, spec PodSpec, container string) error {
	return k.CrashContainer(ctx, spec, container, ContainerExit{Code: exitSIGKILL})
}

// CrashContainer ends a container and returns after the next start.
func (k *Kubelet) CrashContainer(ctx context.Context, spec PodSpec, container string, exit ContainerExit) error {
	var s *containerState
	starts := 0
	err := k.node.updatePod(spec, func(p *pod) {
		if s = p.states[container]; s != nil {
			s.recordExit(exit)
			starts, s.running, s.completed = s.starts, false, false
		}
	})
	if err == nil && s == nil {
		err = errors.New("no such container")
	}
	if err == nil {
		err = k.node.waitUntil(ctx, func() (done bool) {
			k.node.locked(func() { done = s.starts > starts })
			return done
		})
	}
	if err != nil {
		return fmt.Errorf("restart container %s of pod %s: %w", container, spec.Name, err)
	}
	return nil
}

// SetFaults replaces the faults.
func (k *Kubelet) SetFaults(f Faults) { k.node.update(func() { k.node.faults = f }) }

// CutStreams cuts the connections to a resource's plugins.
func (k *Kubelet) CutStreams(resource string) {
	k.node.locked(func() {
		if k.process == nil {
			return
		}
		for _, c := range k.process.conns {
			if c.resource == resource {
				_ = c.conn.Close()
			}
		}
	})
}
