package rules

import (
	"fmt"
	"os"
	"slices"

	"github.com/podgauge/podgauge/internal/cdi"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/plugin/response"
)

// resolveDriverRoot returns the driver root in this container: the mount or,
// without a mount, the host's path.
func resolveDriverRoot(s config.Settings) string {
	if _, err := os.Stat(s.ContainerDriverRoot); err == nil {
		return s.ContainerDriverRoot
	}
	return s.DriverRoot
}

// DevRoot returns the parent folder of dev/ in this container: a driver root
// with device nodes, or /.
func DevRoot(s config.Settings) string {
	if root := resolveDriverRoot(s); hasDeviceNodes(root) {
		return root
	}
	return "/"
}

// hasDeviceNodes reports whether a root has the driver's device nodes.
func hasDeviceNodes(root string) bool {
	_, err := os.Stat(root + "/dev/nvidiactl")
	return err == nil
}

// IMEXChannels returns the channels for containers. A missing channel is an
// error if channels are required.
func IMEXChannels(s config.Settings) ([]int, error) {
	found, missing := cdi.FindIMEXChannels(DevRoot(s), s.IMEX.ChannelIDs)
	if len(missing) > 0 && s.IMEX.Required {
		return found, fmt.Errorf("required IMEX channels missing: %v", missing)
	}
	return found, nil
}

// UsesCDI reports whether containers get CDI device names.
func UsesCDI(s config.Settings) bool {
	return slices.Contains(s.DeviceListStrategy, response.CDIAnnotations) ||
		slices.Contains(s.DeviceListStrategy, response.CDICRI)
}

// usesOnlyCDI reports whether containers cannot start without a CDI spec.
func usesOnlyCDI(s config.Settings) bool {
	return !slices.Contains(s.DeviceListStrategy, response.EnvVar) &&
		!slices.Contains(s.DeviceListStrategy, response.VolumeMounts)
}
