package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
)

// logMissingFamilies logs the metric families missing in an old driver library,
// once after the first health check.
func (a *app) logMissingFamilies(ctx context.Context) error {
	for statuses, changed := a.node.Devices.Get(); statuses == nil; statuses, changed = a.node.Devices.Get() {
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

// checkDriver returns the driver's error on a node with known GPUs. A driver
// that was released on purpose is no error.
func (a *app) checkDriver() error {
	statuses := a.node.Statuses()
	switch d := a.monitor.Driver(); d.State {
	case device.DriverAbsent, device.DriverFailing, device.DriverNotResponding:
		if len(statuses) > 0 || a.checkDevices() != nil {
			return d.Err
		}
	case device.DriverStarting, device.DriverUp, device.DriverReplaced, device.DriverReleased:
	}
	return nil
}

// checkDevices returns an error if the driver does not list all known and
// expected GPUs. Excluded GPUs and retired GPUs are not missing.
func (a *app) checkDevices() error {
	settings, _ := a.node.Settings.Get()
	statuses := a.node.Statuses()
	known := slices.DeleteFunc(slices.Clone(a.monitor.Missing()), func(d device.Device) bool {
		return !settings.DeviceFilter.Allows(d)
	})
	names := make([]string, len(known))
	for i, d := range known {
		names[i] = fmt.Sprintf("GPU %d (%s)", d.Index, d.ID)
	}
	expected := settings.ExpectedGPUs
	for _, s := range statuses {
		if s.WholeGPU() && s.Gone && s.Reason == device.ReasonRetired {
			expected--
		}
	}
	missing := device.MissingGPUs(statuses, expected)
	switch {
	case a.monitor.Driver().State == device.DriverReleased || len(names) == 0 && missing == 0:
		return nil
	case len(names) == 0:
		return fmt.Errorf("%d of %d expected GPUs missing", missing, settings.ExpectedGPUs)
	}
	return fmt.Errorf("%s missing: %s", text.Plural(len(names), "known GPU"), text.JoinFirst(names))
}

// requireDriver fails if the first listing finds no usable driver. Probes are
// served while a driver initializes. A listing with devices and an error omits
// a device.
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
