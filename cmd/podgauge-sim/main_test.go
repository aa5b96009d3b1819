package main

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/program"
	"github.com/spf13/pflag"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// TestWrongFlags: each value of --simulate that means nothing is rejected, and doctor without a node to examine.
func TestWrongFlags(t *testing.T) {
	for _, c := range []struct {
		args   []string
		doctor bool
		want   string
	}{
		{want: ""},
		{args: []string{"--simulate=hardware"}, doctor: true},
		{args: []string{"--simulate=cluster"}, want: "--simulate=cluster: want node, hardware or script:FILE"},
		{doctor: true, want: "--simulate=node: want hardware: no real node to examine"},
		{args: []string{"--simulate=script:x"}, doctor: true, want: "--simulate=script:x: want hardware: no real node to examine"},
	} {
		s, f := &simulatedPlatform{}, pflag.NewFlagSet("", pflag.ContinueOnError)
		f.SetOutput(io.Discard)
		s.AddFlags(f)
		if err := f.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := s.CheckFlags(c.doctor); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v, doctor %v: %q, want %q", c.args, c.doctor, got, c.want)
		}
	}
}

// TestSimulatedNodeIsItsOwn: nothing of the machine that it runs on is touched.
func TestSimulatedNodeIsItsOwn(t *testing.T) {
	_, node, err := (&simulatedPlatform{mode: modeNode}).Open(app.OpenOptions{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	if !strings.HasPrefix(node.Dir(), os.TempDir()) || !strings.HasPrefix(node.DevicePluginDir(), node.Dir()+"/") {
		t.Errorf("it writes into %q and %q", node.Dir(), node.DevicePluginDir())
	}
}

// TestScript: a script that is not there, or means nothing, is refused by name; another one is the
// simulated node's.
func TestScript(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	open := func(file string) (device.Backend, app.SimulatedNode, error) {
		return (&simulatedPlatform{mode: modeScriptPrefix + file}).Open(app.OpenOptions{Log: slog.New(slog.DiscardHandler)})
	}
	for file, wantErr := range map[string]string{
		filepath.Join(dir, "none"):         "no such file",
		write("odd", "\n5s explode\n"):     `odd: line 2: unknown action "explode"`,
		write("k80", "machine k80\n"):      `k80: line 1: unknown machine "k80"`,
		write("late", "5s wedge\n4s load"): "late: line 2: 4s is before the time 5s",
	} {
		if _, _, err := open(file); err == nil || !strings.HasPrefix(err.Error(), "--simulate: ") || !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: %v, want %s", file, err, wantErr)
		}
	}
	machine, node, err := open(write("good", "machine t4\n0s wedge\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	if devices, err := machine.Devices(t.Context()); err != nil || len(devices) != 4 || devices[0].Model != "Tesla T4" {
		t.Errorf("the machine has %v, %v", devices, err)
	}
}
