package state_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/state"
	"go.uber.org/goleak"
)

// childEnv makes the test's binary the process that is killed.
const childEnv = "PODGAUGE_STATE_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		writeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}

// writeUntilKilled saves faults, and prints the number of each that is on disk.
func writeUntilKilled(dir string) {
	store, h, _ := state.Open(dir, "", &pubsub.Value[state.WriteStatus]{}, slog.New(slog.DiscardHandler))
	go store.Run(context.Background())
	for h.DriverRestarts++; ; h.DriverRestarts++ {
		store.SaveHealth(health.History{DriverRestarts: h.DriverRestarts}, true)
		if err := store.Wait(context.Background()); err != nil {
			os.Exit(1)
		}
		fmt.Println(h.DriverRestarts)
	}
}

// TestKilled kills processes at any point of their writes. The next process has all that was on disk.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	written := uint(0)
	for range 40 {
		c := exec.CommandContext(t.Context(), os.Args[0])
		c.Env = append(os.Environ(), childEnv+"="+dir)
		out, err := c.StdoutPipe()
		if err != nil || c.Start() != nil {
			t.Fatal("start child:", err)
		}
		lines := bufio.NewScanner(out)
		for remaining := rand.IntN(30); lines.Scan(); remaining-- {
			_, _ = fmt.Sscan(lines.Text(), &written) // the last line may be incomplete
			if remaining <= 0 {
				c.Process.Kill()
			}
		}
		c.Wait()
		if _, h, _ := state.Open(dir, "", &pubsub.Value[state.WriteStatus]{}, slog.New(slog.DiscardHandler)); h.Lost || h.DriverRestarts < written {
			t.Fatalf("got %+v, want at least %d", h, written)
		}
	}
}
