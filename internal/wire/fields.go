package wire

import "google.golang.org/protobuf/encoding/protowire"

// The kinds of fields that are read. A tag is a field's number and its kind: 5<<3 | Length.
const (
	Varint = uint64(protowire.VarintType)
	Length = uint64(protowire.BytesType)
)

// Field is one of a message, of one of the kinds that are read.
type Field struct {
	Tag   uint64
	Value uint64 // of a Varint
	Bytes []byte // of a Length; they lie in the message
}

// WalkFields calls each for every Varint and every Length of a message, in their order, and
// checks the form of all others.
func WalkFields(b []byte, visit func(Field) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		f := Field{Tag: protowire.EncodeTag(number, kind)}
		switch kind {
		case protowire.VarintType:
			f.Value, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			f.Bytes, n = protowire.ConsumeBytes(b)
		default:
			if n = protowire.ConsumeFieldValue(number, kind, b); n >= 0 {
				b = b[n:]
				continue
			}
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}

// AppendVarints appends what a field of repeated numbers has: a Varint one of them, a
// Length any number of them, packed. With an error come those before it.
func (f Field) AppendVarints(values []int64) ([]int64, error) {
	if _, kind := protowire.DecodeTag(f.Tag); kind == protowire.VarintType {
		return append(values, int64(f.Value)), nil
	}
	for b := f.Bytes; len(b) > 0; {
		value, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return values, protowire.ParseError(n)
		}
		values, b = append(values, int64(value)), b[n:]
	}
	return values, nil
}
