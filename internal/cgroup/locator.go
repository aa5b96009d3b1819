// Package cgroup finds the container of a process from files of the node.
//
// The driver lists processes by pid. The path of a process's cgroup has the
// pod's UID and the container's id, and the kubelet's log folders map both to
// names. No token, runtime socket or API server is involved
// (docs/contributing/adr/0010-processes-to-containers.md).
package cgroup

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
)

// maxIdleCollections is the number of collections after which an unused
// container is dropped: a GPU may miss a collection.
const maxIdleCollections = 3

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
	// ResolveOwner is the first source of names, called once per collection
	// until successful; may be nil. uid is from the cgroup: for a static pod
	// not the UID of the mirror pod, so implementations prefer the container's
	// id, 64 hexadecimal digits.
	ResolveOwner func(uid, containerID string) (allocation.Owner, bool)
	// Log must not be nil.
	Log *slog.Logger
}

// Locator finds containers of processes, and caches the names of containers. At
// most one goroutine may use a Locator at a time.
type Locator struct {
	options Options
	names   containerNames
	visible bool

	collection uint64                    // counts calls of Sweep
	processes  map[uint32][]containerRef // of this collection
	containers map[containerRef]*cachedContainer
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
		processes:  map[uint32][]containerRef{},
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
//
// Of nested containers, the outermost of a known pod decides, even if no
// candidate: its workload chooses the names of inner cgroups. Outside of it may
// be a pod of another cluster, whose container is this node.
func (l *Locator) Owner(pid uint32, candidates []allocation.Owner) (allocation.Owner, bool) {
	if !l.visible || len(candidates) == 0 {
		return allocation.Owner{}, false
	}
	for _, ref := range l.containersOf(pid) {
		switch c := l.containerFor(ref); {
		case c.resolved && slices.Contains(candidates, c.owner):
			return c.owner, true
		case c.resolved:
			return allocation.Owner{}, false
		case c.owner.Pod != "":
			return soleOwner(c.owner, candidates)
		}
	}
	return allocation.Owner{}, false
}

// soleOwner returns the candidate of a pod, if there is exactly one.
func soleOwner(pod allocation.Owner, candidates []allocation.Owner) (sole allocation.Owner, ok bool) {
	for _, c := range candidates {
		switch {
		case c.Namespace != pod.Namespace || c.Pod != pod.Pod || c == sole:
		case ok:
			return allocation.Owner{}, false
		default:
			sole, ok = c, true
		}
	}
	return sole, ok
}

// containersOf returns the containers around a process, read once per
// collection: a process may use several devices.
func (l *Locator) containersOf(pid uint32) []containerRef {
	refs, known := l.processes[pid]
	if !known {
		refs = containerRefs(readLines(fmt.Sprintf("%s/%d/cgroup", l.options.Proc, pid)))
		l.processes[pid] = refs
	}
	return refs
}

// containerFor returns a container, with its owner from Options.ResolveOwner or
// a listing as far as known. A container without a name is searched once per
// collection, for all its processes.
func (l *Locator) containerFor(ref containerRef) *cachedContainer {
	c, known := l.containers[ref]
	if !known {
		c = &cachedContainer{containerRef: ref}
		l.containers[ref] = c
	}
	isSearched := known && c.lastUsed == l.collection
	c.lastUsed = l.collection
	if c.resolved || isSearched {
		return c
	}
	if l.options.ResolveOwner != nil {
		if owner, ok := l.options.ResolveOwner(c.uid, c.id); ok {
			c.owner, c.resolved = owner, true
			return c
		}
	}
	l.names.search(c)
	return c
}

// Sweep ends a collection, and drops its processes and unused containers.
func (l *Locator) Sweep() {
	l.collection++
	clear(l.processes)
	maps.DeleteFunc(l.containers, func(_ containerRef, c *cachedContainer) bool {
		return l.collection-c.lastUsed > maxIdleCollections
	})
}

// listInterval is the minimum time between two listings for containers without
// a name.
const listInterval = time.Second

// cachedContainer is a container with its owner, as far as resolved.
type cachedContainer struct {
	containerRef
	owner    allocation.Owner // without Container: only the pod is known; zero: unknown
	resolved bool             // owner is complete and final
	lastUsed uint64           // collection
}

// containerNames resolves containers to names from the folders of the kubelet's
// logs.
type containerNames struct {
	logs, pods dirListing
	listedAt   time.Time
}

// search looks for a container in a listing. The name of the link to a
// container's log has the container's id and all names. Without the link (made
// after the start, missing with some log drivers, id truncated by long names),
// the pod's folder has namespace and pod, and the container if alone.
func (n *containerNames) search(c *cachedContainer) {
	if time.Since(n.listedAt) >= listInterval {
		n.listedAt = time.Now()
		n.logs.refresh()
		n.pods.refresh()
	}
	for _, entry := range n.logs.entries {
		if p := splitName(entry.Name(), "-"+c.id+".log", 3); p != nil {
			c.owner, c.resolved = allocation.Owner{Namespace: p[1], Pod: p[0], Container: p[2]}, true
			return
		}
	}
	for _, entry := range n.pods.entries {
		if p := splitName(entry.Name(), "_"+c.uid, 2); p != nil {
			// The kubelet makes a container's folder before the container: a
			// single folder belongs to the running container.
			sole := soleDir(filepath.Join(n.pods.dir, entry.Name()))
			c.owner, c.resolved = allocation.Owner{Namespace: p[0], Pod: p[1], Container: sole}, sole != ""
			return
		}
	}
}

// splitName splits an entry with a suffix into n names, or returns nil. No name
// of Kubernetes has an underscore.
func splitName(entry, suffix string, n int) []string {
	if entry, ok := strings.CutSuffix(entry, suffix); ok {
		if names := strings.Split(entry, "_"); len(names) == n && !slices.Contains(names, "") {
			return names
		}
	}
	return nil
}

// soleDir returns the name of the only folder in dir; empty without a folder,
// with several folders, or after an error.
func soleDir(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil { // with an error the entries may be incomplete
		return ""
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.IsDir() })
	if len(entries) != 1 {
		return ""
	}
	return entries[0].Name()
}

// dirListing is the newest listing of a folder; empty if the folder cannot be
// read.
type dirListing struct {
	dir     string
	log     *slog.Logger
	entries []os.DirEntry
	failed  bool // the newest listing failed, and the failure was logged
}

func (d *dirListing) refresh() {
	var err error
	if d.entries, err = os.ReadDir(d.dir); err != nil && !d.failed {
		d.log.Warn("cannot list containers", "dir", d.dir, "err", err)
	}
	d.failed = err != nil
}
