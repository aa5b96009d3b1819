package app

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/podgauge/podgauge/internal/sim"
	"golang.org/x/sys/unix"
)

// blockOpens makes every open of a file in a folder wait until release is called or the test ends.
func blockOpens(t *testing.T, dir string) (release func()) {
	t.Helper()
	permissions, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err == nil {
		err = unix.FanotifyMark(permissions, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM|unix.FAN_EVENT_ON_CHILD, unix.AT_FDCWD, dir)
	}
	if err != nil {
		t.Skip("cannot make files hang without fanotify's permission events, for which root is needed: ", err)
	}
	release = func() {
		if permissions >= 0 {
			unix.Close(permissions) //nolint:errcheck // it allows all that waits
		}
		permissions = -1
	}
	t.Cleanup(release)
	return release
}

// TestHungStateFolder: podgauge registers and answers scrapes while its state folder hangs, and the stored state is kept.
func TestHungStateFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const stored = `{"version":1,"records":[]}`
	if err := os.WriteFile(filepath.Join(dir, "health.json"), []byte(stored), 0o600); err != nil {
		t.Fatal(err)
	}
	release := blockOpens(t, dir)
	t.Run("the process", func(t *testing.T) { // it ends before the folder answers
		w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, "--state-dir="+dir)
		w.waitRegistered()
		w.waitLine("podgauge_state_up", " 0")
	})
	release()
	if text, err := os.ReadFile(filepath.Join(dir, "health.json")); err != nil || string(text) != stored {
		t.Errorf("the next process reads %q, %v", text, err)
	}
	waitUntil(t, "nothing writes to the folder any more", func() bool { return os.RemoveAll(dir) == nil })
}
