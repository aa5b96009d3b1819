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

// watchEvent is what of a WatchPodsEvent is wanted. A pod has some kilobytes, most of
// them its spec, and comes as a whole with every change. So it is read where it
// lies, only what is new is made a string, and the next is read into the same
// memory: nothing of a message outlives its reading.
type watchEvent struct {
	kind api.EventType
	pod  Pod
	err  error // why it could not be read, and pod says nothing

	allowlist labelAllowlist
	interner  wire.Interner
}

// Limits of what is believed. They are beyond what an API server lets pass.
const (
	maxNameBytes     = 317  // of names of whatever kind, and of reasons: a label's has a domain's 253, a slash and 63
	maxContainers    = 1024 // of a pod
	maxLabels        = 64   // of a pod, of those on the allowlist
	maxInternedNames = 16384
)

// The fields that are wanted, as they are tagged on the wire: by number and kind
// (pkg/apis/pods/v1alpha1/api.proto in k8s.io/kubelet, core/v1/generated.proto in
// k8s.io/api, pkg/apis/meta/v1/generated.proto in k8s.io/apimachinery). Numbers are
// never given away again, so those of any later version are these and others.
const (
	eventType = 1<<3 | wire.Varint
	eventPod  = 2<<3 | wire.Length

	podMetadata = 1<<3 | wire.Length
	podStatus   = 3<<3 | wire.Length

	metaName      = 1<<3 | wire.Length
	metaNamespace = 3<<3 | wire.Length
	metaUID       = 5<<3 | wire.Length
	metaCreated   = 8<<3 | wire.Length
	metaDeleted   = 9<<3 | wire.Length
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

	waitingReason  = 1<<3 | wire.Length
	runningStarted = 1<<3 | wire.Length

	terminatedExitCode = 1<<3 | wire.Varint
	terminatedSignal   = 2<<3 | wire.Varint
	terminatedReason   = 3<<3 | wire.Length
	terminatedStarted  = 5<<3 | wire.Length
	terminatedFinished = 6<<3 | wire.Length

	timeSeconds = 1<<3 | wire.Varint
)

// Read is a wire.Message's. A message that is broken is no error here, since gRPC would
// end the stream for it.
func (e *watchEvent) Read(b []byte) error {
	e.err = nil
	if err := e.decode(b); err != nil {
		e.err = fmt.Errorf("decode a pod: %w", err)
	}
	return nil
}

// decode reads one message in place of the one before.
func (e *watchEvent) decode(b []byte) error {
	e.kind = 0
	e.pod = Pod{Labels: e.pod.Labels[:0], Containers: e.pod.Containers[:0]}
	err := wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case eventType:
			e.kind = api.EventType(f.Value)
		case eventPod:
			return e.readPod(f.Bytes)
		}
		return nil
	})
	if err != nil || !e.hasPod() {
		return err
	}
	if e.pod.UID == "" || e.pod.Name == "" || e.pod.Namespace == "" {
		return errors.New("it has no name, namespace or uid")
	}
	slices.SortFunc(e.pod.Labels, func(a, b device.Label) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(e.pod.Containers, func(a, b Container) int { return startOrder(a.Kind) - startOrder(b.Kind) })
	return nil
}

// hasPod tells whether the event is of a kind that has a pod.
func (e *watchEvent) hasPod() bool {
	return e.kind == api.EventType_ADDED || e.kind == api.EventType_MODIFIED || e.kind == api.EventType_DELETED
}

// startOrder is where containers of a kind stand among a pod's: in the order of their start.
func startOrder(k ContainerKind) int { return [...]int{Init: 0, Regular: 1, Ephemeral: 2}[k] }

func (e *watchEvent) readPod(b []byte) error {
	return wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case podMetadata:
			return e.readMetadata(f.Bytes)
		case podStatus:
			return e.readStatus(f.Bytes)
		}
		return nil
	})
}

func (e *watchEvent) readMetadata(b []byte) error {
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
			p.Created, err = readTime(f.Bytes)
		case metaDeleted:
			p.Deleting = true
		case metaLabels:
			err = e.readLabel(f.Bytes)
		}
		return err
	})
}

