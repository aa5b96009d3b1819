package rules

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/plugin/response"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
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
	expect.Equal(t, rules.Response.MPSRoot, root, "MPS root")
}

func oneGPU() []device.Status {
	return []device.Status{{Healthy: true, Device: device.Device{ID: "GPU-0", GPU: "GPU-0", MIGDeviceIndex: -1, GI: -1, CI: -1}}}
}

// TestLateDeviceNodes checks that the device nodes of a driver that is mounted
// later are found, and that nothing is written while a newer process writes.
func TestLateDeviceNodes(t *testing.T) {
	root := t.TempDir()
	settings := config.Settings{
		DriverRoot: "/run/nvidia/driver", DevRoot: "/run/nvidia/driver", ContainerDriverRoot: root, MIGStrategy: config.MIGNone,
		DeviceListStrategy: []response.DeviceListStrategy{response.CDICRI}, IMEX: config.IMEX{ChannelIDs: []int{0}},
	}
	published := &pubsub.Value[config.Settings]{}
	published.Set(settings)
	board := &device.Inventory{}
	board.Set([]device.Status{})
	dir := t.TempDir()
	var due atomic.Int32
	var resumed atomic.Bool
	isPaused := func() bool {
		due.Add(1)
		return !resumed.Load()
	}
	s := NewCDISpecs(published, board, isPaused, dir, slog.New(slog.DiscardHandler))
	newest := &pubsub.Value[plugin.Rules]{}
	watcher := NewPublisher(published, s, newest, slog.New(slog.DiscardHandler))
	background.Run(t, s.Run)
	background.Run(t, watcher.Run)
	// A test cannot create character devices, but links to one.
	dev := filepath.Join(root, "dev", "nvidia-caps-imex-channels")
	require.NoError(t, errors.Join(os.MkdirAll(dev, 0o755), os.Symlink(os.DevNull, filepath.Join(dev, "channel0")), os.Symlink(os.DevNull, filepath.Join(root, "dev", "nvidiactl"))))
	board.Set(oneGPU())
	before := due.Load()
	program.WaitUntil(t, "specs of the GPU are due", func() bool { return due.Load() > before+1 })
	if files, _ := os.ReadDir(dir); len(files) > 0 {
		t.Errorf("paused: got %v, want no spec", files)
	}
	resumed.Store(true)
	program.WaitUntil(t, "the spec has the channel's device node", func() bool {
		spec, _ := os.ReadFile(filepath.Join(dir, "k8s.device-plugin.nvidia.com-imex-channel.json"))
		return bytes.Contains(spec, []byte(`"hostPath":"/run/nvidia/driver/dev/nvidia-caps-imex-channels/channel0"`))
	})
	program.WaitUntil(t, "containers get the channel", func() bool {
		rules, _ := newest.Get()
		return len(rules.Response.IMEXChannels) == 1
	})
}
