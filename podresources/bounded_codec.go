package podresources

import (
	"fmt"
	"runtime/debug"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// maxMemory bounds the limits below on machines without a memory limit.
	maxMemory = 256 << 20
	// maxNameBytes is twice the length of names in Kubernetes. Past owners keep
	// their names for an hour.
	maxNameBytes = 512
)

// memoryLimit returns Go's memory limit, at most maxMemory.
func memoryLimit() int { return int(min(debug.SetMemoryLimit(-1), maxMemory)) }

// maxResponseBytes is the limit of a response, which gRPC holds twice.
// gRPC's default of 4 MiB was too small in the field (dcgm-exporter#509).
func maxResponseBytes() int { return memoryLimit() / 8 }

// boundedCodec is gRPC's codec for responses that fit into the memory. Messages
// take several times their encoded size: an empty pod has two bytes, and takes
// 160.
type boundedCodec struct {
	encoding.CodecV2
	maxDecodedBytes int
}

func newBoundedCodec() boundedCodec {
	return boundedCodec{encoding.GetCodecV2("proto"), memoryLimit() / 4}
}

// Unmarshal decodes a message, unless it is too large.
func (c boundedCodec) Unmarshal(data mem.BufferSlice, target any) error {
	b := data.Materialize()
	message := target.(proto.Message)
	size, err := prepare(b, message.ProtoReflect().Descriptor())
	if err == nil && size > c.maxDecodedBytes {
		err = fmt.Errorf("needs %d bytes of memory, at most %d", size, c.maxDecodedBytes)
	}
	if err == nil {
		err = proto.Unmarshal(b, message)
	}
	if err != nil {
		return fmt.Errorf("decode %d bytes: %w", len(b), err)
	}
	return nil
}

// prepare estimates the memory that a message takes, with the sizes of structs
// and strings rounded up, and replaces invalid UTF-8: a kubelet before 1.35
// passes on any id of a device plugin, and a generated type rejects the
// message.
func prepare(b []byte, of protoreflect.MessageDescriptor) (size int, err error) {
	const structBytes, fieldBytes, stringBytes, numberBytes = 64, 20, 24, 8
	size = structBytes + fieldBytes*of.Fields().Len()
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return size, protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return size, protowire.ParseError(n)
		}
		value := b[:n]
		b = b[n:]
		field := of.Fields().ByNumber(number)
		switch {
		case kind != protowire.BytesType:
			size += numberBytes
		case field == nil: // of a newer kubelet
			size += 2 * n
		case field.Kind() == protoreflect.MessageKind:
			content, _ := protowire.ConsumeBytes(value)
			inner, err := prepare(content, field.Message())
			if err != nil {
				return size, err
			}
			size += inner
		case field.Kind() == protoreflect.StringKind:
			if n > maxNameBytes {
				return size, fmt.Errorf("name of %d bytes, at most %d", n, maxNameBytes)
			}
			size += stringBytes + n
			text, _ := protowire.ConsumeBytes(value)
			replaceInvalid(text)
		default: // packed numbers
			size += numberBytes * n
		}
	}
	return size, nil
}

// replaceInvalid replaces each byte that is not UTF-8.
func replaceInvalid(text []byte) {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if r == utf8.RuneError && n == 1 {
			text[0] = '?'
		}
		text = text[n:]
	}
}
