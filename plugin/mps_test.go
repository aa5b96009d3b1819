package plugin_test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/podgauge/podgauge/plugin"
)

func TestMPSDaemon(t *testing.T) {
	dir := shortDir(t)
	control := filepath.Join(dir, "control")
	answers := func(what string, want bool) {
		t.Helper()
		if err := plugin.MPSDaemon(dir); (err == nil) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	answers("nothing there", false)
	if err := os.WriteFile(control, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	answers("a file", false)
	os.Remove(control) //nolint:errcheck // the next step says so
	if err := syscall.Mkfifo(control, 0o600); err != nil {
		t.Fatal(err)
	}
	answers("a pipe that nobody reads", false)
	reader, err := os.OpenFile(control, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	answers("a pipe that is read", true)
	reader.Close()     //nolint:errcheck // a test's
	os.Remove(control) //nolint:errcheck // the next step says so
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: control})
	if err != nil {
		t.Fatal(err)
	}
	answers("a socket", true)
	listener.SetUnlinkOnClose(false)
	listener.Close() //nolint:errcheck // a test's
	answers("a socket that nobody listens at", false)
}
