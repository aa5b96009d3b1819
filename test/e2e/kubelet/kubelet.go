// Package kubelet names the real kubelets that the tests run against.
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

// DefaultVersion is the version that the tests use when nobody names one.
const DefaultVersion = "v1.37.1"

// Versions are those that can be built, the default first.
func Versions() []string { return []string{DefaultVersion, "v1.36.3"} }

// BinaryPath returns the path of a kubelet that was built from what its folder says now, or an error that says how to build it.
func BinaryPath(version string) (string, error) {
	p, err := kubeletProgram(version)
	if err != nil {
		return "", err
	}
	dir, err := p.BuiltDir()
	return filepath.Join(dir, p.Name), err
}

// Build builds a kubelet unless that is done already; the compiler's words go to log. From nothing it takes some minutes, about 1.5 GB of
// memory and 2 GB of Go's build cache.
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
		return buildcache.BuildSpec{}, fmt.Errorf("there is no kubelet %s: there are %s", version, strings.Join(Versions(), ", "))
	}
	return buildcache.BuildSpec{
		Name: "kubelet", Version: version, Module: "k8s.io/kubernetes", Cache: version,
		Packages: []string{"cmd/kubelet"}, LinkerFlags: LinkerFlags(version),
	}, nil
}

// LinkerFlags give a program of Kubernetes the version that its release process would stamp on it: the kubelet reports it as the node's.
func LinkerFlags(version string) string {
	const pkg = "k8s.io/component-base/version."
	numbers := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return fmt.Sprintf("-s -w -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", pkg, version, pkg, numbers[0], pkg, numbers[1])
}
