package node

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// cgroupV1 is one cgroup per hierarchy of the machine. The node has a private
// cgroup namespace, and its kubelet writes the cgroups of pods itself.
type cgroupV1 []hierarchy

type hierarchy struct {
	mountPoint string // /sys/fs/cgroup/memory
	options    string // mount options for a second mount: memory, or none,name=systemd
	name       string // of the node's cgroup
}

// newCgroupV1 returns the cgroups of a node; none if this machine has no
// hierarchies.
func newCgroupV1(number Number) (all cgroupV1, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		// https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html: the
		// mount point is the fifth field, type and options are at the end.
		mount, kind, found := strings.Cut(lines.Text(), " - cgroup ")
		if fields := strings.Fields(mount); found && len(fields) > 4 {
			all = append(all, hierarchy{fields[4], hierarchyOptions(kind), number.name()})
		}
	}
	return all, nil
}

// hierarchyOptions returns the mount options that select the hierarchy.
func hierarchyOptions(kind string) string {
	options := strings.Split(kind[strings.LastIndexByte(kind, ' ')+1:], ",")
	options = slices.DeleteFunc(options, func(o string) bool {
		name, _, valued := strings.Cut(o, "=")
		return name == "rw" || name == "ro" || name == "xattr" || valued && name != "name"
	})
	if slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, "name=") }) {
		options = append([]string{"none"}, options...)
	}
	return strings.Join(options, ",")
}

func (h hierarchy) dir() string { return filepath.Join(h.mountPoint, h.name) }

func (c cgroupV1) driver() string      { return "cgroupfs" }
func (c cgroupV1) root() string        { return "/" } // of the namespace
func (c cgroupV1) namespaces() uintptr { return unix.CLONE_NEWPID | unix.CLONE_NEWCGROUP }
func (c cgroupV1) initArgs() []string  { return []string{"pause"} }

// setUpVariables returns the hierarchies as folder=options.
func (c cgroupV1) setUpVariables() []string {
	var all []string
	for _, h := range c {
		all = append(all, filepath.Base(h.mountPoint)+"="+h.options)
	}
	return []string{"HIERARCHIES=" + strings.Join(all, " ")}
}

func (c cgroupV1) create() error {
	for _, h := range c {
		if err := os.MkdirAll(h.dir(), 0o755); err != nil {
			return fmt.Errorf("create cgroup: %w", err)
		}
		// A new cpuset accepts no processes before processors and memory are
		// set.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			whole, err := os.ReadFile(filepath.Join(h.mountPoint, file))
			if errors.Is(err, fs.ErrNotExist) {
				break // not a cpuset
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(h.dir(), file), whole, 0o644)
			}
			if err != nil {
				return fmt.Errorf("fill cpuset: %w", err)
			}
		}
	}
	return nil
}

func (c cgroupV1) addThread() error {
	for _, h := range c {
		if err := os.WriteFile(filepath.Join(h.dir(), "tasks"), []byte(strconv.Itoa(syscall.Gettid())),
			0o644); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

func (c cgroupV1) addProcess(*syscall.SysProcAttr) {}

func (c cgroupV1) remove() error {
	if err := removeDirs(c.dirs()); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

func (c cgroupV1) dirs() (all []string) {
	for _, h := range c {
		all = append(all, subdirs(h.dir())...)
	}
	return all
}

func (c cgroupV1) hasName(dir, name string) bool { return filepath.Base(dir) == name }
