package kubelet

import (
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/podgauge/podgauge/internal/retry"
)

// containerStartBackoff is the pause between two tries to start a container
// (pkg/kubelet/kubelet.go:223).
const containerStartBackoff = 10 * time.Second

// syncPods reads and admits the pods in turn: a hanging Allocate blocks all
// later pods.
//
// After a restart List is incomplete: empty for some 100 ms (in ten of ten
// restarts of a real kubelet), then without the API server's pods.
func (kp *kubeletProcess) syncPods(restarted bool) error {
	anyPod, static := func(*pod) bool { return true }, func(p *pod) bool { return p.Static }
	if restarted {
		empty, onlyStatic := 60*time.Millisecond+rand.N(60*time.Millisecond), 20*time.Millisecond
		if kp.options.ReadPodsAtOnce {
			empty, onlyStatic = 0, 0
		}
		if retry.Sleep(kp.ctx, empty) != nil {
			return nil
		}
		kp.admitAll(static)
		if retry.Sleep(kp.ctx, onlyStatic) != nil {
			return nil
		}
		kp.admitAll(anyPod)
	}
	kp.update(func() { kp.podsRead = kp.ctx.Err() == nil })
	for kp.ctx.Err() == nil {
		_, changed := kp.changes.Get()
		kp.admitAll(anyPod)
		select {
		case <-changed:
		case <-kp.ctx.Done():
		}
	}
	return nil
}

// admitAll admits the selected pods that have arrived.
func (kp *kubeletProcess) admitAll(selected func(*pod) bool) {
	for p := kp.nextUnread(selected); p != nil && kp.ctx.Err() == nil; p = kp.nextUnread(selected) {
		kp.admit(p)
	}
}

// nextUnread returns the oldest selected pod unknown to this kubelet. A new
// kubelet reads a rejected static pod again: only the old kubelet knew of the
// rejection.
func (kp *kubeletProcess) nextUnread(selected func(*pod) bool) *pod {
	kp.mu.Lock()
	defer kp.mu.Unlock()
	for _, p := range kp.pods {
		if !p.known && selected(p) && p.phase != phaseSucceeded && (p.phase != phaseFailed || p.Static) {
			return p
		}
	}
	return nil
}

// admit lists a pod, allocates devices and starts a worker. If the process ends
// first, the next process admits the pod.
func (kp *kubeletProcess) admit(p *pod) {
	kp.update(func() {
		p.known = true
		if p.phase == phaseFailed {
			p.phase, p.reason, p.message = phasePending, "", ""
		}
	})
	err := kp.allocatePod(p)
	switch {
	case kp.ctx.Err() != nil:
	case err != nil:
		kp.update(func() { // the text of pkg/kubelet/cm/admission/errors.go:41 after the text of rejectPod
			p.phase, p.reason = phaseFailed, reasonRejected
			p.message = fmt.Sprintf("Pod was rejected: Allocate failed due to %v, which is unexpected", err)
		})
	default:
		kp.tasks.Go(func() error { kp.runWorker(p); return nil })
	}
}

// runWorker starts a pod's containers, and removes the pod after its grace
// period. Each pod has a worker, so a hanging PreStartContainer blocks a single
// pod.
func (kp *kubeletProcess) runWorker(p *pod) {
	for kp.hasWork(p) {
		wait := time.Hour
		if kp.startContainers(p) != nil {
			wait = containerStartBackoff
		}
		kp.mu.Lock()
		if !p.deleteAt.IsZero() {
			if wait = time.Until(p.deleteAt); wait <= 0 {
				kp.removePod(p)
				kp.publish()
			}
		}
		kp.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-p.wakeup:
		case <-kp.ctx.Done():
		}
	}
}

func (kp *kubeletProcess) hasWork(p *pod) bool {
	kp.mu.Lock()
	defer kp.mu.Unlock()
	return kp.ctx.Err() == nil && p.isListed()
}

// startContainers starts the stopped containers: init containers in turn,
// regular containers in parallel.
func (kp *kubeletProcess) startContainers(p *pod) error {
	kp.update(func() { p.claimsPrepared = true }) // PrepareDynamicResources in SyncPod, pkg/kubelet/kubelet.go
	var parallel errgroup.Group
	for _, c := range p.orderedContainers() {
		if !c.init {
			parallel.Go(func() error { return kp.startContainer(p, c) })
		} else if err := kp.startContainer(p, c); err != nil {
			return err
		}
	}
	err := parallel.Wait()
	kp.update(func() {
		if err == nil && p.phase == phasePending {
			p.phase = phaseRunning
		}
	})
	return err
}

func (kp *kubeletProcess) startContainer(p *pod, c orderedContainer) error {
	s := p.states[c.Name]
	kp.mu.Lock()
	skip := s.running || s.completed || !p.deleteAt.IsZero()
	kp.mu.Unlock()
	if skip {
		return nil
	}
	err := kp.preStart(p, c)
	if kp.ctx.Err() != nil {
		return kp.ctx.Err()
	}
	kp.update(func() {
		if s.waitingReason = ""; err != nil {
			s.waitingReason = err.Error()
			return
		}
		s.recordStart()
		if s.completed = c.reusable(); s.completed {
			s.recordExit(ContainerExit{})
		}
		s.running = !s.completed && !p.removed
	})
	return err
}
