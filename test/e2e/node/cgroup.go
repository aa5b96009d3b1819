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
)

// nodeCgroups are the node's cgroups, one per hierarchy of the machine. The
// cgroups contain exactly the processes of the node, so no file of process ids
// is necessary.
type nodeCgroups []nodeCgroup

type nodeCgroup struct {
	hierarchy string // mount point: /sys/fs/cgroup/memory
	options   string // mount options for a second mount: memory, or none,name=systemd
	name      string // of the cgroup in the hierarchy
}

// newNodeCgroups returns the cgroups of a node in the hierarchies of cgroup v1.
// Machines with cgroup v2 only are not supported: the node's first process
// would have to leave the root of its cgroup namespace before the kubelet
// starts, and single threads cannot be moved.
func newNodeCgroups(number Number) (nodeCgroups, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all nodeCgroups
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		// https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html: the
		// mount point is the fifth field, type and options are at the end.
		mount, kind, found := strings.Cut(lines.Text(), " - cgroup ")
		if fields := strings.Fields(mount); found && len(fields) > 4 {
			all = append(all, nodeCgroup{hierarchy: fields[4], options: hierarchyOptions(kind), name: number.name()})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("this machine has no cgroup v1 hierarchies: boot with " +
			"systemd.unified_cgroup_hierarchy=0")
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

func (c nodeCgroup) dir() string { return filepath.Join(c.hierarchy, c.name) }

// mounts returns the hierarchies as folder=options, for the script that mounts
// the hierarchies in the node.
func (c nodeCgroups) mounts() string {
	var all []string
	for _, c := range c {
		all = append(all, filepath.Base(c.hierarchy)+"="+c.options)
	}
	return strings.Join(all, " ")
}

func (c nodeCgroups) create() error {
	for _, c := range c {
		if err := os.MkdirAll(c.dir(), 0o755); err != nil {
			return fmt.Errorf("create cgroup: %w", err)
		}
		// A new cpuset accepts no processes before processors and memory are
		// set.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			whole, err := os.ReadFile(filepath.Join(c.hierarchy, file))
			if errors.Is(err, fs.ErrNotExist) {
				break // not a cpuset
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(c.dir(), file), whole, 0o644)
			}
			if err != nil {
				return fmt.Errorf("fill cpuset: %w", err)
			}
		}
	}
	return nil
}

// addThread moves the calling thread into the cgroups. Processes that the
// thread starts later are in the cgroups as well.
func (c nodeCgroups) addThread() error {
	for _, c := range c {
		if err := os.WriteFile(filepath.Join(c.dir(), "tasks"), []byte(strconv.Itoa(syscall.Gettid())),
			0o644); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// remove removes the cgroups, and fails if they have processes.
func (c nodeCgroups) remove() error {
	for _, c := range c {
		dirs := subdirs(c.dir())
		for _, dir := range slices.Backward(dirs) { // innermost first
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove cgroup: %w", err)
			}
		}
	}
	return nil
}

// pids returns the processes in the cgroups except this process: its nsenter
// thread is in the cgroups.
func (c nodeCgroups) pids() []int {
	var all []int
	for _, c := range c {
		for _, dir := range subdirs(c.dir()) {
			all = append(all, pidsIn(dir)...)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(pid int) bool { return pid == os.Getpid() })
}

func (c nodeCgroups) existingDirs() []string {
	var dirs []string
	for _, c := range c {
		dirs = append(dirs, subdirs(c.dir())...)
	}
	return dirs
}

// find returns the node's first cgroup with the name. A container's cgroup is
// named after the container id.
func (c nodeCgroups) find(name string) (dir string, found bool) {
	for _, dir := range c.existingDirs() {
		if filepath.Base(dir) == name {
			return dir, true
		}
	}
	return "", false
}

// pidsIn returns the processes of a cgroup, none if the cgroup does not exist.
func pidsIn(dir string) []int {
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	var pids []int
	for field := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// subdirs returns a folder and all folders below, outermost first. Folders that
// vanish during the walk are skipped.
func subdirs(dir string) []string {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}
