package app

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/state"
	"golang.org/x/sys/unix"
)

// blockOpens blocks every open of a file in a folder until release is called or the test ends.
func blockOpens(t *testing.T, dir string) (release func()) {
	t.Helper()
	permissions, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err == nil {
		err = unix.FanotifyMark(permissions, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM|unix.FAN_EVENT_ON_CHILD, unix.AT_FDCWD, dir)
	}
	if err != nil {
		t.Skip("fanotify permission events, which block opens, require root: ", err)
	}
	release = func() {
		if permissions >= 0 {
			unix.Close(permissions) //nolint:errcheck // closing allows all blocked opens
		}
		permissions = -1
	}
	t.Cleanup(release)
	return release
}

// TestHungStateFolder checks that podgauge registers and exports metrics while its state folder hangs, and that the stored state is kept.
func TestHungStateFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const stored = `{"version":1,"health":{"records":[]},"incidents":[]}`
	if err := os.WriteFile(filepath.Join(dir, state.FileName), []byte(stored), 0o600); err != nil {
		t.Fatal(err)
	}
	release := blockOpens(t, dir)
	t.Run("the process", func(t *testing.T) { // it ends while the folder hangs
		w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, "--state-dir="+dir)
		w.waitRegistered()
		w.waitLine("podgauge_state_up", " 0")
	})
	release()
	if text, err := os.ReadFile(filepath.Join(dir, state.FileName)); err != nil || string(text) != stored {
		t.Errorf("state for the next process: got %q, %v", text, err)
	}
	waitUntil(t, "no process writes to the folder", func() bool { return os.RemoveAll(dir) == nil })
}
