package app

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// releaseTimeout limits the wait for running driver calls at a release or resume.
const releaseTimeout = 30 * time.Second

// handleDriverSignals releases the driver on SIGUSR1, so that a GPU can be reset or partitioned, and resumes on SIGUSR2
// (docs/how-to/driver.md).
func (a *app) handleDriverSignals(ctx context.Context) error {
	for {
		var sig os.Signal
		select {
		case <-ctx.Done():
			return nil
		case sig = <-a.o.driverSignals:
		}
		action, done, apply := "cannot resume driver", "driver resumed", a.monitor.Resume
		if sig == syscall.SIGUSR1 {
			action, done, apply = "cannot release driver", "driver released", a.monitor.Release
		}
		callCtx, cancel := context.WithTimeout(ctx, releaseTimeout)
		if err := apply(callCtx); err != nil && ctx.Err() == nil {
			a.log.Error(action, "err", err)
		} else if err == nil {
			a.log.Info(done)
		}
		cancel()
	}
}

// logMissingFamilies logs the metric families missing in an old driver library, once after the first health check.
func (a *app) logMissingFamilies(ctx context.Context) error {
	for statuses, changed := a.inventory.Get(); statuses == nil; statuses, changed = a.inventory.Get() {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
	if families := a.machine.Library.MissingFamilies(); len(families) > 0 {
		a.log.Warn("driver library too old for some metric families", "families", strings.Join(families, ","))
	}
	return nil
}

// logMissingGPUs logs the expected GPUs that the driver does not list.
func (a *app) logMissingGPUs(ctx context.Context) error {
	for missing := 0; ; {
		statuses, listed := a.inventory.Get()
		settings, changed := a.configWatcher.Get()
		before := missing
		if statuses != nil {
			missing = device.MissingGPUs(statuses, settings.ExpectedGPUs)
		}
		switch missing {
		case before:
		case 0:
			a.log.Info("all expected GPUs are listed", "expected", settings.ExpectedGPUs)
		default:
			a.log.Warn("expected GPUs missing", "missing", missing, "expected", settings.ExpectedGPUs,
				"hint", "compare lspci -d 10de: with the kernel log, then reboot the node")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-listed:
		case <-changed:
		}
	}
}

// requireDriver fails if the first listing finds no usable driver. Probes are served while a driver initializes. A listing with
// devices and an error omits a device.
func requireDriver(ctx context.Context, monitor *device.Monitor) error {
	select {
	case <-ctx.Done():
		return nil
	case <-monitor.FirstListing():
	}
	if d := monitor.Driver(); d.State == device.DriverAbsent || d.State == device.DriverFailing {
		return fmt.Errorf("--fail-on-init-error: %w", d.Err)
	}
	return nil
}
