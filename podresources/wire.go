package podresources

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// noRequest is the empty message.
type noRequest struct{}

// raw is an answer that is read where it lies. After an error the rest of it is of no
// use.
type raw interface{ decode(b []byte) error }

// rawCodec reads an answer into a raw one.
type rawCodec struct{}

// Name is that of the codec on the kubelet's side.
func (rawCodec) Name() string { return "proto" }

// Marshal writes the empty message.
func (rawCodec) Marshal(any) (mem.BufferSlice, error) { return nil, nil }

// Unmarshal reads one message into a raw answer.
func (rawCodec) Unmarshal(data mem.BufferSlice, into any) error {
	answer, ok := into.(raw)
	if !ok {
		return fmt.Errorf("decode an answer into %T", into)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return answer.decode(buf.ReadOnlyData())
}

// fields calls each for every length-delimited field of a message, and checks the
// form of all others.
func fields(b []byte, each func(protowire.Number, []byte) error) error {
	return walk(b, each, func(protowire.Number, uint64) {})
}

// walk is fields for a message that has numbers too: it calls eachNumber for every
// varint.
func walk(b []byte, each func(protowire.Number, []byte) error, eachNumber func(protowire.Number, uint64)) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return malformed(n)
		}
		b = b[n:]
		switch kind {
		case protowire.BytesType:
			var value []byte
			if value, n = protowire.ConsumeBytes(b); n < 0 {
				return malformed(n)
			}
			if err := each(number, value); err != nil {
				return err
			}
		case protowire.VarintType:
			var value uint64
			if value, n = protowire.ConsumeVarint(b); n < 0 {
				return malformed(n)
			}
			eachNumber(number, value)
		default:
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return malformed(n)
			}
		}
		b = b[n:]
	}
	return nil
}

// appendPacked appends the numbers of a repeated field that is packed into one.
func appendPacked(numbers []int64, b []byte) ([]int64, error) {
	for len(b) > 0 {
		value, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return numbers, malformed(n)
		}
		numbers, b = append(numbers, int64(value)), b[n:]
	}
	return numbers, nil
}

func malformed(n int) error {
	return fmt.Errorf("decode pod resources: %w", protowire.ParseError(n))
}

// mostInternedNames is when an interner begins anew: its names may be of pods long gone.
const mostInternedNames = 4096

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

// trim forgets all names where they are too many.
func (in interner) trim() {
	if len(in) > mostInternedNames {
		clear(in)
	}
}
