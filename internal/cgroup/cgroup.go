package cgroup

import (
	"bytes"
	"io"
	"iter"
	"os"
	"regexp"
	"slices"
)

// maxCgroupBytes is the maximum size read of a /proc/<pid>/cgroup. With cgroup
// v1, the file has a path per controller.
const maxCgroupBytes = 16 << 10

// readLines returns the first maxCgroupBytes of a file, without a truncated
// line; nothing after an error.
func readLines(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // read only
	lines, err := io.ReadAll(io.LimitReader(f, maxCgroupBytes))
	if err != nil {
		return nil
	}
	if len(lines) == maxCgroupBytes {
		lines = lines[:bytes.LastIndexByte(lines, '\n')+1]
	}
	return lines
}

// containerRef identifies a container of a pod in the path of a cgroup.
type containerRef struct {
	uid string // of the pod: 8-4-4-4-12 hexadecimal digits; of a static pod 32 digits
	id  string // of the container: 64 hexadecimal digits
}

// containerRefs returns the containers in a /proc/<pid>/cgroup, outermost
// first, without duplicates. With cgroup v1, a process has a cgroup per
// hierarchy, and a runtime skips unknown hierarchies: so every line counts.
func containerRefs(file []byte) (refs []containerRef) {
	for line := range bytes.Lines(file) {
		_, path := splitLine(line)
		for uid, id := range containersIn(path) {
			ref := containerRef{uid: string(bytes.ReplaceAll(uid, []byte("_"), []byte("-"))), id: string(id)}
			if uid != nil && !slices.Contains(refs, ref) {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// splitLine splits a line "<number>:<controllers>:<path>". The path may contain
// colons. With cgroup v2, controllers are empty.
func splitLine(line []byte) (controllers, path []byte) {
	_, rest, _ := bytes.Cut(line, []byte(":"))
	controllers, path, _ = bytes.Cut(rest, []byte(":"))
	path = bytes.TrimSuffix(path, []byte("\n"))
	return controllers, bytes.TrimSuffix(path, []byte(" (deleted)")) // an ending process may outlive its cgroup
}

var (
	// podSegment matches the name of a pod's cgroup: "pod<uid>", or with
	// systemd "<parents>-pod<uid>.slice" and underscores in the UID.
	podSegment = regexp.MustCompile(`^(?:pod|(.*-)pod)` +
		`([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(\.slice)?$`)
	// containerSegment matches the name of a container's cgroup: "<id>",
	// "<prefix>-<id>" or "<prefix>-<id>.scope".
	containerSegment = regexp.MustCompile(`^(?:(.*)-)?([0-9a-f]{64})(?:\.scope)?$`)
)

// containersIn yields the containers in a path from left to right, each with
// the UID of the pod directly above, or nil.
//
// The prefix of a path depends on the kubelet (--cgroup-root, kind) and on the
// cgroup namespace of the reader ("/../.."), and processes in a container may
// create cgroups below (systemd, docker): so containersIn looks at each pair of
// segments.
func containersIn(path []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(uid, id []byte) bool) {
		var pod []byte // of the previous segment
		for segment := range bytes.SplitSeq(path, []byte("/")) {
			name := segment
			// A runtime without systemd support turns "<slice>:<prefix>:<id>"
			// into one folder.
			if slice, rest, ok := bytes.Cut(segment, []byte(":")); ok {
				pod = podUID(slice)
				_, name, _ = bytes.Cut(rest, []byte(":"))
			}
			if id := containerID(name); id != nil && !yield(pod, id) {
				return
			}
			pod = podUID(segment)
		}
	}
}

// podUID returns the UID in the name of a pod's cgroup, or nil.
func podUID(name []byte) []byte {
	m := podSegment.FindSubmatch(name)
	if m == nil || m[1] != nil && m[3] == nil { // parents belong to systemd's names
		return nil
	}
	return m[2]
}

// containerID returns the id in the name of a container's cgroup, or nil. The
// prefix is the runtime's and without meaning, except for CRI-O's conmon: the
// monitor of a container has a scope with the container's id.
func containerID(name []byte) []byte {
	m := containerSegment.FindSubmatch(name)
	if m == nil || bytes.HasSuffix(m[1], []byte("conmon")) {
		return nil
	}
	return m[2]
}
