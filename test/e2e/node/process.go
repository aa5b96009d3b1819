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
	"sync"
	"syscall"
)

// Process is a program that runs in the node, or has run.
type Process struct {
	Name string
	// PID is its id on the machine: /proc/<PID> tells of it.
	PID int
	// Log is the file that takes its stdout and stderr; processes of one name share it.
	Log string

	cmd   *exec.Cmd
	start int64         // where in Log its own part begins
	done  chan struct{} // closed when it has ended; cmd.ProcessState is valid then
}

// processList are those that Exec started.
type processList struct {
	mu  sync.Mutex // guards all
	all []*Process
}

func (ps *processList) add(p *Process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.all = append(ps.all, p)
}

// killAll kills and reaps them. The PID namespace would do the former, but it cannot end before the latter is done.
func (ps *processList) killAll() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.all {
		_ = p.Signal(syscall.SIGKILL)
		<-p.done
	}
}

// Exec starts a program in the node. Paths in argv are absolute and mean the same file inside, unless it lies below one of the folders that
// the node has of its own. Its environment is env and a PATH. It runs until it ends, or until Down.
func (n *RealNode) Exec(name string, argv []string, env ...string) (*Process, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C is the test's, not the kubelet's
	p := &Process{Name: name, Log: filepath.Join(n.Logs, name+".log"), cmd: cmd, done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own
	cmd.Stdout, cmd.Stderr = log, log
	if p.start, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	if err := n.nsenter.call(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s in the node: %w", name, err)
	}
	p.PID = cmd.Process.Pid
	n.procs.add(p)
	go func() { // killAll waits for it
		defer close(p.done)
		_ = cmd.Wait() // a bad status is no error here
	}()
	return p, nil
}

// Shell runs a shell script inside the node and returns what it printed. It stops at the first command that fails.
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

// Signal sends a signal; os.ErrProcessDone says that the process has ended.
func (p *Process) Signal(signal syscall.Signal) error { return p.cmd.Process.Signal(signal) }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns how the process ended.
func (p *Process) Wait(ctx context.Context) (*os.ProcessState, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for %s to end: %w", p.Name, context.Cause(ctx))
	}
}

// Stop sends a signal and waits for the end.
func (p *Process) Stop(ctx context.Context, signal syscall.Signal) (*os.ProcessState, error) {
	if err := p.Signal(signal); err != nil {
		return nil, fmt.Errorf("send %s to %s: %w", signal, p.Name, err)
	}
	return p.Wait(ctx)
}

// Output is what this process has printed so far.
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

// FDs counts its open file descriptors.
func (p *Process) FDs() (int, error) { return p.count("fd") }

// Threads counts its threads.
func (p *Process) Threads() (int, error) { return p.count("task") }

func (p *Process) count(dir string) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", p.PID, dir))
	return len(entries), err
}

// Alive is an error with the last words of a process that has ended.
func (p *Process) Alive() error {
	select {
	case <-p.done:
		out, _ := p.Output()
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return fmt.Errorf("%s ended (%s), log in %s:\n%s", p.Name, p.cmd.ProcessState, p.Log, strings.Join(lines[max(0, len(lines)-10):], "\n"))
	default:
		return nil
	}
}
