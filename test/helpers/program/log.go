package program

import (
	"bytes"
	"sync"
)

// Log is a log that is safe for concurrent use. The zero Log is empty.
type Log struct {
	mu     sync.Mutex
	buffer bytes.Buffer // guarded by mu
}

// Write appends to the log.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(b)
}

// String returns the log so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}
