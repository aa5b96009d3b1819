package tutorial

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/helpers/require"
)

// terminal is a shell in the repository root.
type terminal struct {
	command *exec.Cmd
	stdin   io.Writer
	closed  chan struct{} // closed after all processes have closed the output

	mu   sync.Mutex // guards text
	text strings.Builder
}

// newTerminal runs a shell until the test ends.
func newTerminal(t *testing.T) *terminal {
	t.Helper()
	term := &terminal{command: exec.Command("bash", "--noprofile", "--norc"), closed: make(chan struct{})}
	term.command.Dir = repoRoot
	term.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	term.command.Stdout, term.command.Stderr = term, term // in order, by a single pipe
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

// Write appends to the output.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// output returns the output so far.
func (t *terminal) output() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
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
		return fmt.Errorf("processes still run %s after Ctrl-C:\n%s", timeout, t.output())
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
	begin := len(t.output())
	fmt.Fprintf(t.stdin, "{ %s\n} </dev/null; printf '\\n<end of command, exit status %%d>\\n' $?\n", command)
	for end := time.Now().Add(timeout); ctx.Err() == nil && time.Now().Before(end) && !t.ended(); time.Sleep(5 * time.Millisecond) {
		output := t.output()[begin:]
		mark := endMark.FindStringSubmatchIndex(output)
		if mark == nil {
			continue
		}
		if status := output[mark[2]:mark[3]]; status != "0" {
			return "", fmt.Errorf("exit status %s:\n%s", status, output[:mark[0]])
		}
		return output[:mark[0]], nil
	}
	return "", cmp.Or(ctx.Err(), fmt.Errorf("no exit status within %s:\n%s", timeout, t.output()[begin:]))
}
