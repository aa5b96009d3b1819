// Command e2e sets up and cleans up a machine for the end-to-end tests.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
)

const usage = `usage, in test/e2e and as root:
  go run ./cmd/e2e setup [version ...|all]   installs packages, builds containerd and missing kubelets (default ` +
	programs.ClusterVersion + `)
  go run ./cmd/e2e setup cluster|monitoring  also builds a control plane, and with monitoring Prometheus
  go run ./cmd/e2e cluster                   runs a cluster of one node until Ctrl-C, with the image of make image
  go run ./cmd/e2e clean                     removes leftovers of a run: processes, cgroups, network, logs
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) > 0 && args[0] == "setup":
		return setup(ctx, args[1:], out)
	case slices.Equal(args, []string{"cluster"}):
		return runCluster(ctx, out)
	case slices.Equal(args, []string{"clean"}):
		return node.CleanUp(ctx, node.Options{})
	default:
		return fmt.Errorf("unknown arguments %q\n%s", args, strings.TrimSpace(usage))
	}
}

func setup(ctx context.Context, versions []string, out io.Writer) error {
	builds, tools := []programs.BuildSpec{programs.Containerd}, node.MissingTools()
	switch strings.Join(versions, " ") {
	case "cluster":
		builds, tools, versions = programs.OfCluster(), node.MissingTools(cluster.Etcd), nil
	case "monitoring":
		builds, tools, versions = programs.OfMonitoredCluster(), node.MissingTools(cluster.Etcd), nil
		if _, err := programs.OpenShift.Source(ctx); err != nil { // so that the tests need no network
			return err
		}
	case "":
		versions = programs.KubeletVersions()[:1]
	case "all":
		versions = programs.KubeletVersions()
	}
	for _, version := range versions {
		builds = append(builds, programs.Kubelet(version))
	}
	if err := installPackages(ctx, tools, out); err != nil {
		return err
	}
	for _, p := range builds {
		if err := p.Build(ctx, out); err != nil {
			return err
		}
	}
	return nil
}

// installPackages installs the Debian packages of missing tools. A prepared
// machine needs no network.
func installPackages(ctx context.Context, missing []node.RequiredTool, out io.Writer) error {
	if len(missing) == 0 {
		return nil
	}
	install := []string{"install", "-q", "-y", "--no-install-recommends"}
	for _, tool := range missing {
		install = append(install, tool.Package)
	}
	for _, args := range [][]string{{"update", "-q"}, install} {
		apt := exec.CommandContext(ctx, "apt-get", args...)
		apt.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		apt.Stdout, apt.Stderr = out, out
		if err := apt.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
}
