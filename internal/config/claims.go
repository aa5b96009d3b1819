package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
)

// ClaimsConfig configures how resource claims (Dynamic Resource Allocation)
// count as allocations. The PodResources API does not show whether a claim has
// admin access.
type ClaimsConfig struct {
	Ignore         []ClaimPattern
	ReserveDevices bool // claimed devices are unhealthy in the device plugin's list
}

// Ignores reports whether a claim is not an allocation of its devices.
func (c ClaimsConfig) Ignores(namespace, name, driver string) bool {
	claim := namespace + "/" + name + "/" + driver
	return slices.ContainsFunc(c.Ignore, func(p ClaimPattern) bool { return matchGlob(string(p), claim) })
}

// ClaimPattern selects claims by a glob over NAMESPACE/NAME/DRIVER.
type ClaimPattern string

var claimPattern = regexp.MustCompile(`^([a-z0-9.*-]+)/([a-z0-9.*-]+)(?:/([a-z0-9.*-]+))?$`)

// ParseClaimPattern parses NAMESPACE/NAME, which means any driver, or
// NAMESPACE/NAME/DRIVER.
func ParseClaimPattern(s string) (ClaimPattern, error) {
	parts := claimPattern.FindStringSubmatch(s)
	if parts == nil {
		return "", fmt.Errorf("%q: expected NAMESPACE/NAME or NAMESPACE/NAME/DRIVER of claims, "+
			"with * for any characters", s)
	}
	if parts[3] == "" {
		s += "/*"
	}
	return ClaimPattern(s), nil
}

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
	content, err := ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
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
