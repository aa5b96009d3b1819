package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/podgauge/podgauge/test/e2e/containerd"
	"github.com/podgauge/podgauge/test/e2e/kubelet"
)

// CheckRequirements says what keeps this machine from hosting such a node, and how to mend it.
func CheckRequirements(o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("the end-to-end tests make namespaces, mounts and cgroups: run them as root")
	}
	missing := []string{}
	for _, tool := range MissingTools() {
		missing = append(missing, tool.File)
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing: %s: run `go run ./cmd/e2e setup` in test/e2e", strings.Join(missing, ", "))
	}
	if _, err := kubelet.BinaryPath(o.withDefaults().KubeletVersion); err != nil {
		return err
	}
	if _, err := containerd.BinaryDir(); err != nil {
		return err
	}
	if _, err := parseNumber(os.Getenv("PODGAUGE_E2E_NODE")); err != nil {
		return err
	}
	_, err := newNodeCgroups(o.Number)
	return err
}

// RequiredTool is a program that the tests run, and the Debian package that has it.
type RequiredTool struct{ File, Package string }

// MissingTools are the tools that this machine lacks.
func MissingTools() []RequiredTool {
	var missing []RequiredTool
	for _, tool := range []RequiredTool{
		{"containerd", "containerd"},
		{"ctr", "containerd"},
		{"runc", "runc"},
		{"ip", "iproute2"},
		{"mount", "mount"},
		{"iptables", "iptables"}, // the kubelet looks for it even where it is told to leave it alone
		{cniPlugins + "/ptp", "containernetworking-plugins"},
		{cniPlugins + "/host-local", "containernetworking-plugins"},
		{"prometheus", "prometheus"},
	} {
		if _, err := exec.LookPath(tool.File); err != nil {
			missing = append(missing, tool)
		}
	}
	return missing
}

// cniPlugins is where Debian puts them; containerd.toml names it too.
const cniPlugins = "/usr/lib/cni"
