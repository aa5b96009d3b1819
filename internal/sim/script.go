package sim

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
)

// Script is what happens on a node, and when: a line for each,
//
//	20s  xid team-a/train-0 79   # its GPU falls off the bus
//
// in the order of time. Times count from when the kubelet has devices to give away. A device is
// named by its index ("3"), a slice by its GPU's and its own ("3.1"), and either as what a pod
// holds first ("team-a/train-0"), or held when it was named so before. What can happen is in the table deeds.
type Script struct {
	// Machine is a name that Named knows. It is on a line of its own, without a time:
	//
	//	machine h100
	Machine string
	Steps   []Step
}

// Step is one line of a Script.
type Step struct {
	At     time.Duration
	Action string
	Args   []string
	Line   int // of the text
}

func (s Step) String() string {
	return fmt.Sprintf("line %d: %s %s", s.Line, s.Action, strings.Join(s.Args, " "))
}

// ReadScript reads a script, and refuses what has no meaning.
func ReadScript(text io.Reader) (*Script, error) {
	s := &Script{Machine: "h100"}
	lines := bufio.NewScanner(text)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if err := s.addLine(n, strings.Fields(line)); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return s, lines.Err()
}

func (s *Script) addLine(line int, words []string) error {
	switch {
	case len(words) == 0:
		return nil
	case len(words) == 2 && words[0] == "machine":
		if NewNamedMachine(words[1], nil, time.Now) == nil {
			return fmt.Errorf("no machine is called %q", words[1])
		}
		s.Machine = words[1]
		return nil
	case len(words) == 1:
		return fmt.Errorf("%q: want a time and what happens", words[0])
	}
	at, err := time.ParseDuration(words[0])
	if err != nil {
		return fmt.Errorf("%q: want a time, as in 30s", words[0])
	}
	if n := len(s.Steps); n > 0 && s.Steps[n-1].At > at {
		return fmt.Errorf("%s is before %s, which stands above", at, s.Steps[n-1].At)
	}
	step := Step{At: at, Action: words[1], Args: words[2:], Line: line}
	d, ok := scriptActions[step.Action]
	if !ok {
		return fmt.Errorf("%q is nothing that can happen", step.Action)
	}
	if n := len(step.Args); n < d.minArgs || n > d.maxArgs {
		return fmt.Errorf("%s: want %s", step.Action, d.usage)
	}
	s.Steps = append(s.Steps, step)
	return nil
}
