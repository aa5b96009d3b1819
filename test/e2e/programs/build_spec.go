package programs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// BuildSpec describes a program of one version.
type BuildSpec struct {
	Name          string
	Version       string
	Module        string   // path of the Go module
	ModuleVersion string   // empty: Version
	Packages      []string // relative to the module; one binary each
	Requires      []string // further modules, path and version
	LinkerFlags   string
	Tags          string
	Cache         string // folder of the binaries within the cache folder
	Release       string // URL of the folder with the published binaries; empty: always built
}

// CacheDir returns a folder in PODGAUGE_E2E_CACHE or in the user's cache
// folder.
func CacheDir(name string) (string, error) {
	if cache := os.Getenv("PODGAUGE_E2E_CACHE"); cache != "" {
		return filepath.Join(cache, name), nil
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "podgauge-e2e", name), err
}

// dir returns the folder of the binaries.
func (p BuildSpec) dir() (string, error) { return CacheDir(p.Cache) }

// BuiltDir returns the folder of the binaries, or an error with the build
// command if the binaries of p are missing or outdated.
func (p BuildSpec) BuiltDir() (string, error) {
	dir, err := p.dir()
	if err != nil {
		return "", err
	}
	if got, err := os.ReadFile(p.stampFile(dir)); err != nil || string(got) != p.stamp() {
		return "", fmt.Errorf("%s %s is not built: run `go run ./cmd/e2e setup` in test/e2e (`setup all` for all "+
			"versions, `setup monitoring` for a cluster)", p.Name, p.Version)
	}
	return dir, nil
}

// Binary returns the path of a built binary, or an error with the build
// command.
func (p BuildSpec) Binary(name string) (string, error) {
	dir, err := p.BuiltDir()
	return filepath.Join(dir, name), err
}

// Build downloads missing binaries, or builds those that cannot be downloaded,
// and writes the output of the compiler and the duration to log. A cold build of
// a program of Kubernetes needs some minutes, 1.5 GB of memory and 2 GB of Go's
// build cache.
func (p BuildSpec) Build(ctx context.Context, log io.Writer) error {
	begin := time.Now()
	dir, err := p.dir()
	if err != nil {
		return err
	}
	if _, err := p.BuiltDir(); err != nil {
		if err := p.install(ctx, dir, log); err != nil {
			return fmt.Errorf("build %s %s: %w", p.Name, p.Version, err)
		}
		if err := os.WriteFile(p.stampFile(dir), []byte(p.stamp()), 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(log, "%s %s: %s (%s)\n", p.Name, p.Version, dir, time.Since(begin).Round(time.Second))
	return nil
}

func (p BuildSpec) install(ctx context.Context, dir string, log io.Writer) error {
	if p.Release != "" {
		err := p.downloadRelease(ctx, dir)
		if err == nil {
			return nil
		}
		fmt.Fprintf(log, "%s %s is built, because the download failed: %v\n", p.Name, p.Version, err)
	}
	return p.buildIn(ctx, dir, log)
}

// downloadRelease downloads the binaries to dir, if each has the checksum that
// is published beside it.
func (p BuildSpec) downloadRelease(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, pkg := range p.Packages {
		name := path.Base(pkg)
		want, err := get(ctx, p.Release+"/"+name+".sha256")
		if err != nil {
			return err
		}
		binary, err := get(ctx, p.Release+"/"+name)
		if err != nil {
			return err
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(binary)); got != strings.TrimSpace(string(want)) {
			return fmt.Errorf("%s has SHA-256 %s, not %s", name, got, want)
		}
		if err := os.WriteFile(filepath.Join(dir, name), binary, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (p BuildSpec) buildIn(ctx context.Context, dir string, log io.Writer) error {
	module, err := p.prepareModule(ctx, dir)
	if err != nil {
		return err
	}
	// -trimpath keeps the paths of the machine out of the binary.
	args := []string{
		"build", "-C", module, "-trimpath", "-buildvcs=false", "-tags", p.Tags, "-ldflags", p.LinkerFlags,
		"-o", dir + "/",
	}
	build := exec.CommandContext(ctx, "go", append(args, p.packagePaths()...)...)
	build.Env = goEnv("CGO_ENABLED=0")
	build.Stdout, build.Stderr = log, log
	return build.Run()
}

// Source returns the folder of the module's sources.
func (p BuildSpec) Source(ctx context.Context) (dir string, err error) {
	var module struct{ Dir string }
	err = p.download(ctx, &module)
	return module.Dir, err
}

// module returns the module's path and version.
func (p BuildSpec) module() string { return p.Module + "@" + cmp.Or(p.ModuleVersion, p.Version) }

// download downloads the module and decodes the output of `go mod download
// -json` into v.
func (p BuildSpec) download(ctx context.Context, v any) error {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", p.module())
	download.Dir, download.Env = os.TempDir(), goEnv()
	out, err := download.Output()
	if err != nil {
		return fmt.Errorf("download %s: %w\n%s", p.module(), err, out)
	}
	if err := json.Unmarshal(out, v); err != nil {
		return fmt.Errorf("download %s: %w", p.module(), err)
	}
	return nil
}

// localReplace matches a replace directive with a folder of the module.
var localReplace = regexp.MustCompile(`(?m)^\s*(?:replace )?(\S+) => \./`)

// prepareModule writes a module with a requirement of p.Module, and returns its
// folder.
//
// Go ignores replace directives of a requirement. Modules replaced by a folder
// of p.Module are required as published: with the same version, and for k8s.io
// with v0 in place of v1.
func (p BuildSpec) prepareModule(ctx context.Context, dir string) (string, error) {
	var upstream struct{ GoMod string }
	if err := p.download(ctx, &upstream); err != nil {
		return "", err
	}
	upstreamMod, err := os.ReadFile(upstream.GoMod)
	if err != nil {
		return "", err
	}
	published := cmp.Or(p.ModuleVersion, p.Version)
	if p.Module == "k8s.io/kubernetes" {
		published = "v0." + strings.TrimPrefix(p.Version, "v1.")
	}
	var text strings.Builder
	fmt.Fprintf(&text, "module build\n\ngo %s\n\nrequire %s\n", strings.TrimPrefix(runtime.Version(), "go"),
		strings.Replace(p.module(), "@", " ", 1))
	for _, r := range p.Requires {
		fmt.Fprintf(&text, "require %s\n", r)
	}
	for _, name := range localReplace.FindAllSubmatch(upstreamMod, -1) {
		fmt.Fprintf(&text, "replace %s => %s %s\n", name[1], name[1], published)
	}
	for _, name := range p.packagePaths() {
		fmt.Fprintf(&text, "tool %s\n", name)
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

// packagePaths returns the import paths of the packages.
func (p BuildSpec) packagePaths() []string {
	paths := make([]string, len(p.Packages))
	for i, name := range p.Packages {
		paths[i] = path.Join(p.Module, name)
	}
	return paths
}

func (p BuildSpec) stampFile(dir string) string { return filepath.Join(dir, p.Name+".stamp") }

// stamp identifies the sources, the flags and the compiler of a build.
func (p BuildSpec) stamp() string {
	return fmt.Sprintf("%x %s\n", sha256.Sum256(fmt.Appendf(nil, "%+v", p)), runtime.Version())
}

func goEnv(more ...string) []string {
	return append(append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod"), more...)
}
