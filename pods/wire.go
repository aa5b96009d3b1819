package pods

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// field is one of a message, of one of the kinds that are read.
type field struct {
	tag    uint64 // its number and kind
	number uint64 // of a varint
	bytes  []byte // of what has a length; they lie in the message
}

// fields calls each for every varint and every length-delimited field of a message,
// and checks the form of all others.
func fields(b []byte, each func(field) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("decode a pod: %w", protowire.ParseError(n))
		}
		b = b[n:]
		f := field{tag: protowire.EncodeTag(number, kind)}
		switch kind {
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return fmt.Errorf("decode a pod: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if err := each(f); err != nil {
			return err
		}
	}
	return nil
}

// interner keeps strings that come again with every message.
type interner map[string]string

// name makes a string of what identifies something. One that is too long is an
// error: a part of it would be another's.
func (in interner) name(b []byte) (string, error) {
	if len(b) > mostNameBytes {
		return "", fmt.Errorf("decode a pod: it has a name of %d bytes", len(b))
	}
	return in.text(b), nil
}

// text makes a string of words, and cuts them off where they are too long. What is
// not UTF-8 cannot be a label's value, and is replaced.
func (in interner) text(b []byte) string {
	if len(b) > mostNameBytes {
		b = b[:mostNameBytes]
	}
	if s, ok := in[string(b)]; ok {
		return s
	}
	s := strings.ToValidUTF8(string(b), "\uFFFD")
	in[string(b)] = s
	return s
}
