// Package tutorial runs the tutorial of docs/getting-started.
package tutorial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
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
			if err := terminal.interrupt(endTimeout); err != nil {
				t.Error(err)
			}
		}
	}()
	shell := newTerminal(t)
	var ready time.Time
	for _, s := range steps {
		printed := ""
		for _, terminal := range foreground {
			printed += terminal.output()
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
		err := compare(s.output, t.output(), true)
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
		if err := shell.runStep(t.Context(), step{command: command}, foreground.output()); (err == nil) != found {
			t.Errorf("command %s: got error %v, want a line to copy: %t", command, err, found)
		}
	}
	if err := foreground.interrupt(time.Minute); err != nil {
		t.Error(err)
	}
	exits := step{command: "echo no; exit 1", output: []string{"up"}}
	if err := newTerminal(t).runForeground(t.Context(), exits, time.Minute); err == nil || !strings.HasPrefix(err.Error(), "the command exited") {
		t.Errorf("foreground command that exits: got error %v", err)
	}
}
