package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// watchEvent decodes the kept subset of a WatchPodsEvent. A pod has some kilobytes, mostly spec, and every change sends the whole pod:
// so watchEvent reads fields in place, interns strings, and reuses its slices for the next event.
type watchEvent struct {
	kind api.EventType
	pod  Pod
	err  error // of decoding; pod is invalid then

	allowlist labelAllowlist
	interner  wire.Interner
}

// Limits of a decoded pod, above the API server's own limits.
const (
	maxNameBytes     = 317  // of names and reasons; the name of a label has a domain of 253 bytes, a slash and 63 bytes
	maxContainers    = 1024 // per pod
	maxLabels        = 64   // per pod, on the allowlist
	maxInternedNames = 16384
)

// Tags of the decoded fields: number and wire type (pkg/apis/pods/v1alpha1/api.proto in k8s.io/kubelet, core/v1/generated.proto in
// k8s.io/api, pkg/apis/meta/v1/generated.proto in k8s.io/apimachinery). Later versions never reuse a number.
const (
	eventType = 1<<3 | wire.Varint
	eventPod  = 2<<3 | wire.Length

	podMetadata = 1<<3 | wire.Length
	podStatus   = 3<<3 | wire.Length

	metaName      = 1<<3 | wire.Length
	metaNamespace = 3<<3 | wire.Length
	metaUID       = 5<<3 | wire.Length
	metaCreated   = 8<<3 | wire.Length
	metaLabels    = 11<<3 | wire.Length

	entryKey   = 1<<3 | wire.Length
	entryValue = 2<<3 | wire.Length

	statusPhase      = 1<<3 | wire.Length
	statusReason     = 4<<3 | wire.Length
	statusContainers = 8<<3 | wire.Length
	statusInit       = 10<<3 | wire.Length
	statusEphemeral  = 13<<3 | wire.Length

	containerName      = 1<<3 | wire.Length
	containerState     = 2<<3 | wire.Length
	containerLastState = 3<<3 | wire.Length
	containerRestarts  = 5<<3 | wire.Varint
	containerID        = 8<<3 | wire.Length

	stateWaiting    = 1<<3 | wire.Length
	stateRunning    = 2<<3 | wire.Length
	stateTerminated = 3<<3 | wire.Length

	terminatedExitCode = 1<<3 | wire.Varint
	terminatedReason   = 3<<3 | wire.Length
	terminatedFinished = 6<<3 | wire.Length

	timeSeconds = 1<<3 | wire.Varint
)

// Read implements wire.Message. A decoding error goes to e.err, because gRPC ends the stream on an error of Read.
func (e *watchEvent) Read(b []byte) error {
	e.err = nil
	if err := e.decode(b); err != nil {
		e.err = fmt.Errorf("decode pod: %w", err)
	}
	return nil
}

func (e *watchEvent) decode(b []byte) error {
	e.kind = 0
	e.pod = Pod{Labels: e.pod.Labels[:0], Containers: e.pod.Containers[:0]}
	err := wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case eventType:
			e.kind = api.EventType(f.Value)
		case eventPod:
			return e.decodePod(f.Bytes)
		}
		return nil
	})
	if err != nil || !e.hasPod() {
		return err
	}
	if e.pod.UID == "" || e.pod.Name == "" || e.pod.Namespace == "" {
		return errors.New("name, namespace or UID is empty")
	}
	slices.SortFunc(e.pod.Labels, func(a, b device.Label) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// hasPod reports whether events of this kind have a pod.
func (e *watchEvent) hasPod() bool {
	return e.kind == api.EventType_ADDED || e.kind == api.EventType_MODIFIED || e.kind == api.EventType_DELETED
}

func (e *watchEvent) decodePod(b []byte) error {
	return wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case podMetadata:
			return e.decodeMetadata(f.Bytes)
		case podStatus:
			return e.decodeStatus(f.Bytes)
		}
		return nil
	})
}

