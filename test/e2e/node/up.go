package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/test/e2e/programs"
)

// Up starts a node without kubelet: namespaces, network, containerd and the
// test image. After an error only the logs remain.
func Up(ctx context.Context, o Options) (_ *RealNode, err error) {
	if err := CheckRequirements(o); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	n := &RealNode{
		Logs: filepath.Join(o.Dir, "logs", o.LogName), KubeletVersion: o.KubeletVersion, options: o,
		work: o.work(),
	}
	if n.binary, err = programs.Kubelet(n.KubeletVersion).Binary("kubelet"); err != nil {
		return nil, err
	}
	if n.lock, err = lockNode(ctx, o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start node (logs in %s): %w", n.Logs, err),
				n.Down(context.WithoutCancel(ctx)))
		}
	}()
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return removeLeftovers(ctx, o) },
		n.makeFolders, n.enterNamespaces, n.setUpNetwork, n.setUpSystem, n.startContainerd,
		func(ctx context.Context) error {
			return n.LoadProgram(ctx, TestImage, n.testcmd, "/box", "pause")
		},
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Down ends all processes of the node and removes all files except the logs.
// Further calls have no effect.
func (n *RealNode) Down(ctx context.Context) error {
	if n.lock == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if n.nsenter != nil {
		n.mu.Lock()
		for _, p := range n.processes { // the PID namespace ends when all are reaped
			_ = p.Signal(syscall.SIGKILL)
			<-p.done
		}
		n.mu.Unlock()
		n.nsenter.close()
		n.nsenter = nil
	}
	err := removeLeftovers(ctx, n.options)
	n.lock.Close()
	n.lock = nil
	if err != nil {
		return fmt.Errorf("stop node: %w", err)
	}
	return nil
}
