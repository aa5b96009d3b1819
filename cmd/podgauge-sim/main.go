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
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/spf13/pflag"
)

func main() { os.Exit(app.Main(&simulation{})) }

// gpus is the number of GPUs of a machine without a script.
const gpus = 8

// Values of --simulate.
const (
	simulateNode     = "node"
	simulateHardware = "hardware"
	simulateScript   = "script:" // and a path
)

// simulation is the platform of a simulated machine.
type simulation struct{ mode string }

func (s *simulation) Simulated() bool { return true }

func (s *simulation) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&s.mode, "simulate", simulateNode, "`what` is simulated: node has a kubelet and pods, hardware is for a real kubelet; script:FILE is a node with the events in a file")
}

func (s *simulation) CheckFlags(forDoctor bool) error {
	script := strings.HasPrefix(s.mode, simulateScript)
	switch {
	case s.mode != simulateNode && s.mode != simulateHardware && !script:
		return fmt.Errorf("--simulate=%s: want node, hardware or script:FILE", s.mode)
	case forDoctor && s.mode != simulateHardware:
		return fmt.Errorf("--simulate=%s: there is no node to look at", s.mode)
	}
	return nil
}

func (s *simulation) Open(o app.OpenOptions) (device.Backend, app.Node, error) {
	rows := nvml.Metrics()
	if o.PerLink {
		rows = nvml.MetricsPerLink()
	}
	machine := sim.NewMachine(rows, gpus, time.Now)
	script, err := s.script()
	if err != nil {
		return nil, nil, err
	}
	if script != nil {
		machine = sim.Named(script.Machine, rows, time.Now)
	}
	machine.Means = nvml.Means
	if s.mode == simulateHardware {
		return machine, nil, nil
	}
	simulated, err := sim.NewNode(machine, o.Log)
	if err != nil {
		return nil, nil, err
	}
	simulated.Script = script
	return machine, node{simulated}, nil
}

// script reads the script that --simulate names; nil: it names none.
func (s *simulation) script() (*sim.Script, error) {
	name, ok := strings.CutPrefix(s.mode, simulateScript)
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

func (s *simulation) Driver([]string) doctor.Driver { return nil }

func (s *simulation) Claimed(c device.Claim, statuses []device.Status) (device.ID, bool) {
	return nvml.Claimed(c, statuses)
}

type node struct{ *sim.Node }

func (n node) Processes() exporter.Processes { return n.Crowd }
