package tutorial

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// wildcard matches variable text: within a line at least one character, as a whole line at least one line.
const wildcard = "…"

const (
	fence           = "```"
	consoleFence    = fence + "console"
	foregroundFence = consoleFence + " foreground"
	prompt          = "$ "
)

// step is a command of a page with the output below.
type step struct {
	line       int // of the page
	command    string
	output     []string
	foreground bool // the command runs in a separate terminal until the end of the page
}

// parsePage returns the steps of all fenced blocks. A block starts with "```console" or "```console foreground". A line "$ COMMAND" is a
// command, and a backslash at the end continues the command on the next line. All other lines are output. Other fences are errors, because
// the test would not run their content.
func parsePage(page string) (steps []step, err error) {
	block, continued := "", false
	for i, line := range strings.Split(page, "\n") {
		fail := func(format string, args ...any) ([]step, error) {
			return nil, fmt.Errorf("line %d: %w", i+1, fmt.Errorf(format, args...))
		}
		current := &step{}
		if len(steps) > 0 {
			current = &steps[len(steps)-1]
		}
		command, isCommand := strings.CutPrefix(line, prompt)
		switch {
		case block == "" && strings.Contains(line, fence):
			if line != consoleFence && line != foregroundFence {
				return fail("%q: want %q or %q", line, consoleFence, foregroundFence)
			}
			block = line
			steps = append(steps, step{}) // replaced by the first command
		case block == "":
		case line == fence:
			if current.command == "" || continued {
				return fail("the block lacks a command, or the end of a command")
			}
			block = ""
		case continued:
			current.command += "\n" + line
			continued = strings.HasSuffix(line, `\`)
		case isCommand:
			s := step{line: i + 1, command: command, foreground: block == foregroundFence}
			continued = strings.HasSuffix(command, `\`)
			if current.command != "" {
				if block == foregroundFence {
					return fail("a block %q has more than one command", foregroundFence)
				}
				steps = append(steps, s)
			} else {
				*current = s
			}
		case current.command == "":
			return fail("output before the first command")
		default:
			current.output = append(current.output, line)
		}
	}
	if block != "" || len(steps) == 0 {
		return nil, errors.New("no block, or a block without end")
	}
	return steps, nil
}

// compare returns an error unless the output matches the lines, or with prefix starts with the lines. The number of spaces is irrelevant,
// because the width of a table's columns depends on the values.
func compare(want []string, got string, prefix bool) error {
	pattern := `\A`
	for _, line := range want {
		pattern += linePattern(line)
	}
	if !prefix {
		pattern += `\z`
	}
	if !regexp.MustCompile(pattern).MatchString(trimLines(got)) {
		return fmt.Errorf("the page has:\n%s\nthe command printed:\n%s", strings.Join(want, "\n"), got)
	}
	return nil
}

func linePattern(line string) string {
	if line == wildcard {
		return `(?:.*\n)+?`
	}
	return regexp.MustCompile(` +`).ReplaceAllString(wildcardPattern(strings.TrimRight(line, " ")), ` +`) + `\n`
}

func wildcardPattern(text string) string {
	return strings.ReplaceAll(regexp.QuoteMeta(text), wildcard, `.+?`)
}

// trimLines removes trailing spaces of all lines and adds a missing newline at the end.
func trimLines(text string) string {
	text = regexp.MustCompile(`(?m)[ \r]+$`).ReplaceAllString(text, "")
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}

// fillCommand replaces a command with wildcards by the matching line of an earlier output, which readers copy.
func fillCommand(command, printed string) (string, error) {
	if !strings.Contains(command, wildcard) {
		return command, nil
	}
	found := regexp.MustCompile(`(?m)^ *(`+wildcardPattern(command)+`) *$`).FindAllStringSubmatch(printed, -1)
	if len(found) != 1 {
		return "", fmt.Errorf("%d lines to copy for %q, want 1:\n%s", len(found), command, printed)
	}
	return found[0][1], nil
}

func TestParsePage(t *testing.T) {
	steps, err := parsePage("# Title\ntext $ here\n```console foreground\n$ make cluster\n…\nready\n```\n" +
		"```console\n$ one \\\n    --two\nout 1\n\nout 2\n$ three\n$ four\nout\n```\nend\n")
	want := []step{
		{4, "make cluster", []string{"…", "ready"}, true},
		{9, "one \\\n    --two", []string{"out 1", "", "out 2"}, false},
		{14, "three", nil, false},
		{15, "four", []string{"out"}, false},
	}
	if err != nil || !reflect.DeepEqual(steps, want) {
		t.Errorf("error %v\ngot  %#v\nwant %#v", err, steps, want)
	}
	for page, want := range map[string]string{
		"no block":                                        "no block",
		"```console\n$ true":                              "no block",
		"```console\nout\n```":                            "line 2: output before",
		"```console\n```":                                 "line 2: the block lacks",
		"```console\n$ a \\\n```":                         "line 3: the block lacks",
		"```sh\ntrue\n```":                                "line 1: \"```sh\": want",
		"1. step\n   ```console\n   $ true\n   ```":       "line 2: ",
		"```console foreground\n$ a\n$ b\n```":            "line 3: a block",
		"```console\n$ true\n```\n```console\nout\n```\n": "line 5: output before",
	} {
		if _, err := parsePage(page); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("page %q: got error %v, want %s", page, err, want)
		}
	}
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		want, got string
		prefix    bool
		equal     bool
	}{
		{"", "", false, true},
		{"", "x\n", false, false},
		{"a b", "a b\n", false, true},
		{"a b", "a   b  \n", false, true},
		{"a b", "ab\n", false, false},
		{"a b", "a b", false, true},
		{"a b", "a b\nmore\n", false, false},
		{"a b", "a b\nmore\n", true, true},
		{"a b", "a\nb\n", false, false},
		{"a.c", "abc\n", false, false},
		{"GPU-… 1", "GPU-0a 1\n", false, true},
		{"GPU-… 1", "GPU-0a 2\n", false, false},
		{"GPU-… 1", "GPU-0a\n 1\n", false, false},
		{"gpu-…", "gpu-\n", false, false},
		{"…\nend", "a\nb\nend\n", false, true},
		{"…\nend", "end\n", false, false},
		{"…\nend", "a\nend\nb\n", false, false},
		{"a\n…", "a\nb\nc\n", false, true},
	} {
		var want []string
		if c.want != "" {
			want = strings.Split(c.want, "\n")
		}
		if err := compare(want, c.got, c.prefix); (err == nil) != c.equal {
			t.Errorf("compare %q with %q: got error %v, want equal: %t", c.got, c.want, err, c.equal)
		}
	}
}

func TestFillCommand(t *testing.T) {
	const printed = "ready\n  export A=1 B=/x:$B\n  other\n"
	for command, want := range map[string]string{"kubectl get": "kubectl get", "export A=… B=…:$B": "export A=1 B=/x:$B", "export C=…": "", "…": ""} {
		if got, err := fillCommand(command, printed); got != want || (err == nil) != (want != "") {
			t.Errorf("command %s: got %q, %v, want %q", command, got, err, want)
		}
	}
}
