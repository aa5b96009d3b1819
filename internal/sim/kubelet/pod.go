package kubelet

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/pubsub"
)

// nodeName is the suffix of static pods' names.
const nodeName = "node-a"

// pod is a pod of the node. Containers run with or without a kubelet process.
type pod struct {
	PodSpec // with the full name and a namespace; not written after newPod, like the next three fields
	uid     string
	addedAt time.Time
	wakeup  chan struct{} // wakes the pod's worker

	// nodeState.mu guards all below.
	known, removed         bool // the running kubelet has read the pod; the pod was deleted
	announced              announcedPod
	states                 map[string]*containerState // by container; the map is not written after newPod
	phase, reason, message string
	claimsPrepared         bool
	deleteAt               time.Time // end of the grace period; zero unless the pod is being deleted
}

// announcedPod is the state of a pod after the latest event, current only while
// there is a stream.
type announcedPod struct {
	message []byte
	ended   bool
}

// The phases of a pod.
const (
	phasePending   = "Pending"
	phaseRunning   = "Running"
	phaseSucceeded = "Succeeded"
	phaseFailed    = "Failed"
)

// reasonRejected is the reason of a pod after a failed admission.
const reasonRejected = "UnexpectedAdmissionError"

type containerState struct {
	running, completed bool // completed: of regular init containers
	waitingReason      string
	starts             int
	startedAt          time.Time
	exit, previousExit *exitRecord // of the latest start and of the start before, or nil
}

type exitRecord struct {
	ContainerExit
	startedAt, exitedAt time.Time
}

// fullName returns a spec with the kubelet's names for the pod.
func (p PodSpec) fullName() PodSpec {
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if p.Static {
		p.Name += "-" + nodeName
	}
	return p
}

func newPod(spec PodSpec) *pod {
	p := &pod{
		PodSpec: spec.fullName(), uid: newUID(spec.Static), addedAt: time.Now(), wakeup: make(chan struct{}, 1),
		phase: phasePending, states: map[string]*containerState{},
	}
	for _, c := range p.orderedContainers() {
		p.states[c.Name] = &containerState{}
	}
	return p
}

// newUID returns a UID in Kubernetes' format; static pods have the hash of the
// manifest.
func newUID(static bool) string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	if static {
		return fmt.Sprintf("%x", b)
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// orderedContainer is a container with the role.
type orderedContainer struct {
	ContainerSpec
	init bool
}

// reusable reports whether later containers get the container's devices
// (manager.go:392).
func (c orderedContainer) reusable() bool { return c.init && !c.Sidecar }

// orderedContainers returns the containers in start order.
func (p *pod) orderedContainers() (all []orderedContainer) {
	for _, c := range p.InitContainers {
		all = append(all, orderedContainer{c, true})
	}
	for _, c := range p.Containers {
		all = append(all, orderedContainer{c, false})
	}
	return all
}

func (p *pod) key() string { return p.Namespace + "/" + p.Name }

// wake makes the pod's worker check the pod.
func (p *pod) wake() { pubsub.Notify(p.wakeup) }

// All methods below need nodeState.mu.

func (p *pod) isFinished() bool { return p.phase == phaseSucceeded || p.phase == phaseFailed }

// isListed reports whether List includes the pod: from the time of reading,
// before admission, until the end (pkg/kubelet/kubelet_pods.go:1163).
func (p *pod) isListed() bool { return p.known && !p.isFinished() }

// isManaged reports whether the pod is known, or an ended pod of the API
// server.
func (p *pod) isManaged() bool { return p.known || p.isFinished() && !p.Static }

// hasWorker reports whether the pod ever had a worker to report the end.
// Rejected static pods had no worker, since no API server confirms the failure
// (pkg/kubelet/pod_workers.go:803).
func (p *pod) hasWorker() bool { return !p.Static || p.reason != reasonRejected }

// hasFailed reports whether an ended pod has failed.
func (p *pod) hasFailed() bool {
	return p.reason != "" || slices.ContainsFunc(p.Containers, func(c ContainerSpec) bool {
		exit := p.states[c.Name].exit
		return exit != nil && exit.Code != 0
	})
}

// end ends the running containers and sets the final phase.
func (p *pod) end(e PodEnd) {
	for name, s := range p.states {
		if s.running {
			s.recordExit(e.Exits[name])
			s.running = false
		}
	}
	p.reason = e.Reason
	if p.phase = phaseSucceeded; p.hasFailed() {
		p.phase = phaseFailed
	}
}

// kill ends the containers as the pod's deletion does: by SIGTERM, or by
// SIGKILL after a grace period.
func (p *pod) kill() {
	exit := ContainerExit{Code: exitSIGTERM}
	if !p.deleteAt.IsZero() {
		exit.Code = exitSIGKILL
	}
	phase, exits := p.phase, map[string]ContainerExit{}
	for name := range p.states {
		exits[name] = exit
	}
	if p.isFinished() {
		return
	}
	p.end(PodEnd{Reason: p.reason, Exits: exits})
	if p.Static || phase != phaseRunning { // the kubelet reports a static pod as running to the end (kubernetes#116484)
		p.phase = phase
	}
}

func (s *containerState) recordStart() {
	s.starts++
	s.startedAt, s.exit, s.previousExit = time.Now(), nil, s.exit
}

func (s *containerState) recordExit(exit ContainerExit) {
	if exit.Reason == "" {
		if exit.Reason = "Completed"; exit.Code != 0 {
			exit.Reason = "Error"
		}
	}
	s.exit = &exitRecord{exit, s.startedAt, time.Now()}
}

// containerID returns an id unique to the pod, the container and the start.
func (p *pod) containerID(name string) string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", p.uid, name, p.states[name].starts)))
}
