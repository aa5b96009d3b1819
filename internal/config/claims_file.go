package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
)

// ClaimsFile is a file with claims that are not counted as allocations, a
// pattern per line. podgauge-kube writes the claims with admin access, and
// replaces the file.
type ClaimsFile struct {
	path   string
	log    *slog.Logger
	claims atomic.Pointer[ClaimsConfig]

	// Fields of read.
	lastSeen string   // content, or the error of reading
	rejected []string // errors of lines, already logged
}

// NewClaimsFile returns a file that is read once. A missing file has no claims.
func NewClaimsFile(path string, log *slog.Logger) *ClaimsFile {
	f := &ClaimsFile{path: path, log: log}
	f.claims.Store(&ClaimsConfig{})
	f.read()
	return f
}

// Claims returns the newest claims.
func (f *ClaimsFile) Claims() ClaimsConfig { return *f.claims.Load() }

// Run reads the file once per second, until ctx is done.
func (f *ClaimsFile) Run(ctx context.Context) error {
	for retry.Sleep(ctx, retry.Aligned(time.Second)) == nil {
		f.read()
	}
	return nil
}

// read replaces the claims if the file has changed.
func (f *ClaimsFile) read() {
	content, err := readFile(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case len(content) > maxFileBytes:
		err = fmt.Errorf("%s: more than %d KiB", f.path, maxFileBytes>>10)
	}
	if err != nil {
		content = err.Error()
	}
	if content == f.lastSeen {
		return
	}
	f.lastSeen = content
	if err != nil {
		f.log.Warn("cannot read ignored claims, keeping the previous ones", "err", err)
		return
	}
	var claims ClaimsConfig
	var rejected []string
	for line := range strings.Lines(content) {
		switch p, err := ParseClaimPattern(strings.TrimSpace(line)); {
		case strings.TrimSpace(line) == "":
		case err == nil:
			claims.Ignore = append(claims.Ignore, p)
		default:
			rejected = append(rejected, err.Error())
			if !slices.Contains(f.rejected, err.Error()) {
				f.log.Warn("ignored claim rejected", "file", f.path, "err", err)
			}
		}
	}
	f.rejected = rejected
	f.claims.Store(&claims)
}
