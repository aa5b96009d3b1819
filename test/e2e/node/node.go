// Package node is a Kubernetes node for tests: a real kubelet, containerd and runc in private namespaces of one machine.
//
// A node costs a second or two, and nothing of it outlives the process that brought it up, not even one that is killed: the node's first
// process dies with its parent, and with it everything that runs inside. What the kernel cannot take back by itself (cgroups, folders) goes
// at the next Up or with Clean. There is one node at a time of a number on a machine; Up waits for its turn.
//
// The node shares the machine's file system under its own /dev, /proc, /run, /sys, /var/lib and /var/log: a path elsewhere means the same
// file inside and outside.
package node

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/test/e2e/kubelet"
)

// Name is the node's name in the kubelet's eyes, and the ending of every static pod's name.
const Name = "node-a"

// Options of a node; the zero value is a node with the default kubelet.
type Options struct {
	// KubeletVersion is one of kubelet.Versions. Empty means the environment's KUBELET_VERSION, or else kubelet.DefaultVersion.
	KubeletVersion string
	// KubeletConfig is laid over the node's own KubeletConfiguration, key by key.
	KubeletConfig map[string]any
	// Containerd2 runs containerd 2, which knows CDI, in place of Debian's.
	Containerd2 bool
	// Number tells apart the nodes that a machine has at the same time. Zero means the environment's PODGAUGE_E2E_NODE, or else zero.
	Number Number
	// Dir holds the node's folder and its logs. It must be short, since the path of a unix socket ends at 108 bytes, and outside the folders
	// that the node has of its own. No two numbers share one. Empty means the environment's PODGAUGE_E2E_DIR, or else /var/tmp/podgauge-e2e,
	// with the number where there is one.
	Dir string
	// LogName names the folder below Dir/logs that takes the node's logs. Empty means "node".
	LogName string
	// Logf gets a line where something takes long. Nil drops it.
	Logf func(format string, args ...any)
}

func (o Options) withDefaults() Options {
	o.KubeletVersion = firstNonEmpty(o.KubeletVersion, os.Getenv("KUBELET_VERSION"), kubelet.DefaultVersion)
	if o.Number == 0 {
		o.Number, _ = parseNumber(os.Getenv("PODGAUGE_E2E_NODE")) // Check says what is wrong with it
	}
	o.Dir = firstNonEmpty(o.Dir, os.Getenv("PODGAUGE_E2E_DIR"), filepath.Join("/var/tmp", o.Number.name()))
	o.LogName = strings.ReplaceAll(firstNonEmpty(o.LogName, "node"), "/", "-")
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	return o
}

func (o Options) work() string { return filepath.Join(o.Dir, "node") }

// RealNode is a node that is up. Its methods may be called from several goroutines, except that one caller at a time starts and stops the kubelet.
type RealNode struct {
	// Logs is the folder with a file for each process and with pods/ for the containers. It outlives Down.
	Logs string
	// KubeletVersion is that under test.
	KubeletVersion string

	// The parts, in the order in which Up makes them; fixed from then on until Down.
	options Options
	work    string       // the folder of everything but the logs; removed by Down
	binary  string       // the kubelet's
	lock    net.Listener // nil when the node is down
	cgroups nodeCgroups
	nsenter *nsenterThread

	procs   processList
	kubelet *Process // the kubelet's last process, written by StartKubelet and StopKubelet; nil before the first and after a stop

	shell sync.Mutex // held while a script runs: all scripts print to one file
}

// Up brings a node up: namespaces, network, containerd and the test image. The kubelet is not started yet. Where it fails it leaves nothing
// but the logs.
func Up(ctx context.Context, o Options) (_ *RealNode, err error) {
	if err := CheckRequirements(o); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	n := &RealNode{Logs: filepath.Join(o.Dir, "logs", o.LogName), KubeletVersion: o.KubeletVersion, options: o, work: o.work()}
	if n.binary, err = kubelet.BinaryPath(n.KubeletVersion); err != nil {
		return nil, err
	}
	if n.lock, err = lockNode(ctx, o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bring the node up (logs in %s): %w", n.Logs, err), n.Down(context.WithoutCancel(ctx)))
		}
	}()
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return removeLeftovers(ctx, o) },
		n.makeFolders, n.enterNamespaces, n.setUpNetwork, n.setUpSystem, n.startContainerd, n.loadImage,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Down ends everything that runs in the node and removes everything but the logs. It may be called again.
func (n *RealNode) Down(ctx context.Context) error {
	if n.lock == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if n.nsenter != nil {
		n.procs.killAll()
		n.nsenter.close()
		n.nsenter = nil
	}
	err := removeLeftovers(ctx, n.options)
	n.lock.Close()
	n.lock = nil
	if err != nil {
		return fmt.Errorf("take the node down: %w", err)
	}
	return nil
}

// RemoveLogs removes the node's logs, and Dir when nothing else is in it.
func (n *RealNode) RemoveLogs() error {
	err := os.RemoveAll(n.Logs)
	for dir := filepath.Dir(n.Logs); dir != filepath.Dir(n.options.Dir); dir = filepath.Dir(dir) {
		_ = os.Remove(dir) // refused where other logs lie
	}
	return err
}

// Path is a place in the node's folder, the same inside and outside. Down removes it.
func (n *RealNode) Path(elem ...string) string { return n.path(elem...) }

func (n *RealNode) path(elem ...string) string {
	return filepath.Join(append([]string{n.work}, elem...)...)
}

// URL is where the machine reaches a port of the node.
func (n *RealNode) URL(port int) string { return fmt.Sprintf("http://%s:%d", n.IP(), port) }

// IP is the node's address. The machine reaches every port of the node there.
func (n *RealNode) IP() string { return n.options.Number.nodeIP() }

func firstNonEmpty(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
