package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// cgroupV2 is a slice of the machine's systemd, with a cgroup for the programs
// of the node and slices and scopes for its pods.
//
// The node shares the machine's PID namespace, because runc sends process ids
// to systemd, and its cgroup namespace, because systemd's paths are absolute.
// The slice is the root of the kubelet's cgroups, as in kind, so that a kubelet
// of this machine keeps its own.
type cgroupV2 struct {
	name     string   // of the slice, without the suffix
	programs *os.File // of the cgroup of the node's programs; nil before create
}

const unifiedHierarchy = "/sys/fs/cgroup"

// newCgroupV2 returns the cgroups of a node if this machine has systemd and
// only cgroup v2.
func newCgroupV2(number Number) (_ *cgroupV2, found bool) {
	_, unified := os.Stat(unifiedHierarchy + "/cgroup.controllers")
	_, systemd := os.Stat("/run/systemd/system") // sd_booted(3)
	return &cgroupV2{name: number.name()}, unified == nil && systemd == nil
}

func (c *cgroupV2) driver() string      { return "systemd" }
func (c *cgroupV2) root() string        { return "/" + c.name }
func (c *cgroupV2) namespaces() uintptr { return 0 }
func (c *cgroupV2) initArgs() []string {
	return []string{"guard", filepath.Join(c.dir(), "cgroup.kill")}
}

// slice returns the kubelet's name of its root.
func (c *cgroupV2) slice() string { return strings.ReplaceAll(c.name, "-", "_") + ".slice" }

func (c *cgroupV2) dir() string { return filepath.Join(unifiedHierarchy, c.slice()) }

// setUpVariables returns the folders of the sockets of systemd and D-Bus.
func (c *cgroupV2) setUpVariables() []string { return []string{"SHARED_RUN=systemd dbus"} }

func (c *cgroupV2) create() error {
	if err := systemctl("start", c.slice()); err != nil {
		return err
	}
	// The kubelet requires all controllers. systemd enables those in use.
	controllers, err := os.ReadFile(unifiedHierarchy + "/cgroup.controllers")
	if err != nil {
		return err
	}
	all := "+" + strings.Join(strings.Fields(string(controllers)), " +")
	if err := os.WriteFile(unifiedHierarchy+"/cgroup.subtree_control", []byte(all), 0o644); err != nil {
		return fmt.Errorf("enable controllers: %w", err)
	}
	programs := filepath.Join(c.dir(), "programs")
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	c.programs, err = os.Open(programs)
	return err
}

func (c *cgroupV2) addThread() error { return nil }

func (c *cgroupV2) addProcess(a *syscall.SysProcAttr) {
	a.UseCgroupFD, a.CgroupFD = true, int(c.programs.Fd())
}

func (c *cgroupV2) remove() error {
	dirs := c.dirs()
	if len(dirs) == 0 {
		return nil
	}
	if err := systemctl("stop", c.slice()); err != nil {
		return err
	}
	if err := removeDirs(c.dirs()); err != nil { // systemd keeps cgroups of others
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

func (c *cgroupV2) dirs() []string { return subdirs(c.dir()) }

// hasName accepts the names of systemd: …-pod<uid>.slice with underscores, and
// <runtime>-<id>.scope.
func (c *cgroupV2) hasName(dir, name string) bool {
	unit := strings.TrimSuffix(filepath.Base(dir), filepath.Ext(dir))
	return strings.HasSuffix(unit, "-"+strings.ReplaceAll(name, "-", "_"))
}

func systemctl(verb, unit string) error {
	if out, err := exec.Command("systemctl", verb, unit).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s %s: %w: %s", verb, unit, err, out)
	}
	return nil
}
