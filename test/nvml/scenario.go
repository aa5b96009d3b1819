package nvmltest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Scenario writes the scenario file of the stand-in. Each change is a rename,
// so that programs see whole changes only. Before the first change the node has
// no driver.
type Scenario struct {
	path string

	mu        sync.Mutex // guards the fields below
	lines     []string
	lastEvent int // serial of the newest event
}

// NewScenario returns a scenario that writes to path, in an existing folder.
func NewScenario(path string) *Scenario { return &Scenario{path: path} }

// Set adds lines. A line replaces the earlier line with the same subject: "gpu
// 3 power 200000" replaces "gpu 3 power 100000".
func (s *Scenario) Set(lines ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range lines {
		if subject := lineSubject(line); len(subject) > 0 {
			s.remove(subject)
		}
		s.lines = append(s.lines, line)
	}
	return s.write()
}

// Clear removes the lines that begin with the words, as in Clear("gpu 3 lost")
// and Clear("hang"). Clear("") removes all lines.
func (s *Scenario) Clear(words string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(strings.Fields(words))
	return s.write()
}

// maxOccurrences of an event have serials before the next event's.
const maxOccurrences = 1e6

// Event adds an event of a GPU: "xid 79", "xid 43 gi 1 ci 0", "type
// fatal_poison", "xid 31 x 10000". Event sets with a registration receive each
// occurrence once.
func (s *Scenario) Event(gpu int, description string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastEvent += maxOccurrences
	s.lines = append(s.lines, fmt.Sprintf("event %d gpu %d %s", s.lastEvent, gpu, description))
	return s.write()
}

// Reset resets a GPU, as nvidia-smi or a boot does: the GPU is present, without
// recovery action and pending repairs, and the energy counter restarts at 0.
func (s *Scenario) Reset(gpu int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	subject := []string{"gpu", strconv.Itoa(gpu)}
	for _, key := range [...]string{"lost", "recovery_action", "remapped_pending", "retired_pending", "reset"} {
		s.remove(append(slices.Clone(subject), key))
	}
	now := float64(time.Now().UnixMilli()) / 1000
	s.lines = append(s.lines, fmt.Sprintf("gpu %d reset %.3f", gpu, now))
	return s.write()
}

func (s *Scenario) remove(words []string) {
	s.lines = slices.DeleteFunc(s.lines, func(line string) bool { return hasPrefixWords(strings.Fields(line), words) })
}

func (s *Scenario) write() error {
	fresh := s.path + ".new"
	text := strings.Join(append([]string{"# Written by nvmltest.Scenario."}, s.lines...), "\n") + "\n"
	if err := os.WriteFile(fresh, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write scenario: %w", err)
	}
	// The kernel's clock for files has a resolution of milliseconds. Without
	// the addition, two versions of the same length within a step look the
	// same.
	writtenAt := time.Now()
	// the clock of a bubble begins in the past
	if old, err := os.Stat(s.path); err == nil && !writtenAt.After(old.ModTime()) {
		writtenAt = old.ModTime().Add(1)
	}
	if err := os.Chtimes(fresh, writtenAt, writtenAt); err != nil {
		return fmt.Errorf("date scenario: %w", err)
	}
	return os.Rename(fresh, s.path)
}

// subjectWords is the number of words that form a line's subject; the value
// follows.
var subjectWords = map[string]int{
	"gpus": 1, "driver": 1, "epoch": 1, "lock": 2, "gpu": 3,
	"event": 2, "fail": 4, "slow": 4, "hang": 4, "reuse": 2, "add": 2, "short": 2, "ancestor": 3, "confidential": 1,
}

// lineSubject returns the words that identify a line; Set replaces the earlier
// line with the same words.
func lineSubject(line string) []string {
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil
	}
	n, known := subjectWords[words[0]]
	switch {
	case !known:
		n = len(words)
	case words[0] == "gpu" && len(words) > 3 &&
		slices.Contains([]string{"field", "metric", "call", "process", "slice", "link"}, words[2]):
		n = 4
	}
	return words[:min(n, len(words))]
}

func hasPrefixWords(words, prefix []string) bool {
	return len(words) >= len(prefix) && slices.Equal(words[:len(prefix)], prefix)
}