func (e *watchEvent) readLabel(b []byte) error {
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
	case i >= 0: // the last one counts, as in any map
		e.pod.Labels[i] = label
	case len(e.pod.Labels) < maxLabels:
		e.pod.Labels = append(e.pod.Labels, label)
	}
	return nil
}

func (e *watchEvent) readStatus(b []byte) error {
	return wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case statusPhase:
			e.pod.Phase = e.text(f.Bytes)
		case statusReason:
			e.pod.Reason = e.text(f.Bytes)
		case statusContainers:
			return e.readContainer(f.Bytes, Regular)
		case statusInit:
			return e.readContainer(f.Bytes, Init)
		case statusEphemeral:
			return e.readContainer(f.Bytes, Ephemeral)
		}
		return nil
	})
}

func (e *watchEvent) readContainer(b []byte, kind ContainerKind) error {
	if len(e.pod.Containers) == maxContainers {
		return fmt.Errorf("it has more than %d containers", maxContainers)
	}
	c := Container{Kind: kind}
	err := wire.WalkFields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case containerName:
			c.Name, err = e.name(f.Bytes)
		case containerState:
			err = e.readState(f.Bytes, &c.State)
		case containerLastState:
			err = e.readState(f.Bytes, &c.LastState)
		case containerRestarts:
			c.Restarts = int32(f.Value)
		case containerID:
			c.ID, err = e.name(f.Bytes)
		}
		return err
	})
	if _, id, named := strings.Cut(c.ID, "://"); named { // containerd://…, cri-o://…
		c.ID = id
	}
	e.pod.Containers = append(e.pod.Containers, c)
	return err
}

// readState reads a state that has one of three forms. Of several, which nobody
// writes, the last counts.
func (e *watchEvent) readState(b []byte, s *ContainerState) error {
	return wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case stateWaiting:
			*s = ContainerState{Type: Waiting}
			return e.readWaiting(f.Bytes, s)
		case stateRunning:
			*s = ContainerState{Type: Running}
			return e.readRunning(f.Bytes, s)
		case stateTerminated:
			*s = ContainerState{Type: Terminated}
			return e.readTerminated(f.Bytes, s)
		}
		return nil
	})
}

func (e *watchEvent) readWaiting(b []byte, s *ContainerState) error {
	return wire.WalkFields(b, func(f wire.Field) error {
		if f.Tag == waitingReason {
			s.Reason = e.text(f.Bytes)
		}
		return nil
	})
}

func (e *watchEvent) readRunning(b []byte, s *ContainerState) error {
	return wire.WalkFields(b, func(f wire.Field) (err error) {
		if f.Tag == runningStarted {
			s.Started, err = readTime(f.Bytes)
		}
		return err
	})
}

func (e *watchEvent) readTerminated(b []byte, s *ContainerState) error {
	return wire.WalkFields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case terminatedExitCode:
			s.ExitCode = int32(f.Value)
		case terminatedSignal:
			s.Signal = int32(f.Value)
		case terminatedReason:
			s.Reason = e.text(f.Bytes)
		case terminatedStarted:
			s.Started, err = readTime(f.Bytes)
		case terminatedFinished:
			s.Finished, err = readTime(f.Bytes)
		}
		return err
	})
}

// readTime reads a time of whole seconds; nothing is the zero time.
func readTime(b []byte) (t time.Time, err error) {
	err = wire.WalkFields(b, func(f wire.Field) error {
		if f.Tag == timeSeconds {
			t = time.Unix(int64(f.Value), 0)
		}
		return nil
	})
	return t, err
}

// name makes a string of what identifies something. One that is too long is an
// error: a part of it would be another's.
func (e *watchEvent) name(b []byte) (string, error) {
	if len(b) > maxNameBytes {
		return "", fmt.Errorf("it has a name of %d bytes", len(b))
	}
	return e.text(b), nil
}

// text makes a string of words, and cuts them off where they are too long.
func (e *watchEvent) text(b []byte) string { return e.interner.Intern(b[:min(len(b), maxNameBytes)]) }
