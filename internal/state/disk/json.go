package disk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Unmarshal decodes a file that is one JSON object with a "version". It returns ErrNewerVersion if the
// version is greater than the known one, and ErrInvalidFile for what is not such a file.
func Unmarshal(content []byte, known int, into any) error {
	var head struct {
		Version int `json:"version"`
	}
	if err := unmarshal(content, &head); err != nil {
		return err
	}
	switch {
	case head.Version > known:
		return fmt.Errorf("%w: its version is %d, and %d is known", ErrNewerVersion, head.Version, known)
	case head.Version != known:
		return fmt.Errorf("%w: its version is %d, and %d is known", ErrInvalidFile, head.Version, known)
	}
	return unmarshal(content, into)
}

func unmarshal(content []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidFile, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows it", ErrInvalidFile)
	}
	return nil
}
