// Package testlog has a log that tests read.
package testlog

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// Buffer is a log for concurrent reads and writes. The zero Buffer is ready for
// use.
type Buffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer // guarded by mu
}

// Logger returns a logger that writes lines of key=value pairs of all levels
// into the buffer.
func (b *Buffer) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Write implements io.Writer.
func (b *Buffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(line)
}

// String returns all lines.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// Take returns all lines since the previous Take.
func (b *Buffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.buffer.Reset()
	return b.buffer.String()
}

// Count returns the number of occurrences of a text.
func (b *Buffer) Count(text string) int { return strings.Count(b.String(), text) }

// Matching returns the lines that contain a text.
func (b *Buffer) Matching(text string) (lines []string) {
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}
