// Command e2e sets up and cleans up a machine for the end-to-end tests.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/guest"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
)

const usage = `usage, in test/e2e and as root:
  go run ./cmd/e2e setup [version ...|all]   installs packages, builds containerd, gets missing kubelets (default ` +
	programs.ClusterVersion + `)
  go run ./cmd/e2e setup cluster|monitoring  also gets a control plane, and with monitoring builds Prometheus
  go run ./cmd/e2e setup guest ...           also sets up the guest
  go run ./cmd/e2e guest command ...         runs a command in a virtual machine with systemd and cgroup v2
  go run ./cmd/e2e cluster                   runs a cluster of one node until Ctrl-C, with the image of make image
  go run ./cmd/e2e clean                     removes leftovers of a run: processes, cgroups, network, logs
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if status := exitStatus(0); errors.As(err, &status) {
		os.Exit(int(status))
	}
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
	case len(args) > 1 && args[0] == "guest":
		return runGuest(ctx, args[1:], out)
	case len(args) == 3 && args[0] == guest.InitCommand:
		return guest.Init(args[1], args[2])
	case len(args) == 2 && args[0] == guest.JobCommand:
		return guest.RunJob(args[1])
	case slices.Equal(args, []string{"clean"}):
		return node.CleanUp(ctx, node.Options{})
	default:
		return fmt.Errorf("unknown arguments %q\n%s", args, strings.TrimSpace(usage))
	}
}

func setup(ctx context.Context, versions []string, out io.Writer) error {
	if len(versions) > 0 && versions[0] == "guest" {
		if err := setup(ctx, versions[1:], out); err != nil {
			return err
		}
		if err := installPackages(ctx, node.MissingTools(guest.Mmdebstrap), out); err != nil {
			return err
		}
		return guest.SetUp(ctx, out)
	}
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

// exitStatus is the exit status of a command in the guest.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// runGuest runs a command in a guest, which ends with this program or its
// parent.
func runGuest(ctx context.Context, args []string, out io.Writer) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		return err
	}
	status, err := guest.Run(ctx, args, node.LogsDir(), out)
	if err == nil && status != 0 {
		err = exitStatus(status)
	}
	return err
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
