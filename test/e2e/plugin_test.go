package e2e

import (
	"path/filepath"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
)

// servePlugin runs a plugin with these devices until end is called, or until the end of the test. The endpoint is the file name of the socket.
func servePlugin(t *testing.T, n *node.RealNode, endpoint, resource string, devices ...*pluginapi.Device) (end func()) {
	t.Helper()
	p := deviceplugin.Start(t, filepath.Dir(n.DevicePluginSocket()), endpoint, deviceplugin.Behavior{}, devices...)
	must(t, p.Register(t.Context(), resource))
	return p.Stop
}
