package plugin_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/bubble"
)

// startTimes is a log handler that records when servers start, from debug
// lines.
type startTimes struct {
	*logLines
	began  time.Time
	starts []time.Duration // written by the plugin's goroutine
}

func (c *startTimes) Handle(ctx context.Context, r slog.Record) error {
	if r.Level > slog.LevelDebug {
		return c.logLines.Handle(ctx, r)
	}
	c.starts = append(c.starts, time.Since(c.began))
	return nil
}

// registrationTimes runs the plugin with a healthy device in a bubble, calls
// during, and returns the times of registrations.
func registrationTimes(t *testing.T, dir string, log *logLines, during func(p *plugin.Plugin)) []time.Duration {
	t.Helper()
	c := &startTimes{logLines: log, began: time.Now()}
	p := plugin.New(plugin.Options{
		Dir: dir, Hooks: &hookRecorder{}, Log: slog.New(c),
		DeviceSource: &plugin.FakeSource{GetStatuses: func() ([]device.Status, <-chan struct{}) {
			return statuses(1), nil
		}},
	}).WithoutInotify()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	during(p)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return c.starts
}

func TestFolderWithoutRoomForSockets(t *testing.T) {
	short := shortDir(t)
	for name, dir := range map[string]string{
		"too long": filepath.Join(short, strings.Repeat("long/", 20)),
		"missing":  filepath.Join(short, "missing"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				log := newLogLines()
				registrationTimes(t, dir, log, func(p *plugin.Plugin) {
					time.Sleep(time.Hour)
					if err := p.Alive(); err != nil {
						t.Errorf("Alive: %v", err)
					}
				})
				reason := map[string]string{"too long": "at most 107", "missing": "no such file or directory"}[name]
				if strings.Count(log.String(), "\n") > 0 || len(log.matching(reason)) != 1 {
					t.Errorf("want a single line with %q in an hour, got\n%s", reason, log)
				}
			})
		})
	}
}

func TestBackoffUpToTheMaximum(t *testing.T) {
	dir := longDir(t)
	bubble.Test(t, func(t *testing.T) {
		const replaced = time.Minute
		log := newLogLines()
		hangUp := listenUnix(t, dir)
		lives := registrationTimes(t, dir, log, func(*plugin.Plugin) {
			time.Sleep(replaced)
			hangUp()
			hangUp = listenUnix(t, dir) // a new kubelet
			time.Sleep(2 * time.Second) // the folder is polled once a second
		})
		hangUp()
		pauses := []time.Duration{}
		registered := 0         // with the new kubelet, in its first second
		var first time.Duration // of them
		for i, at := range lives {
			if at >= replaced {
				if registered == 0 {
					first = at
				}
				if at < first+time.Second {
					registered++
				}
			} else if i > 0 {
				pauses = append(pauses, (at - lives[i-1]).Round(10*time.Millisecond))
			}
		}
		ms := func(n time.Duration) time.Duration { return n * time.Millisecond }
		want := []time.Duration{
			ms(100), ms(200), ms(400), ms(800), ms(1600), ms(3200), ms(6400), ms(10000), ms(10000),
			ms(10000), ms(10000),
		}
		if !slices.Equal(pauses, want) {
			t.Errorf("pauses: got %v, want %v", pauses, want)
		}
		if registered != 4 { // at 0, 0.1, 0.3 and 0.7 s
			t.Errorf("got %d registrations in the first second of a new kubelet, want 4", registered)
		}
		if lines := log.matching("bytes, at most 107"); len(lines) != 1 {
			t.Errorf("repeated reason: got log lines %q", lines)
		}
	})
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
		p := plugin.New(plugin.Options{
			Dir: dir, Hooks: &hookRecorder{}, Log: slog.New(newLogLines()),
			DeviceSource: &plugin.FakeSource{GetStatuses: inventory.Get},
		}).WithoutInotify()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(time.Second) // the first registration has failed
		if p.Ready() == nil {
			t.Error("ready without a registration")
		}
		inventory.Set(nil)
		time.Sleep(time.Hour)
		if err := errors.Join(p.Alive(), p.Ready()); err != nil {
			t.Errorf("without a device: got error %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
