package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/podgauge/podgauge/internal/atomicfile"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/incident"
)

const (
	// FileName is the name of the file in the state folder.
	FileName = "state.json"

	version       = 1      // new fields keep the version; existing fields never change
	invalidSuffix = ".bad" // of a file that podgauge could not read
	maxBytes      = 64 << 20
)

var errNewer = errors.New("the file is of a newer podgauge, and remains unchanged")

// content is the content of the file.
type content struct {
	Version   int                 `json:"version"`
	BootID    string              `json:"boot,omitempty"` // when the health was saved
	Health    health.History      `json:"health"`
	Incidents []incident.Incident `json:"incidents"`
}

// readFile reads a file. A missing file has no content, and an invalid file is
// set aside.
func readFile(path string) (c content, err error) {
	atomicfile.RemoveStaleTemps(path)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return content{}, nil
	}
	if err == nil {
		c, err = decode(f)
		f.Close() //nolint:errcheck // opened for reading
	}
	if err == nil || errors.Is(err, errNewer) {
		return c, err
	}
	if renameErr := os.Rename(path, path+invalidSuffix); renameErr != nil {
		return content{}, errors.Join(err, renameErr)
	}
	return content{}, fmt.Errorf("%w (set aside as %s)", err, path+invalidSuffix)
}

func decode(r io.Reader) (c content, err error) {
	text, err := io.ReadAll(io.LimitReader(r, maxBytes))
	if err != nil {
		return content{}, err
	}
	err = json.Unmarshal(text, &c) // sets the version also if later types differ
	switch {
	case c.Version > version:
		return content{}, fmt.Errorf("%w: version %d, expected %d", errNewer, c.Version, version)
	case err != nil:
		return content{}, fmt.Errorf("decode %s: %w", FileName, err)
	case c.Version != version:
		return content{}, fmt.Errorf("decode %s: version %d, expected %d", FileName, c.Version, version)
	}
	if err := errors.Join(c.Health.Validate(), incident.Validate(c.Incidents)); err != nil {
		return content{}, fmt.Errorf("check %s: %w", FileName, err)
	}
	return c, nil
}
