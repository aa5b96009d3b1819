package app

import (
	"context"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// releaseBy is how long calls to the driver may take to come back when it is to be
// let go of.
const releaseBy = 30 * time.Second

// obey lets go of the driver on SIGUSR1, so that a GPU can be reset or partitioned,
// and takes it up again on SIGUSR2 (docs/operations.md).
func obey(ctx context.Context, orders <-chan os.Signal, monitor *device.Monitor, log *slog.Logger) error {
	for {
		var order os.Signal
		select {
		case <-ctx.Done():
			return nil
		case order = <-orders:
		}
		what, do := "take the driver up again", monitor.Resume
		if order == syscall.SIGUSR1 {
			what, do = "let go of the driver", monitor.Release
		}
		within, cancel := context.WithTimeout(ctx, releaseBy)
		if err := do(within); err != nil && ctx.Err() == nil {
			log.Error(what, "err", err)
		} else if err == nil {
			log.Info(what + ": done")
		}
		cancel()
	}
}
