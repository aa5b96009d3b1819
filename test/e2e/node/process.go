package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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

// Exec starts a program in the node, with env and a PATH as environment. Down
// kills the program. Paths in argv must be absolute, and are the same inside
// except below the node's private folders.
func (n *RealNode) Exec(name string, argv []string, env ...string) (*Process, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
		env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C ends the test, not the kubelet
	p := &Process{Name: name, Log: filepath.Join(n.Logs, name+".log"), cmd: cmd, done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has a copy
	cmd.Stdout, cmd.Stderr = log, log
	if p.start, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	if err := n.nsenter.call(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s in the node: %w", name, err)
	}
	p.PID = cmd.Process.Pid
	n.mu.Lock()
	defer n.mu.Unlock()
	n.processes = append(n.processes, p)
	go func() { // Down waits until p.done is closed
		defer close(p.done)
		_ = cmd.Wait() // the status is in cmd.ProcessState
	}()
	return p, nil
}

// Start starts a program as Exec does, and returns when ready returns nil.
// After an error the process may still run.
func (n *RealNode) Start(ctx context.Context, name string, argv []string,
	ready func(context.Context) error,
) (*Process, error) {
	p, err := n.Exec(name, argv)
	if err != nil {
		return nil, err
	}
	return p, Until(ctx, name+" is ready", func(ctx context.Context) error {
		if err := p.Alive(); err != nil {
			return StopRetrying(err)
		}
		return ready(ctx)
	})
}

// Shell runs a shell script in the node until the first failed command, and
// returns the output.
func (n *RealNode) Shell(ctx context.Context, script string, env ...string) (string, error) {
	n.shell.Lock()
	defer n.shell.Unlock()
	p, err := n.Exec("shell", []string{"sh", "-euc", script}, env...)
	if err != nil {
		return "", err
	}
	state, err := p.Wait(ctx)
	if err != nil {
		return "", errors.Join(err, p.Signal(syscall.SIGKILL))
	}
	out, err := p.Output()
	if !state.Success() {
		return out, fmt.Errorf("shell script in the node: %s\n%s\n%s", state, script, out)
	}
	return out, err
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
