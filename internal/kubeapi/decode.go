package kubeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

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

// readList passes the objects of a list to the handler, one after the other,
// and stores the list's resource version.
func (f *Follower) readList(d decoder, handle func(WatchEvent) error) error {
	f.resourceVersion = ""
	token, err := d.Token()
	for err == nil && token != json.Delim('}') {
		token, err = d.Token()
		switch {
		case err != nil || token == json.Delim('}'):
		case token == "metadata":
			var m metadata
			if err = d.decode(&m); m.Continue != "" {
				return errors.New("list is only a part")
			}
			f.resourceVersion = m.ResourceVersion
		case token == "items":
			err = d.readItems(handle)
		default:
			err = d.decode(new(json.RawMessage))
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err == nil && f.resourceVersion == "":
		return errors.New("list without a resource version")
	}
	return err
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

// readWatchEvent reads an event, and stores the resource version of its object.
func (f *Follower) readWatchEvent(d decoder) (e WatchEvent, err error) {
	if err := d.decode(&e); err != nil {
		return e, err
	}
	switch e.Type {
	case Added, Modified, Deleted, bookmark:
	case "ERROR":
		status := &StatusError{Message: "watch ended by an error"}
		status.decode(e.Object)
		return e, status
	default:
		return e, fmt.Errorf("unknown event %.32q", e.Type)
	}
	var object struct{ Metadata metadata }
	if err := json.Unmarshal(e.Object, &object); err != nil {
		return e, err
	}
	if object.Metadata.ResourceVersion == "" {
		return e, errors.New("object without a resource version")
	}
	f.resourceVersion = object.Metadata.ResourceVersion
	return e, nil
}
