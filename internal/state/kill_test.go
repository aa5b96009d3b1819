package state

import (
	"bufio"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/state/disk"
)

// historyWithFlaps returns a history with a count of flaps.
func historyWithFlaps(n uint64) device.HealthHistory {
	return device.HealthHistory{Records: []device.HealthRecord{
		{GPU: "GPU-a", Flaps: n, HealthCause: device.HealthCause{Reason: "xid_79", Since: time.Unix(1, 0).UTC(), NeedsReset: true}, Xids: []device.Xid{{Code: 79, Count: n}}},
		{GPU: "GPU-b", Flaps: 1},
	}}
}

func openIn(dir string) (*HealthFile, device.HealthHistory) {
	return Open(disk.OpenFolder(dir), "/none", slog.New(slog.DiscardHandler))
}

// childEnv makes the test's binary the process that is killed.
const childEnv = "PODGAUGE_STATE_CHILD"

// writeUntilKilled writes new histories. It prints the exported flaps before and after each write, and the written flaps.
func writeUntilKilled(dir string) {
	f, h := openIn(dir)
	n := uint64(0)
	if len(h.Records) > 0 {
		n = h.Records[0].Flaps
	}
	for {
		n++
		f.Save(historyWithFlaps(n), false)
		fmt.Println("shown", exportedFlaps(f))
		if err := f.Flush(); err != nil {
			os.Exit(1)
		}
		fmt.Println("written", n)
		fmt.Println("shown", exportedFlaps(f))
	}
}

func exportedFlaps(f *HealthFile) uint64 {
	if h, _ := f.ExportedCounts(); h != nil {
		return h.Records[0].Flaps
	}
	return 0
}

// TestKilled kills a process that writes to a real folder. The next process has the written history, and continues from the scraped counts.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(7, 8))
	for range 40 {
		c := exec.CommandContext(t.Context(), os.Args[0])
		c.Env = append(os.Environ(), childEnv+"="+dir)
		out, err := c.StdoutPipe()
		if err != nil || c.Start() != nil {
			t.Fatal("start child:", err)
		}
		lines := bufio.NewScanner(out)
		scraped, written, read := uint64(0), uint64(0), 0
		kill := 1 + random.IntN(60)
		for lines.Scan() {
			kind, n := "", uint64(0)
			if _, err := fmt.Sscan(lines.Text(), &kind, &n); err != nil {
				continue // the last line may be incomplete
			}
			if kind == "shown" {
				scraped = max(scraped, n)
			} else {
				written = n
			}
			if read++; read == kill {
				c.Process.Kill()
			}
		}
		c.Wait()
		_, h := openIn(dir)
		first := written == 0 && len(h.Records) == 0 // nothing stored: counts start from 0
		if h.Lost || !first && (len(h.Records) != 2 || h.Records[0].Flaps < max(scraped, written)) {
			t.Fatalf("got history %+v, want at least %d written and %d scraped flaps", h, written, scraped)
		}
	}
	if names := fileNames(t, dir); slices.Contains(names, badName) {
		t.Errorf("a file was renamed as invalid: %q", names)
	}
}

func fileNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
