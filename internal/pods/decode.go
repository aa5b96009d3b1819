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

	mirrored  string          // UID of the static pod, if the pod is the API server's mirror of a static pod
	container Container       // being decoded
	state     *ContainerState // being decoded

	allowlist labelAllowlist
	interner  wire.Interner
}

// mirrorAnnotation has the UID of a static pod (MirrorPodAnnotationKey in core/v1 in k8s.io/api).
const mirrorAnnotation = "kubernetes.io/config.mirror"

// Limits of a decoded pod, above the API server's own limits.
const (
	maxNameBytes     = 317  // of names and reasons; the name of a label has a domain of 253 bytes, a slash and 63 bytes
	maxContainers    = 1024 // per pod; the API server has no limit, so further containers are ignored
	maxLabels        = 64   // per pod, on the allowlist
	maxInternedNames = 16384
)

// Read implements wire.Message. An error ends the stream.
func (e *watchEvent) Read(b []byte) error {
	e.kind = 0
	e.reset()
	if err := e.walk(b, eventFields); err != nil || !e.hasPod() {
		return err
	}
	return e.finish()
}

func (e *watchEvent) reset() {
	e.pod = Pod{Labels: e.pod.Labels[:0], Containers: e.pod.Containers[:0]}
	e.mirrored = ""
}

