package sim

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
)

// ReadScript parses and checks a script.
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
			return fmt.Errorf("unknown machine %q", words[1])
		}
		s.Machine = words[1]
		return nil
	case len(words) == 1:
		return fmt.Errorf("%q: expected TIME ACTION", words[0])
	}
	at, err := time.ParseDuration(words[0])
	if err != nil {
		return fmt.Errorf("%q: expected a duration such as 30s", words[0])
	}
	if n := len(s.Steps); n > 0 && s.Steps[n-1].At > at {
		return fmt.Errorf("%s is before the time %s of an earlier line", at, s.Steps[n-1].At)
	}
	step := Step{At: at, Action: words[1], Args: words[2:], Line: line}
	action, ok := scriptActions[step.Action]
	if !ok {
		return fmt.Errorf("unknown action %q", step.Action)
	}
	if n := len(step.Args); n < action.minArgs || n > action.maxArgs {
		return fmt.Errorf("%s: expected %s", step.Action, action.usage)
	}
	s.Steps = append(s.Steps, step)
	return nil
}
