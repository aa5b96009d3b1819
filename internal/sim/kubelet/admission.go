package kubelet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// isListed says whether List shows a pod: from the moment it was read from its source, before its
// admission, until it has ended or failed (pkg/kubelet/kubelet_pods.go:1163). mu is held.
func (kp *kubeletProcess) isListed(p *pod) bool {
	return kp.knownPods[p] && p.phase != phaseSucceeded && p.phase != phaseFailed && slices.Contains(kp.k.pods, p)
}

// syncPods reads the node's pods from their sources and admits them, one at a time: an Allocate
// that hangs holds up every pod after it.
func (kp *kubeletProcess) syncPods(restarted bool) error {
	if restarted {
		if err := kp.readExistingPods(); err != nil {
			return nil // the life is over
		}
	}
	kp.k.update(func() { kp.podsRead = true })
	for {
		var next *pod
		err := kp.k.waitUntil(kp.ctx, func() bool {
			next = kp.nextUnread(func(*pod) bool { return true })
			return next != nil
		})
		if err != nil {
			return nil
		}
		kp.admit(next)
	}
}

// readExistingPods is the time after a start in which List is no witness: empty for some 100 ms (10
// of 10 restarts of a real one), then the static pods, then the API server's.
func (kp *kubeletProcess) readExistingPods() error {
	o, trouble := kp.k.options, kp.k.currentFaults()
	if o.EmptyListFor == 0 {
		o.EmptyListFor = 60*time.Millisecond + rand.N(60*time.Millisecond)
	}
	if o.APIPodsDelay == 0 {
		o.APIPodsDelay = 20 * time.Millisecond
	}
	static := func(p *pod) bool { return p.Static }
	if err := errors.Join(sleep(kp.ctx, o.EmptyListFor), waitRelease(kp.ctx, trouble.HoldStaticPods)); err != nil {
		return err
	}
	kp.admitAll(static)
	if err := errors.Join(sleep(kp.ctx, o.APIPodsDelay), kp.admitUntil(trouble.HoldAPIPods, static)); err != nil {
		return err
	}
	kp.admitAll(func(*pod) bool { return true })
	return nil
}

// admitUntil admits pods of one source, those that come too, until the other one is held up no
// more: an API server that is away for an hour holds up its own pods, and no static one. Until
// then nothing is freed (manager.go:582).
func (kp *kubeletProcess) admitUntil(released <-chan struct{}, wanted func(*pod) bool) error {
	for released != nil {
		kp.k.mu.Lock()
		next, changed := kp.nextUnread(wanted), kp.k.changed
		kp.k.mu.Unlock()
		if next != nil {
			kp.admit(next)
			continue
		}
		select {
		case <-released:
			return nil
		case <-changed:
		case <-kp.ctx.Done():
			return context.Cause(kp.ctx)
		}
	}
	return nil
}

func (kp *kubeletProcess) admitAll(wanted func(*pod) bool) {
	for kp.ctx.Err() == nil {
		kp.k.mu.Lock()
		p := kp.nextUnread(wanted)
		kp.k.mu.Unlock()
		if p == nil {
			return
		}
		kp.admit(p)
	}
}

// nextUnread is the oldest pod that this kubelet has not read and that has not ended. mu is held. A
// static pod that was rejected is one again in the eyes of a new kubelet, since nobody but the
// old one knew.
func (kp *kubeletProcess) nextUnread(wanted func(*pod) bool) *pod {
	for _, p := range kp.k.pods {
		if !kp.knownPods[p] && wanted(p) && p.phase != phaseSucceeded && (p.phase != phaseFailed || p.Static) {
			return p
		}
	}
	return nil
}

