package cgroup

import (
	"bytes"
	"iter"
	"slices"
)

// containerRef is a container of a pod, as a cgroup's path names it.
type containerRef struct {
	uid string // the pod's: 8-4-4-4-12 hexadecimal digits, or a static pod's 32
	id  string // the container's: 64 hexadecimal digits
}

const (
	uidLength       = len("01234567-0123-0123-0123-0123456789ab")
	staticUIDLength = 32
	idLength        = 64
)

// appendContainerRefs appends the containers that a /proc/<pid>/cgroup names, the outermost
// first, each once. With cgroup v1 a process is in a cgroup of each hierarchy, and
// runtimes leave out hierarchies that they do not know, so all lines are read.
func appendContainerRefs(refs []containerRef, file []byte) []containerRef {
	for line := range bytes.Lines(file) {
		_, path := hierarchy(line)
		for uid, id := range containersIn(path) {
			if uid == nil {
				continue
			}
			ref := containerRef{uid: canonicalUID(uid), id: string(id)}
			if !slices.Contains(refs, ref) {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// hierarchy splits a line, "<number>:<controllers>:<path>", in the controllers and
// the path, which may have colons too. Controllers are empty for cgroup v2.
func hierarchy(line []byte) (controllers, path []byte) {
	_, rest, _ := bytes.Cut(line, []byte(":"))
	controllers, path, _ = bytes.Cut(rest, []byte(":"))
	path = bytes.TrimSuffix(path, []byte("\n"))
	return controllers, bytes.TrimSuffix(path, []byte(" (deleted)")) // a process that ends may outlast its cgroup
}

// containersIn goes through the containers that a path names, from left to right.
// The UID is that of the pod right above, and nil where there is none.
//
// A path is never matched from its start. What precedes the pod depends on the
// kubelet (--cgroup-root, kind) and on the cgroup namespace of whoever reads it: it
// may begin with "/../..". Nor is it matched to its end: what runs in a container may
// make cgroups of its own, as systemd and docker do.
func containersIn(path []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(uid, id []byte) bool) {
		var pod []byte // of the segment before
		for segment := range bytes.SplitSeq(path, []byte("/")) {
			name := segment
			// A runtime that is given a slice, and does not know of systemd, makes a folder
			// of what was meant for it: "<slice>:<prefix>:<id>".
			if slice, rest, found := bytes.Cut(segment, []byte(":")); found {
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

// podUID is the UID in the name of a pod's cgroup: "pod<uid>", or with systemd
// "<parents>-pod<uid>.slice" and underscores for the UID's dashes. It is nil for any
// other name.
func podUID(name []byte) []byte {
	name, slice := bytes.CutSuffix(name, []byte(".slice"))
	for _, length := range [...]int{uidLength, staticUIDLength} {
		start := len(name) - length
		if start < 0 || !isUID(name[start:]) {
			continue
		}
		parents, pod := bytes.CutSuffix(name[:start], []byte("pod"))
		if pod && (len(parents) == 0 || slice && parents[len(parents)-1] == '-') {
			return name[start:]
		}
	}
	return nil
}

// containerID is the id in the name of a container's cgroup: "<id>", "<prefix>-<id>"
// or "<prefix>-<id>.scope". The prefix says which runtime it is, and nothing depends
// on it, but that CRI-O's conmon, which watches over a container, has a scope of its
// own by the same id. It is nil for any other name.
func containerID(name []byte) []byte {
	name = bytes.TrimSuffix(name, []byte(".scope"))
	start := len(name) - idLength
	if start < 0 || !isHex(name[start:]) {
		return nil
	}
	prefix, dash := bytes.CutSuffix(name[:start], []byte("-"))
	if start > 0 && !dash || bytes.HasSuffix(prefix, []byte("conmon")) {
		return nil
	}
	return name[start:]
}

func isUID(b []byte) bool {
	if len(b) == staticUIDLength {
		return isHex(b)
	}
	for i, c := range b {
		switch i {
		case 8, 13, 18, 23:
			if c != '-' && c != '_' {
				return false
			}
		default:
			if !isHexDigit(c) {
				return false
			}
		}
	}
	return len(b) == uidLength
}

func isHex(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return !isHexDigit(c) })
}

func isHexDigit(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }

// canonicalUID is a UID as Kubernetes writes it.
func canonicalUID(uid []byte) string { return string(bytes.ReplaceAll(uid, []byte("_"), []byte("-"))) }
