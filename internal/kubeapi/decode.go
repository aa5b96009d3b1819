package kubeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxObjectBytes limits an object. etcd stores at most 1.5 MB.
const maxObjectBytes = 4 << 20

// EventType is the type of a WatchEvent.
type EventType string

// The types of a WatchEvent. ListStarted, an Added for each object and
// ListEnded make a new list, which replaces all known objects. Resumed reports
// that no event was lost since the previous Follow.
const (
	ListStarted EventType = "list started"
	ListEnded   EventType = "list ended"
	Resumed     EventType = "resumed"
	Added       EventType = "ADDED"
	Modified    EventType = "MODIFIED"
	Deleted     EventType = "DELETED"
	bookmark    EventType = "BOOKMARK" // carries only a resource version
)

// WatchEvent is an event of a Follower, in the API server's JSON.
type WatchEvent struct {
	Type   EventType
	Object json.RawMessage // added, modified or deleted
}

// decoder reads the JSON of a response, value by value.
type decoder struct {
	*json.Decoder
	limit *io.LimitedReader
}

func newDecoder(r io.Reader) decoder {
	limit := &io.LimitedReader{R: r, N: maxObjectBytes}
	return decoder{json.NewDecoder(limit), limit}
}

// decode reads the next value, of at most maxObjectBytes. The error is io.EOF
// only at the end of the response.
func (d decoder) decode(value any) error {
	err := d.Decode(value)
	if err != nil && d.limit.N == 0 {
		return fmt.Errorf("object larger than %d bytes", maxObjectBytes)
	}
	d.limit.N = maxObjectBytes
	return err
}

// metadata is that of a list or of an object.
type metadata struct{ ResourceVersion, Continue string }

// readList passes the objects of a list to the handler, one after the other, and
// returns the list's resource version.
func (d decoder) readList(handle func(WatchEvent) error) (version string, err error) {
	token, err := d.Token()
	for err == nil && token != json.Delim('}') {
		token, err = d.Token()
		switch {
		case err != nil || token == json.Delim('}'):
		case token == "metadata":
			var m metadata
			if err = d.decode(&m); m.Continue != "" {
				return "", errors.New("list is only a part")
			}
			version = m.ResourceVersion
		case token == "items":
			err = d.readItems(handle)
		default:
			err = d.decode(new(json.RawMessage))
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return "", io.ErrUnexpectedEOF
	case err == nil && version == "":
		return "", errors.New("list without a resource version")
	}
	return version, err
}

func (d decoder) readItems(handle func(WatchEvent) error) error {
	begin, err := d.Token() // null: no objects
	for err == nil && begin != nil && d.More() {
		e := WatchEvent{Type: Added}
		if err = d.decode(&e.Object); err == nil {
			err = handle(e)
		}
	}
	if err == nil && begin != nil {
		_, err = d.Token()
	}
	return err
}

// readWatchEvent reads an event, and returns the resource version of its object.
func (d decoder) readWatchEvent() (e WatchEvent, version string, err error) {
	if err := d.decode(&e); err != nil {
		return e, "", err
	}
	switch e.Type {
	case Added, Modified, Deleted, bookmark:
	case "ERROR":
		status := &StatusError{Message: "watch ended by an error"}
		status.decode(e.Object)
		return e, "", status
	default:
		return e, "", fmt.Errorf("unknown event %.32q", e.Type)
	}
	var object struct{ Metadata metadata }
	if err := json.Unmarshal(e.Object, &object); err != nil {
		return e, "", err
	}
	if object.Metadata.ResourceVersion == "" {
		return e, "", errors.New("object without a resource version")
	}
	return e, object.Metadata.ResourceVersion, nil
}
