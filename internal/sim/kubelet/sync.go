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

// lists says whether List shows a pod: from the moment it was read from its source, before its
// admission, until it has ended or failed (pkg/kubelet/kubelet_pods.go:1163). mu is held.
func (l *life) lists(p *pod) bool {
	return l.read[p] && p.phase != succeeded && p.phase != failed && slices.Contains(l.k.pods, p)
}

// syncPods reads the node's pods from their sources and admits them, one at a time: an Allocate
// that hangs holds up every pod after it.
func (l *life) syncPods(restarted bool) error {
	if restarted {
		if err := l.readOldPods(); err != nil {
			return nil // the life is over
		}
	}
	l.k.update(func() { l.ready = true })
	for {
		var next *pod
		err := l.k.until(l.ctx, func() bool {
			next = l.unread(func(*pod) bool { return true })
			return next != nil
		})
		if err != nil {
			return nil
		}
		l.admit(next)
	}
}

// readOldPods is the time after a start in which List is no witness: empty for some 100 ms (10
// of 10 restarts of a real one), then the static pods, then the API server's.
func (l *life) readOldPods() error {
	o, trouble := l.k.options, l.k.troubles()
	if o.EmptyFor == 0 {
		o.EmptyFor = 60*time.Millisecond + rand.N(60*time.Millisecond)
	}
	if o.RestAfter == 0 {
		o.RestAfter = 20 * time.Millisecond
	}
	static := func(p *pod) bool { return p.Static }
	if err := errors.Join(pause(l.ctx, o.EmptyFor), pass(l.ctx, trouble.HoldStatic)); err != nil {
		return err
	}
	l.admitAll(static)
	if err := errors.Join(pause(l.ctx, o.RestAfter), l.admitUntil(trouble.HoldRest, static)); err != nil {
		return err
	}
	l.admitAll(func(*pod) bool { return true })
	return nil
}

// admitUntil admits pods of one source, those that come too, until the other one is held up no
// more: an API server that is away for an hour holds up its own pods, and no static one. Until
// then nothing is freed (manager.go:582).
func (l *life) admitUntil(released <-chan struct{}, wanted func(*pod) bool) error {
	for released != nil {
		l.k.mu.Lock()
		next, changed := l.unread(wanted), l.k.changed
		l.k.mu.Unlock()
		if next != nil {
			l.admit(next)
			continue
		}
		select {
		case <-released:
			return nil
		case <-changed:
		case <-l.ctx.Done():
			return context.Cause(l.ctx)
		}
	}
	return nil
}

func (l *life) admitAll(wanted func(*pod) bool) {
	for l.ctx.Err() == nil {
		l.k.mu.Lock()
		p := l.unread(wanted)
		l.k.mu.Unlock()
		if p == nil {
			return
		}
		l.admit(p)
	}
}

// unread is the oldest pod that this kubelet has not read and that has not ended. mu is held. A
// static pod that was rejected is one again in the eyes of a new kubelet, since nobody but the
// old one knew.
func (l *life) unread(wanted func(*pod) bool) *pod {
	for _, p := range l.k.pods {
		if !l.read[p] && wanted(p) && p.phase != succeeded && (p.phase != failed || p.Static) {
			return p
		}
	}
	return nil
}

// admit lists a pod, allocates its devices and hands it to a worker. Where the life ends
// meanwhile the pod is the next life's.
func (l *life) admit(p *pod) {
	l.k.update(func() {
		l.read[p] = true
		if p.phase == failed {
			p.phase, p.reason, p.message = pending, "", ""
		}
	})
	err := l.allocatePod(l.ctx, p)
	if l.ctx.Err() != nil {
		return
	}
	if err != nil {
		l.k.options.Log.Info("pod rejected", "pod", p.key(), "error", err)
		l.k.update(func() {
			// The words are those of pkg/kubelet/cm/admission/errors.go:41, behind those of
			// rejectPod.
			p.phase, p.reason = failed, "UnexpectedAdmissionError"
			p.message = fmt.Sprintf("Pod was rejected: Allocate failed due to %v, which is unexpected", err)
		})
		return
	}
	l.k.options.Log.Info("pod admitted", "pod", p.key())
	l.tasks.Go(func() error { l.work(p); return nil })
}

// The times that a pod's worker keeps.
const (
	startBackoff    = 10 * time.Second // between two tries to start a container (pkg/kubelet/kubelet.go:223)
	prestartTimeout = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
)

// work keeps a pod's containers started, and removes the pod when its grace is over. Each pod
// has its own worker: one that waits for a plugin's PreStartContainer holds up nobody else.
func (l *life) work(p *pod) {
	for l.isThere(p) {
		wait := time.Hour // nothing to do until somebody kicks
		if err := l.startAll(p); err != nil {
			wait = startBackoff
		}
		l.k.mu.Lock()
		if !p.ends.IsZero() {
			wait = time.Until(p.ends)
		}
		if !p.ends.IsZero() && wait <= 0 {
			l.k.removePod(p)
			l.k.tell()
			l.k.mu.Unlock()
			return
		}
		l.k.mu.Unlock()
		l.rest(p, wait)
	}
}

// isThere says whether a pod has work left.
func (l *life) isThere(p *pod) bool {
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	return l.ctx.Err() == nil && l.lists(p)
}

// rest ends when time is up, somebody kicks, or the life ends.
func (l *life) rest(p *pod, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.kick:
	case <-l.ctx.Done():
	}
}

// startAll starts the containers that do not run: init containers one after the other, the rest
// each on its own.
func (l *life) startAll(p *pod) error {
	l.k.update(func() { p.prepared = true }) // PrepareDynamicResources in SyncPod, pkg/kubelet/kubelet.go
	var rest errgroup.Group
	for _, c := range p.all() {
		if c.init {
			if err := l.start(p, c); err != nil {
				return err
			}
			continue
		}
		rest.Go(func() error { return l.start(p, c) })
	}
	err := rest.Wait()
	l.k.update(func() {
		if err == nil && p.phase == pending {
			p.phase = running
		}
	})
	return err
}

func (l *life) start(p *pod, c container) error {
	s := p.state[c.Name]
	l.k.mu.Lock()
	needless := s.running || s.done || !p.ends.IsZero()
	l.k.mu.Unlock()
	if needless {
		return nil
	}
	err := l.prestart(l.ctx, p, c)
	if l.ctx.Err() != nil {
		return l.ctx.Err()
	}
	l.k.update(func() {
		if s.waiting = ""; err != nil {
			s.waiting = err.Error()
			return
		}
		s.starts++
		s.began()
		if s.done = c.init && !c.Sidecar; s.done {
			s.exited(Exit{})
		}
		s.running = !s.done && slices.Contains(l.k.pods, p)
	})
	if err != nil {
		l.k.options.Log.Warn("container cannot be started", "pod", p.key(), "container", c.Name, "error", err)
	}
	return err
}
