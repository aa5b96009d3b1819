package kubeapi

import (
	"bytes"
	"testing"
)

// FuzzDecode decodes a response as a list, a watch and an error. No input causes a panic, and no object is longer than the input.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "{}", `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{}}]}`, `{"items":null,"items":[[]]}`,
		`{"type":"ADDED","object":{"metadata":{"resourceVersion":"8"}}}`, `{"message":"m","reason":"r","code":410}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		check := func(e WatchEvent) error {
			if len(e.Object) > len(data) {
				t.Errorf("got an object of %d bytes in %d bytes", len(e.Object), len(data))
			}
			return nil
		}
		_, _ = newDecoder(bytes.NewReader(data)).readList(check) // any error is accepted
		for d := newDecoder(bytes.NewReader(data)); ; {
			e, _, err := d.readWatchEvent()
			if err != nil {
				break
			}
			_ = check(e)
		}
		new(StatusError).decode(data)
	})
}
