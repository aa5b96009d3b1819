package app_test

import (
	"path/filepath"
	"testing"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// startOtherVendorPlugin registers another vendor's devices, each on a NUMA node, with a kubelet. The returned function
// ends the plugin.
func startOtherVendorPlugin(t *testing.T, k *kubelet.Kubelet, resource string, devices map[string]int64) (end func()) {
	t.Helper()
	var list []*pluginapi.Device
	for id, node := range devices {
		list = append(list, &pluginapi.Device{
			ID: id, Health: pluginapi.Healthy, Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: node}}},
		})
	}
	p := deviceplugin.Start(t, filepath.Dir(k.RegistrationSocket()), "foreign.sock", deviceplugin.Behavior{}, list...)
	require.NoError(t, p.Register(t.Context(), resource))
	program.WaitUntil(t, "the plugin's devices are listed", func() bool {
		return len(k.State().Resources[resource].Devices) >= len(devices)
	})
	return p.Stop
}