func (e *watchEvent) decodeMetadata(b []byte) error {
	p := &e.pod
	return wire.WalkFields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case metaName:
			p.Name, err = e.name(f.Bytes)
		case metaNamespace:
			p.Namespace, err = e.name(f.Bytes)
		case metaUID:
			p.UID, err = e.name(f.Bytes)
		case metaCreated:
			p.Created, err = decodeTime(f.Bytes)
		case metaLabels:
			err = e.decodeLabel(f.Bytes)
		}
		return err
	})
}

func (e *watchEvent) decodeLabel(b []byte) error {
	var key, value []byte
	err := wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case entryKey:
			key = f.Bytes
		case entryValue:
			value = f.Bytes
		}
		return nil
	})
	if err != nil || !e.allowlist.has(key) {
		return err
	}
	name, err := e.name(key)
	if err != nil {
		return err
	}
	label := device.Label{Name: name, Value: e.text(value)}
	switch i := slices.IndexFunc(e.pod.Labels, func(l device.Label) bool { return l.Name == label.Name }); {
	case i >= 0: // as in any protobuf map, the last value counts
		e.pod.Labels[i] = label
	case len(e.pod.Labels) < maxLabels:
		e.pod.Labels = append(e.pod.Labels, label)
	}
	return nil
}

func (e *watchEvent) decodeStatus(b []byte) error {
	return wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case statusPhase:
			e.pod.Phase = e.text(f.Bytes)
		case statusReason:
			e.pod.Reason = e.text(f.Bytes)
		case statusContainers, statusInit, statusEphemeral:
			return e.decodeContainer(f.Bytes)
		}
		return nil
	})
}

func (e *watchEvent) decodeContainer(b []byte) error {
	if len(e.pod.Containers) == maxContainers {
		return fmt.Errorf("more than %d containers", maxContainers)
	}
	var c Container
	err := wire.WalkFields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case containerName:
			c.Name, err = e.name(f.Bytes)
		case containerState:
			err = e.decodeState(f.Bytes, &c.State)
		case containerLastState:
			err = e.decodeState(f.Bytes, &c.LastState)
		case containerRestarts:
			c.Restarts = int32(f.Value)
		case containerID:
			c.ID, err = e.name(f.Bytes)
		}
		return err
	})
	if _, id, ok := strings.Cut(c.ID, "://"); ok { // containerd://…, cri-o://…
		c.ID = id
	}
	e.pod.Containers = append(e.pod.Containers, c)
	return err
}

// decodeState decodes a state. Of several types, the last counts.
func (e *watchEvent) decodeState(b []byte, s *ContainerState) error {
	return wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case stateWaiting:
			*s = ContainerState{Type: Waiting}
		case stateRunning:
			*s = ContainerState{Type: Running}
		case stateTerminated:
			*s = ContainerState{Type: Terminated}
			return e.decodeTerminated(f.Bytes, s)
		}
		return nil
	})
}

func (e *watchEvent) decodeTerminated(b []byte, s *ContainerState) error {
	return wire.WalkFields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case terminatedExitCode:
			s.ExitCode = int32(f.Value)
		case terminatedReason:
			s.Reason = e.text(f.Bytes)
		case terminatedFinished:
			s.Finished, err = decodeTime(f.Bytes)
		}
		return err
	})
}

// decodeTime decodes a time in whole seconds; an empty message is the zero time.
func decodeTime(b []byte) (t time.Time, err error) {
	err = wire.WalkFields(b, func(f wire.Field) error {
		if f.Tag == timeSeconds {
			t = time.Unix(int64(f.Value), 0)
		}
		return nil
	})
	return t, err
}

// name interns an identifier. A long identifier is an error: a truncated identifier could equal another.
func (e *watchEvent) name(b []byte) (string, error) {
	if len(b) > maxNameBytes {
		return "", fmt.Errorf("name of %d bytes, at most %d", len(b), maxNameBytes)
	}
	return e.text(b), nil
}

// text interns a text of at most maxNameBytes.
func (e *watchEvent) text(b []byte) string { return e.interner.Intern(b[:min(len(b), maxNameBytes)]) }
