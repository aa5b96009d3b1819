package containers

import (
	"bytes"
	"os"
)

// nodePIDs is how the kernel calls the pid namespace that it starts with. The number
// is the same on every machine, and part of the kernel's interface
// (PID_NS_INIT_INO in linux/nsfs.h).
const nodePIDs = "pid:[4026531836]"

// seesTheNode tells whether this process is in the pid namespace of the node, and not
// in its own container's or pod's.
//
// On a machine that is the node, its pid namespace is the kernel's first. A node may
// be a container itself, as kind's are; then its pid namespace is like any other, and
// it is process 1 that tells. In a container's own namespace it is this process or the
// one that started it; with shareProcessNamespace it is the pod's pause container. In
// a node's namespace it is the node's init, which is in no container of this process's
// pod, though it may be in one of the machine's: with cgroup v1, kind's init is in
// /docker/<id>/init.scope.
//
// Undecided is only who is in no container that can be seen, beside a process 1 in the
// same cgroup: that is an entrypoint's child, whose cgroup namespace hides it, or what
// was started by hand on a node that is a container. It counts as the former, unless
// cgroups are v1, where runtimes give containers no cgroup namespace. False costs what
// is known of shared devices; true would have it that nobody uses them.
func (l *Locator) seesTheNode() bool {
	if pids, err := os.Readlink(l.proc + "/self/ns/pid"); err == nil && pids == nodePIDs {
		return true
	}
	if self, err := os.Readlink(l.proc + "/self"); err != nil || self == "1" {
		return false
	}
	own := bytes.Clone(l.contents(l.proc + "/self/cgroup"))
	first := l.contents(l.proc + "/1/cgroup")
	if len(own) == 0 || len(first) == 0 {
		return false
	}
	controllers, path := telling(own)
	for line := range bytes.Lines(first) {
		if c, of1 := hierarchy(line); bytes.Equal(c, controllers) {
			return outside(path, of1, len(controllers) == 0)
		}
	}
	return false
}

// telling is the line of a /proc/<pid>/cgroup that says most of where a process is:
// one with a pod, else one with a container, else the first, which is v2's only where
// there is no v1: the kernel writes it last. A hierarchy that bears just a name is
// not asked, since any machine may have one, which runtimes leave alone.
func telling(file []byte) (controllers, path []byte) {
	best := -1
	for line := range bytes.Lines(file) {
		c, p := hierarchy(line)
		if bytes.HasPrefix(c, []byte("name=")) {
			continue
		}
		says := 0
		if uid, id := innermost(p); uid != nil {
			says = 2
		} else if id != nil {
			says = 1
		}
		if says > best {
			controllers, path, best = c, p, says
		}
	}
	return controllers, path
}

// outside tells whether process 1 is in no container of this process's pod, by the
// paths of both in one hierarchy.
func outside(own, first []byte, v2 bool) bool {
	climbs := bytes.HasPrefix(first, []byte("/..")) // out of the cgroup namespace, which is rooted at the own container
	pod, container := innermost(own)
	podOf1, containerOf1 := innermost(first)
	switch {
	case containerOf1 == nil:
		return climbs || !v2 || !bytes.Equal(own, first)
	case climbs: // a sibling's path goes no higher than the pod, and so is without it
		return podOf1 != nil
	case container == nil:
		return false
	}
	return !bytes.Equal(container, containerOf1) && (podOf1 == nil || !bytes.Equal(pod, podOf1))
}

// innermost is the last container that a path names, and its pod.
func innermost(path []byte) (uid, id []byte) {
	for pod, container := range containersIn(path) {
		uid, id = pod, container
	}
	return uid, id
}
