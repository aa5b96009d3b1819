package containers

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// rarely is how often at most the folders are read for a container whose name is not
// in them: a second after the first look, then two, and so on.
const rarely = time.Minute

// container is a place that some process is in, and its names.
type container struct {
	place
	owner device.Owner // zero: nothing is known; without a Container: the pod is
	exact bool         // the owner is known for good
	seen  time.Time    // when the folders were read that it was last looked up in
	next  time.Time    // before then they are not read for its sake
	wait  time.Duration
	turn  uint64
}

// container returns what is known of one.
func (l *Locator) container(at place) *container {
	c := l.containers[at]
	if c == nil {
		c = &container{place: at}
		l.containers[at] = c
	}
	c.turn = l.turn
	return c
}

// name finds out how a container is called. What the folders said when they were last
// read is asked first; they are read anew, once a second at most, where that does not
// answer.
func (l *Locator) name(c *container) {
	if c.exact {
		return
	}
	if l.named != nil {
		if owner, ok := l.named(c.uid, c.id); ok {
			c.owner, c.exact = owner, true
			return
		}
	}
	if l.search(c); c.exact {
		return
	}
	now := time.Now()
	if now.Before(c.next) || now.Sub(l.listed) < recheck {
		return
	}
	l.listed = now
	l.logs.read()
	l.pods.read()
	if l.search(c); !c.exact {
		c.wait = min(max(2*c.wait, recheck), rarely)
		c.next = now.Add(c.wait)
	}
}

// search looks a container up in the folders as they were last read: the link to its
// log has its id and all names. That may not be there: it is made after the container
// was started, some log drivers have none, and in one with long names the id is cut.
// The pod's folder has two of the names, and the third where there is one container.
func (l *Locator) search(c *container) {
	if c.seen.Equal(l.listed) {
		return
	}
	c.seen = l.listed
	for entry := range l.logs.ending("-" + c.id + ".log") {
		pod, rest, _ := strings.Cut(strings.TrimSuffix(entry, "-"+c.id+".log"), "_")
		namespace, name, _ := strings.Cut(rest, "_")
		if isName(pod) && isName(namespace) && isName(name) {
			c.owner, c.exact = device.Owner{Namespace: namespace, Pod: pod, Container: name}, true
			return
		}
	}
	for entry := range l.pods.ending("_" + c.uid) {
		namespace, pod, _ := strings.Cut(strings.TrimSuffix(entry, "_"+c.uid), "_")
		if !isName(namespace) || !isName(pod) {
			continue
		}
		// The process runs by now, and the folder is made before its container, so one
		// folder alone is its own.
		only := onlyFolder(filepath.Join(l.pods.dir, entry))
		c.owner, c.exact = device.Owner{Namespace: namespace, Pod: pod, Container: only}, only != ""
		return
	}
}

// isName tells whether something can be the name of a namespace, pod or container.
// None has an underscore, so that the kubelet's file names are taken apart exactly.
func isName(s string) bool { return s != "" && !strings.Contains(s, "_") }

// onlyFolder is the name of the one folder in a folder; empty where there are more, or
// none.
func onlyFolder(dir string) (name string) {
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

// listing is the names in a folder when it was last read.
type listing struct {
	dir string
	log *slog.Logger
	// names has each with a slash before and after it, which no name has: some hundred
	// names in one piece of memory, that is searched in microseconds and reused.
	names  []byte
	failed bool // the last time, and it was said
}

// read reads the folder anew. One that cannot be read is empty.
func (s *listing) read() {
	s.names = append(s.names[:0], '/')
	err := s.add()
	if err != nil && !s.failed {
		s.log.Warn("cannot read names of containers", "dir", s.dir, "err", err)
	}
	s.failed = err != nil
}

func (s *listing) add() error {
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer closeQuietly(dir)
	names, err := dir.Readdirnames(-1) // what it got, beside an error
	for _, name := range names {
		s.names = append(append(s.names, name...), '/')
	}
	return err
}

// ending goes through the names that end so.
func (s *listing) ending(end string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		wanted := []byte(end + "/")
		for from := 0; ; {
			at := bytes.Index(s.names[from:], wanted)
			if at < 0 {
				return
			}
			at += from
			from = at + len(wanted) - 1
			start := bytes.LastIndexByte(s.names[:at], '/') + 1
			if !yield(string(s.names[start:from])) {
				return
			}
		}
	}
}
