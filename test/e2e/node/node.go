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
	_ "embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/podgauge/podgauge/test/e2e/programs"
)

// Name is the kubelet's node name, and the suffix of all static pod names.
const Name = "node-a"

// TestImage is the image of all containers, including pod sandboxes.
const TestImage = "local.test/box:1"

// Options of a node; the zero value is a node with the default kubelet.
type Options struct {
	// KubeletVersion is by default the environment's KUBELET_VERSION or the
	// first of programs.KubeletVersions.
	KubeletVersion string
	// KubeletConfig is merged into the node's KubeletConfiguration.
	KubeletConfig map[string]any
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

// LogsDir returns the folder of the logs of failed tests.
func LogsDir() string { return filepath.Join(Options{}.withDefaults().Dir, "logs") }

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
	testcmd string       // path of the program of the test image
	cgroups nodeCgroups
	nsenter *nsenterThread

	mu        sync.Mutex // guards processes
	processes []*Process // of Exec

	kubelet *Process // written by StartKubelet and StopKubelet; nil before the first start and after a stop

	shell sync.Mutex // locked while a script runs, because all scripts share an output file
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
func (n *RealNode) Path(elem ...string) string {
	return filepath.Join(append([]string{n.work}, elem...)...)
}

// URL returns the machine's URL of a port of the node.
func (n *RealNode) URL(port int) string { return fmt.Sprintf("http://%s:%d", n.IP(), port) }

// IP returns the node's address, reachable from the machine.
func (n *RealNode) IP() string { return n.options.Number.nodeIP() }

// RuntimeSocket returns the machine's path of containerd's socket.
func (n *RealNode) RuntimeSocket() string { return n.Path("containerd", "containerd.sock") }
