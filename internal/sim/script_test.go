package sim_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
)

func TestReadScript(t *testing.T) {
	const script = "# a comment\nmachine t4\n\n0s pod a/b main=1 # one\n1m30s xid a/b 79\n"
	s, err := sim.ReadScript(strings.NewReader(script))
	if err != nil || s.Machine != "t4" || len(s.Steps) != 2 {
		t.Fatal(s, err)
	}
	if got := s.Steps[1]; got.At != 90*time.Second || got.String() != "line 5: xid a/b 79" {
		t.Error(got)
	}
	for text, want := range map[string]string{
		"machine k80":             `line 1: unknown machine "k80"`,
		"\nsoon wedge":            `line 2: "soon": expected a duration`,
		"5s":                      `line 1: "5s": expected TIME ACTION`,
		"5s wedge\n4s release":    "line 2: 4s is before the time 5s",
		"5s explode 3":            `line 1: unknown action "explode"`,
		"5s xid 3":                "line 1: xid: expected DEVICE CODE [TIMES]",
		"5s wedge now":            "line 1: wedge: expected no argument",
		strings.Repeat("x", 1e5):  "token too long",
		"5s pod a/b":              "line 1: pod: expected NAMESPACE/NAME",
		"5s set 3 nvidia_gpu_x":   "line 1: set: expected DEVICE ROW VALUE",
		"5s kubelet well forever": "line 1: kubelet: expected well, silent, refuses or restarts",
	} {
		if _, err := sim.ReadScript(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func FuzzReadScript(f *testing.F) {
	f.Add("machine h100\n0s pod a/b main=2,nvidia.com/gpu idle\n10s partition 7 1g.10gb\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := sim.ReadScript(strings.NewReader(text))
		if err != nil {
			return
		}
		for i, step := range s.Steps {
			if step.Action == "" || i > 0 && s.Steps[i-1].At > step.At {
				t.Errorf("%q: got steps %v, want actions in the order of times", text, s.Steps)
			}
		}
	})
}

// scriptNode is a node with a script and a device plugin.
type scriptNode struct {
	*sim.VirtualNode
	exited chan error
}

func runScript(t *testing.T, text string) scriptNode {
	t.Helper()
	script, err := sim.ReadScript(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	m := sim.NewNamedMachine(script.Machine, testRows, time.Now)
	log := slog.New(slog.DiscardHandler)
	n, err := sim.NewVirtualNode(m, script, log)
	if err != nil {
		t.Fatal(err)
	}
	var inventory device.Inventory
	monitor := device.NewMonitor(m, device.NewReaders(m), &inventory, device.MonitorOptions{Log: log})
	devicePlugin := plugin.New(plugin.Options{
		Dir: n.DevicePluginDir(), DeviceSource: inventorySource{&inventory},
		Hooks: noHooks{}, Log: log,
	})
	ctx, cancel := context.WithCancel(t.Context())
	s := scriptNode{n, make(chan error, 1)}
	others := make(chan error, 2)
	go func() {
		s.exited <- n.Run(ctx)
		close(s.exited)
	}()
	for _, run := range []func(context.Context) error{monitor.Run, devicePlugin.Run} {
		go func() { others <- run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		<-others
		<-others
		for range s.exited { // until it is closed
		}
		n.Close()
	})
	return s
}

// TestScript checks the effects of actions on pods, devices and the kubelet.
func TestScript(t *testing.T) {
	s := runScript(t, `
		0s pod a/works main=1
		0s pod a/rests main=1 idle
		0s set a/rests nvidia_gpu_power_watts 42
		0s xid a/works 79
		0s fail a/works
		0s delete a/works
		0s reset a/works
		0s set a/works nvidia_gpu_power_watts 42
		0s finish a/rests
	`)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	phases := func(state kubelet.KubeletState) string {
		var all []string
		for _, p := range state.Pods {
			all = append(all, p.Name+" "+p.Phase)
		}
		return strings.Join(all, ", ")
	}
	var podPhases string
	if err := s.Kubelet.Wait(ctx, func(state kubelet.KubeletState) bool {
		podPhases = phases(state)
		return podPhases == "rests Succeeded"
	}); err != nil {
		t.Errorf("timeout: got pods %s: %v", podPhases, err)
	}
	fixed, lost := 0, 0
	for _, gpu := range s.Machine.GPUs() {
		samples, err := s.Machine.Read(gpu)
		if err != nil {
			lost++
			continue
		}
		for _, sample := range samples {
			if sample.Value == 42 {
				fixed++
			}
		}
	}
	if fixed != 2 || lost != 0 {
		t.Errorf("got %d fixed values and %d lost GPUs, want two and none after the reset", fixed, lost)
	}
}

// TestScriptErrors checks that an invalid action ends the node, with the line
// in the error.
func TestScriptErrors(t *testing.T) {
	for text, want := range map[string]string{
		"0s xid 9 79":                          `run the script: line 1: xid 9 79: "9" is not a device`,
		"0s reset 0.3":                         "has no MIG device 3",
		"0s set 0 nvidia_gpu_x 1":              "unknown row nvidia_gpu_x",
		"0s set 0 nvidia_gpu_power_watts much": "invalid syntax",
		"0s xid a/b 79":                        "no such pod",
		"0s fail b":                            "expected NAMESPACE/NAME",
		"0s pod a/b main":                      "expected CONTAINER=COUNT[,RESOURCE]",
		"0s kubelet naps":                      `unknown behavior "naps"`,
		"0s pod a/b main=0\n0s reset a/b":      "pod a/b has no device",
		"0s delete a/b":                        "no such pod",
		"0s xid 0 79 often":                    "invalid syntax",
		"0s xid 0 abc":                         "invalid syntax",
		"0s partition 0 half":                  `"half" is not a MIG profile`,
		"0s partition 0 9g.1gb":                `"9g.1gb" is not a MIG profile`,
		"machine t4\n0s partition 0 1g.10gb":   "Tesla T4 cannot be partitioned",
		"0s partition 0 1g.10gb\n0s reset 0.1": "has no MIG device 1",
	} {
		s := runScript(t, text)
		select {
		case err := <-s.exited:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: got %v, want %s", text, err, want)
			}
		case <-time.After(waitTimeout):
			t.Fatalf("%q: got no error, want %s", text, want)
		}
	}
}

// TestSetRate checks that a value grows with the clock until SetValue.
func TestSetRate(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := sim.NewMachine(testRows, 1, func() time.Time { return now })
	gpu := m.GPUs()[0]
	read := func() float64 {
		samples, err := m.Read(gpu)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range samples {
			if m.Metrics()[s.Metric].Name == "nvidia_gpu_power_watts" {
				return s.Value
			}
		}
		t.Fatal("no power value")
		return 0
	}
	m.SetValue(device.ID(gpu), "nvidia_gpu_power_watts", 100)
	m.SetRate(device.ID(gpu), "nvidia_gpu_power_watts", 2)
	now = now.Add(10 * time.Second)
	if got := read(); got != 120 {
		t.Errorf("after ten seconds: got %v, want 120", got)
	}
	m.SetValue(device.ID(gpu), "nvidia_gpu_power_watts", 7)
	if got := read(); got != 7 {
		t.Errorf("after SetValue: got %v, want 7", got)
	}
}
