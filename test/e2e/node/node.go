// Package node is a Kubernetes node for tests: a real kubelet, containerd and
// runc in private namespaces of one machine.
//
// A node starts in one or two seconds and ends with the process that started
// the node, even if that process is killed: the node's first process ends with
// its parent, and all other processes with the first. The next Up, or CleanUp,
// removes cgroups and folders, which the kernel does not remove. A machine has
// a single node per number at a time; Up waits for the lock.
//
// The node shares the machine's file system except /dev, /proc, /run, /sys,
// /var/lib and /var/log. All other paths are the same inside and outside.
package node

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/test/e2e/programs"
)

// Name is the kubelet's node name, and the suffix of all static pod names.
const Name = "node-a"

// Options of a node; the zero value is a node with the default kubelet.
type Options struct {
	// KubeletVersion is by default the environment's KUBELET_VERSION or the
	// first of programs.KubeletVersions.
	KubeletVersion string
	// KubeletConfig is merged into the node's KubeletConfiguration.
	KubeletConfig map[string]any
	// Containerd2 runs containerd 2, which supports CDI, instead of Debian's
	// version.
	Containerd2 bool
	// Number distinguishes concurrent nodes of a machine, by default the
	// environment's PODGAUGE_E2E_NODE or 0.
	Number Number
	// Dir contains the node's folder and the logs. The path must be short,
	// because unix socket paths have at most 108 bytes, and outside the private
	// folders of the node. Each number needs a separate Dir. The default is the
	// environment's PODGAUGE_E2E_DIR or /var/tmp/podgauge-e2e, with the number
	// if not 0.
	Dir string
	// LogName is the folder of the node's logs below Dir/logs, by default
	// "node".
	LogName string
	// Logf logs a line before long waits. Nil disables the log.
	Logf func(format string, args ...any)
}

func (o Options) withDefaults() Options {
	o.KubeletVersion = cmp.Or(o.KubeletVersion, os.Getenv("KUBELET_VERSION"), programs.KubeletVersions()[0])
	if o.Number == 0 {
		o.Number, _ = parseNumber(os.Getenv("PODGAUGE_E2E_NODE")) // CheckRequirements returns the error
	}
	o.Dir = cmp.Or(o.Dir, os.Getenv("PODGAUGE_E2E_DIR"), filepath.Join("/var/tmp", o.Number.name()))
	o.LogName = strings.ReplaceAll(cmp.Or(o.LogName, "node"), "/", "-")
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	return o
}

func (o Options) work() string { return filepath.Join(o.Dir, "node") }

// RealNode is a running node. All methods are safe for concurrent use, except
// start and stop of the kubelet.
type RealNode struct {
	// Logs is the folder with a file for each process and with pods/ for the
	// containers. Down keeps the folder.
	Logs string
	// KubeletVersion is the version under test.
	KubeletVersion string

	// In the order of creation by Up; constant until Down.
	options Options
	work    string       // folder of all files except logs; removed by Down
	binary  string       // path of the kubelet
	lock    net.Listener // nil after Down
	cgroups nodeCgroups
	nsenter *nsenterThread

	mu        sync.Mutex // guards processes
	processes []*Process // of Exec

	kubelet *Process // written by StartKubelet and StopKubelet; nil before the first start and after a stop

	shell sync.Mutex // locked while a script runs, because all scripts share an output file
}

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
			return n.LoadProgram(ctx, TestImage, n.path("testcmd"), "/box", "pause")
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

// RemoveLogs removes the node's logs, and Dir if empty.
func (n *RealNode) RemoveLogs() error {
	err := os.RemoveAll(n.Logs)
	for dir := filepath.Dir(n.Logs); dir != filepath.Dir(n.options.Dir); dir = filepath.Dir(dir) {
		_ = os.Remove(dir) // fails if not empty
	}
	return err
}

// Path returns a path in the node's folder, the same inside and outside. Down
// removes the folder.
func (n *RealNode) Path(elem ...string) string { return n.path(elem...) }

func (n *RealNode) path(elem ...string) string {
	return filepath.Join(append([]string{n.work}, elem...)...)
}

// URL returns the machine's URL of a port of the node.
func (n *RealNode) URL(port int) string { return fmt.Sprintf("http://%s:%d", n.IP(), port) }

// IP returns the node's address, reachable from the machine.
func (n *RealNode) IP() string { return n.options.Number.nodeIP() }
