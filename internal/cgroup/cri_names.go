package cgroup

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
)

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
