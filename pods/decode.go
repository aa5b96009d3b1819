package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/device"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// event is what of a WatchPodsEvent is wanted. A pod has some kilobytes, most of
// them its spec, and comes as a whole with every change. So it is read where it
// lies, only what is new is made a string, and the next is read into the same
// memory: nothing of a message outlives its reading.
type event struct {
	kind api.EventType
	pod  Pod
	err  error // why it could not be read, and pod says nothing

	labels allowlist
	names  interner
}

// Limits of what is believed. They are beyond what an API server lets pass.
const (
	mostNameBytes     = 317  // of names of whatever kind, and of reasons: a label's has a domain's 253, a slash and 63
	mostContainers    = 1024 // of a pod
	mostLabels        = 64   // of a pod, of those on the allowlist
	mostInternedNames = 16384
)

// noRequest is the empty message.
type noRequest struct{}

// rawCodec reads events into an *event.
type rawCodec struct{}

// Name is that of the codec on the kubelet's side.
func (rawCodec) Name() string { return "proto" }

// Marshal writes the empty message.
func (rawCodec) Marshal(any) (mem.BufferSlice, error) { return nil, nil }

// Unmarshal reads one message into an *event. One that is broken is no error here,
// since gRPC would end the stream for it.
func (rawCodec) Unmarshal(data mem.BufferSlice, into any) error {
	e, ok := into.(*event)
	if !ok {
		return fmt.Errorf("decode a pod's event into %T", into)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	e.err = e.decode(buf.ReadOnlyData())
	return nil
}

// The fields that are wanted, as they are tagged on the wire: by number and kind
// (pkg/apis/pods/v1alpha1/api.proto in k8s.io/kubelet, core/v1/generated.proto in
// k8s.io/api, pkg/apis/meta/v1/generated.proto in k8s.io/apimachinery). Numbers are
// never given away again, so those of any later version are these and others.
const (
	varintKind = uint64(protowire.VarintType)
	lengthKind = uint64(protowire.BytesType)

	eventType = 1<<3 | varintKind
	eventPod  = 2<<3 | lengthKind

	podMetadata = 1<<3 | lengthKind
	podStatus   = 3<<3 | lengthKind

	metaName      = 1<<3 | lengthKind
	metaNamespace = 3<<3 | lengthKind
	metaUID       = 5<<3 | lengthKind
	metaCreated   = 8<<3 | lengthKind
	metaDeleted   = 9<<3 | lengthKind
	metaLabels    = 11<<3 | lengthKind

	entryKey   = 1<<3 | lengthKind
	entryValue = 2<<3 | lengthKind

	statusPhase      = 1<<3 | lengthKind
	statusReason     = 4<<3 | lengthKind
	statusContainers = 8<<3 | lengthKind
	statusInit       = 10<<3 | lengthKind
	statusEphemeral  = 13<<3 | lengthKind

	containerName     = 1<<3 | lengthKind
	containerState    = 2<<3 | lengthKind
	containerLast     = 3<<3 | lengthKind
	containerRestarts = 5<<3 | varintKind
	containerID       = 8<<3 | lengthKind

	stateWaiting    = 1<<3 | lengthKind
	stateRunning    = 2<<3 | lengthKind
	stateTerminated = 3<<3 | lengthKind

	waitingReason  = 1<<3 | lengthKind
	runningStarted = 1<<3 | lengthKind

	terminatedExitCode = 1<<3 | varintKind
	terminatedSignal   = 2<<3 | varintKind
	terminatedReason   = 3<<3 | lengthKind
	terminatedStarted  = 5<<3 | lengthKind
	terminatedFinished = 6<<3 | lengthKind

	timeSeconds = 1<<3 | varintKind
)

// decode reads one message in place of the one before.
func (e *event) decode(b []byte) error {
	e.kind = 0
	e.pod = Pod{Labels: e.pod.Labels[:0], Containers: e.pod.Containers[:0]}
	if len(e.names) > mostInternedNames { // they may be of pods long gone
		e.names = interner{}
	}
	err := fields(b, func(f field) error {
		switch f.tag {
		case eventType:
			e.kind = api.EventType(f.number)
		case eventPod:
			return e.readPod(f.bytes)
		}
		return nil
	})
	if err != nil || !e.ofPod() {
		return err
	}
	if e.pod.UID == "" || e.pod.Name == "" || e.pod.Namespace == "" {
		return errors.New("decode a pod: it has no name, namespace or uid")
	}
	slices.SortFunc(e.pod.Labels, func(a, b device.Label) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(e.pod.Containers, func(a, b Container) int { return place(a.Kind) - place(b.Kind) })
	return nil
}

// ofPod tells whether the event is of a kind that has a pod.
func (e *event) ofPod() bool {
	return e.kind == api.EventType_ADDED || e.kind == api.EventType_MODIFIED || e.kind == api.EventType_DELETED
}

// place is where containers of a kind stand among a pod's: in the order of their start.
func place(k Kind) int { return [...]int{Init: 0, Regular: 1, Ephemeral: 2}[k] }

func (e *event) readPod(b []byte) error {
	return fields(b, func(f field) error {
		switch f.tag {
		case podMetadata:
			return e.readMetadata(f.bytes)
		case podStatus:
			return e.readStatus(f.bytes)
		}
		return nil
	})
}

func (e *event) readMetadata(b []byte) error {
	p := &e.pod
	return fields(b, func(f field) (err error) {
		switch f.tag {
		case metaName:
			p.Name, err = e.names.name(f.bytes)
		case metaNamespace:
			p.Namespace, err = e.names.name(f.bytes)
		case metaUID:
			p.UID, err = e.names.name(f.bytes)
		case metaCreated:
			p.Created, err = readTime(f.bytes)
		case metaDeleted:
			p.Deleting = true
		case metaLabels:
			err = e.readLabel(f.bytes)
		}
		return err
	})
}

func (e *event) readLabel(b []byte) error {
	var key, value []byte
	err := fields(b, func(f field) error {
		switch f.tag {
		case entryKey:
			key = f.bytes
		case entryValue:
			value = f.bytes
		}
		return nil
	})
	if err != nil || !e.labels.has(key) {
		return err
	}
	name, err := e.names.name(key)
	if err != nil {
		return err
	}
	label := device.Label{Name: name, Value: e.names.text(value)}
	switch i := slices.IndexFunc(e.pod.Labels, func(l device.Label) bool { return l.Name == label.Name }); {
	case i >= 0: // the last one counts, as in any map
		e.pod.Labels[i] = label
	case len(e.pod.Labels) < mostLabels:
		e.pod.Labels = append(e.pod.Labels, label)
	}
	return nil
}

func (e *event) readStatus(b []byte) error {
	return fields(b, func(f field) error {
		switch f.tag {
		case statusPhase:
			e.pod.Phase = e.names.text(f.bytes)
		case statusReason:
			e.pod.Reason = e.names.text(f.bytes)
		case statusContainers:
			return e.readContainer(f.bytes, Regular)
		case statusInit:
			return e.readContainer(f.bytes, Init)
		case statusEphemeral:
			return e.readContainer(f.bytes, Ephemeral)
		}
		return nil
	})
}

func (e *event) readContainer(b []byte, kind Kind) error {
	if len(e.pod.Containers) == mostContainers {
		return fmt.Errorf("decode a pod: it has more than %d containers", mostContainers)
	}
	c := Container{Kind: kind}
	err := fields(b, func(f field) (err error) {
		switch f.tag {
		case containerName:
			c.Name, err = e.names.name(f.bytes)
		case containerState:
			err = e.readState(f.bytes, &c.State)
		case containerLast:
			err = e.readState(f.bytes, &c.Last)
		case containerRestarts:
			c.Restarts = int32(f.number)
		case containerID:
			c.ID, err = e.names.name(f.bytes)
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
func (e *event) readState(b []byte, s *State) error {
	return fields(b, func(f field) error {
		switch f.tag {
		case stateWaiting:
			*s = State{Status: Waiting}
			return e.readWaiting(f.bytes, s)
		case stateRunning:
			*s = State{Status: Running}
			return e.readRunning(f.bytes, s)
		case stateTerminated:
			*s = State{Status: Terminated}
			return e.readTerminated(f.bytes, s)
		}
		return nil
	})
}

func (e *event) readWaiting(b []byte, s *State) error {
	return fields(b, func(f field) error {
		if f.tag == waitingReason {
			s.Reason = e.names.text(f.bytes)
		}
		return nil
	})
}

func (e *event) readRunning(b []byte, s *State) error {
	return fields(b, func(f field) (err error) {
		if f.tag == runningStarted {
			s.Started, err = readTime(f.bytes)
		}
		return err
	})
}

func (e *event) readTerminated(b []byte, s *State) error {
	return fields(b, func(f field) (err error) {
		switch f.tag {
		case terminatedExitCode:
			s.ExitCode = int32(f.number)
		case terminatedSignal:
			s.Signal = int32(f.number)
		case terminatedReason:
			s.Reason = e.names.text(f.bytes)
		case terminatedStarted:
			s.Started, err = readTime(f.bytes)
		case terminatedFinished:
			s.Finished, err = readTime(f.bytes)
		}
		return err
	})
}

// readTime reads a time of whole seconds; nothing is the zero time.
func readTime(b []byte) (t time.Time, err error) {
	err = fields(b, func(f field) error {
		if f.tag == timeSeconds {
			t = time.Unix(int64(f.number), 0)
		}
		return nil
	})
	return t, err
}
