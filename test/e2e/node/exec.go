package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Exec starts a program in the node, with env and a PATH as environment. Down
// kills the program. Paths in argv must be absolute, and are the same inside
// except below the node's private folders.
func (n *RealNode) Exec(name string, argv []string, env ...string) (*Process, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
		env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C ends the test, not the kubelet
	n.cgroups.addProcess(cmd.SysProcAttr)
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
