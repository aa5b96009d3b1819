package app

import (
	"context"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// releaseTimeout is how long calls to the driver may take to come back when it is to be
// let go of.
const releaseTimeout = 30 * time.Second

// handleDriverSignals lets go of the driver on SIGUSR1, so that a GPU can be reset or partitioned,
// and takes it up again on SIGUSR2 (docs/operations.md).
func handleDriverSignals(ctx context.Context, signals <-chan os.Signal, monitor *device.Monitor, log *slog.Logger) error {
	for {
		var sig os.Signal
		select {
		case <-ctx.Done():
			return nil
		case sig = <-signals:
		}
		action, apply := "take the driver up again", monitor.Resume
		if sig == syscall.SIGUSR1 {
			action, apply = "let go of the driver", monitor.Release
		}
		callCtx, cancel := context.WithTimeout(ctx, releaseTimeout)
		if err := apply(callCtx); err != nil && ctx.Err() == nil {
			log.Error(action, "err", err)
		} else if err == nil {
			log.Info(action + ": done")
		}
		cancel()
	}
}
