package node

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/podgauge/podgauge/test/e2e/programs"
)

// makeFolders creates the folders and empties the log folder of an earlier run
// with the same name.
func (n *RealNode) makeFolders(context.Context) error {
	const longest, limit = "containerd/containerd.sock", 107
	if len(filepath.Join(n.work, longest)) > limit {
		return fmt.Errorf("folder %q is too long for the unix sockets below it", n.options.Dir)
	}
	if err := os.RemoveAll(n.Logs); err != nil {
		return err
	}
	for _, dir := range []string{
		n.PodLogs(), n.Path("root"), n.Path("manifests"), n.Path("conf", "cni"), n.Path("containerd"), n.Path("cni"),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// enterNamespaces creates the node's namespaces with testcmd as the first
// process.
func (n *RealNode) enterNamespaces(ctx context.Context) error {
	var err error
	if n.testcmd, err = programs.CacheDir("testcmd"); err != nil { // linked once, not for each node
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", n.testcmd,
		"github.com/podgauge/podgauge/test/e2e/testcmd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build testcmd: %w\n%s", err, out)
	}
	if n.cgroups, err = newNodeCgroups(n.options.Number); err != nil {
		return err
	}
	if err = n.cgroups.create(); err != nil {
		return err
	}
	n.nsenter, err = newNsenterThread(n.cgroups, exec.Command(n.testcmd, n.cgroups.initArgs()...))
	return err
}

// setUpNetwork connects machine and node by a veth pair, so that tests reach
// the ports of node and pods with HTTP clients.
func (n *RealNode) setUpNetwork(ctx context.Context) error {
	number := n.options.Number
	for _, command := range []string{
		fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", number.name(), n.nsenter.init.Process.Pid),
		fmt.Sprintf("ip addr add %s/24 dev %s", number.machineIP(), number.name()),
		fmt.Sprintf("ip link set %s up", number.name()),
		fmt.Sprintf("ip route add %s via %s", number.podSubnet(), number.nodeIP()),
	} {
		args := strings.Fields(command)
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
	}
	return nil
}

//go:embed inside.sh
var systemSetupScript string

// setUpSystem mounts the node's file systems and configures the node's network
// interface. A shell script suits the list of mount and ip commands, and only a
// process in the PID namespace can mount /proc.
func (n *RealNode) setUpSystem(ctx context.Context) error {
	_, err := n.Shell(ctx, systemSetupScript, append(n.cgroups.setUpVariables(), "NODE="+Name, "WORK="+n.work,
		"IP="+n.IP(), "MACHINE_IP="+n.options.Number.machineIP())...)
	return err
}
