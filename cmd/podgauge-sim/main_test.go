package main

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/test/helpers/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// TestWrongMode checks that a wrong value or script causes one line and exit status 2.
func TestWrongMode(t *testing.T) {
	for mode, want := range map[string]string{
		"cluster":     `podgauge: --simulate: "cluster": expected node, hardware or script:FILE` + "\n",
		"script:none": "podgauge: --simulate: open none: no such file or directory\n",
	} {
		command := exec.Command(os.Args[0], "--simulate="+mode)
		command.Env = append(os.Environ(), program.Env+"=1")
		output, err := command.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 || string(output) != want {
			t.Errorf("%s: got %v, %q", mode, err, output)
		}
	}
}

// TestSimulatedNodeIsIsolated checks that the simulated node changes nothing of its host.
func TestSimulatedNodeIsIsolated(t *testing.T) {
	m, err := (&simulatedPlatform{mode: modeNode}).Open(app.OpenOptions{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Node.Close()
	if !strings.HasPrefix(m.KubeletDir, os.TempDir()) || !strings.HasPrefix(m.DevicePluginDir, m.KubeletDir+"/") {
		t.Errorf("folders: got %q and %q, want temporary folders", m.KubeletDir, m.DevicePluginDir)
	}
}

// TestScript checks that a missing or invalid script is rejected with its name, and that a valid script drives the simulated node.
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
	p := &simulatedPlatform{}
	for file, wantErr := range map[string]string{
		filepath.Join(dir, "none"):         "no such file",
		write("odd", "\n5s explode\n"):     `odd: line 2: unknown action "explode"`,
		write("k80", "machine k80\n"):      `k80: line 1: unknown machine "k80"`,
		write("late", "5s wedge\n4s load"): "late: line 2: 4s is before the time 5s",
	} {
		if err := p.setMode(modeScriptPrefix + file); err == nil || !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: got %v, want %s", file, err, wantErr)
		}
	}
	if err := p.setMode(modeScriptPrefix + write("good", "machine t4\n0s wedge\n")); err != nil {
		t.Fatal(err)
	}
	m, err := p.Open(app.OpenOptions{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Node.Close()
	if devices, err := m.Devices(t.Context()); err != nil || len(devices) != 4 || devices[0].Model != "Tesla T4" {
		t.Errorf("devices: got %v, %v", devices, err)
	}
}
