package disk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Unmarshal decodes a JSON object with a "version". It returns ErrNewerVersion for a version above known, and ErrInvalidFile for other content.
func Unmarshal(content []byte, known int, into any) error {
	var head struct {
		Version int `json:"version"`
	}
	if err := unmarshal(content, &head); err != nil {
		return err
	}
	switch {
	case head.Version > known:
		return fmt.Errorf("%w: version %d, want %d", ErrNewerVersion, head.Version, known)
	case head.Version != known:
		return fmt.Errorf("%w: version %d, want %d", ErrInvalidFile, head.Version, known)
	}
	return unmarshal(content, into)
}

func unmarshal(content []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidFile, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: trailing content", ErrInvalidFile)
	}
	return nil
}
