// Command podgauge-sim is podgauge on a simulated machine: for demonstrations
// and tests without a GPU.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/xid"
	"github.com/spf13/pflag"
)

// main runs podgauge, or an action of a script on a running podgauge-sim
// --simulate=hardware: `podgauge simulate xid 0 79`.
func main() {
	if len(os.Args) < 2 || os.Args[1] != "simulate" {
		os.Exit(app.Main(&simulatedPlatform{}))
	}
	if err := sim.SendAction(sim.ControlAddress, os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "podgauge simulate:", err)
		os.Exit(1)
	}
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
}

func (p *simulatedPlatform) AddFlags(f *pflag.FlagSet) {
	p.mode = modeNode
	f.Func("simulate", "simulated `machine`: node (the default: with kubelet and pods), hardware (for a real kubelet) "+
		"or script:FILE (a node with the events of a file)", p.setMode)
}

// setMode checks the value of --simulate, and reads the script.
func (p *simulatedPlatform) setMode(mode string) (err error) {
	p.mode, p.script = mode, nil
	file, isScript := strings.CutPrefix(mode, modeScriptPrefix)
	switch {
	case isScript:
		p.script, err = readScript(file)
	case mode != modeNode && mode != modeHardware:
		err = fmt.Errorf("%q: expected node, hardware or script:FILE", mode)
	}
	return err
}

func (p *simulatedPlatform) Open(o app.OpenOptions) (*app.Hardware, error) {
	rows := metric.Metrics()
	if o.PerLink {
		rows = metric.MetricsPerLink()
	}
	machine := sim.NewMachine(rows, defaultGPUs, time.Now)
	if p.script != nil {
		machine = sim.NewNamedMachine(p.script.Machine, rows, time.Now)
	}
	machine.SetXidClassifier(xid.Event)
	m := &app.Hardware{Backend: machine, Simulated: true, ClaimedDevice: nvml.ClaimedDevice}
	if p.mode == modeHardware {
		m.Node = &sim.Control{Address: sim.ControlAddress, Machine: machine, Log: o.Log}
		return m, nil
	}
	node, err := sim.NewVirtualNode(machine, p.script, o.Log)
	if err != nil {
		return nil, err
	}
	m.Node, m.Processes = node, node.ProcessTable
	m.KubeletDir, m.DevicePluginDir, m.CDIDir = node.Dir(), node.DevicePluginDir(), filepath.Join(node.Dir(), "cdi")
	return m, nil
}

func readScript(name string) (*sim.Script, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was read
	script, err := sim.ReadScript(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return script, nil
}
