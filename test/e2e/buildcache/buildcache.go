// Package buildcache builds programs that the tests run from their Go modules, and keeps them in a cache folder.
//
// Each version of a program has a folder in test/e2e with a module of its own, so that what it requires stays out of every other go.sum.
package buildcache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// BuildSpec is one version of a program.
type BuildSpec struct {
	// Name of the program, and Version as its module has it.
	Name, Version string
	// Module is the folder of the module from which it is built, in test/e2e.
	Module string
	// Packages are what is built; each gives one binary.
	Packages []string
	// LinkerFlags and Tags are the compiler's.
	LinkerFlags, Tags string
	// Cache is the folder of the binaries, within the user's cache folder or that which PODGAUGE_E2E_CACHE names.
	Cache string
}

// Dir is where the binaries lie, each under its package's last name.
func (p BuildSpec) Dir() (string, error) {
	cache := os.Getenv("PODGAUGE_E2E_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find a cache folder for %s: %w", p.Name, err)
		}
		cache = filepath.Join(user, "podgauge-e2e")
	}
	return filepath.Join(cache, p.Cache), nil
}

// BuiltDir returns Dir where it holds what was built from what the module says now, or an error that says how to build it.
func (p BuildSpec) BuiltDir() (dir string, err error) {
	if dir, err = p.Dir(); err != nil {
		return "", err
	}
	want, err := p.sourceDigest()
	if err != nil {
		return "", err
	}
	if got, err := os.ReadFile(p.digestFile(dir)); err != nil || string(got) != want {
		return "", fmt.Errorf("%s %s is not built: run `go run ./cmd/e2e setup` in test/e2e (`setup all` for every version, `setup monitoring` for a cluster's)", p.Name, p.Version)
	}
	return dir, nil
}

// Build builds the program unless that is done already; the compiler's words go to log.
func (p BuildSpec) Build(ctx context.Context, log io.Writer) (dir string, err error) {
	if dir, err := p.BuiltDir(); err == nil {
		return dir, nil
	}
	if dir, err = p.Dir(); err != nil {
		return "", err
	}
	module, err := p.module()
	if err != nil {
		return "", err
	}
	stamp, err := p.sourceDigest()
	if err != nil {
		return "", err
	}
	// -trimpath keeps this machine's paths out of the binary: the same sources give the same bytes anywhere.
	args := []string{"build", "-C", module, "-trimpath", "-buildvcs=false", "-tags", p.Tags, "-ldflags", p.LinkerFlags, "-o", dir + "/"}
	build := exec.CommandContext(ctx, "go", append(args, p.Packages...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	build.Stdout, build.Stderr = log, log
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build %s %s: %w", p.Name, p.Version, err)
	}
	return dir, os.WriteFile(p.digestFile(dir), []byte(stamp), 0o644)
}

// Source is the folder of one of the modules from which the program is built, with what lies beside its code.
func (p BuildSpec) Source(ctx context.Context, module string) (dir string, err error) {
	folder, err := p.module()
	if err != nil {
		return "", err
	}
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	download.Dir, download.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := download.Output()
	if err != nil {
		return "", fmt.Errorf("find the sources of %s: %w\n%s", module, err, out)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(out, &found); err != nil {
		return "", fmt.Errorf("find the sources of %s: %w", module, err)
	}
	return found.Dir, nil
}

func (p BuildSpec) digestFile(dir string) string { return filepath.Join(dir, p.Name+".stamp") }

// sourceDigest identifies the sources and flags of a build: a program with another stamp is stale.
func (p BuildSpec) sourceDigest() (string, error) {
	module, err := p.module()
	if err != nil {
		return "", err
	}
	own, err := filepath.Glob(filepath.Join(module, "*.go")) // sorted; empty for a program of another module
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, name := range append([]string{filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum")}, own...) {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("read what %s %s is built from: %w", p.Name, p.Version, err)
		}
		hash.Write(b)
	}
	return fmt.Sprintf("%x %s %s\n", hash.Sum(nil), runtime.Version(), strings.TrimSpace(p.LinkerFlags+" "+p.Tags)), nil
}

// module is the folder's path. It is not embedded, since a package cannot embed files of a nested module.
func (p BuildSpec) module() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module test/e2e: %w", err)
	}
	return filepath.Join(filepath.Dir(string(bytes.TrimSpace(out))), p.Module), nil
}
