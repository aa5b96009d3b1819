// Package cgroup finds the container of a process from files of the node.
//
// The driver lists processes by pid. The path of a process's cgroup has the
// pod's UID and the container's id, and the kubelet's log folders map both to
// names. No token, runtime socket or API server is involved
// (docs/contributing/adr/0010-processes-to-containers.md).
package cgroup

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// recheckInterval is the minimum time between two reads for an unresolved
	// process or container.
	recheckInterval = time.Second
	// maxIdleCollections is the number of collections after which an unused
	// process is dropped: a GPU may miss a collection.
	maxIdleCollections = 3
)

// Options configure a Locator. Every folder may be missing.
type Options struct {
	// Proc is the process file system of this process's pid namespace. Default:
	// "/proc".
	Proc string
	// Pods has a folder <namespace>_<pod>_<uid> per pod, with a folder per
	// container. Default: "/var/log/pods".
	Pods string
	// Logs has a link <pod>_<namespace>_<container>-<id>.log per container.
	// Default: "/var/log/containers".
	Logs string
	// ResolveOwner is the first source of names, called in each collection
	// until successful; may be nil. uid is from the cgroup: for a static pod
	// not the UID of the mirror pod, so implementations prefer the container's
	// id, 64 hexadecimal digits.
	ResolveOwner func(uid, containerID string) (device.Owner, bool)
	// Log must not be nil.
	Log *slog.Logger
}

// Locator finds containers of processes and caches the results. At most one
// goroutine may use a Locator at a time.
type Locator struct {
	options Options
	names   containerNames
	visible bool

	collection uint64 // counts calls of Sweep
	processes  map[uint32]*cachedProcess
	containers map[containerRef]*cachedContainer
	buffer     [1]byte // for isAlive
}

// New returns a Locator. The visibility of the node's processes is checked
// here, once.
func New(o Options) *Locator {
	o.Proc = cmp.Or(o.Proc, "/proc")
	l := &Locator{
		options: o,
		names: containerNames{
			logs: dirListing{dir: cmp.Or(o.Logs, "/var/log/containers"), log: o.Log},
			pods: dirListing{dir: cmp.Or(o.Pods, "/var/log/pods"), log: o.Log},
		},
		processes:  map[uint32]*cachedProcess{},
		containers: map[containerRef]*cachedContainer{},
	}
	if l.visible = inNodePIDNamespace(o.Proc); !l.visible {
		o.Log.Info("processes not visible, set hostPID: true to attribute them to containers")
	}
	return l
}

// Visible reports whether the driver's pids are valid in this process's pid
// namespace. If not, the driver does not list processes of other namespaces,
// and usage per process is unknown.
func (l *Locator) Visible() bool { return l.visible }

// Owner returns which of a device's owners a process runs in; false if in none
// or unknown. An error on the way from process to name may leave usage
// unattributed, but never attributes usage to the wrong pod.
func (l *Locator) Owner(pid uint32, candidates []device.Owner) (device.Owner, bool) {
	if !l.visible || len(candidates) == 0 {
		return device.Owner{}, false
	}
	p := l.processFor(pid)
	if p == nil {
		return device.Owner{}, false
	}
	owner, ok := l.matchOwner(p, candidates)
	// The driver may list a process before the runtime moves it to the
	// container's cgroup.
	if !ok && time.Since(p.readAt) >= recheckInterval && l.readCgroup(p) {
		owner, ok = l.matchOwner(p, candidates)
	}
	return owner, ok
}

// matchOwner returns the candidate that a process runs in. Of nested
// containers, the outermost of a known pod decides, even if no candidate: its
// workload chooses the names of inner cgroups. Outside of it may be a pod of
// another cluster, whose container is this node.
func (l *Locator) matchOwner(p *cachedProcess, candidates []device.Owner) (device.Owner, bool) {
	for _, c := range p.containers {
		c.lastUsed = l.collection
		switch l.resolveContainer(c); {
		case c.resolved && slices.Contains(candidates, c.owner):
			return c.owner, true
		case c.resolved:
			return device.Owner{}, false
		case c.owner.Pod != "":
			return soleOwner(c.owner, candidates)
		}
	}
	return device.Owner{}, false
}

// soleOwner returns the candidate of a pod, if there is exactly one.
func soleOwner(pod device.Owner, candidates []device.Owner) (sole device.Owner, ok bool) {
	for _, c := range candidates {
		switch {
		case c.Namespace != pod.Namespace || c.Pod != pod.Pod || c == sole:
		case ok:
			return device.Owner{}, false
		default:
			sole, ok = c, true
		}
	}
	return sole, ok
}

func (l *Locator) containerFor(ref containerRef) *cachedContainer {
	c := l.containers[ref]
	if c == nil {
		c = &cachedContainer{containerRef: ref, backoff: retry.Backoff{Min: recheckInterval, Max: maxListInterval}}
		l.containers[ref] = c
	}
	c.lastUsed = l.collection
	return c
}

// resolveContainer resolves a container's name, from Options.ResolveOwner or a
// listing.
func (l *Locator) resolveContainer(c *cachedContainer) {
	if c.resolved {
		return
	}
	if l.options.ResolveOwner != nil {
		if owner, ok := l.options.ResolveOwner(c.uid, c.id); ok {
			c.owner, c.resolved = owner, true
			return
		}
	}
	now := time.Now()
	if now.Before(c.retryAt) {
		return
	}
	l.names.refresh(now)
	if l.names.search(c); !c.resolved {
		c.retryAt = l.names.listedAt.Add(c.backoff.Next())
	}
}

// Sweep ends a collection and drops unused processes and containers.
func (l *Locator) Sweep() {
	l.collection++
	for _, p := range l.processes {
		if l.collection-p.lastUsed > maxIdleCollections {
			l.evict(p)
		}
	}
	maps.DeleteFunc(l.containers, func(_ containerRef, c *cachedContainer) bool {
		return l.collection-c.lastUsed > maxIdleCollections
	})
}
