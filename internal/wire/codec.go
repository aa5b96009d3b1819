// Package wire has protobuf messages read where they lie: the codec that gets them from
// gRPC, the walk over their fields, and the strings that come again.
package wire

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// Empty is a message without fields: the question of whoever wants all.
type Empty struct{}

// Message is what an answer is read into. The bytes are another's when Read has
// returned. An error ends the call, or the stream.
type Message interface{ Read(b []byte) error }

// Codec sends what is Empty and receives into a Message.
type Codec struct{}

// Name is that of the codec on the kubelet's side.
func (Codec) Name() string { return "proto" }

// Marshal writes the Empty message.
func (Codec) Marshal(message any) (mem.BufferSlice, error) {
	if _, ok := message.(Empty); !ok {
		return nil, fmt.Errorf("write %T as a message", message)
	}
	return nil, nil
}

// Unmarshal has a Message read what has come.
func (Codec) Unmarshal(data mem.BufferSlice, target any) error {
	m, ok := target.(Message)
	if !ok {
		return fmt.Errorf("read a message into %T", target)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return m.Read(buf.ReadOnlyData())
}
