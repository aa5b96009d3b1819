package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/podgauge/podgauge/test/e2e/programs"
)

// CheckRequirements returns an error with the remedy if this machine cannot run
// a node.
func CheckRequirements(o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("end-to-end tests create namespaces, mounts and cgroups: run as root")
	}
	missing := []string{}
	for _, tool := range MissingTools() {
		missing = append(missing, tool.File)
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing: %s: run `go run ./cmd/e2e setup` in test/e2e", strings.Join(missing, ", "))
	}
	if _, err := programs.Kubelet(o.withDefaults().KubeletVersion).BuiltDir(); err != nil {
		return err
	}
	if _, err := programs.Containerd.BuiltDir(); err != nil {
		return err
	}
	if _, err := parseNumber(os.Getenv("PODGAUGE_E2E_NODE")); err != nil {
		return err
	}
	_, err := newNodeCgroups(o.Number)
	return err
}

// RequiredTool is a program of the tests and its Debian package.
type RequiredTool struct{ File, Package string }

// MissingTools returns the missing tools of this machine, among these tools and
// the tools of a node.
func MissingTools(more ...RequiredTool) []RequiredTool {
	var missing []RequiredTool
	for _, tool := range append(more, []RequiredTool{
		{"ctr", "containerd"},
		{"runc", "runc"},
		{"ip", "iproute2"},
		{"mount", "mount"},
		{"iptables", "iptables"}, // required by the kubelet, even if not used
		{cniPlugins + "/ptp", "containernetworking-plugins"},
		{cniPlugins + "/host-local", "containernetworking-plugins"},
		{"prometheus", "prometheus"},
	}...) {
		if _, err := exec.LookPath(tool.File); err != nil {
			missing = append(missing, tool)
		}
	}
	return missing
}

// cniPlugins is Debian's folder of CNI plugins, as in containerd.toml.
const cniPlugins = "/usr/lib/cni"
