package cgroup

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// maxListInterval is how often at most the folders are read for a container whose name is not
// in them: a second after the first look, then two, and so on.
const maxListInterval = time.Minute

// cachedContainer is a place that some process is in, and its names.
type cachedContainer struct {
	containerRef
	owner      device.Owner // zero: nothing is known; without a Container: the pod is
	resolved   bool         // the owner is known for good
	searchedAt time.Time    // when the folders were read that it was last looked up in
	retryAt    time.Time    // before then they are not read for its sake
	backoff    time.Duration
	lastUsed   uint64
}

// containerFor returns what is known of one.
func (l *Locator) containerFor(ref containerRef) *cachedContainer {
	c := l.containers[ref]
	if c == nil {
		c = &cachedContainer{containerRef: ref}
		l.containers[ref] = c
	}
	c.lastUsed = l.generation
	return c
}

// resolveContainer finds out how a container is called. What the folders said when they were last
// read is asked first; they are read anew, once a second at most, where that does not
// answer.
func (l *Locator) resolveContainer(c *cachedContainer) {
	if c.resolved {
		return
	}
	if l.resolve != nil {
		if owner, ok := l.resolve(c.uid, c.id); ok {
			c.owner, c.resolved = owner, true
			return
		}
	}
	if l.searchNames(c); c.resolved {
		return
	}
	now := time.Now()
	if now.Before(c.retryAt) || now.Sub(l.listedAt) < recheckInterval {
		return
	}
	l.listedAt = now
	l.logs.refresh()
	l.pods.refresh()
	if l.searchNames(c); !c.resolved {
		c.backoff = min(max(2*c.backoff, recheckInterval), maxListInterval)
		c.retryAt = now.Add(c.backoff)
	}
}

// searchNames looks a container up in the folders as they were last read: the link to its
// log has its id and all names. That may not be there: it is made after the container
// was started, some log drivers have none, and in one with long names the id is cut.
// The pod's folder has two of the names, and the third where there is one container.
func (l *Locator) searchNames(c *cachedContainer) {
	if c.searchedAt.Equal(l.listedAt) {
		return
	}
	c.searchedAt = l.listedAt
	for entry := range l.logs.withSuffix("-" + c.id + ".log") {
		pod, rest, _ := strings.Cut(strings.TrimSuffix(entry, "-"+c.id+".log"), "_")
		namespace, name, _ := strings.Cut(rest, "_")
		if isName(pod) && isName(namespace) && isName(name) {
			c.owner, c.resolved = device.Owner{Namespace: namespace, Pod: pod, Container: name}, true
			return
		}
	}
	for entry := range l.pods.withSuffix("_" + c.uid) {
		namespace, pod, _ := strings.Cut(strings.TrimSuffix(entry, "_"+c.uid), "_")
		if !isName(namespace) || !isName(pod) {
			continue
		}
		// The process runs by now, and the folder is made before its container, so one
		// folder alone is its own.
		sole := soleDir(filepath.Join(l.pods.dir, entry))
		c.owner, c.resolved = device.Owner{Namespace: namespace, Pod: pod, Container: sole}, sole != ""
		return
	}
}

// isName tells whether something can be the name of a namespace, pod or container.
// None has an underscore, so that the kubelet's file names are taken apart exactly.
func isName(s string) bool { return s != "" && !strings.Contains(s, "_") }

// soleDir is the name of the one folder in a folder; empty where there are more, or
// none.
func soleDir(dir string) (name string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		switch {
		case !e.IsDir():
		case name != "":
			return ""
		default:
			name = e.Name()
		}
	}
	return name
}

// dirNames is the names in a folder when it was last read.
type dirNames struct {
	dir string
	log *slog.Logger
	// names has each with a slash before and after it, which no name has: some hundred
	// names in one piece of memory, that is searched in microseconds and reused.
	names      []byte
	lastFailed bool // the last time, and it was said
}

// refresh reads the folder anew. One that cannot be read is empty.
func (d *dirNames) refresh() {
	d.names = append(d.names[:0], '/')
	err := d.readDir()
	if err != nil && !d.lastFailed {
		d.log.Warn("cannot read names of containers", "dir", d.dir, "err", err)
	}
	d.lastFailed = err != nil
}

func (d *dirNames) readDir() error {
	folder, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer closeQuietly(folder)
	names, err := folder.Readdirnames(-1) // what it got, beside an error
	for _, name := range names {
		d.names = append(append(d.names, name...), '/')
	}
	return err
}

// withSuffix goes through the names that end so.
func (d *dirNames) withSuffix(suffix string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		pattern := []byte(suffix + "/")
		for offset := 0; ; {
			i := bytes.Index(d.names[offset:], pattern)
			if i < 0 {
				return
			}
			i += offset
			offset = i + len(pattern) - 1
			start := bytes.LastIndexByte(d.names[:i], '/') + 1
			if !yield(string(d.names[start:offset])) {
				return
			}
		}
	}
}