// admit lists a pod, allocates its devices and hands it to a worker. Where the life ends
// meanwhile the pod is the next life's.
func (kp *kubeletProcess) admit(p *pod) {
	kp.k.update(func() {
		kp.knownPods[p] = true
		if p.phase == phaseFailed {
			p.phase, p.reason, p.message = phasePending, "", ""
		}
	})
	err := kp.allocatePod(kp.ctx, p)
	if kp.ctx.Err() != nil {
		return
	}
	if err != nil {
		kp.k.options.Log.Info("pod rejected", "pod", p.key(), "error", err)
		kp.k.update(func() {
			// The words are those of pkg/kubelet/cm/admission/errors.go:41, behind those of
			// rejectPod.
			p.phase, p.reason = phaseFailed, "UnexpectedAdmissionError"
			p.message = fmt.Sprintf("Pod was rejected: Allocate failed due to %v, which is unexpected", err)
		})
		return
	}
	kp.k.options.Log.Info("pod admitted", "pod", p.key())
	kp.tasks.Go(func() error { kp.runWorker(p); return nil })
}

// The times that a pod's worker keeps.
const (
	containerStartBackoff = 10 * time.Second // between two tries to start a container (pkg/kubelet/kubelet.go:223)
	preStartTimeout       = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
)

// runWorker keeps a pod's containers started, and removes the pod when its grace is over. Each pod
// has its own worker: one that waits for a plugin's PreStartContainer holds up nobody else.
func (kp *kubeletProcess) runWorker(p *pod) {
	for kp.hasWork(p) {
		wait := time.Hour // nothing to do until somebody kicks
		if err := kp.startContainers(p); err != nil {
			wait = containerStartBackoff
		}
		kp.k.mu.Lock()
		if !p.deleteAt.IsZero() {
			wait = time.Until(p.deleteAt)
		}
		if !p.deleteAt.IsZero() && wait <= 0 {
			kp.k.removePod(p)
			kp.k.notify()
			kp.k.mu.Unlock()
			return
		}
		kp.k.mu.Unlock()
		kp.waitForWork(p, wait)
	}
}

// hasWork says whether a pod has work left.
func (kp *kubeletProcess) hasWork(p *pod) bool {
	kp.k.mu.Lock()
	defer kp.k.mu.Unlock()
	return kp.ctx.Err() == nil && kp.isListed(p)
}

// waitForWork ends when time is up, somebody kicks, or the life ends.
func (kp *kubeletProcess) waitForWork(p *pod, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.wakeup:
	case <-kp.ctx.Done():
	}
}

// startContainers starts the containers that do not run: init containers one after the other, the rest
// each on its own.
func (kp *kubeletProcess) startContainers(p *pod) error {
	kp.k.update(func() { p.claimsPrepared = true }) // PrepareDynamicResources in SyncPod, pkg/kubelet/kubelet.go
	var rest errgroup.Group
	for _, c := range p.orderedContainers() {
		if c.init {
			if err := kp.startContainer(p, c); err != nil {
				return err
			}
			continue
		}
		rest.Go(func() error { return kp.startContainer(p, c) })
	}
	err := rest.Wait()
	kp.k.update(func() {
		if err == nil && p.phase == phasePending {
			p.phase = phaseRunning
		}
	})
	return err
}

func (kp *kubeletProcess) startContainer(p *pod, c orderedContainer) error {
	s := p.state[c.Name]
	kp.k.mu.Lock()
	needless := s.running || s.completed || !p.deleteAt.IsZero()
	kp.k.mu.Unlock()
	if needless {
		return nil
	}
	err := kp.preStart(kp.ctx, p, c)
	if kp.ctx.Err() != nil {
		return kp.ctx.Err()
	}
	kp.k.update(func() {
		if s.waitingReason = ""; err != nil {
			s.waitingReason = err.Error()
			return
		}
		s.starts++
		s.recordStart()
		if s.completed = c.init && !c.Sidecar; s.completed {
			s.recordExit(ContainerExit{})
		}
		s.running = !s.completed && slices.Contains(kp.k.pods, p)
	})
	if err != nil {
		kp.k.options.Log.Warn("container cannot be started", "pod", p.key(), "container", c.Name, "error", err)
	}
	return err
}
