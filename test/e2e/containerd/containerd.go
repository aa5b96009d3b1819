// Package containerd names the containerd that the tests run where Debian's will not do: that one is 1.6, which knows nothing of CDI.
package containerd

import (
	"context"
	"io"

	"github.com/podgauge/podgauge/test/e2e/buildcache"
)

// Version is the one that is built.
const Version = "v2.4.2"

const module = "github.com/containerd/containerd/v2"

// containerdProgram leaves out what would take C libraries or devices to run. The shim is the runtime's: each containerd wants its own.
var containerdProgram = buildcache.BuildSpec{
	Name: "containerd", Version: Version, Module: module, Cache: "containerd-" + Version,
	Packages:    []string{"cmd/containerd", "cmd/containerd-shim-runc-v2"},
	LinkerFlags: "-s -w -X " + module + "/version.Version=" + Version,
	Tags:        "no_btrfs,no_devmapper,no_zfs",
}

// BinaryDir returns the folder of containerd and containerd-shim-runc-v2, or an error that says how to build them.
func BinaryDir() (dir string, err error) { return containerdProgram.BuiltDir() }

// Build builds them unless that is done already; the compiler's words go to log. From nothing it takes a minute or two.
func Build(ctx context.Context, log io.Writer) (dir string, err error) {
	return containerdProgram.Build(ctx, log)
}
