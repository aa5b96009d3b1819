// Package kubelet builds the real kubelets that the tests run against, from their Go modules.
//
// Each version has a folder here with a module of its own, so that k8s.io/kubernetes stays out of every other go.sum. pin.sh writes it.
package kubelet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Default is the version that the tests use when nobody names one.
const Default = "v1.37.1"

// Versions are those that can be built, the default first.
func Versions() []string { return []string{Default, "v1.36.3"} }

// Path is where the built kubelet lies: in the user's cache folder, or in that which PODGAUGE_E2E_CACHE names.
func Path(version string) (string, error) {
	cache := os.Getenv("PODGAUGE_E2E_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find a cache folder for kubelets: %w", err)
		}
		cache = filepath.Join(user, "podgauge-e2e")
	}
	return filepath.Join(cache, version, "kubelet"), nil
}

// Built returns the path of a kubelet that was built from what its folder says now, or an error that says how to build it.
func Built(version string) (string, error) {
	path, err := Path(version)
	if err != nil {
		return "", err
	}
	want, err := stamp(version)
	if err != nil {
		return "", err
	}
	if got, err := os.ReadFile(path + ".stamp"); err != nil || string(got) != want {
		return "", fmt.Errorf("kubelet %s is not built: run `go run ./cmd/e2e setup %s` in test/e2e", version, version)
	}
	return path, nil
}

// Build builds a kubelet unless that is done already; the compiler's words go to log. From nothing it takes some minutes, about 1.5 GB of
// memory and 2 GB of Go's build cache.
func Build(ctx context.Context, version string, log io.Writer) (path string, err error) {
	if path, err := Built(version); err == nil {
		return path, nil
	}
	if path, err = Path(version); err != nil {
		return "", err
	}
	folder, err := folder(version)
	if err != nil {
		return "", err
	}
	built, err := stamp(version)
	if err != nil {
		return "", err
	}
	// -trimpath keeps this machine's paths out of the binary: the same sources give the same bytes anywhere.
	build := exec.CommandContext(ctx, "go", "build", "-C", folder, "-trimpath", "-buildvcs=false", "-ldflags", linkerFlags(version),
		"-o", path, "k8s.io/kubernetes/cmd/kubelet")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	build.Stdout, build.Stderr = log, log
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build kubelet %s: %w", version, err)
	}
	return path, os.WriteFile(path+".stamp", []byte(built), 0o644)
}

// linkerFlags give the binary the version that its release process would stamp on it: the kubelet reports it as the node's.
func linkerFlags(version string) string {
	const pkg = "k8s.io/component-base/version."
	numbers := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return fmt.Sprintf("-s -w -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", pkg, version, pkg, numbers[0], pkg, numbers[1])
}

// stamp says from what a kubelet is built; one with another stamp is stale.
func stamp(version string) (string, error) {
	folder, err := folder(version)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return "", fmt.Errorf("read what kubelet %s is built from (there are %s): %w", version, strings.Join(Versions(), ", "), err)
		}
		hash.Write(b)
	}
	return fmt.Sprintf("%x %s %s\n", hash.Sum(nil), runtime.Version(), linkerFlags(version)), nil
}

// folder is where the version's module lies. It is not embedded, since a package cannot embed files of a nested module.
func folder(version string) (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module test/e2e: %w", err)
	}
	return filepath.Join(filepath.Dir(string(bytes.TrimSpace(out))), "kubelet", version), nil
}
