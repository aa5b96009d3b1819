package cgroup

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"time"
)

const (
	// maxProcesses is the maximum number of cached processes. Each keeps a file
	// open, and a container may be limited to 1,024 files; the cgroup of any
	// further process is read in each collection.
	maxProcesses = 512
	// maxCgroupBytes is the maximum size read of a /proc/<pid>/cgroup. With
	// cgroup v1, the file has a path per controller.
	maxCgroupBytes = 16 << 10
)

// cachedProcess is a process with its containers.
type cachedProcess struct {
	pid uint32
	// comm is the open /proc/<pid>/comm. Reads fail after the end of that
	// process, even if the pid is in use again: so a read of one byte validates
	// the cache. comm is the cheapest file: stat sums over threads, cgroup
	// takes a global lock.
	comm       *os.File
	containers []*cachedContainer // outermost first
	readAt     time.Time          // of the cgroup file
	lastUsed   uint64             // collection
}

// processFor returns a process from the cache or reads it; nil if the process
// does not exist.
func (l *Locator) processFor(pid uint32) *cachedProcess {
	p := l.processes[pid]
	if p != nil {
		if p.lastUsed = l.collection; l.isAlive(p) {
			return p
		}
		l.evict(p)
	}
	comm, err := os.Open(l.procPath(pid, "comm"))
	if err != nil {
		return nil
	}
	p = &cachedProcess{pid: pid, comm: comm, lastUsed: l.collection}
	switch {
	case !l.readCgroup(p):
		comm.Close() //nolint:errcheck // read only
		return nil
	case len(l.processes) >= maxProcesses:
		comm.Close() //nolint:errcheck // read only
	default:
		l.processes[pid] = p
	}
	return p
}

// readCgroup reads the containers of a process. It returns false if the process
// has ended: the file may belong to a new process.
func (l *Locator) readCgroup(p *cachedProcess) bool {
	p.readAt = time.Now()
	p.containers = p.containers[:0]
	for _, ref := range containerRefs(readLines(l.procPath(p.pid, "cgroup"))) {
		p.containers = append(p.containers, l.containerFor(ref))
	}
	return l.isAlive(p)
}

func (l *Locator) evict(p *cachedProcess) {
	p.comm.Close() //nolint:errcheck // read only
	delete(l.processes, p.pid)
}

func (l *Locator) procPath(pid uint32, name string) string {
	return l.options.Proc + "/" + strconv.FormatUint(uint64(pid), 10) + "/" + name
}

func (l *Locator) isAlive(p *cachedProcess) bool {
	_, err := p.comm.ReadAt(l.buffer[:], 0)
	return err == nil
}

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
