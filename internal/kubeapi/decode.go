package kubeapi

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/podgauge/podgauge/internal/wire"
)

// Messages and fields: pkg/runtime/generated.proto (Unknown) and pkg/apis/meta/v1/generated.proto (ListMeta, ObjectMeta, Status,
// WatchEvent) in k8s.io/apimachinery. Later versions never reuse a number.
const (
	unknownRaw              = 2<<3 | wire.Length
	listMetadata            = 1<<3 | wire.Length
	listItem                = 2<<3 | wire.Length
	listResourceVersion     = 2<<3 | wire.Length
	listContinue            = 3<<3 | wire.Length
	objectMetadata          = 1<<3 | wire.Length
	metadataResourceVersion = 6<<3 | wire.Length
	eventType               = 1<<3 | wire.Length
	eventObject             = 2<<3 | wire.Length
	extensionRaw            = 1<<3 | wire.Length
	statusMessage           = 3<<3 | wire.Length
	statusReason            = 4<<3 | wire.Length
	statusCode              = 6<<3 | wire.Varint
)

// magic begins each object in protobuf. An Unknown message follows.
const magic = "k8s\x00"

var errNoProtobuf = errors.New("response is not Kubernetes protobuf")

// unwrap returns the object in a response or watch event.
func unwrap(b []byte) ([]byte, error) {
	b, ok := bytes.CutPrefix(b, []byte(magic))
	if !ok {
		return nil, errNoProtobuf
	}
	raw, err := wire.Last(b, unknownRaw)
	return raw.Bytes, err
}

// readList passes the objects of a list to the handler, one after the other, and stores the list's resource version.
func (f *Follower) readList(r *bufio.Reader, handle func(WatchEvent) error) error {
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(r, head); err != nil || string(head) != magic {
		return errors.Join(errNoProtobuf, err)
	}
	f.resourceVersion = ""
	err := walkStream(r, func(tag uint64, length int64) error {
		if tag != unknownRaw {
			return skip(r, length)
		}
		limited := &io.LimitedReader{R: r, N: length}
		list := bufio.NewReader(limited)
		err := walkStream(list, func(tag uint64, length int64) error { return f.readListField(list, tag, length, handle) })
		if err == nil && limited.N > 0 {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	if err == nil && f.resourceVersion == "" {
		err = errors.New("list without a resource version")
	}
	return err
}

func (f *Follower) readListField(r *bufio.Reader, tag uint64, length int64, handle func(WatchEvent) error) error {
	switch tag {
	case listMetadata:
		b, err := f.read(r, length)
		if err != nil {
			return err
		}
		version, err := wire.Last(b, listResourceVersion)
		if next, nextErr := wire.Last(b, listContinue); nextErr == nil && len(next.Bytes) > 0 {
			err = errors.New("list is only a part")
		}
		f.resourceVersion = string(version.Bytes)
		return err
	case listItem:
		b, err := f.read(r, length)
		if err != nil {
			return err
		}
		return handle(WatchEvent{Type: Added, Object: b})
	}
	return skip(r, length)
}

// read reads an object into the buffer, which the next read overwrites.
func (f *Follower) read(r io.Reader, length int64) ([]byte, error) {
	if length > maxObjectBytes {
		return nil, fmt.Errorf("object of %d bytes, at most %d", length, maxObjectBytes)
	}
	if int64(cap(f.buffer)) < length {
		f.buffer = make([]byte, length)
	}
	_, err := io.ReadFull(r, f.buffer[:length])
	return f.buffer[:length], err
}

// walkStream calls visit for each length-delimited field of the message up to the end of r. visit reads the content.
func walkStream(r *bufio.Reader, visit func(tag uint64, length int64) error) error {
	for {
		tag, err := binary.ReadUvarint(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		length, err := binary.ReadUvarint(r)
		switch _, kind := protowire.DecodeTag(tag); {
		case err != nil:
			return errors.Join(io.ErrUnexpectedEOF, err)
		case kind == protowire.VarintType: // the value
			continue
		case kind != protowire.BytesType || length > 1<<40:
			return fmt.Errorf("unexpected field %d of %d bytes", tag, length)
		}
		if err := visit(tag, int64(length)); err != nil { //nolint:gosec // checked
			return err
		}
	}
}

func skip(r io.Reader, length int64) error {
	_, err := io.CopyN(io.Discard, r, length)
	return err
}

// readWatchEvent reads a frame: the length in four bytes, and a WatchEvent.
func (f *Follower) readWatchEvent(r io.Reader) (WatchEvent, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return WatchEvent{}, err
	}
	b, err := f.read(r, int64(binary.BigEndian.Uint32(length[:])))
	if err != nil {
		return WatchEvent{}, errors.Join(errors.New("incomplete event"), err)
	}
	kind, err := wire.Last(b, eventType)
	extension, extensionErr := wire.Last(b, eventObject)
	raw, rawErr := wire.Last(extension.Bytes, extensionRaw)
	if err := errors.Join(err, extensionErr, rawErr); err != nil {
		return WatchEvent{}, err
	}
	object, err := unwrap(raw.Bytes)
	if err != nil {
		return WatchEvent{}, err
	}
	e := WatchEvent{Object: object}
	switch string(kind.Bytes) {
	case "ADDED":
		e.Type = Added
	case "MODIFIED":
		e.Type = Modified
	case "DELETED":
		e.Type = Deleted
	case "BOOKMARK":
		e.Type = bookmark
	case "ERROR":
		status := &StatusError{Message: "watch ended by an error"}
		status.decodeStatus(object)
		return WatchEvent{}, status
	default:
		return WatchEvent{}, fmt.Errorf("unknown event %.32q", kind.Bytes)
	}
	return e, nil
}

// apply stores the resource version of an event's object.
func (f *Follower) apply(e WatchEvent) error {
	metadata, err := wire.Last(e.Object, objectMetadata)
	if err != nil {
		return err
	}
	version, err := wire.Last(metadata.Bytes, metadataResourceVersion)
	if err != nil || len(version.Bytes) == 0 {
		return errors.Join(errors.New("object without a resource version"), err)
	}
	f.resourceVersion = string(version.Bytes)
	return nil
}

// decodeStatus decodes a Status. What cannot be decoded keeps its value.
func (e *StatusError) decodeStatus(b []byte) {
	message, err := wire.Last(b, statusMessage)
	if err != nil {
		return
	}
	reason, _ := wire.Last(b, statusReason)
	e.setStatus(string(reason.Bytes), string(message.Bytes))
	if code, err := wire.Last(b, statusCode); err == nil && code.Value > 0 && code.Value < 1000 {
		e.Code = int(code.Value)
	}
}
