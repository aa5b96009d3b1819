// Package cgroup tells which container a process runs in, from what lies on
// the node itself.
//
// A driver says which processes use a device. Each process is in a cgroup whose
// path has the pod's UID and the container's id, and the kubelet writes logs into
// folders and links that have these and the names. It takes no token, no socket
// of the container runtime and no API server (docs/adr/0010-processes-to-containers.md).
package cgroup

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// recheckInterval is how long what was not found stays not found: neither a process nor
	// a folder is looked at more often for its sake.
	recheckInterval = time.Second
	// maxIdleCollections is for how many flights a process that nobody asks about is
	// remembered: a GPU that does not answer once does not cost the others.
	maxIdleCollections = 3
	// maxProcesses is how many processes are remembered. Each keeps a file open, and a
	// container's limit may be 1,024 of them; the others are read each time.
	maxProcesses = 512
	// maxCgroupBytes is how much of a /proc/<pid>/cgroup is read, in bytes. With cgroup v1
	// it has a line, with a path, for each of a dozen controllers.
	maxCgroupBytes = 16 << 10
)

// Options say where to look. Every folder may be missing: then less is known.
type Options struct {
	// Proc is the process file system of the pid namespace that this process is in;
	// empty: "/proc".
	Proc string
	// Pods is where the kubelet has a folder for each pod, named
	// <namespace>_<pod>_<uid>, and in it one for each container; empty: "/var/log/pods".
	Pods string
	// Logs is where the kubelet has a link for each container, named
	// <pod>_<namespace>_<container>-<id>.log; empty: "/var/log/containers".
	Logs string
	// ResolveOwner is asked before the folders, in each flight until it knows; nil: nobody is.
	// The UID is that of the cgroup: a static pod's is not that of its mirror pod, so a
	// source goes by the container's id, 64 hexadecimal digits, where it can.
	ResolveOwner func(uid, containerID string) (device.Owner, bool)
	// Log gets a line when processes cannot be looked up at all, and when a folder
	// cannot be read. It must not be nil.
	Log *slog.Logger
}

// Locator looks up processes, and remembers what it found. It may be used by one
// goroutine at a time, and starts none. It never fails: what it cannot find out is
// not known.
type Locator struct {
	proc     string
	resolve  func(uid, containerID string) (device.Owner, bool)
	logs     dirNames
	pods     dirNames
	listedAt time.Time // when the folders were last read
	visible  bool

	generation uint64 // counts flights
	processes  map[uint32]*cachedProcess
	containers map[containerRef]*cachedContainer

	buffer  [maxCgroupBytes]byte // for the files of /proc
	scratch []containerRef       // reused likewise
}

// New looks once whether processes can be looked up.
func New(o Options) *Locator {
	l := &Locator{
		proc:       cmp.Or(o.Proc, "/proc"),
		resolve:    o.ResolveOwner,
		logs:       dirNames{dir: cmp.Or(o.Logs, "/var/log/containers"), log: o.Log},
		pods:       dirNames{dir: cmp.Or(o.Pods, "/var/log/pods"), log: o.Log},
		processes:  map[uint32]*cachedProcess{},
		containers: map[containerRef]*cachedContainer{},
	}
	if l.visible = l.inNodePIDNamespace(); !l.visible {
		o.Log.Info("processes are not attributed to containers: the node's cannot be seen from here (hostPID: true)")
	}
	return l
}

// Visible tells whether the numbers by which a driver knows processes can be
// looked up here. Where they cannot, nothing is known of who uses a device: the
// driver lists only processes that it can number in the caller's pid namespace.
func (l *Locator) Visible() bool { return l.visible }

// Owner tells which of the containers that hold a device a process runs in. The
// process of a container that does not hold it, or of none, or one that cannot be
// found out about, is nobody's. So an error in the chain from process to name may
// leave a use without an owner, and never gives a pod what another pod's process
// uses.
func (l *Locator) Owner(pid uint32, candidates []device.Owner) (device.Owner, bool) {
	if !l.visible || len(candidates) == 0 {
		return device.Owner{}, false
	}
	p := l.processFor(pid)
	if p == nil {
		return device.Owner{}, false
	}
	if owner, ok := l.matchOwner(p, candidates); ok {
		return owner, true
	}
	// A process may be seen before its runtime has moved it into the container's cgroup.
	if time.Since(p.readAt) < recheckInterval || !l.readCgroup(p) {
		return device.Owner{}, false
	}
	return l.matchOwner(p, candidates)
}

// matchOwner joins what is known of a process with the holders. Where a container lies
// within another's, as on a node that is itself a pod of some cluster, the outer
// one comes first: what is within a container is named by whoever runs in it.
func (l *Locator) matchOwner(p *cachedProcess, candidates []device.Owner) (device.Owner, bool) {
	for _, c := range p.containers {
		c.lastUsed = l.generation
		l.resolveContainer(c)
		if c.resolved {
			if slices.Contains(candidates, c.owner) {
				return c.owner, true
			}
			continue
		}
		if owner, ok := soleOwner(c.owner, candidates); ok {
			return owner, true
		}
	}
	return device.Owner{}, false
}

// soleOwner is the one container of a pod that is among the holders.
func soleOwner(pod device.Owner, candidates []device.Owner) (sole device.Owner, ok bool) {
	if pod.Pod == "" {
		return device.Owner{}, false
	}
	for _, c := range candidates {
		if c.Namespace != pod.Namespace || c.Pod != pod.Pod || ok && c == sole {
			continue
		}
		if ok {
			return device.Owner{}, false
		}
		sole, ok = c, true
	}
	return sole, ok
}

// Sweep ends a flight: what was not asked about in the last three is forgotten.
func (l *Locator) Sweep() {
	l.generation++
	for _, p := range l.processes {
		if l.generation-p.lastUsed > maxIdleCollections {
			l.evict(p)
		}
	}
	for ref, c := range l.containers {
		if l.generation-c.lastUsed > maxIdleCollections {
			delete(l.containers, ref)
		}
	}
}