// finish checks and completes the decoded pod.
func (e *watchEvent) finish() error {
	if e.pod.UID == "" || e.pod.Name == "" || e.pod.Namespace == "" {
		return errors.New("name, namespace or UID is empty")
	}
	if e.mirrored != "" { // the mirror pod is younger than the static pod
		e.pod.UID, e.pod.Created = e.mirrored, time.Time{}
	}
	slices.SortFunc(e.pod.Labels, func(a, b device.Label) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// hasPod reports whether events of this kind have a pod.
func (e *watchEvent) hasPod() bool {
	return e.kind == api.EventType_ADDED || e.kind == api.EventType_MODIFIED || e.kind == api.EventType_DELETED
}

// fieldDecoder decodes a field into the event.
type fieldDecoder func(e *watchEvent, f wire.Field) error

// The decoded fields by tag: number and wire type (pkg/apis/pods/v1alpha1/api.proto in k8s.io/kubelet, core/v1/generated.proto in
// k8s.io/api, pkg/apis/meta/v1/generated.proto in k8s.io/apimachinery). Later versions never reuse a number.
var (
	eventFields = map[uint64]fieldDecoder{
		1<<3 | wire.Varint: numberField(func(e *watchEvent, value uint64) { e.kind = api.EventType(value) }),
		2<<3 | wire.Length: messageField(podFields),
	}
	podFields = map[uint64]fieldDecoder{
		1<<3 | wire.Length: messageField(metadataFields),
		3<<3 | wire.Length: messageField(statusFields),
	}
	metadataFields = map[uint64]fieldDecoder{
		1<<3 | wire.Length:  nameField(func(e *watchEvent) *string { return &e.pod.Name }),
		3<<3 | wire.Length:  nameField(func(e *watchEvent) *string { return &e.pod.Namespace }),
		5<<3 | wire.Length:  nameField(func(e *watchEvent) *string { return &e.pod.UID }),
		8<<3 | wire.Length:  timeField(func(e *watchEvent) *time.Time { return &e.pod.Created }),
		11<<3 | wire.Length: (*watchEvent).decodeLabel,
		12<<3 | wire.Length: (*watchEvent).decodeAnnotation,
	}
	statusFields = map[uint64]fieldDecoder{
		1<<3 | wire.Length:  textField(func(e *watchEvent) *string { return &e.pod.Phase }),
		4<<3 | wire.Length:  textField(func(e *watchEvent) *string { return &e.pod.Reason }),
		8<<3 | wire.Length:  (*watchEvent).decodeContainer,
		10<<3 | wire.Length: (*watchEvent).decodeContainer, // init containers
		13<<3 | wire.Length: (*watchEvent).decodeContainer, // ephemeral containers
	}
	containerFields = map[uint64]fieldDecoder{
		1<<3 | wire.Length: nameField(func(e *watchEvent) *string { return &e.container.Name }),
		2<<3 | wire.Length: stateField(func(e *watchEvent) *ContainerState { return &e.container.State }),
		3<<3 | wire.Length: stateField(func(e *watchEvent) *ContainerState { return &e.container.LastState }),
		5<<3 | wire.Varint: numberField(func(e *watchEvent, value uint64) { e.container.Restarts = int32(value) }),
		8<<3 | wire.Length: nameField(func(e *watchEvent) *string { return &e.container.ID }),
	}
	stateFields = map[uint64]fieldDecoder{ // of several types, the last counts
		1<<3 | wire.Length: stateTypeField(Waiting, nil),
		2<<3 | wire.Length: stateTypeField(Running, nil),
		3<<3 | wire.Length: stateTypeField(Terminated, terminatedFields),
	}
	terminatedFields = map[uint64]fieldDecoder{
		1<<3 | wire.Varint: numberField(func(e *watchEvent, value uint64) { e.state.ExitCode = int32(value) }),
		3<<3 | wire.Length: textField(func(e *watchEvent) *string { return &e.state.Reason }),
		6<<3 | wire.Length: timeField(func(e *watchEvent) *time.Time { return &e.state.Finished }),
	}
)

// walk decodes the known fields of a message.
func (e *watchEvent) walk(b []byte, fields map[uint64]fieldDecoder) error {
	return wire.WalkFields(b, func(f wire.Field) error {
		if decode := fields[f.Tag]; decode != nil {
			return decode(e, f)
		}
		return nil
	})
}

func messageField(fields map[uint64]fieldDecoder) fieldDecoder {
	return func(e *watchEvent, f wire.Field) error { return e.walk(f.Bytes, fields) }
}

func numberField(set func(e *watchEvent, value uint64)) fieldDecoder {
	return func(e *watchEvent, f wire.Field) error {
		set(e, f.Value)
		return nil
	}
}

// nameField decodes an identifier. A long identifier is an error: a truncated identifier could equal another.
func nameField(target func(e *watchEvent) *string) fieldDecoder {
	return func(e *watchEvent, f wire.Field) error {
		if len(f.Bytes) > maxNameBytes {
			return fmt.Errorf("name of %d bytes, at most %d", len(f.Bytes), maxNameBytes)
		}
		*target(e) = e.interner.Intern(f.Bytes)
		return nil
	}
}

// textField decodes a text, of at most maxNameBytes.
func textField(target func(e *watchEvent) *string) fieldDecoder {
	return func(e *watchEvent, f wire.Field) error {
		*target(e) = e.text(f.Bytes)
		return nil
	}
}

func (e *watchEvent) text(b []byte) string { return e.interner.Intern(b[:min(len(b), maxNameBytes)]) }

// timeField decodes a time in whole seconds; an empty message is the zero time.
func timeField(target func(e *watchEvent) *time.Time) fieldDecoder {
	return func(e *watchEvent, f wire.Field) error {
		seconds, err := wire.Last(f.Bytes, 1<<3|wire.Varint)
		if *target(e) = (time.Time{}); seconds.Tag != 0 {
			*target(e) = time.Unix(int64(seconds.Value), 0)
		}
		return err
	}
}

func stateField(target func(e *watchEvent) *ContainerState) fieldDecoder {
	return func(e *watchEvent, f wire.Field) error {
		e.state = target(e)
		return e.walk(f.Bytes, stateFields)
	}
}

func stateTypeField(t ContainerStateType, fields map[uint64]fieldDecoder) fieldDecoder {
	return func(e *watchEvent, f wire.Field) error {
		*e.state = ContainerState{Type: t}
		return e.walk(f.Bytes, fields)
	}
}

func (e *watchEvent) decodeLabel(f wire.Field) error {
	key, err := wire.Last(f.Bytes, 1<<3|wire.Length)
	if err != nil || !e.allowlist.has(key.Bytes) {
		return err
	}
	if len(key.Bytes) > maxNameBytes {
		return fmt.Errorf("name of a label of %d bytes, at most %d", len(key.Bytes), maxNameBytes)
	}
	value, err := wire.Last(f.Bytes, 2<<3|wire.Length)
	label := device.Label{Name: e.text(key.Bytes), Value: e.text(value.Bytes)}
	switch i := slices.IndexFunc(e.pod.Labels, func(l device.Label) bool { return l.Name == label.Name }); {
	case i >= 0: // as in any protobuf map, the last value counts
		e.pod.Labels[i] = label
	case len(e.pod.Labels) < maxLabels:
		e.pod.Labels = append(e.pod.Labels, label)
	}
	return err
}

// decodeAnnotation decodes the UID of a static pod.
func (e *watchEvent) decodeAnnotation(f wire.Field) error {
	key, err := wire.Last(f.Bytes, 1<<3|wire.Length)
	if err != nil || string(key.Bytes) != mirrorAnnotation {
		return err
	}
	value, err := wire.Last(f.Bytes, 2<<3|wire.Length)
	if err != nil || len(value.Bytes) > maxNameBytes {
		return errors.Join(errors.New("UID of a static pod"), err)
	}
	e.mirrored = e.interner.Intern(value.Bytes)
	return nil
}

func (e *watchEvent) decodeContainer(f wire.Field) error {
	if len(e.pod.Containers) == maxContainers {
		return nil
	}
	e.container = Container{}
	err := e.walk(f.Bytes, containerFields)
	e.container.ID = withoutRuntime(e.container.ID)
	e.pod.Containers = append(e.pod.Containers, e.container)
	return err
}

// withoutRuntime returns the id of containerd://id or cri-o://id.
func withoutRuntime(id string) string { return id[strings.LastIndex(id, "/")+1:] }
