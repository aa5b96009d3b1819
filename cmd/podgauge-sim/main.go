// Command podgauge-sim is podgauge on a simulated machine: for demonstrations
// and tests without a GPU.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/dra"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/internal/sim/replay"
	"github.com/podgauge/podgauge/internal/xid"
	"github.com/spf13/pflag"
)

// main runs podgauge, an action of a script on a running podgauge-sim
// --simulate=hardware (`podgauge simulate xid 0 79`), or podgauge timings FILE,
// which prints the times of the calls in a capture.
func main() {
	command := append(os.Args[1:], "")[0]
	var err error
	switch command {
	case "simulate":
		err = sim.SendAction(sim.ControlAddress, os.Args[2:])
	case "timings":
		err = printTimings(os.Args[2:])
	default:
		os.Exit(app.Main(&simulatedPlatform{}))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "podgauge %s: %v\n", command, err)
		os.Exit(1)
	}
}

func printTimings(files []string) error {
	if len(files) != 1 {
		return errors.New("expected the file of a capture")
	}
	capture, err := readFile(files[0], replay.Read)
	if err == nil {
		_, err = fmt.Print(capture.Timings())
	}
	return err
}

// readFile reads a file; errors of read get the file's name.
func readFile[T any](name string, read func(io.Reader) (T, error)) (content T, err error) {
	file, err := os.Open(name)
	if err != nil {
		return content, err
	}
	defer file.Close() //nolint:errcheck // it was read
	if content, err = read(file); err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return content, err
}

// defaultGPUs is the number of GPUs of a machine without a script.
const defaultGPUs = 8

// Values of --simulate.
const (
	modeNode         = "node"
	modeHardware     = "hardware"
	modeScriptPrefix = "script:" // and a path
)

// simulatedPlatform is the platform of a simulated machine.
type simulatedPlatform struct {
	mode   string
	script *sim.Script // of modeScriptPrefix
	replay gonvml.Interface
}

func (p *simulatedPlatform) AddFlags(f *pflag.FlagSet) {
	p.mode = modeNode
	f.Func("simulate", "simulated `machine`: node (the default: with kubelet and pods), hardware (for a real kubelet) "+
		"or script:FILE (a node with the events of a file)", p.setMode)
	f.Func("replay", "simulate the NVML of a `file` of podgauge capture, beside a kubelet", p.setReplay)
}

// setMode checks the value of --simulate, and reads the script.
func (p *simulatedPlatform) setMode(mode string) (err error) {
	p.mode, p.script = mode, nil
	file, isScript := strings.CutPrefix(mode, modeScriptPrefix)
	switch {
	case isScript:
		p.script, err = readFile(file, sim.ReadScript)
	case mode != modeNode && mode != modeHardware:
		err = fmt.Errorf("%q: expected node, hardware or script:FILE", mode)
	}
	return err
}

// setReplay reads the capture of --replay.
func (p *simulatedPlatform) setReplay(name string) error {
	capture, err := readFile(name, replay.Read)
	if err == nil {
		p.replay = capture.Library()
	}
	return err
}

// replayedNode is a kubelet without pods.
type replayedNode struct{ *kubelet.Kubelet }

func (n replayedNode) Close() { os.RemoveAll(n.Dir()) } // in the temporary folder

// openReplay returns the replayed driver, beside a simulated kubelet.
func (p *simulatedPlatform) openReplay(o app.OpenOptions) (*app.Hardware, error) {
	dir, err := os.MkdirTemp("", "podgauge-replay-")
	if err != nil {
		return nil, fmt.Errorf("create the simulated node's folder: %w", err)
	}
	n := replayedNode{kubelet.New(kubelet.Options{Dir: dir, RunningSince: time.Now().Add(-time.Hour)})}
	b := nvml.New(nvml.Options{
		DevRoot: dir, SysRoot: dir, ProcRoot: dir, PerLink: o.PerLink, Reads: o.Reads,
		Library: p.replay,
	})
	return &app.Hardware{
		Backend: b, Simulated: true, ClaimedDevice: dra.ClaimedDevice, Node: n,
		KubeletDir: dir, DevicePluginDir: filepath.Dir(n.RegistrationSocket()), CDIDir: filepath.Join(dir, "cdi"),
		ProcessResolver: sim.NewProcessTable(nil), // without pods, no process is a container's
	}, nil
}

func (p *simulatedPlatform) Open(o app.OpenOptions) (*app.Hardware, error) {
	if p.replay != nil {
		return p.openReplay(o)
	}
	rows := metric.Metrics()
	if o.PerLink {
		rows = metric.MetricsPerLink()
	}
	machine := sim.NewMachine(rows, defaultGPUs, time.Now)
	if p.script != nil {
		machine = sim.NewNamedMachine(p.script.Machine, rows, time.Now)
	}
	machine.SetXidClassifier(xid.Event)
	m := &app.Hardware{
		Backend: machine, Simulated: true, ClaimedDevice: dra.ClaimedDevice, SwitchErrors: machine.SwitchErrors,
	}
	if p.mode == modeHardware {
		m.Node = &sim.Control{Address: sim.ControlAddress, Machine: machine, Log: o.Log}
		return m, nil
	}
	node, err := sim.NewVirtualNode(machine, p.script, o.Log)
	if err != nil {
		return nil, err
	}
	m.Node, m.ProcessResolver, m.Sysfs = node, node.ProcessTable, node.Sysfs()
	m.KubeletDir, m.DevicePluginDir, m.CDIDir = node.Dir(), node.DevicePluginDir(), filepath.Join(node.Dir(), "cdi")
	return m, nil
}
