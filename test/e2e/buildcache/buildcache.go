// Package buildcache builds the programs of the tests, and keeps the binaries in a cache folder.
//
// The Go module of each build is written beside the binaries: all dependencies have the versions of the program's release. Go verifies the
// sources against the checksum database.
package buildcache

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// BuildSpec describes a program of one version.
type BuildSpec struct {
	Name          string
	Version       string
	Module        string   // path of the Go module; empty: this module
	ModuleVersion string   // empty: Version
	Packages      []string // relative to the module; each gives one binary
	Requires      []string // further modules, path and version
	LinkerFlags   string
	Tags          string
	Cache         string // folder of the binaries within the cache folder
}

// Dir returns the folder of the binaries, in PODGAUGE_E2E_CACHE or in the user's cache folder.
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

// BuiltDir returns Dir if the binaries are those of p; otherwise an error with the command to build them.
func (p BuildSpec) BuiltDir() (dir string, err error) {
	if dir, err = p.Dir(); err != nil {
		return "", err
	}
	want, err := p.stamp()
	if err != nil {
		return "", err
	}
	if got, err := os.ReadFile(p.stampFile(dir)); err != nil || string(got) != want {
		return "", fmt.Errorf("%s %s is not built: run `go run ./cmd/e2e setup` in test/e2e (`setup all` for all versions, `setup monitoring` for a cluster)", p.Name, p.Version)
	}
	return dir, nil
}

// Build builds the binaries unless BuiltDir has them. The output of the compiler goes to log.
func (p BuildSpec) Build(ctx context.Context, log io.Writer) (dir string, err error) {
	if dir, err := p.BuiltDir(); err == nil {
		return dir, nil
	}
	if dir, err = p.Dir(); err != nil {
		return "", err
	}
	stamp, err := p.stamp()
	if err != nil {
		return "", err
	}
	module, err := p.prepareModule(ctx, dir)
	if err != nil {
		return "", fmt.Errorf("prepare the module of %s %s: %w", p.Name, p.Version, err)
	}
	// -trimpath keeps the paths of the machine out of the binary.
	args := []string{"build", "-C", module, "-trimpath", "-buildvcs=false", "-tags", p.Tags, "-ldflags", p.LinkerFlags, "-o", dir + "/"}
	build := exec.CommandContext(ctx, "go", append(args, p.packagePaths()...)...)
	build.Env = goEnv("CGO_ENABLED=0")
	build.Stdout, build.Stderr = log, log
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build %s %s: %w", p.Name, p.Version, err)
	}
	return dir, os.WriteFile(p.stampFile(dir), []byte(stamp), 0o644)
}

// Source returns the folder of the module's sources.
func (p BuildSpec) Source(ctx context.Context) (dir string, err error) {
	var module struct{ Dir string }
	err = p.download(ctx, &module)
	return module.Dir, err
}

// module returns the module's path and version.
func (p BuildSpec) module() string { return p.Module + "@" + cmp.Or(p.ModuleVersion, p.Version) }

// download downloads the module, and decodes the output of `go mod download -json`.
func (p BuildSpec) download(ctx context.Context, into any) error {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", p.module())
	download.Dir, download.Env = os.TempDir(), goEnv()
	out, err := download.Output()
	if err != nil {
		return fmt.Errorf("download %s: %w\n%s", p.module(), err, out)
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("download %s: %w", p.module(), err)
	}
	return nil
}

// ownTree matches a replace directive with a folder of the module.
var ownTree = regexp.MustCompile(`(?m)^\s*(?:replace )?(\S+) => \./`)

// prepareModule writes a module with a requirement of p.Module, and returns its folder.
//
// Go ignores replace directives of a requirement. Modules replaced by a folder of p.Module are required as published: with the same version,
// and for k8s.io with v0 in place of v1.
func (p BuildSpec) prepareModule(ctx context.Context, dir string) (string, error) {
	if p.Module == "" {
		return moduleDir()
	}
	var upstream struct{ GoMod string }
	if err := p.download(ctx, &upstream); err != nil {
		return "", err
	}
	theirs, err := os.ReadFile(upstream.GoMod)
	if err != nil {
		return "", err
	}
	published := cmp.Or(p.ModuleVersion, p.Version)
	if p.Module == "k8s.io/kubernetes" {
		published = "v0." + strings.TrimPrefix(p.Version, "v1.")
	}
	var text strings.Builder
	fmt.Fprintf(&text, "module build\n\ngo %s\n\nrequire %s\n", strings.TrimPrefix(runtime.Version(), "go"), strings.Replace(p.module(), "@", " ", 1))
	for _, r := range p.Requires {
		fmt.Fprintf(&text, "require %s\n", r)
	}
	for _, name := range ownTree.FindAllSubmatch(theirs, -1) {
		fmt.Fprintf(&text, "replace %s => %s %s\n", name[1], name[1], published)
	}
	for _, path := range p.packagePaths() {
		fmt.Fprintf(&text, "tool %s\n", path)
	}
	module := filepath.Join(dir, p.Name+".module")
	if err := os.MkdirAll(module, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte(text.String()), 0o644); err != nil {
		return "", err
	}
	tidy := exec.CommandContext(ctx, "go", "-C", module, "mod", "tidy")
	tidy.Env = goEnv()
	if out, err := tidy.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go mod tidy: %w\n%s", err, out)
	}
	return module, nil
}

// packagePaths returns the packages as the go command takes them.
func (p BuildSpec) packagePaths() []string {
	paths := make([]string, len(p.Packages))
	for i, name := range p.Packages {
		switch {
		case p.Module == "":
			paths[i] = "./" + name
		case name == ".":
			paths[i] = p.Module
		default:
			paths[i] = p.Module + "/" + name
		}
	}
	return paths
}

func (p BuildSpec) stampFile(dir string) string { return filepath.Join(dir, p.Name+".stamp") }

// stamp identifies the sources, the flags and the compiler of a build.
func (p BuildSpec) stamp() (string, error) {
	hash := sha256.New()
	fmt.Fprintf(hash, "%+v", p)
	if p.Module == "" {
		dir, err := moduleDir()
		if err != nil {
			return "", err
		}
		files := []string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")}
		for _, name := range p.Packages {
			own, err := filepath.Glob(filepath.Join(dir, name, "*.go")) // sorted
			if err != nil {
				return "", err
			}
			files = append(files, own...)
		}
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				return "", fmt.Errorf("read the sources of %s: %w", p.Name, err)
			}
			hash.Write(b)
		}
	}
	return fmt.Sprintf("%x %s\n", hash.Sum(nil), runtime.Version()), nil
}

// moduleDir returns the folder of this module.
func moduleDir() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module test/e2e: %w", err)
	}
	return filepath.Dir(string(bytes.TrimSpace(out))), nil
}

func goEnv(more ...string) []string {
	return append(append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod"), more...)
}
