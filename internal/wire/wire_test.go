package wire

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/sourcecontextpb"
)

func text(number protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), s)
}

func varint(number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), value)
}

// collectFields returns the fields visited by WalkFields.
func collectFields(b []byte) (fields []string, err error) {
	err = WalkFields(b, func(f Field) error {
		fields = append(fields, fmt.Sprintf("%d %d %q", f.Tag, f.Value, f.Bytes))
		return nil
	})
	return fields, err
}

func TestWalkFields(t *testing.T) {
	group := slices.Concat(protowire.AppendTag(nil, 4, protowire.StartGroupType), varint(1, 1), protowire.AppendTag(nil, 4, protowire.EndGroupType))
	fixed := protowire.AppendFixed64(protowire.AppendTag(nil, 5, protowire.Fixed64Type), 7)
	got, err := collectFields(slices.Concat(varint(2, math.MaxUint64), group, text(1, "a"), fixed, text(1, ""), varint(1, 3)))
	if want := []string{`16 18446744073709551615 ""`, `10 0 "a"`, `10 0 ""`, `8 3 ""`}; err != nil || !slices.Equal(got, want) {
		t.Errorf("fields: got %q, %v, want %q", got, err, want)
	}
	enough := errors.New("enough")
	calls := 0
	if err := WalkFields(slices.Concat(varint(1, 1), varint(1, 1)), func(Field) error { calls++; return enough }); !errors.Is(err, enough) || calls != 1 {
		t.Errorf("got %d calls of visit, and %v from WalkFields", calls, err)
	}
}

func TestWalkFieldsRejectsInvalid(t *testing.T) {
	for name, b := range map[string][]byte{
		"truncated tag":           {0x80},
		"truncated text":          text(1, "text")[:4],
		"truncated number":        varint(1, 300)[:2],
		"number of 11 bytes":      {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"truncated fixed64":       {0x09, 0, 0},
		"group without end":       {0x0b, 0x08, 0x01},
		"group end without start": {0x0c},
		"field zero":              {0x00, 0x00},
		"unknown wire type":       {0x0e},
		"length beyond the end":   {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f},
	} {
		if got, err := collectFields(slices.Concat(text(1, "before"), b)); err == nil || len(got) != 1 {
			t.Errorf("%s: got fields %q, %v", name, got, err)
		}
	}
}

// protowireFields returns the fields visited by protobuf's own functions.
func protowireFields(b []byte) (fields []string, err error) {
	for len(b) > 0 {
		number, kind, all := protowire.ConsumeField(b)
		if all < 0 {
			return fields, protowire.ParseError(all)
		}
		_, _, tag := protowire.ConsumeTag(b)
		switch value := b[tag:all]; kind {
		case protowire.VarintType:
			n, _ := protowire.ConsumeVarint(value)
			fields = append(fields, fmt.Sprintf("%d %d \"\"", uint64(number)<<3, n))
		case protowire.BytesType:
			s, _ := protowire.ConsumeBytes(value)
			fields = append(fields, fmt.Sprintf("%d 0 %q", uint64(number)<<3|2, s))
		}
		b = b[all:]
	}
	return fields, nil
}

// FuzzFields compares WalkFields with protowire up to the first error. Messages that protobuf accepts are accepted.
func FuzzFields(f *testing.F) {
	f.Add(slices.Concat(varint(2, 300), text(1, "a")))
	f.Add([]byte{0x0b, 0x0c}) // an empty group
	f.Add([]byte{0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x15, 1, 2, 3, 4})
	f.Add([]byte{0x80, 0x80, 0x80, 0x80, 0x10, 0}) // a field number above protobuf's limit
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := collectFields(b)
		want, wantErr := protowireFields(b)
		if !slices.Equal(got, want) || (err == nil) != (wantErr == nil) {
			t.Fatalf("fields: got %q, %v, want %q, %v", got, err, want, wantErr)
		}
		if err != nil && proto.Unmarshal(b, &emptypb.Empty{}) == nil {
			t.Fatalf("WalkFields: got error %v, but protobuf accepts the message", err)
		}
	})
}

func TestAppendVarints(t *testing.T) {
	packed := protowire.AppendVarint(protowire.AppendVarint(nil, 300), math.MaxUint64)
	var got []int64
	err := WalkFields(slices.Concat(varint(4, 7), text(4, string(packed)), text(4, "")), func(f Field) (err error) {
		got, err = f.AppendVarints(got)
		return err
	})
	if want := []int64{7, 300, -1}; err != nil || !slices.Equal(got, want) {
		t.Errorf("numbers: got %v, %v, want %v", got, err, want)
	}
	if got, err := (Field{Tag: 4<<3 | Length, Bytes: []byte{1, 0x80}}).AppendVarints(nil); err == nil || !slices.Equal(got, []int64{1}) {
		t.Errorf("truncated numbers: got %v, %v", got, err)
	}
}

func TestInterner(t *testing.T) {
	n := NewInterner(10)
	b := []byte("a name")
	s := n.Intern(b)
	clear(b)
	if s != "a name" || n.Intern([]byte("a\xffb")) != "a\uFFFDb" || n.Intern(nil) != "" {
		t.Errorf("names: got %q", n.interned)
	}
	b = []byte(s)
	if allocs := testing.AllocsPerRun(10, func() { s = n.Intern(b) }); allocs > 0 {
		t.Errorf("known name: got %v allocations", allocs)
	}
	for i := range 100 {
		want := fmt.Sprint(i)
		if got := n.Intern([]byte(want)); got != want || len(n.interned) > 10 {
			t.Fatalf("got %[2]s for %[1]s, with %[3]d names kept", want, got, len(n.interned))
		}
	}
}

// capturedMessage is a Message that keeps a copy of the bytes.
type capturedMessage struct {
	text string
	err  error
}

func (h *capturedMessage) Read(b []byte) error { h.text = string(b); return h.err }

func TestCodec(t *testing.T) {
	var h capturedMessage
	if err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer("in two "), mem.SliceBuffer("parts")}, &h); err != nil || h.text != "in two parts" {
		t.Errorf("message: got %q, %v", h.text, err)
	}
	h.err = errors.New("broken")
	if err := (Codec{}).Unmarshal(nil, &h); !errors.Is(err, h.err) || h.text != "" {
		t.Errorf("empty message: got %q, %v", h.text, err)
	}
	for _, r := range []Request{nil, text(1, "a")} {
		if b, err := (Codec{}).Marshal(r); err != nil || string(b.Materialize()) != string(r) {
			t.Errorf("Marshal(%q) = %q, %v", r, b.Materialize(), err)
		}
	}
	// Types other than Request and Message are rejected.
	other := &sourcecontextpb.SourceContext{FileName: "x"}
	if _, err := (Codec{}).Marshal(other); err == nil {
		t.Error("Marshal accepts a message that is not a Request")
	}
	if err := (Codec{}).Unmarshal(nil, other); err == nil {
		t.Error("Unmarshal accepts a target that is not a Message")
	}
}
