package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// LockRun returns when no other run of tests is under way on this machine, of those that use a node of the environment's number; closing it
// ends the run. Without it two runs would take turns
// node by node, and the time that one waits would count as the time that its test takes.
func LockRun(ctx context.Context, logf func(string, ...any)) (io.Closer, error) {
	return acquireLock(ctx, "@"+Options{}.withDefaults().Number.name()+"-run", "another run of these tests is under way on this machine: waiting for it to end", logf)
}

// lockNode returns when no other node of the number is up on this machine; closing the listener ends the turn. The abstract socket is a lock that leaves
// no file, and the kernel releases it with the process, however that ends: whatever lies around during one's turn is nobody's.
func lockNode(ctx context.Context, options Options) (net.Listener, error) {
	return acquireLock(ctx, "@"+options.Number.name(), "another process has a node up on this machine: waiting for it to end", options.Logf)
}

func acquireLock(ctx context.Context, lock, waiting string, logf func(string, ...any)) (net.Listener, error) {
	for logged := false; ; logged = true {
		listener, err := net.Listen("unix", lock)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return listener, err
		}
		if !logged {
			logf(waiting)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another process to end: %w", context.Cause(ctx))
		}
	}
}

// CleanUp removes what a dead run left, its logs included. It waits for a live one to end.
func CleanUp(ctx context.Context, o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can clean up after a node")
	}
	o = o.withDefaults()
	turn, err := lockNode(ctx, o)
	if err != nil {
		return err
	}
	defer turn.Close()
	return errors.Join(removeLeftovers(ctx, o), os.RemoveAll(o.Dir))
}

// Leftovers says what a dead run left on this machine, logs apart: nothing after Down or Clean. It waits for a live one to end.
func Leftovers(ctx context.Context, o Options) ([]string, error) {
	o = o.withDefaults()
	turn, err := lockNode(ctx, o)
	if err != nil {
		return nil, err
	}
	defer turn.Close()
	return nodeResources(o)
}

// Resources says what there is of the node on this machine, logs apart: its processes, cgroups, network link, folder and mounts.
func (n *RealNode) Resources() ([]string, error) { return nodeResources(n.options) }

func nodeResources(o Options) ([]string, error) {
	all, err := newNodeCgroups(o.Number)
	if err != nil {
		return nil, err
	}
	link := o.Number.name()
	var found []string
	for _, pid := range all.pids() {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		found = append(found, fmt.Sprintf("process %d: %s", pid, strings.ReplaceAll(string(command), "\x00", " ")))
	}
	for _, dir := range all.existingDirs() {
		found = append(found, "cgroup "+dir)
	}
	if _, err := net.InterfaceByName(link); err == nil {
		found = append(found, "network link "+link)
	}
	if _, err := os.Stat(o.work()); err == nil {
		found = append(found, "folder "+o.work())
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, o.work()) {
			found = append(found, "mount "+line)
		}
	}
	return found, err
}

// removeLeftovers ends and removes everything of a node; the caller has the turn. The kernel ends a namespace's mounts, its network and its
// cgroups' last members a moment after their processes, hence the second tries.
func removeLeftovers(ctx context.Context, o Options) error {
	all, err := newNodeCgroups(o.Number)
	if err != nil {
		return err
	}
	link := o.Number.name()
	return Until(ctx, "nothing is left of the node", func(ctx context.Context) error {
		if pids := all.pids(); len(pids) > 0 {
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			return fmt.Errorf("processes %v still run", pids)
		}
		if _, err := net.InterfaceByName(link); err == nil {
			out, err := exec.CommandContext(ctx, "ip", "link", "del", link).CombinedOutput()
			if _, still := net.InterfaceByName(link); err != nil && still == nil {
				return fmt.Errorf("remove network link %s: %w: %s", link, err, out)
			}
		}
		if err := all.remove(); err != nil {
			return err
		}
		return os.RemoveAll(o.work())
	})
}
