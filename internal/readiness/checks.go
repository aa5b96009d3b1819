package readiness

import (
	"fmt"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/plugin"
)

// Driver returns the driver's error on a node with known GPUs. A driver
// that was released on purpose is no error.
func Driver(state *node.State, monitor *health.Monitor) error {
	statuses := state.Statuses()
	switch d := monitor.Driver(); d.State {
	case device.DriverAbsent, device.DriverFailing, device.DriverNotResponding:
		if len(statuses) > 0 || Devices(state, monitor) != nil {
			return d.Err
		}
	case device.DriverStarting, device.DriverUp, device.DriverReplaced, device.DriverReleased:
	}
	return nil
}

// Devices returns an error if the driver does not list all known and
// expected GPUs. Excluded GPUs and retired GPUs are not missing.
func Devices(state *node.State, monitor *health.Monitor) error {
	settings, _ := state.Settings.Get()
	statuses := state.Statuses()
	known := slices.DeleteFunc(slices.Clone(monitor.Missing()), func(d device.Device) bool {
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
	case monitor.Driver().State == device.DriverReleased || len(names) == 0 && missing == 0:
		return nil
	case len(names) == 0:
		return fmt.Errorf("%d of %d expected GPUs missing", missing, settings.ExpectedGPUs)
	}
	return fmt.Errorf("%s missing: %s", text.Plural(len(names), "known GPU"), text.JoinFirst(names))
}

// Notes returns a line for each resource that waits for another plugin.
func Notes(state *node.State) (lines []string) {
	for _, name := range state.WaitingResources() {
		lines = append(lines, name+": "+plugin.OtherPluginReason)
	}
	return lines
}
