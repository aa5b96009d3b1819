package cgroup

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"time"
)

// cachedProcess is one that was asked about.
type cachedProcess struct {
	pid uint32
	// comm is the process's comm, kept open: a file of /proc belongs to the process
	// that it was opened for, and reading it fails once that is gone, whoever has its
	// number by then. So one read, of one byte, tells whether what is known here still
	// holds. comm is the cheapest of these files: stat adds up a process's threads,
	// cgroup takes a lock of the whole machine.
	comm       *os.File
	containers []*cachedContainer // the outermost first
	readAt     time.Time          // when its cgroup was
	lastUsed   uint64             // the flight that last asked
}

// processFor returns what is known of a process, and reads it where it is a new one. It
// is nil when there is none.
func (l *Locator) processFor(pid uint32) *cachedProcess {
	p := l.processes[pid]
	if p != nil {
		if p.lastUsed = l.generation; l.isAlive(p) {
			return p
		}
		l.evict(p)
	}
	comm, err := os.Open(l.procPath(pid, "comm"))
	if err != nil {
		return nil
	}
	p = &cachedProcess{pid: pid, comm: comm, lastUsed: l.generation}
	if !l.readCgroup(p) {
		closeQuietly(comm)
		return nil
	}
	if len(l.processes) >= maxProcesses {
		closeQuietly(comm)
		return p
	}
	l.processes[pid] = p
	return p
}

// readCgroup finds out which containers a process is in. It is false when the process is
// gone: what was read may then be of another one with its number.
func (l *Locator) readCgroup(p *cachedProcess) bool {
	p.readAt = time.Now()
	l.scratch = appendContainerRefs(l.scratch[:0], l.readLines(l.procPath(p.pid, "cgroup")))
	p.containers = p.containers[:0]
	for _, ref := range l.scratch {
		p.containers = append(p.containers, l.containerFor(ref))
	}
	return l.isAlive(p)
}

// isAlive tells whether a process is still there.
func (l *Locator) isAlive(p *cachedProcess) bool {
	_, err := p.comm.ReadAt(l.buffer[:1], 0)
	return err == nil
}

func (l *Locator) evict(p *cachedProcess) {
	closeQuietly(p.comm)
	delete(l.processes, p.pid)
}

// procPath is the path of a process's file.
func (l *Locator) procPath(pid uint32, name string) string {
	return l.proc + "/" + strconv.FormatUint(uint64(pid), 10) + "/" + name
}

// readLines are the whole lines of a file, until the next call. They are empty when it
// cannot be read.
func (l *Locator) readLines(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer closeQuietly(f)
	n, err := io.ReadFull(f, l.buffer[:])
	switch {
	case err == nil: // there may be more
		return l.buffer[:bytes.LastIndexByte(l.buffer[:], '\n')+1]
	case errors.Is(err, io.ErrUnexpectedEOF):
		return l.buffer[:n]
	}
	return nil
}

// closeQuietly closes a file that was only read, of which an error says nothing.
func closeQuietly(f *os.File) { _ = f.Close() }
