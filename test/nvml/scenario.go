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

// Scenario writes the file that the stand-in obeys. Each change is one rename, so
// that a program sees all of it or nothing. There is no driver until the first.
type Scenario struct {
	path string

	mu sync.Mutex
	// All below are guarded by mu.
	lines     []string
	lastEvent int       // of the newest event, the last time that it happens
	lastWrite time.Time // the file's time of change
}

// NewScenario will write to path, which has to lie in a folder that exists.
func NewScenario(path string) *Scenario { return &Scenario{path: path} }

// Set adds lines. Each replaces the one that said something about the same thing
// before: "gpu 3 power 200000" takes the place of "gpu 3 power 100000".
func (s *Scenario) Set(lines ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range lines {
		if about := lineSubject(line); len(about) > 0 {
			s.remove(about)
		}
		s.lines = append(s.lines, line)
	}
	return s.write()
}

// Clear removes the lines that begin with these words: Clear("gpu 3 lost"),
// Clear("hang"), and with Clear("") all of them.
func (s *Scenario) Clear(words string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(strings.Fields(words))
	return s.write()
}

// Event has something happen to a GPU: "xid 79", "xid 43 gi 1 ci 0", "type fatal_poison",
// "xid 31 x 10000". Programs that have registered for it by now are told of each time once.
func (s *Scenario) Event(gpu int, what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf("event %d gpu %d %s", s.lastEvent+1, gpu, what))
	s.lastEvent += repeatCount(what)
	return s.write()
}

// repeatCount is how often an event happens.
func repeatCount(what string) int {
	words := strings.Fields(what)
	if i := slices.Index(words, "x"); i >= 0 && i+1 < len(words) {
		if n, err := strconv.Atoi(words[i+1]); err == nil && n > 0 {
			return n
		}
	}
	return 1
}

// Reset has a GPU have been reset, as nvidia-smi or a boot does it: it is there, asks for
// nothing, has nothing pending, and its energy counts from 0.
func (s *Scenario) Reset(gpu int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := []string{"gpu", strconv.Itoa(gpu)}
	for _, what := range [...]string{"lost", "recovery_action", "remapped_pending", "retired_pending", "reset"} {
		s.remove(append(slices.Clone(of), what))
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
	// The kernel's clock for files moves in steps of milliseconds. Two versions
	// of one length within a step would look the same.
	s.lastWrite = maxTime(time.Now(), s.lastWrite.Add(1))
	if err := os.Chtimes(fresh, s.lastWrite, s.lastWrite); err != nil {
		return fmt.Errorf("date scenario: %w", err)
	}
	return os.Rename(fresh, s.path)
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// subjectWords is how many words of a line say what the line is about; what
// follows is what it says.
var subjectWords = map[string]int{
	"gpus": 1, "driver": 1, "epoch": 1, "lock": 2, "gpu": 3,
	"event": 2, "fail": 4, "slow": 4, "hang": 4, "reuse": 2, "add": 2, "ancestor": 3, "confidential": 1,
}

func lineSubject(line string) []string {
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil
	}
	n, known := subjectWords[words[0]]
	switch {
	case !known:
		n = len(words)
	case words[0] == "gpu" && len(words) > 3 && slices.Contains([]string{"field", "metric", "call", "process", "slice", "link"}, words[2]):
		n = 4
	}
	return words[:min(n, len(words))]
}

func hasPrefixWords(words, prefix []string) bool {
	return len(words) >= len(prefix) && slices.Equal(words[:len(prefix)], prefix)
}
