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
	"github.com/podgauge/podgauge/test/helpers/require"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// TestWrongMode checks that a wrong value, script or capture causes one line and exit status 2.
func TestWrongMode(t *testing.T) {
	wrong := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(wrong, []byte("\n5s explode\n"), 0o600))
	for arg, want := range map[string]string{
		"--simulate=cluster":         `podgauge: --simulate: "cluster": expected node, hardware or script:FILE` + "\n",
		"--simulate=script:none":     "podgauge: --simulate: open none: no such file or directory\n",
		"--replay=none":              "podgauge: --replay: open none: no such file or directory\n",
		"--replay=" + wrong:          "podgauge: --replay: " + wrong + ": not a capture of podgauge\n",
		"--simulate=script:" + wrong: "podgauge: --simulate: " + wrong + ": line 2: unknown action \"explode\"\n",
	} {
		command := exec.Command(os.Args[0], arg)
		command.Env = append(os.Environ(), program.Env+"=1")
		output, err := command.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 || string(output) != want {
			t.Errorf("%s: got %v, %q", arg, err, output)
		}
	}
}

// TestSimulatedNodeIsIsolated checks that the simulated node changes nothing of its host.
func TestSimulatedNodeIsIsolated(t *testing.T) {
	m, err := (&simulatedPlatform{mode: modeNode}).Open(app.OpenOptions{Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer m.Node.Close()
	if !strings.HasPrefix(m.KubeletDir, os.TempDir()) || !strings.HasPrefix(m.DevicePluginDir, m.KubeletDir+"/") {
		t.Errorf("folders: got %q and %q, want temporary folders", m.KubeletDir, m.DevicePluginDir)
	}
}
