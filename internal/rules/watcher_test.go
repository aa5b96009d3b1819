package rules

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestRulesFollowTheMPSDaemon checks that devices shared by MPS are usable only
// while the daemon responds.
func TestRulesFollowTheMPSDaemon(t *testing.T) {
	root := t.TempDir()
	settings := config.Settings{
		MPSRoot: root, MIGStrategy: config.MIGNone,
		Sharing: config.SharingConfig{MPS: config.SharingMethod{Resources: []config.SharedResource{{Name: config.GPUResource, Devices: config.DeviceSelection{All: true}, Replicas: 2}}}},
	}
	published := &pubsub.Value[config.Settings]{}
	published.Set(settings)
	newest := &pubsub.Value[plugin.Rules]{}
	w := NewPublisher(published, &CDISpecs{}, newest, slog.New(slog.DiscardHandler))
	background.Run(t, w.Run)
	down := func(want bool) {
		t.Helper()
		program.WaitUntil(t, fmt.Sprintf("the resource has an MPS error: %t", want), func() bool {
			rules, _ := newest.Get()
			return (rules.MPSErrors[config.GPUResource] != "") == want
		})
	}
	down(true)
	pipes := filepath.Join(root, config.GPUResource, "pipe")
	require.NoError(t, os.MkdirAll(pipes, 0o755))
	require.NoError(t, syscall.Mkfifo(filepath.Join(pipes, "control"), 0o600))
	daemon, err := os.OpenFile(filepath.Join(pipes, "control"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	down(false)
	daemon.Close() //nolint:errcheck // end of the test daemon
	down(true)
	rules, _ := newest.Get()
	if lists, _ := rules.Preview(oneGPU()); len(lists) != 1 || len(lists[0].IDs) != 2 {
		t.Errorf("device lists: got %v", lists)
	}
	if o := rules.Response; o.MPSRoot != root {
		t.Errorf("MPS root: got %q", o.MPSRoot)
	}
}
