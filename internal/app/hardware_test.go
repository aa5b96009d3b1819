package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScript: a script that is not there, or means nothing, is refused by name; another one is the
// simulated node's.
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
	hardwareOf := func(file string) (*hardware, error) {
		return (&options{simulate: simulateScript + file}).hardware(slog.New(slog.DiscardHandler))
	}
	for file, says := range map[string]string{
		filepath.Join(dir, "none"):         "no such file",
		write("odd", "\n5s explode\n"):     `odd: line 2: "explode" is nothing that can happen`,
		write("k80", "machine k80\n"):      `k80: line 1: no machine is called "k80"`,
		write("late", "5s wedge\n4s load"): "late: line 2: 4s is before 5s",
	} {
		if _, err := hardwareOf(file); err == nil || !strings.HasPrefix(err.Error(), "--simulate: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", file, err, says)
		}
	}
	hw, err := hardwareOf(write("good", "machine t4\n0s wedge\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer hw.close()
	if devices, err := hw.Devices(t.Context()); err != nil || len(devices) != 4 || devices[0].Model != "Tesla T4" {
		t.Errorf("the machine has %v, %v", devices, err)
	}
}
