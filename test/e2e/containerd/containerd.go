// Package containerd builds the containerd of the CDI tests: Debian's containerd 1.6 lacks CDI.
package containerd

import (
	"context"
	"io"

	"github.com/podgauge/podgauge/test/e2e/buildcache"
)

// Version of containerd.
const Version = "v2.4.2"

const module = "github.com/containerd/containerd/v2"

// containerdProgram is built without snapshotters that need C libraries. Each containerd needs the shim of its own version.
var containerdProgram = buildcache.BuildSpec{
	Name: "containerd", Version: Version, Module: module, Cache: "containerd-" + Version,
	Packages:    []string{"cmd/containerd", "cmd/containerd-shim-runc-v2"},
	LinkerFlags: "-s -w -X " + module + "/version.Version=" + Version,
	Tags:        "no_btrfs,no_devmapper,no_zfs",
}

// BinaryDir returns the folder of containerd and containerd-shim-runc-v2, or an error with the command to build both.
func BinaryDir() (dir string, err error) { return containerdProgram.BuiltDir() }

// Build builds containerd and its shim, unless both are built. The output of the compiler goes to log. A cold build takes two minutes.
func Build(ctx context.Context, log io.Writer) (dir string, err error) {
	return containerdProgram.Build(ctx, log)
}
