package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// LockRun waits until no test run on this machine uses a node with the
// environment's number; Close releases the lock. Without the lock two runs
// would alternate node by node, and waiting would count as test time.
func LockRun(ctx context.Context, logf func(string, ...any)) (io.Closer, error) {
	return acquireLock(ctx, "@"+Options{}.withDefaults().Number.name()+"-run",
		"waiting for a running test run on this machine", logf)
}

// lockNode waits until no node with the number is up on this machine; Close
// releases the lock. The lock is an abstract socket, without a file, and the
// kernel releases the lock at the end of the process. Resources found under the
// lock are therefore leftovers.
func lockNode(ctx context.Context, options Options) (net.Listener, error) {
	return acquireLock(ctx, "@"+options.Number.name(), "waiting for a running node on this machine", options.Logf)
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
			return nil, fmt.Errorf("wait for lock: %w", context.Cause(ctx))
		}
	}
}

// CleanUp waits for the end of a running node and removes all leftovers,
// including logs.
func CleanUp(ctx context.Context, o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("clean up requires root")
	}
	o = o.withDefaults()
	lock, err := lockNode(ctx, o)
	if err != nil {
		return err
	}
	defer lock.Close()
	return errors.Join(removeLeftovers(ctx, o), os.RemoveAll(o.Dir))
}

// removeLeftovers ends all processes and removes all resources of a node; the
// caller has the lock. The kernel removes mounts, network and cgroup members
// shortly after the processes, so the removal is repeated.
func removeLeftovers(ctx context.Context, o Options) error {
	all, err := newNodeCgroups(o.Number)
	if err != nil {
		return err
	}
	link := o.Number.name()
	return Until(ctx, "all resources of the node are removed", func(ctx context.Context) error {
		if pids := pidsOf(all); len(pids) > 0 {
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			return fmt.Errorf("processes %v still run", pids)
		}
		if _, err := net.InterfaceByName(link); err == nil {
			out, err := exec.CommandContext(ctx, "ip", "link", "del", link).CombinedOutput()
			if _, exists := net.InterfaceByName(link); err != nil && exists == nil {
				return fmt.Errorf("remove network link %s: %w: %s", link, err, out)
			}
		}
		if err := all.remove(); err != nil {
			return err
		}
		return os.RemoveAll(o.work())
	})
}
