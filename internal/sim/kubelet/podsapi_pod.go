package kubelet

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// PodEnd is how a pod ends. The zero value is a pod that has done its work.
type PodEnd struct {
	// Reason is the pod's, and says what failed it where its containers did not: "Evicted".
	Reason string
	// Exits are those of its containers, by name; the zero Exit for those that are not named.
	Exits map[string]ContainerExit
}

// ContainerExit is how a container ends.
type ContainerExit struct {
	// Code is what its process returned, or 128 and the number of the signal that killed it.
	Code int32
	// Reason is "Completed" or "Error", by the code, when empty. Another is "OOMKilled".
	Reason string
}

// What a signal leaves as exit code.
const (
	exitSIGKILL = 128 + 9
	exitSIGTERM = 128 + 15
)

// EndPodWith ends a pod like EndPod, in the way that is given: it has failed where there is a
// reason, or a container that has.
func (k *Kubelet) EndPodWith(p PodSpec, end PodEnd) error {
	return k.updatePod(p, func(p *pod) {
		for name, s := range p.state {
			if s.running {
				s.recordExit(end.Exits[name])
			}
		}
		p.stopContainers()
		p.reason = end.Reason
		if p.phase = phaseSucceeded; p.hasFailed() {
			p.phase = phaseFailed
		}
	})
}

// ContainerID returns the id that the runtime gave to a container's latest start: 64
// hexadecimal digits.
func (k *Kubelet) ContainerID(p PodSpec, container string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := k.findPod(k.fullName(p))
	if found == nil {
		return "", fmt.Errorf("%s: %w", p.Name, ErrNoPod)
	}
	s := found.state[container]
	if s == nil || s.starts == 0 {
		return "", fmt.Errorf("container %s of pod %s was never started", container, p.Name)
	}
	return found.containerID(container), nil
}

// containerRecord is what is remembered of a container. It is guarded by Kubelet.mu.
type containerRecord struct {
	startedAt          time.Time
	exit, previousExit *exitRecord // how it has ended, and how its start before did; nil where that is not so
}

type exitRecord struct {
	ContainerExit
	startedAt, exitedAt time.Time
}

// recordStart notes a start. mu is held.
func (s *containerState) recordStart() {
	s.record = containerRecord{startedAt: time.Now(), previousExit: s.record.exit}
}

// recordExit notes an end. mu is held.
func (s *containerState) recordExit(exit ContainerExit) {
	if exit.Reason == "" {
		if exit.Reason = "Completed"; exit.Code != 0 {
			exit.Reason = "Error"
		}
	}
	s.record.exit = &exitRecord{exit, s.record.startedAt, time.Now()}
}

// markKilled is what a pod's deletion does to those of its containers that run: they end with their
// grace, or when they are asked to. mu is held.
func (p *pod) markKilled() {
	code := int32(exitSIGTERM)
	if !p.deleteAt.IsZero() {
		code = exitSIGKILL
	}
	for _, s := range p.state {
		if s.running {
			s.recordExit(ContainerExit{Code: code})
		}
	}
	if p.phase == phaseRunning && !p.Static { // the kubelet says of a static pod to the last that it is running (kubernetes#116484)
		if p.phase = phaseSucceeded; p.hasFailed() {
			p.phase = phaseFailed
		}
	}
}

// hasFailed tells whether a pod that is over has failed. mu is held.
func (p *pod) hasFailed() bool {
	return p.reason != "" || slices.ContainsFunc(p.Containers, func(c ContainerSpec) bool {
		exit := p.state[c.Name].record.exit
		return exit != nil && exit.Code != 0
	})
}

// isFinished tells whether a pod is, for good. mu is held.
func (p *pod) isFinished() bool { return p.phase == phaseSucceeded || p.phase == phaseFailed }

// hasNoWorker tells whether a pod never had a worker, so that nobody says when it is over: one that
// was rejected, and whose failure no API server has confirmed
// (pkg/kubelet/pod_workers.go:803). mu is held.
func (p *pod) hasNoWorker() bool { return p.Static && p.reason == "UnexpectedAdmissionError" }

// containerID is another's for each pod, container and start. mu is held.
func (p *pod) containerID(name string) string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", p.uid, name, p.state[name].starts)))
}

// marshal is the pod as v1.Pod#Marshal would have it, as far as this kubelet knows it
// (core/v1/generated.proto in k8s.io/api). mu is held.
func (p *pod) marshal() []byte {
	metadata := p.marshalMetadata()
	if !p.Static { // the API server says when, and nobody else
		metadata = appendTime(metadata, 8, p.addedAt)
	}
	metadata = appendTime(metadata, 9, p.deleteAt)
	for _, name := range slices.Sorted(maps.Keys(p.Labels)) {
		metadata = appendMessage(metadata, 11, appendText(appendText(nil, 1, name), 2, p.Labels[name]))
	}
	status := appendText(nil, 1, p.phase)
	status = appendText(status, 3, p.message)
	status = appendText(status, 4, p.reason)
	for _, c := range p.orderedContainers() {
		if p.reason == "UnexpectedAdmissionError" {
			break // nothing is said of containers that nobody will start
		}
		number := protowire.Number(8)
		if c.init {
			number = 10
		}
		status = appendMessage(status, number, p.marshalContainer(c))
	}
	return appendMessage(appendMessage(nil, 1, metadata), 3, status)
}

// marshalName is the pod as it is said to be deleted.
func (p *pod) marshalName() []byte { return appendMessage(nil, 1, p.marshalMetadata()) }

func (p *pod) marshalMetadata() []byte {
	return appendText(appendText(appendText(nil, 1, p.Name), 3, p.Namespace), 5, p.uid)
}

func (p *pod) marshalContainer(c orderedContainer) []byte {
	s := p.state[c.Name]
	b := appendText(nil, 1, c.Name)
	b = appendMessage(b, 2, s.marshal())
	if last := s.record.previousExit; last != nil {
		b = appendMessage(b, 3, appendMessage(nil, 3, last.marshal()))
	}
	b = appendNumber(b, 5, int32(max(0, s.starts-1)))
	if s.starts > 0 {
		b = appendText(b, 8, "containerd://"+p.containerID(c.Name))
	}
	return b
}

func (s *containerState) marshal() []byte {
	switch {
	case s.running:
		return appendMessage(nil, 2, appendTime(nil, 1, s.record.startedAt))
	case s.record.exit != nil:
		return appendMessage(nil, 3, s.record.exit.marshal())
	case s.starts > 0:
		return appendMessage(nil, 1, appendText(nil, 1, "CrashLoopBackOff"))
	}
	return appendMessage(nil, 1, appendText(nil, 1, "ContainerCreating"))
}

func (e *exitRecord) marshal() []byte {
	b := appendText(appendNumber(nil, 1, e.Code), 3, e.Reason)
	return appendTime(appendTime(b, 5, e.startedAt), 6, e.exitedAt)
}

func appendText(b []byte, number protowire.Number, value string) []byte {
	return appendMessage(b, number, []byte(value))
}

func appendMessage(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

func appendNumber(b []byte, number protowire.Number, value int32) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), uint64(int64(value)))
}

// appendTime leaves out the zero time.
func appendTime(b []byte, number protowire.Number, at time.Time) []byte {
	if at.IsZero() {
		return b
	}
	seconds := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(at.Unix()))
	return appendMessage(b, number, seconds)
}
