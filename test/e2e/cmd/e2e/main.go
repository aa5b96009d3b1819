// Command e2e sets up and cleans up a machine for the end-to-end tests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/test/e2e/buildcache"
	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/containerd"
	"github.com/podgauge/podgauge/test/e2e/kubelet"
	"github.com/podgauge/podgauge/test/e2e/node"
)

const usage = `usage, in test/e2e and as root:
  go run ./cmd/e2e setup [version ...|all]   installs missing packages, builds containerd and missing kubelets (default ` + kubelet.DefaultVersion + `)
  go run ./cmd/e2e setup cluster|monitoring  the same, and the control plane of a cluster; also what monitors it
  go run ./cmd/e2e cluster                   has a cluster of one node in this terminal, with the image of make image, until Ctrl-C
  go run ./cmd/e2e clean                     removes what a run left: processes, cgroups, network link, folders with the logs
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("e2e", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage) }
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var err error
	switch flags.Arg(0) {
	case "setup":
		err = setup(ctx, flags.Args()[1:], stdout)
	case "cluster":
		err = runCluster(ctx, stdout)
	case "clean":
		err = node.CleanUp(ctx, node.Options{})
	default:
		flags.Usage()
		return 2
	}
	if err != nil {
		fmt.Fprintln(stderr, "e2e:", err)
		return 1
	}
	return 0
}

func setup(ctx context.Context, versions []string, out io.Writer) error {
	tools, more := node.MissingTools(), []buildcache.BuildSpec{}
	switch {
	case slices.Equal(versions, []string{"cluster"}):
		more = cluster.BasePrograms()
	case slices.Equal(versions, []string{"monitoring"}):
		more = cluster.AllPrograms()
	case len(versions) == 0:
		versions = []string{kubelet.DefaultVersion}
	case slices.Equal(versions, []string{"all"}):
		versions = kubelet.Versions()
	}
	if len(more) > 0 {
		versions, tools = []string{cluster.Version}, append(tools, cluster.MissingTools()...)
	}
	if err := installPackages(ctx, tools, out); err != nil {
		return err
	}
	start := time.Now()
	dir, err := containerd.Build(ctx, out)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "containerd %s: %s (%s)\n", containerd.Version, dir, time.Since(start).Round(time.Second))
	for _, version := range versions {
		start := time.Now()
		path, err := kubelet.Build(ctx, version, out)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "kubelet %s: %s (%s)\n", version, path, time.Since(start).Round(time.Second))
	}
	if len(more) > 0 {
		return errors.Join(cluster.Build(ctx, more, out), cluster.Fetch(ctx))
	}
	return nil
}

// installPackages installs the Debian packages of missing tools. A prepared machine needs no network.
func installPackages(ctx context.Context, missing []node.RequiredTool, out io.Writer) error {
	if len(missing) == 0 {
		return nil
	}
	packages := []string{}
	for _, tool := range missing {
		packages = append(packages, tool.Package)
	}
	slices.Sort(packages)
	packages = slices.Compact(packages)
	for _, args := range [][]string{
		{"update", "-q"},
		append([]string{"install", "-q", "-y", "--no-install-recommends"}, packages...),
	} {
		apt := exec.CommandContext(ctx, "apt-get", args...)
		apt.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		apt.Stdout, apt.Stderr = out, out
		if err := apt.Run(); err != nil {
			return fmt.Errorf("install %v: %w", packages, err)
		}
	}
	for _, tool := range missing {
		if _, err := exec.LookPath(tool.File); err != nil {
			return fmt.Errorf("still missing after apt-get: %w", err)
		}
	}
	return nil
}
