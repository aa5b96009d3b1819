package kubeapi

import (
	"bufio"
	"bytes"
	"testing"
)

// FuzzDecode decodes a response as a list, a watch and an error. No input causes a panic, and no object is longer than the input.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "k8s\x00", "k8s\x00\x12\x05\x0a\x03\x12\x017", "k8s\x00\x12\x0d\x0a\x03\x12\x017\x12\x06\x0a\x04\x0a\x02ab",
		"\x00\x00\x00\x18\x0a\x05ADDED\x12\x0f\x0a\x0dk8s\x00\x12\x07\x0a\x05\x32\x0378", "k8s\x00\x12\x08\x1a\x01m\x22\x01r\x30\x9a\x03",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		follower := &Follower{}
		check := func(e WatchEvent) error {
			if len(e.Object) > len(data) {
				t.Errorf("got an object of %d bytes in %d bytes", len(e.Object), len(data))
			}
			return nil
		}
		_ = follower.readList(bufio.NewReader(bytes.NewReader(data)), check) // any error is accepted
		r := bytes.NewReader(data)
		for {
			e, err := follower.readWatchEvent(r)
			if err != nil {
				break
			}
			_ = check(e)
			_ = follower.apply(e)
		}
		if raw, err := unwrap(data); err == nil {
			new(StatusError).decodeStatus(raw)
		}
	})
}
