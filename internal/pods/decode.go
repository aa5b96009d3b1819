package pods

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pods/podpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// Limits of a decoded pod, above the API server's own limits.
const (
	maxNameBytes    = 317  // of names and reasons; the name of a label has a domain of 253 bytes, a slash and 63 bytes
	maxContainers   = 1024 // per pod; the API server has no limit, so further containers are ignored
	maxLabels       = 64   // per pod, on the allowlist
	maxStatusFields = 4 * maxContainers
)

// mirrorAnnotation has the UID of the static pod of a mirror pod
// (MirrorPodAnnotationKey in core/v1 in k8s.io/api).
const mirrorAnnotation = "kubernetes.io/config.mirror"

// watchEvent is an event with the kept subset of its pod.
type watchEvent struct {
	kind      api.EventType
	pod       Pod
	allowlist labelAllowlist
	jobLabel  string // as in Options
	cut       bool   // the pod lost containers or labels to a limit
}

// readEvent decodes an event.
func (e *watchEvent) readEvent(event *api.WatchPodsEvent) error {
	e.kind, e.pod, e.cut = event.Type, Pod{}, false
	if !e.hasPod() {
		return nil
	}
	var p podpb.Pod
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(e.limitStatus(event.Pod), &p); err != nil {
		return err
	}
	return e.setPod(&p)
}

// limitStatus returns metadata and the first fields of the status: an empty
// container of two bytes takes a hundred bytes of memory.
func (e *watchEvent) limitStatus(pod []byte) []byte {
	var kept, status []byte
	n := 0
	walkFields(pod, func(number protowire.Number, field []byte) {
		switch number {
		case 1:
			kept = append(kept, field...)
		case 3:
			_, _, tagBytes := protowire.ConsumeTag(field)
			content, _ := protowire.ConsumeBytes(field[tagBytes:])
			walkFields(content, func(_ protowire.Number, field []byte) {
				if n++; n <= maxStatusFields {
					status = append(status, field...)
				}
			})
		}
	})
	if e.cut = n > maxStatusFields; !e.cut {
		return pod
	}
	return protowire.AppendBytes(protowire.AppendTag(kept, 3, protowire.BytesType), status)
}

// walkFields calls visit for each field of a message, up to the first invalid
// one.
func walkFields(b []byte, visit func(number protowire.Number, field []byte)) {
	for {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return
		}
		visit(number, b[:n])
		b = b[n:]
	}
}

// hasPod reports whether events of this kind have a pod.
func (e *watchEvent) hasPod() bool {
	return e.kind == api.EventType_ADDED || e.kind == api.EventType_MODIFIED || e.kind == api.EventType_DELETED
}

func (e *watchEvent) setPod(p *podpb.Pod) error {
	m, status := p.GetMetadata(), p.GetStatus()
	e.pod = Pod{
		Namespace: clean(m.GetNamespace()), Name: clean(m.GetName()), UID: clean(m.GetUid()),
		Created: timeOf(m.GetCreationTimestamp()), Phase: clean(status.GetPhase()), Reason: clean(status.GetReason()),
	}
	switch {
	case e.pod.UID == "" || e.pod.Name == "" || e.pod.Namespace == "":
		return errors.New("name, namespace or UID is empty")
	// part of a name could equal another
	case max(len(m.GetNamespace()), len(m.GetName()), len(m.GetUid())) > maxNameBytes:
		return fmt.Errorf("name, namespace or UID longer than %d bytes", maxNameBytes)
	}
	if uid := m.GetAnnotations()[mirrorAnnotation]; uid != "" { // the mirror pod is younger than the static pod
		e.pod.UID, e.pod.Created = clean(uid), time.Time{}
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetLabels())) {
		if e.allowlist.has(name) && len(name) <= maxNameBytes && len(e.pod.Labels) < maxLabels {
			e.pod.Labels = append(e.pod.Labels, device.Label{Name: clean(name), Value: clean(m.GetLabels()[name])})
		}
	}
	e.pod.Workload = e.workloadOf(m)
	all := slices.Concat(status.GetContainerStatuses(), status.GetInitContainerStatuses(),
		status.GetEphemeralContainerStatuses())
	for _, c := range all[:min(len(all), maxContainers)] {
		id := clean(c.GetContainerId())
		if _, after, ok := strings.Cut(id, "://"); ok { // containerd://…, cri-o://…
			id = after
		}
		e.pod.Containers = append(e.pod.Containers, Container{
			Name: clean(c.GetName()), ID: id,
			Restarts: c.GetRestartCount(), State: stateOf(c.GetState()), LastState: stateOf(c.GetLastState()),
		})
	}
	return nil
}

// workloadOf returns the controller of a pod, and the labels for incidents.
func (e *watchEvent) workloadOf(m *podpb.ObjectMeta) *allocation.Workload {
	w := &allocation.Workload{Labels: map[string]string{}}
	for _, o := range m.GetOwnerReferences() {
		if o.GetController() {
			w.Controller = allocation.Controller{Kind: clean(o.GetKind()), Name: clean(o.GetName())}
			break
		}
	}
	left := maxWorkloadBytes
	add := func(name, value string) {
		if size := len(name) + len(value); value != "" && w.Labels[name] == "" && size <= left {
			w.Labels[name] = value
			left -= size
		}
	}
	for _, name := range append(allocation.JobLabels[:], e.jobLabel) {
		add(name, clean(m.GetLabels()[name]))
	}
	for _, l := range e.pod.Labels {
		add(l.Name, l.Value)
	}
	if w.Controller == (allocation.Controller{}) && len(w.Labels) == 0 {
		return nil
	}
	return w
}

func stateOf(s *podpb.ContainerState) ContainerState {
	switch t := s.GetTerminated(); {
	case t != nil:
		return ContainerState{Terminated, clean(t.GetReason()), t.GetExitCode(), timeOf(t.GetFinishedAt())}
	case s.GetRunning() != nil:
		return ContainerState{Type: Running}
	}
	return ContainerState{}
}

// clean returns a copy, of at most maxNameBytes.
func clean(s string) string {
	return strings.Clone(strings.ToValidUTF8(s[:min(len(s), maxNameBytes)], "?"))
}

// timeOf returns a time in whole seconds; an empty message is the zero time.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t.GetSeconds() == 0 {
		return time.Time{}
	}
	return time.Unix(t.GetSeconds(), 0)
}

// labelAllowlist selects the labels to keep: each entry is a name, or a prefix
// and a *. Labels may hold private data, so there is no default.
type labelAllowlist []string

// ValidateLabels checks Options.Labels: each is a name, or a prefix and a *.
func ValidateLabels(patterns []string) error {
	for _, pattern := range patterns {
		if pattern == "" || strings.Contains(strings.TrimSuffix(pattern, "*"), "*") {
			return fmt.Errorf("label %q is neither a name nor a prefix followed by *", pattern)
		}
	}
	return nil
}

// has reports whether to keep a label.
func (a labelAllowlist) has(name string) bool {
	return slices.ContainsFunc(a, func(pattern string) bool {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		return name == pattern || isPrefix && strings.HasPrefix(name, prefix)
	})
}
