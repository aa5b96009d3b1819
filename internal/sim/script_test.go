package sim_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
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

// noHooks ignores all events of a plugin.
type noHooks struct{}

func (noHooks) OnResourceAdded(string)                                               {}
func (noHooks) OnRegistered(string, error)                                           {}
func (noHooks) OnListSent()                                                          {}
func (noHooks) OnCallServed(string, time.Duration, error)                            {}
func (noHooks) OnAllocated(string, []device.AdvertisedID)                            {}
func (noHooks) OnRejected(string, []device.AdvertisedID, plugin.RejectReason, error) {}

// waitTimeout is long enough for a machine under load.
const waitTimeout = 5 * time.Minute

// runNode runs a node with a device plugin, and with a random workload if the
// script is nil. The channel has the result of the node's Run.
func runNode(t *testing.T, m *sim.Machine, script *sim.Script) (*sim.VirtualNode, <-chan error) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	n, err := sim.NewVirtualNode(m, script, log)
	require.NoError(t, err)
	var inventory device.Inventory
	readers := health.NewReaders(m)
	monitor := health.NewMonitor(m, readers, &inventory, health.Options{Log: log})
	devicePlugin := plugin.New(plugin.Options{
		Dir: n.DevicePluginDir(), Devices: &inventory, Hooks: noHooks{}, Log: log,
		Links: func() []device.Link { return nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	exited := make(chan error, 1)
	go func() {
		exited <- n.Run(ctx)
		close(exited)
	}()
	endMonitor, endPlugin := background.Run(t, monitor.Run), background.Run(t, devicePlugin.Run)
	t.Cleanup(func() {
		cancel()
		endMonitor()
		endPlugin()
		for range exited { // until it is closed
		}
		monitor.Drain(context.Background())
		readers.Drain(context.Background())
		n.Close()
		if _, err := os.Stat(n.Dir()); !os.IsNotExist(err) {
			t.Errorf("remaining folder: got %v, want none", err)
		}
	})
	return n, exited
}

func runScript(t *testing.T, text string) (*sim.VirtualNode, <-chan error) {
	t.Helper()
	script, err := sim.ReadScript(strings.NewReader(text))
	require.NoError(t, err)
	return runNode(t, sim.NewNamedMachine(script.Machine, testRows, time.Now), script)
}

// TestWorkload runs a random workload. Pods get devices, and processes use the
// GPUs.
func TestWorkload(t *testing.T) {
	m := sim.NewMachine(testRows, 8, time.Now)
	n, _ := runNode(t, m, nil)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := n.Kubelet.Wait(ctx, func(s kubelet.KubeletState) bool {
		return len(s.Pods) >= 2 && s.Pods[0].Phase == "Running"
	}); err != nil {
		t.Errorf("timeout: no pod runs: %v", err)
	}
	busy := func(gpu device.GPU) bool { // failed GPUs of the workload are skipped
		samples, err := m.Read(gpu)
		return err == nil && samples[0].Value > 70
	}
	for !slices.ContainsFunc(m.GPUs(), busy) {
		if ctx.Err() != nil {
			t.Fatal("timeout: no GPU is busy")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestScript checks the effects of actions on pods, devices and the kubelet.
func TestScript(t *testing.T) {
	n, _ := runScript(t, `
		0s pod a/works main=1
		0s pod a/rests main=1 idle
		0s set a/rests nvidia_gpu_power_watts 42
		0s work a/works waiting
		0s slow a/works 0.5
		0s kubelet silent
		0s kubelet well
		0s wedge
		0s release
		0s unload
		0s load
		0s xid a/works 79
		0s fail a/works
		0s delete a/works
		0s reset a/works
		0s set a/works nvidia_gpu_power_watts 42
		0s finish a/rests
	`)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := n.Kubelet.Wait(ctx, func(state kubelet.KubeletState) bool {
		return len(state.Pods) == 1 && state.Pods[0].Name == "rests" && state.Pods[0].Phase == "Succeeded"
	}); err != nil {
		t.Errorf("timeout: got pods %+v: %v", n.Kubelet.State().Pods, err)
	}
	fixed, lost := 0, 0
	for _, gpu := range n.Machine.GPUs() {
		samples, err := n.Machine.Read(gpu)
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

// TestFabricActions checks the effects of actions on NVSwitches and on the fabric.
func TestFabricActions(t *testing.T) {
	m := sim.NewMachine(parseMetrics(`nvidia_gpu_fabric_state{state="completed"}`, "nvidia_gpu_fabric_healthy"), 1, time.Now)
	c := &sim.Control{Address: fmt.Sprintf("@podgauge-sim-fabric-test-%d", os.Getpid()), Machine: m, Log: slog.New(slog.DiscardHandler)}
	defer background.Run(t, c.Run)()
	send := func(line string) error { return sim.SendAction(c.Address, strings.Fields(line)) }
	program.WaitUntil(t, "the socket responds", func() bool { return send("sxid 1 20034, Fatal, Link 30 LTSSM Fault Up") == nil })
	require.NoError(t, send("sxid 1 20034, Fatal, Link 31 LTSSM Fault Up"))
	require.NoError(t, send("sxid 0 26006, SOE HALTED"))
	errors := m.SwitchErrors.Counts()
	expect.Equal(t, errors["0000:c2:00.0,20034,fatal"], 2, "fatal errors")
	expect.Equal(t, errors["0000:c1:00.0,26006,unknown"], 1, "errors without a severity")
	for _, c := range []struct {
		state, fault       string
		completed, healthy float64
	}{
		{"waiting", "fabric_not_joined, wants inspect", 0, 0}, {"failed", "fabric, wants reset_gpu", 1, 0}, {"joined", "<nil>", 1, 1},
	} {
		require.NoError(t, send("fabric 0 "+c.state))
		_, err := m.Check(m.GPUs()[0])
		expect.Equal(t, fmt.Sprint(err), c.fault, c.state)
		samples, err := m.Read(m.GPUs()[0])
		require.NoError(t, err)
		expect.Equal(t, [2]float64{samples[0].Value, samples[1].Value}, [2]float64{c.completed, c.healthy}, c.state)
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
		"0s work 0 sleep":                      `unknown work "sleep", expected checkpoint, data-loading, evaluation`,
		"0s work 9 training":                   `"9" is not a device`,
		"0s work a/b training":                 "no such pod",
		"0s slow 0 much":                       "invalid syntax",
		"0s pod a/b main=0\n0s reset a/b":      "pod a/b has no device",
		"0s delete a/b":                        "no such pod",
		"0s xid 0 79 often":                    "invalid syntax",
		"0s xid 0 abc":                         "invalid syntax",
		"0s sxid x 20034, Fatal, Link 30":      "invalid syntax",
		"0s sxid 1 an error":                   "expected an NVSwitch and the message of an error",
		"0s sxid 12 20034, Fatal, Link 30":     "expected an NVSwitch",
		"0s fabric 0 broken":                   `fabric: unknown state "broken"`,
		"0s partition 0 half":                  `"half" is not a MIG profile`,
		"0s partition 0 9g.1gb":                `"9g.1gb" is not a MIG profile`,
		"machine t4\n0s partition 0 1g.10gb":   "Tesla T4 cannot be partitioned",
		"0s partition 0 1g.10gb\n0s reset 0.1": "has no MIG device 1",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel() // the nodes wait most of the time
			_, exited := runScript(t, text)
			select {
			case err := <-exited:
				expect.Error(t, err, want)
			case <-time.After(waitTimeout):
				t.Fatalf("got no error, want %s", want)
			}
		})
	}
}

// TestControl runs actions on a machine without a simulated kubelet, and
// rejects actions on pods.
func TestControl(t *testing.T) {
	machine := sim.NewMachine(nil, 2, time.Now)
	c := &sim.Control{
		Address: fmt.Sprintf("@podgauge-sim-test-%d", os.Getpid()), Machine: machine,
		Log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	send := func(line string) error { return sim.SendAction(c.Address, strings.Fields(line)) }
	program.WaitUntil(t, "the socket responds", func() bool { return send("xid 1 79") == nil })
	if _, err := machine.Check(machine.GPUs()[1]); !errors.Is(err, device.ErrLost) {
		t.Errorf("GPU 1 after Xid 79: got %v, want ErrLost", err)
	}
	require.NoError(t, send("reset 1"))
	if evidence, err := machine.Check(machine.GPUs()[1]); err != nil || evidence.Resets != 1 {
		t.Errorf("GPU 1 after a reset: got %+v, %v, want one reset", evidence, err)
	}
	const realKubelet = "the kubelet and the pods of this node are not simulated"
	for line, want := range map[string]string{
		"machine t4":        `line 1: unknown action "machine"`,
		"reset 2":           `"2" is not a device`,
		"reset team/train":  realKubelet,
		"pod team/a x=1":    realKubelet,
		"pod a x=1":         `"a": expected NAMESPACE/NAME`,
		"fail team/train":   realKubelet,
		"finish train":      `"train": expected NAMESPACE/NAME`,
		"delete team/train": realKubelet,
		"process 0 1000":    "the processes of this node are not simulated",
		"kubelet restarts":  realKubelet,
	} {
		expect.Equal(t, fmt.Sprint(send(line)), want, line)
	}
	inUse := make(chan error, 1)
	go func() { inUse <- c.Run(ctx) }()
	select {
	case err := <-inUse:
		t.Fatalf("Run with a socket in use returned %v before the end", err)
	case <-time.After(10 * time.Millisecond): // enough to detect an early return
	}
	cancel()
	require.NoError(t, errors.Join(<-inUse, <-ended))
	expect.Error(t, send("release"), "", "send after the end")
}
