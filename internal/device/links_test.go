package device_test

import (
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

func TestPathNames(t *testing.T) {
	for path, want := range map[device.Path]string{
		device.PathUnknown: "unknown", device.PathSameBoard: "same_board", device.PathSingleSwitch: "single_switch",
		device.PathMultipleSwitches: "multiple_switches", device.PathHostBridge: "host_bridge",
		device.PathNUMANode: "numa_node", device.PathSystem: "system", device.PathSystem + 1: "unknown", 255: "unknown",
	} {
		expect.Equal(t, path.String(), want, "name of path", uint8(path))
	}
}
