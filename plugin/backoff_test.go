package plugin_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/bubble"
)

// startInBubble starts a plugin that polls the folder, with the clock of a
// bubble.
func startInBubble(t *testing.T, dir string, inventory *device.Inventory, log *logLines) (*plugin.Plugin, func()) {
	t.Helper()
	p := plugin.New(plugin.Options{
		Dir: dir, Hooks: &hookRecorder{}, Log: slog.New(log),
		DeviceSource: &plugin.FakeSource{GetStatuses: inventory.Get},
	}).WithoutInotify()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	return p, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestFolderWithoutRoomForSockets(t *testing.T) {
	short := shortDir(t)
	for name, dir := range map[string]string{
		"too long": filepath.Join(short, strings.Repeat("long/", 20)),
		"missing":  filepath.Join(short, "missing"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				log, inventory := newLogLines(), &device.Inventory{}
				inventory.Set(statuses(1))
				p, end := startInBubble(t, dir, inventory, log)
				defer end()
				time.Sleep(time.Hour)
				if err := p.Alive(); err != nil {
					t.Errorf("Alive: %v", err)
				}
				reason := map[string]string{"too long": "at most 107", "missing": "no such file or directory"}[name]
				if strings.Count(log.String(), "\n") > 0 || len(log.matching(reason)) != 1 {
					t.Errorf("want a single line with %q in an hour, got\n%s", reason, log)
				}
			})
		})
	}
}

// longDir returns a folder whose path is short enough for the kubelet's socket,
// but not for the plugin's: no server starts a goroutine that waits for the
// network.
func longDir(t *testing.T) string {
	t.Helper()
	dir := shortDir(t)
	dir = filepath.Join(dir, strings.Repeat("x", 80-len(dir)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// listenUnix creates a kubelet's socket with a listener but without a server.
func listenUnix(t *testing.T, dir string) (end func()) {
	t.Helper()
	path := filepath.Join(dir, "kubelet.sock")
	os.Remove(path) //nolint:errcheck // may not exist
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = syscall.Listen(fd, 100)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { syscall.Close(fd) } //nolint:errcheck // end of the test
}

// TestAliveWithoutADevice checks that a plugin without devices stays alive for
// an hour.
func TestAliveWithoutADevice(t *testing.T) {
	dir := longDir(t)
	bubble.Test(t, func(t *testing.T) {
		defer listenUnix(t, dir)()
		inventory := &device.Inventory{}
		inventory.Set(statuses(1))
		p, end := startInBubble(t, dir, inventory, newLogLines())
		defer end()
		time.Sleep(time.Second) // the first registration has failed
		if p.Ready() == nil {
			t.Error("ready without a registration")
		}
		inventory.Set(nil)
		time.Sleep(time.Hour)
		if err := errors.Join(p.Alive(), p.Ready()); err != nil {
			t.Errorf("without a device: got error %v", err)
		}
	})
}
