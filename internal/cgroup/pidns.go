package cgroup

import (
	"bytes"
	"os"
)

// initPIDNamespace is how the kernel calls the pid namespace that it starts with. The number
// is the same on every machine, and part of the kernel's interface
// (PID_NS_INIT_INO in linux/nsfs.h).
const initPIDNamespace = "pid:[4026531836]"

// inNodePIDNamespace tells whether this process is in the pid namespace of the node, and not
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
func (l *Locator) inNodePIDNamespace() bool {
	if namespace, err := os.Readlink(l.proc + "/self/ns/pid"); err == nil && namespace == initPIDNamespace {
		return true
	}
	if self, err := os.Readlink(l.proc + "/self"); err != nil || self == "1" {
		return false
	}
	ownFile := bytes.Clone(l.readLines(l.proc + "/self/cgroup"))
	initFile := l.readLines(l.proc + "/1/cgroup")
	if len(ownFile) == 0 || len(initFile) == 0 {
		return false
	}
	controllers, path := mostSpecificCgroup(ownFile)
	for line := range bytes.Lines(initFile) {
		if c, initPath := hierarchy(line); bytes.Equal(c, controllers) {
			return isOutsidePod(path, initPath, len(controllers) == 0)
		}
	}
	return false
}

// mostSpecificCgroup is the line of a /proc/<pid>/cgroup that says most of where a process is:
// one with a pod, else one with a container, else the first, which is v2's only where
// there is no v1: the kernel writes it last. A hierarchy that bears just a name is
// not asked, since any machine may have one, which runtimes leave alone.
func mostSpecificCgroup(file []byte) (controllers, path []byte) {
	best := -1
	for line := range bytes.Lines(file) {
		c, p := hierarchy(line)
		if bytes.HasPrefix(c, []byte("name=")) {
			continue
		}
		specificity := 0
		if uid, id := innermostContainer(p); uid != nil {
			specificity = 2
		} else if id != nil {
			specificity = 1
		}
		if specificity > best {
			controllers, path, best = c, p, specificity
		}
	}
	return controllers, path
}

// isOutsidePod tells whether process 1 is in no container of this process's pod, by the
// paths of both in one hierarchy.
func isOutsidePod(ownPath, initPath []byte, v2 bool) bool {
	climbs := bytes.HasPrefix(initPath, []byte("/..")) // out of the cgroup namespace, which is rooted at the own container
	pod, container := innermostContainer(ownPath)
	initPod, initContainer := innermostContainer(initPath)
	switch {
	case initContainer == nil:
		return climbs || !v2 || !bytes.Equal(ownPath, initPath)
	case climbs: // a sibling's path goes no higher than the pod, and so is without it
		return initPod != nil
	case container == nil:
		return false
	}
	return !bytes.Equal(container, initContainer) && (initPod == nil || !bytes.Equal(pod, initPod))
}

// innermostContainer is the last container that a path names, and its pod.
func innermostContainer(path []byte) (uid, id []byte) {
	for pod, container := range containersIn(path) {
		uid, id = pod, container
	}
	return uid, id
}
