// Package kubelet builds the real kubelets of the tests.
package kubelet

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/test/e2e/buildcache"
)

// DefaultVersion is the version of the tests without KUBELET_VERSION.
const DefaultVersion = "v1.37.1"

// Versions returns all supported versions, DefaultVersion first.
func Versions() []string { return []string{DefaultVersion, "v1.36.3"} }

// BinaryPath returns the path of a built kubelet, or an error with the command to build it.
func BinaryPath(version string) (string, error) {
	p, err := kubeletProgram(version)
	if err != nil {
		return "", err
	}
	dir, err := p.BuiltDir()
	return filepath.Join(dir, p.Name), err
}

// Build builds a kubelet, unless it is built. The output of the compiler goes to log. A cold build takes some minutes, 1.5 GB of memory and
// 2 GB of Go's build cache.
func Build(ctx context.Context, version string, log io.Writer) (path string, err error) {
	p, err := kubeletProgram(version)
	if err != nil {
		return "", err
	}
	dir, err := p.Build(ctx, log)
	return filepath.Join(dir, p.Name), err
}

func kubeletProgram(version string) (buildcache.BuildSpec, error) {
	if !slices.Contains(Versions(), version) {
		return buildcache.BuildSpec{}, fmt.Errorf("unknown kubelet %s, want one of %s", version, strings.Join(Versions(), ", "))
	}
	return buildcache.BuildSpec{
		Name: "kubelet", Version: version, Module: "k8s.io/kubernetes", Cache: version,
		Packages: []string{"cmd/kubelet"}, LinkerFlags: LinkerFlags(version),
	}, nil
}

// LinkerFlags returns the flags for the version of a program of Kubernetes, as in a release.
func LinkerFlags(version string) string {
	const pkg = "k8s.io/component-base/version."
	numbers := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return fmt.Sprintf("-s -w -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", pkg, version, pkg, numbers[0], pkg, numbers[1])
}
