package wire

import "google.golang.org/protobuf/encoding/protowire"

// Kinds of fields to read. A tag combines the number and the kind of a field: 5<<3 | Length.
const (
	Varint = uint64(protowire.VarintType)
	Length = uint64(protowire.BytesType)
)

// Field is a field of a message.
type Field struct {
	Tag   uint64
	Value uint64 // of a Varint
	Bytes []byte // of a Length: a part of the message
}

// WalkFields calls visit for each Varint and Length of a message in order, and checks the form of all fields.
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

// WalkTag calls visit for each field with a tag.
func WalkTag(b []byte, tag uint64, visit func(Field) error) error {
	return WalkFields(b, func(f Field) error {
		if f.Tag == tag {
			return visit(f)
		}
		return nil
	})
}

// Last returns the last field with a tag; the zero Field without any. By protobuf's rules the last value counts.
func Last(b []byte, tag uint64) (last Field, err error) {
	err = WalkTag(b, tag, func(f Field) error { last = f; return nil })
	return last, err
}

// AppendVarints appends the numbers of a repeated field: a Varint is a single number, a Length has packed numbers. After an error the
// result has the numbers before the error.
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
