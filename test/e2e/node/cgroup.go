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

// nodeCgroups are the node's cgroups, one in each of the machine's hierarchies. They hold every process of the node and nothing else, so that
// membership is the record of what belongs to it: no file of process ids can be stale.
type nodeCgroups []nodeCgroup

type nodeCgroup struct {
	hierarchy string // where the machine has it mounted: /sys/fs/cgroup/memory
	options   string // what mounts it once more: memory, or none,name=systemd
	name      string // its own in the hierarchy
}

// newNodeCgroups are a node's cgroups in the hierarchies of cgroup v1. A machine with cgroup v2 alone cannot be a host yet: there the node's first process
// would have to move out of the root of its cgroup namespace before the kubelet may use it, and threads could not be moved one by one.
func newNodeCgroups(of Number) (nodeCgroups, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all nodeCgroups
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		// https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html: the place is the fifth field, type and options stand at the end.
		place, kind, found := strings.Cut(lines.Text(), " - cgroup ")
		if fields := strings.Fields(place); found && len(fields) > 4 {
			all = append(all, nodeCgroup{hierarchy: fields[4], options: hierarchyOptions(kind), name: of.name()})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("this machine has no cgroup v1 hierarchies (boot it with systemd.unified_cgroup_hierarchy=0)")
	}
	return all, nil
}

// hierarchyOptions keeps of the mount's options those that name the hierarchy.
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

// mounts lists the hierarchies for the script that mounts them inside: folder=options.
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
			return fmt.Errorf("make a cgroup: %w", err)
		}
		// A new cpuset takes nobody in before it has processors and memory.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			whole, err := os.ReadFile(filepath.Join(c.hierarchy, file))
			if errors.Is(err, fs.ErrNotExist) {
				break // another hierarchy
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(c.dir(), file), whole, 0o644)
			}
			if err != nil {
				return fmt.Errorf("fill a cpuset: %w", err)
			}
		}
	}
	return nil
}

// addThread moves the calling thread in, alone: what it starts later is born there.
func (c nodeCgroups) addThread() error {
	for _, c := range c {
		if err := os.WriteFile(filepath.Join(c.dir(), "tasks"), []byte(strconv.Itoa(syscall.Gettid())), 0o644); err != nil {
			return fmt.Errorf("join a cgroup: %w", err)
		}
	}
	return nil
}

// remove removes the cgroups, which the kernel refuses while anybody is in them.
func (c nodeCgroups) remove() error {
	for _, c := range c {
		dirs := subdirs(c.dir())
		for _, dir := range slices.Backward(dirs) { // the innermost first
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove a cgroup: %w", err)
			}
		}
	}
	return nil
}

// pids are the processes in the cgroups, this one left out: the door is a thread of it.
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

// find returns the first cgroup of that name anywhere in the node: a container's bears its id.
func (c nodeCgroups) find(name string) (dir string, found bool) {
	for _, dir := range c.existingDirs() {
		if filepath.Base(dir) == name {
			return dir, true
		}
	}
	return "", false
}

// pidsIn is empty when the cgroup is gone.
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

// subdirs lists a folder and all below, each before what it holds. What vanishes meanwhile is left out.
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
