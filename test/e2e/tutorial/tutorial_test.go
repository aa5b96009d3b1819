// Package tutorial runs the tutorial of docs/getting-started.
package tutorial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"github.com/podgauge/podgauge/test/helpers/testlog"
)

const (
	repoRoot = "../../.."
	pagePath = repoRoot + "/docs/getting-started/tutorial.md"
)

const (
	// foregroundTimeout includes the build of Kubernetes.
	foregroundTimeout = time.Hour
	commandTimeout    = 5 * time.Minute
	// queryTimeout is the time until a query prints the effect of an earlier command. Readers are slower than the test.
	queryTimeout  = 30 * time.Second
	queryInterval = 250 * time.Millisecond
	endTimeout    = 2 * time.Minute
)

// query matches read-only commands.
var query = regexp.MustCompile(`^(curl|kubectl (get|events|podgauge)|kubectl (-n \S+ )?exec ds/podgauge -- podgauge (status|incidents)) `)

// TestPage checks that the tutorial can be parsed.
func TestPage(t *testing.T) {
	steps := readPage(t)
	queries := 0
	for _, s := range steps {
		if query.MatchString(s.command) {
			queries++
		}
	}
	if len(steps) < 10 || queries < 5 || !steps[0].foreground {
		t.Errorf("got %d steps with %d queries, want at least 10 and 5, and a foreground command first", len(steps), queries)
	}
}

// TestTutorial runs the commands of the tutorial unchanged and compares the output with the page.
func TestTutorial(t *testing.T) {
	if os.Getenv("PODGAUGE_TUTORIAL") == "" {
		t.Skip("make tutorial-check runs it, as root")
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM) // an interrupted test must stop the cluster
	defer stop()
	steps := readPage(t)
	var foreground []*terminal
	defer func() {
		for _, terminal := range foreground {
			expect.NoError(t, terminal.interrupt(endTimeout))
		}
	}()
	shell := newTerminal(t)
	var ready time.Time
	for _, s := range steps {
		printed := ""
		for _, terminal := range foreground {
			printed += terminal.text.String()
		}
		begin := time.Now()
		var err error
		if s.foreground {
			ready = time.Time{}
			terminal := newTerminal(t)
			foreground = append(foreground, terminal)
			err = terminal.runForeground(ctx, s, foregroundTimeout)
		} else {
			err = shell.runStep(ctx, s, printed)
		}
		if err != nil {
			t.Fatalf("%s:%d: %s: %v", pagePath, s.line, s.command, err)
		}
		if ready.IsZero() {
			ready = time.Now()
		}
		t.Logf("%6.1f s  %s", time.Since(begin).Seconds(), s.command)
	}
	t.Logf("figure: commands of the tutorial in the running cluster: %.0f s", time.Since(ready).Seconds())
}

func readPage(t *testing.T) []step {
	t.Helper()
	page := testfile.Read(t, pagePath)
	steps, err := parsePage(page)
	if err != nil {
		t.Fatalf("%s: %v", pagePath, err)
	}
	return steps
}

// runStep runs a command, and repeats a query until the output matches the page.
func (t *terminal) runStep(ctx context.Context, s step, printed string) error {
	command, err := fillCommand(s.command, printed)
	if err != nil {
		return err
	}
	for end := time.Now().Add(queryTimeout); ; time.Sleep(queryInterval) {
		output, err := t.run(ctx, command, commandTimeout)
		err = cmp.Or(err, compare(s.output, output, false))
		if err == nil || ctx.Err() != nil || !query.MatchString(s.command) || time.Now().After(end) {
			return err
		}
	}
}

// runForeground starts a command and waits until its output starts with the output on the page.
func (t *terminal) runForeground(ctx context.Context, s step, timeout time.Duration) error {
	t.start(s.command)
	for end := time.Now().Add(timeout); ; time.Sleep(queryInterval) {
		err := compare(s.output, t.text.String(), true)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case t.ended():
			return errors.Join(errors.New("the command exited"), err)
		case time.Now().After(end):
			return fmt.Errorf("after %s: %w", timeout, err)
		}
	}
}

