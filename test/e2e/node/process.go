package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// Process is a running or ended program of the node.
type Process struct {
	Name string
	// PID is the process id on the machine.
	PID int
	// Log is the file of stdout and stderr, shared by processes with the same
	// name.
	Log string

	cmd   *exec.Cmd
	start int64         // offset of the process's output in Log
	done  chan struct{} // closed at the end of the process, after cmd.ProcessState is set
}

// Signal sends a signal; the error is os.ErrProcessDone if the process has
// ended.
func (p *Process) Signal(signal syscall.Signal) error { return p.cmd.Process.Signal(signal) }

// Done returns a channel that is closed at the end of the process.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the process and returns its state.
func (p *Process) Wait(ctx context.Context) (*os.ProcessState, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for end of %s: %w", p.Name, context.Cause(ctx))
	}
}

// Stop sends a signal and waits for the end of the process.
func (p *Process) Stop(ctx context.Context, signal syscall.Signal) (*os.ProcessState, error) {
	if err := p.Signal(signal); err != nil {
		return nil, fmt.Errorf("send %s to %s: %w", signal, p.Name, err)
	}
	return p.Wait(ctx)
}

// Output returns the output of this process so far.
func (p *Process) Output() (string, error) {
	f, err := os.Open(p.Log)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, p.start, info.Size()-p.start))
	return string(b), err
}

// FDs returns the number of open file descriptors.
func (p *Process) FDs() (int, error) { return p.count("fd") }

// Threads returns the number of threads.
func (p *Process) Threads() (int, error) { return p.count("task") }

func (p *Process) count(dir string) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", p.PID, dir))
	return len(entries), err
}

// Alive returns an error with the last lines of output if the process has
// ended.
func (p *Process) Alive() error {
	select {
	case <-p.done:
		out, _ := p.Output()
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return fmt.Errorf("%s ended (%s), log in %s:\n%s", p.Name, p.cmd.ProcessState, p.Log,
			strings.Join(lines[max(0, len(lines)-10):], "\n"))
	default:
		return nil
	}
}
