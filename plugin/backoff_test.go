package plugin_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
)

// startTimes is a log that notes when lives begin, and keeps what is meant for people.
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

// registrationTimes runs the plugin on one healthy device in the test's bubble, for as long as
// during takes, and returns when it tried to register.
func registrationTimes(t *testing.T, dir string, log *logLines, during func(p *plugin.Plugin)) []time.Duration {
	t.Helper()
	c := &startTimes{logLines: log, began: time.Now()}
	p := plugin.New(plugin.Options{Dir: dir, Log: slog.New(c), DeviceSource: &plugin.FakeSource{GetStatuses: func() ([]device.Status, <-chan struct{}) {
		return statuses(1), nil
	}}})
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
			synctest.Test(t, func(t *testing.T) {
				log := newLogLines()
				registrationTimes(t, dir, log, func(p *plugin.Plugin) {
					time.Sleep(time.Hour)
					if err := p.Alive(); err != nil {
						t.Errorf("it has stopped: %v", err)
					}
				})
				reason := map[string]string{"too long": "exceed 107 bytes", "missing": "no such file or directory"}[name]
				if strings.Count(log.String(), "\n") > 0 || len(log.matching(reason)) != 1 {
					t.Errorf("the log of an hour is not one line with %q:\n%s", reason, log)
				}
			})
		})
	}
}

func TestBackoffUpToTheMaximum(t *testing.T) {
	dir := longDir(t)
	synctest.Test(t, func(t *testing.T) {
		const replaced = time.Minute
		log := newLogLines()
		hangUp := listenUnix(t, dir)
		lives := registrationTimes(t, dir, log, func(*plugin.Plugin) {
			time.Sleep(replaced)
			hangUp()
			hangUp = listenUnix(t, dir) // another kubelet
			time.Sleep(time.Second)
		})
		hangUp()
		pauses := []time.Duration{}
		met := 0 // how often the other kubelet was
		for i, at := range lives {
			if at >= replaced {
				met++
			} else if i > 0 {
				pauses = append(pauses, (at - lives[i-1]).Round(10*time.Millisecond))
			}
		}
		ms := func(n time.Duration) time.Duration { return n * time.Millisecond }
		want := []time.Duration{ms(100), ms(200), ms(400), ms(800), ms(1600), ms(3200), ms(6400), ms(10000), ms(10000), ms(10000), ms(10000)}
		if !slices.Equal(pauses, want) {
			t.Errorf("pauses were %v; want %v", pauses, want)
		}
		if met != 4 { // at 0, 0.1, 0.3 and 0.7 s
			t.Errorf("a new kubelet was met %d times in its first second", met)
		}
		if lines := log.matching("exceed 107 bytes"); len(lines) != 1 {
			t.Errorf("one reason was logged as %q", lines)
		}
	})
}

// longDir is a folder where the kubelet's own socket, whose name is short, has room,
// and ours has not: no life gets as far as a goroutine that waits in the network.
func longDir(t *testing.T) string {
	t.Helper()
	dir := shortDir(t)
	dir = filepath.Join(dir, strings.Repeat("x", 80-len(dir)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// listenUnix has a kubelet's socket that takes connections and does nothing with
// them.
func listenUnix(t *testing.T, dir string) (end func()) {
	t.Helper()
	path := filepath.Join(dir, "kubelet.sock")
	os.Remove(path) //nolint:errcheck // there may be none
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
	return func() { syscall.Close(fd) } //nolint:errcheck // a test's
}

// TestAliveWithoutADevice: a plugin without devices stays alive for an hour.
func TestAliveWithoutADevice(t *testing.T) {
	dir := longDir(t)
	synctest.Test(t, func(t *testing.T) {
		defer listenUnix(t, dir)()
		inventory := &device.Inventory{}
		inventory.Set(statuses(1))
		p := plugin.New(plugin.Options{Dir: dir, Log: slog.New(newLogLines()), DeviceSource: &plugin.FakeSource{GetStatuses: inventory.Get}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(time.Second) // it has tried, and so it has begun
		if err := p.Ready(); err != nil {
			t.Errorf("it has said why it cannot register, and is not ready: %v", err)
		}
		inventory.Set(nil)
		time.Sleep(time.Hour)
		if err := p.Alive(); err != nil {
			t.Errorf("it has stopped: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
