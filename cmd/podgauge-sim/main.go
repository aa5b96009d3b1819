// Command podgauge-sim is podgauge on a simulated machine: for demonstrations and tests without a GPU.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/nvml/xid"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/spf13/pflag"
)

func main() { os.Exit(app.Main(&simulatedPlatform{})) }

// defaultGPUs is the number of GPUs of a machine without a script.
const defaultGPUs = 8

// Values of --simulate.
const (
	modeNode         = "node"
	modeHardware     = "hardware"
	modeScriptPrefix = "script:" // and a path
)

// simulatedPlatform is the platform of a simulated machine.
type simulatedPlatform struct{ mode string }

func (p *simulatedPlatform) Simulated() bool { return true }

func (p *simulatedPlatform) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&p.mode, "simulate", modeNode, "simulated `machine`: node (with kubelet and pods), hardware (for a real kubelet) or script:FILE (a node with the events of a file)")
}

func (p *simulatedPlatform) CheckFlags(forDoctor bool) error {
	script := strings.HasPrefix(p.mode, modeScriptPrefix)
	switch {
	case p.mode != modeNode && p.mode != modeHardware && !script:
		return fmt.Errorf("--simulate=%s: want node, hardware or script:FILE", p.mode)
	case forDoctor && p.mode != modeHardware:
		return fmt.Errorf("--simulate=%s: want hardware: no real node to examine", p.mode)
	}
	return nil
}

func (p *simulatedPlatform) Open(o app.OpenOptions) (device.Backend, app.SimulatedNode, error) {
	rows := metric.Metrics()
	if o.PerLink {
		rows = metric.MetricsPerLink()
	}
	machine := sim.NewMachine(rows, defaultGPUs, time.Now)
	script, err := p.readScript()
	if err != nil {
		return nil, nil, err
	}
	if script != nil {
		machine = sim.NewNamedMachine(script.Machine, rows, time.Now)
	}
	machine.SetXidClassifier(xid.Event)
	if p.mode == modeHardware {
		return machine, nil, nil
	}
	simNode, err := sim.NewVirtualNode(machine, script, o.Log)
	if err != nil {
		return nil, nil, err
	}
	return machine, simulatedNode{simNode}, nil
}

// readScript reads the script that --simulate names; nil: it names none.
func (p *simulatedPlatform) readScript() (*sim.Script, error) {
	name, ok := strings.CutPrefix(p.mode, modeScriptPrefix)
	if !ok {
		return nil, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--simulate: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was read
	script, err := sim.ReadScript(file)
	if err != nil {
		return nil, fmt.Errorf("--simulate: %s: %w", name, err)
	}
	return script, nil
}

func (p *simulatedPlatform) Driver([]string) doctor.DriverProbe { return nil }

func (p *simulatedPlatform) ClaimedDevice(c device.Claim, statuses []device.Status) (device.ID, bool) {
	return nvml.ClaimedDevice(c, statuses)
}

type simulatedNode struct{ *sim.VirtualNode }

func (n simulatedNode) Processes() exporter.ProcessResolver { return n.ProcessTable }
