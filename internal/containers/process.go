package containers

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"time"
)

// process is one that was asked about.
type process struct {
	pid uint32
	// life is the process's comm, kept open: a file of /proc belongs to the process
	// that it was opened for, and reading it fails once that is gone, whoever has its
	// number by then. So one read, of one byte, tells whether what is known here still
	// holds. comm is the cheapest of these files: stat adds up a process's threads,
	// cgroup takes a lock of the whole machine.
	life       *os.File
	containers []*container // the outermost first
	read       time.Time    // when its cgroup was
	turn       uint64       // the flight that last asked
}

// process returns what is known of a process, and reads it where it is a new one. It
// is nil when there is none.
func (l *Locator) process(pid uint32) *process {
	p := l.processes[pid]
	if p != nil {
		if p.turn = l.turn; l.alive(p) {
			return p
		}
		l.forget(p)
	}
	life, err := os.Open(l.file(pid, "comm"))
	if err != nil {
		return nil
	}
	p = &process{pid: pid, life: life, turn: l.turn}
	if !l.read(p) {
		closeQuietly(life)
		return nil
	}
	if len(l.processes) >= mostKept {
		closeQuietly(life)
		return p
	}
	l.processes[pid] = p
	return p
}

// read finds out which containers a process is in. It is false when the process is
// gone: what was read may then be of another one with its number.
func (l *Locator) read(p *process) bool {
	p.read = time.Now()
	l.found = appendPlaces(l.found[:0], l.contents(l.file(p.pid, "cgroup")))
	p.containers = p.containers[:0]
	for _, at := range l.found {
		p.containers = append(p.containers, l.container(at))
	}
	return l.alive(p)
}

// alive tells whether a process is still there.
func (l *Locator) alive(p *process) bool {
	_, err := p.life.ReadAt(l.buffer[:1], 0)
	return err == nil
}

func (l *Locator) forget(p *process) {
	closeQuietly(p.life)
	delete(l.processes, p.pid)
}

// file is the path of a process's file.
func (l *Locator) file(pid uint32, name string) string {
	return l.proc + "/" + strconv.FormatUint(uint64(pid), 10) + "/" + name
}

// contents are the whole lines of a file, until the next call. They are empty when it
// cannot be read.
func (l *Locator) contents(path string) []byte {
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