// TestTerminal runs steps in a terminal, with matching and other outputs.
func TestTerminal(t *testing.T) {
	shell := newTerminal(t)
	for _, c := range []struct {
		command string
		output  []string // on the page
		want    string   // of the error
	}{
		{"A=1; B='two words'", nil, ""},
		{`echo "$A" \` + "\n" + `  "$B"`, []string{"1 two words"}, ""},
		{"echo other", []string{"one"}, "the page has:\none"},
		{"echo one; echo more", []string{"one"}, "the page has:\none"},
		{"echo 'a   b  '", []string{"a b"}, ""},
		{"echo ab", []string{"a b"}, "the page has:"},
		{"echo abc", []string{"a.c"}, "the page has:"},
		{"echo GPU-0a 1", []string{"GPU-… 1"}, ""},
		{"echo GPU-0a 2", []string{"GPU-… 1"}, "the page has:"},
		{"echo a; echo b; echo end", []string{"…", "end"}, ""},
		{"echo end", []string{"…", "end"}, "the page has:"},
		{"echo out; false", []string{"out"}, "exit status 1"},
		{"cat", nil, ""}, // no input
		{"sleep 60 & echo error >&2", []string{"error"}, ""},
		{"kill %1", nil, ""},
		{"echo $?", []string{"0"}, ""},
	} {
		err := shell.runStep(t.Context(), step{command: c.command, output: c.output}, "")
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("command %s: got error %v, want %q", c.command, err, c.want)
		}
	}
	foreground := newTerminal(t)
	up := step{command: "echo building; echo up; echo '  export A=1'; exec sleep 60", output: []string{"…", "up"}}
	require.NoError(t, foreground.runForeground(t.Context(), up, time.Minute))
	for command, found := range map[string]bool{"export A=…": true, "export C=…": false} {
		if err := shell.runStep(t.Context(), step{command: command}, foreground.text.String()); (err == nil) != found {
			t.Errorf("command %s: got error %v, want a line to copy: %t", command, err, found)
		}
	}
	expect.NoError(t, foreground.interrupt(time.Minute))
	exits := step{command: "echo no; exit 1", output: []string{"up"}}
	if err := newTerminal(t).runForeground(t.Context(), exits, time.Minute); err == nil || !strings.HasPrefix(err.Error(), "the command exited") {
		t.Errorf("foreground command that exits: got error %v", err)
	}
}

// terminal is a shell in the repository root.
type terminal struct {
	command *exec.Cmd
	stdin   io.Writer
	closed  chan struct{} // closed after all processes have closed the output
	text    testlog.Buffer
}

// newTerminal runs a shell until the test ends.
func newTerminal(t *testing.T) *terminal {
	t.Helper()
	term := &terminal{command: exec.Command("bash", "--noprofile", "--norc"), closed: make(chan struct{})}
	term.command.Dir = repoRoot
	term.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	term.command.Stdout, term.command.Stderr = &term.text, &term.text // in order, by a single pipe
	stdin, err := term.command.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, term.command.Start())
	term.stdin = stdin
	go func() {
		defer close(term.closed)
		term.command.Wait() //nolint:errcheck // a signal ended the shell
	}()
	t.Cleanup(func() { term.signal(syscall.SIGKILL); <-term.closed })
	return term
}

func (t *terminal) ended() bool {
	select {
	case <-t.closed:
		return true
	default:
		return false
	}
}

func (t *terminal) signal(s syscall.Signal) error { return syscall.Kill(-t.command.Process.Pid, s) }

// interrupt sends SIGINT to the foreground processes, as Ctrl-C does, and waits until all have ended.
func (t *terminal) interrupt(timeout time.Duration) error {
	if err := t.signal(syscall.SIGINT); err != nil {
		return fmt.Errorf("interrupt: %w", err)
	}
	select {
	case <-t.closed:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("processes still run %s after Ctrl-C:\n%s", timeout, t.text.String())
	}
}

// start starts a command. The shell exits after the command.
func (t *terminal) start(command string) {
	fmt.Fprintf(t.stdin, "{ %s\n} </dev/null; exit $?\n", command)
}

// endMark matches the line that run prints after a command.
var endMark = regexp.MustCompile(`\n<end of command, exit status (\d+)>\n`)

// run runs a command without input, and returns the output of the command.
func (t *terminal) run(ctx context.Context, command string, timeout time.Duration) (string, error) {
	begin := len(t.text.String())
	fmt.Fprintf(t.stdin, "{ %s\n} </dev/null; printf '\\n<end of command, exit status %%d>\\n' $?\n", command)
	for end := time.Now().Add(timeout); ctx.Err() == nil && time.Now().Before(end) && !t.ended(); time.Sleep(5 * time.Millisecond) {
		output := t.text.String()[begin:]
		mark := endMark.FindStringSubmatchIndex(output)
		if mark == nil {
			continue
		}
		if status := output[mark[2]:mark[3]]; status != "0" {
			return "", fmt.Errorf("exit status %s:\n%s", status, output[:mark[0]])
		}
		return output[:mark[0]], nil
	}
	return "", cmp.Or(ctx.Err(), fmt.Errorf("no exit status within %s:\n%s", timeout, t.text.String()[begin:]))
}

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
