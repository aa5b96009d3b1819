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
	fence  = "```"
	prompt = "$ "
)

// block matches a block of commands. They run in a separate terminal if foreground, and not at all if untested.
var block = regexp.MustCompile("(?ms)^" + fence + "console( foreground| untested|)\n(.*?)^" + fence + "$")

// step is a command of a page with the output below.
type step struct {
	line       int // of the page
	command    string
	output     []string
	foreground bool // the command runs in a separate terminal until the end of the page
}

// parsePage returns the steps of all blocks that are not untested. A line "$ COMMAND" is a command, and a backslash at the end continues the
// command on the next line. All other lines are output. Other fences are errors, because the test would not run their content.
func parsePage(page string) (steps []step, err error) {
	blocks := block.FindAllStringSubmatchIndex(page, -1)
	if len(blocks) == 0 || strings.Count(page, fence) != 2*len(blocks) {
		return nil, errors.New("want fences with blocks of commands only")
	}
	for _, at := range blocks {
		kind, begin := page[at[2]:at[3]], at[4]
		if kind == " untested" {
			continue
		}
		foreground := kind == " foreground"
		var commands []step
		line := strings.Count(page[:begin], "\n")
		for text := range strings.Lines(page[begin:at[5]]) {
			line++
			text = strings.TrimSuffix(text, "\n")
			command, isCommand := strings.CutPrefix(text, prompt)
			if isCommand {
				commands = append(commands, step{line: line, command: command, foreground: foreground})
				continue
			}
			if len(commands) == 0 {
				return nil, fmt.Errorf("line %d: output before the first command", line)
			}
			current := &commands[len(commands)-1]
			if strings.HasSuffix(current.command, `\`) {
				current.command += "\n" + text
			} else {
				current.output = append(current.output, text)
			}
		}
		if len(commands) == 0 || foreground && len(commands) > 1 || strings.HasSuffix(commands[len(commands)-1].command, `\`) {
			return nil, fmt.Errorf("line %d: the block lacks a command or its end, or has several in the foreground", line)
		}
		steps = append(steps, commands...)
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
		"```console untested\n$ kind\n```\n```console\n$ one \\\n    --two\nout 1\n\nout 2\n$ three\n$ four\nout\n```\nend\n")
	want := []step{
		{4, "make cluster", []string{"…", "ready"}, true},
		{12, "one \\\n    --two", []string{"out 1", "", "out 2"}, false},
		{17, "three", nil, false},
		{18, "four", []string{"out"}, false},
	}
	if err != nil || !reflect.DeepEqual(steps, want) {
		t.Errorf("error %v\ngot  %#v\nwant %#v", err, steps, want)
	}
	for _, page := range []string{
		"no block", "```console\n$ true", "```console\nout\n```", "```console\n```", "```console\n$ a \\\n```", "```sh\ntrue\n```",
		"1. step\n   ```console\n   $ true\n   ```", "```console foreground\n$ a\n$ b\n```", "```console\n$ true\n```\n```console\nout\n```\n",
	} {
		if steps, err := parsePage(page); err == nil {
			t.Errorf("page %q: got %v, want an error", page, steps)
		}
	}
}
