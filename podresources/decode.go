package podresources

import (
	"fmt"
	"strings"

	"github.com/podgauge/podgauge/device"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// rawAnswer is what of a List is wanted: the holdings, and which pods there are.
// A node has hundreds of containers and few devices, so the answer is read where
// it lies, and only what is new is made a string
// (k8s.io/kubelet/pkg/apis/podresources/v1/api.proto). The next answer is read
// into the same memory.
type rawAnswer struct {
	held  []device.Holding
	pods  []podName
	names interner
}

type podName struct{ namespace, pod string }

func newAnswer() rawAnswer { return rawAnswer{names: interner{}} }

// noRequest is the empty message.
type noRequest struct{}

// rawCodec reads a List answer into a *rawAnswer.
type rawCodec struct{}

// Name is that of the codec on the kubelet's side.
func (rawCodec) Name() string { return "proto" }

// Marshal writes the empty message.
func (rawCodec) Marshal(any) (mem.BufferSlice, error) { return nil, nil }

// Unmarshal reads one message into a *rawAnswer.
func (rawCodec) Unmarshal(data mem.BufferSlice, into any) error {
	answer, ok := into.(*rawAnswer)
	if !ok {
		return fmt.Errorf("decode a List answer into %T", into)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return answer.decode(buf.ReadOnlyData())
}

// The numbers of the fields that are wanted.
const (
	listPods          = 1
	podPodName        = 1
	podNamespace      = 2
	podContainers     = 3
	containerName     = 1
	containerDevices  = 2
	devicesResource   = 1
	devicesIDs        = 2
	mostInternedNames = 4096
)

// decode reads an answer. After an error the rest is of no use.
func (a *rawAnswer) decode(b []byte) error {
	a.held, a.pods = a.held[:0], a.pods[:0]
	if len(a.names) > mostInternedNames { // they may be of pods long gone
		a.names = interner{}
	}
	return fields(b, func(number protowire.Number, pod []byte) error {
		if number != listPods {
			return nil
		}
		return a.pod(pod)
	})
}

func (a *rawAnswer) pod(b []byte) error {
	// The names may come after the containers, and again: the last one counts.
	var pod, namespace []byte
	err := fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case podPodName:
			pod = value
		case podNamespace:
			namespace = value
		}
		return nil
	})
	if err != nil {
		return err
	}
	name := podName{a.names.of(namespace), a.names.of(pod)}
	a.pods = append(a.pods, name)
	return fields(b, func(number protowire.Number, container []byte) error {
		if number != podContainers {
			return nil
		}
		return a.container(container, name)
	})
}

func (a *rawAnswer) container(b []byte, pod podName) error {
	var container []byte
	from := len(a.held)
	err := fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case containerName:
			container = value
		case containerDevices:
			return a.devices(value)
		}
		return nil
	})
	if from == len(a.held) { // most containers hold nothing, and no string is made of them
		return err
	}
	owner := device.Owner{Namespace: pod.namespace, Pod: pod.pod, Container: a.names.of(container)}
	for i := range a.held[from:] {
		a.held[from+i].Owner = owner
	}
	return err
}

// devices appends a row for each id; whose they are is for the caller to say.
func (a *rawAnswer) devices(b []byte) error {
	var resource []byte
	from := len(a.held)
	err := fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case devicesResource:
			resource = value
		case devicesIDs:
			a.held = append(a.held, device.Holding{Offered: device.OfferedID(a.names.of(value))})
		}
		return nil
	})
	if from == len(a.held) {
		return err
	}
	name := a.names.of(resource)
	for i := range a.held[from:] {
		a.held[from+i].Resource = name
	}
	return err
}

// fields calls each for every length-delimited field of a message, and checks the
// form of all others.
func fields(b []byte, each func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("decode pod resources: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return fmt.Errorf("decode pod resources: %w", protowire.ParseError(n))
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return fmt.Errorf("decode pod resources: %w", protowire.ParseError(n))
		}
		if err := each(number, value); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// interner keeps strings that come again with every answer.
type interner map[string]string

// of makes a string of b. What is not UTF-8 cannot be a name in Kubernetes, nor a
// label's value, and is replaced.
func (in interner) of(b []byte) string {
	if s, ok := in[string(b)]; ok {
		return s
	}
	s := strings.ToValidUTF8(string(b), "\uFFFD")
	in[string(b)] = s
	return s
}
