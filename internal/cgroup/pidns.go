package cgroup

import (
	"bytes"
	"os"
)

// initPIDNamespace is the kernel's initial pid namespace, a constant of the
// kernel's API (PID_NS_INIT_INO in linux/nsfs.h).
const initPIDNamespace = "pid:[4026531836]"

// inNodePIDNamespace reports whether this process is in the node's pid
// namespace, not in the namespace of a container or pod.
//
// On a machine, the node's namespace is initPIDNamespace. A node may be a
// container (kind); then process 1 decides. In a container's namespace, process
// 1 is this process or its parent; with shareProcessNamespace, the pod's pause
// container. In the node's namespace, process 1 is the node's init, outside the
// containers of this pod, but possibly in a container of the machine: with
// cgroup v1, kind's init is in /docker/<id>/init.scope.
//
// Undecidable is a process without a visible container in the same cgroup as
// process 1: the child of an entrypoint behind a cgroup namespace, or a process
// started by hand on a node in a container. Such a process counts as the
// former, unless cgroups are v1: with v1, runtimes make no cgroup namespaces. A
// wrong false leaves shared usage unknown; a wrong true reports shared devices
// as unused.
func inNodePIDNamespace(proc string) bool {
	if namespace, err := os.Readlink(proc + "/self/ns/pid"); err == nil && namespace == initPIDNamespace {
		return true
	}
	if self, err := os.Readlink(proc + "/self"); err != nil || self == "1" {
		return false
	}
	own := readLines(proc + "/self/cgroup")
	initLines := readLines(proc + "/1/cgroup")
	if len(own) == 0 || len(initLines) == 0 {
		return false
	}
	controllers, path := mostSpecificCgroup(own)
	for line := range bytes.Lines(initLines) {
		if c, initPath := splitLine(line); bytes.Equal(c, controllers) {
			return isOutsidePod(path, initPath, len(controllers) == 0)
		}
	}
	return false
}

// mostSpecificCgroup returns the line of a /proc/<pid>/cgroup with a pod;
// otherwise with a container; otherwise the first line, which is v2's only
// without v1, because the kernel writes v2 last. A hierarchy with only a name
// is skipped: runtimes may ignore it.
func mostSpecificCgroup(file []byte) (controllers, path []byte) {
	best := -1
	for line := range bytes.Lines(file) {
		c, p := splitLine(line)
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

// isOutsidePod reports whether process 1 is outside the containers of this
// process's pod, by both paths in one hierarchy.
func isOutsidePod(ownPath, initPath []byte, v2 bool) bool {
	// above the root of the cgroup namespace, this process's container
	climbs := bytes.HasPrefix(initPath, []byte("/.."))
	pod, container := innermostContainer(ownPath)
	initPod, initContainer := innermostContainer(initPath)
	switch {
	case initContainer == nil:
		return climbs || !v2 || !bytes.Equal(ownPath, initPath)
	case climbs: // the path of a container of the same pod begins below the pod
		return initPod != nil
	case container == nil:
		return false
	}
	return !bytes.Equal(container, initContainer) && (initPod == nil || !bytes.Equal(pod, initPod))
}

// innermostContainer returns the last container in a path, and the UID of its
// pod.
func innermostContainer(path []byte) (uid, id []byte) {
	for pod, container := range containersIn(path) {
		uid, id = pod, container
	}
	return uid, id
}
