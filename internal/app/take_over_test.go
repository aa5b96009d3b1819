package app_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// otherPlugin starts a plugin with the GPUs of a machine as ids, as NVIDIA's has. After the start, end ends it.
func otherPlugin(t *testing.T, m *sim.Machine) (start func(*kubelet.Kubelet), end func()) {
	devices := map[string]int64{}
	for _, id := range m.AllocatableIDs() {
		devices[string(id)] = 0
	}
	return func(k *kubelet.Kubelet) { end = startOtherVendorPlugin(t, k, gpuResource, devices) }, func() { end() }
}

// TestFirstStartWaitsForOtherPlugin checks that podgauge does not register over another plugin, shows the wait, and
// registers once the other plugin is gone.
func TestFirstStartWaitsForOtherPlugin(t *testing.T) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel() // the kubelet's allocatable devices are read every ten seconds
			machine := newMachine(sim.H100, sim.H100)
			start, end := otherPlugin(t, machine)
			w := newTestAppWith(t, testSetup{
				machine: machine, kubelet: kubelet.Options{Version: version}, otherPlugin: start,
			})
			w.waitLine(`podgauge_plugin_waiting{resource="nvidia.com/gpu"}`, " 1")
			program.WaitUntil(t, "/readyz names the wait", func() bool {
				code, body := w.getPath("/readyz")
				return code == http.StatusOK && body == "ok\nnvidia.com/gpu: waiting: another device plugin serves the resource\n"
			})
			if _, body := w.getPath("/api/v1/node"); !strings.Contains(body, `"resources":[{"name":"nvidia.com/gpu","devices":0,"waiting":true,"error":"waiting: `) {
				t.Errorf("the API does not name the wait: %s", body)
			}
			if _, page := w.getPath("/"); !strings.Contains(page, "another device plugin serves the resource") {
				t.Error("the page does not name the wait")
			}
			if all := w.kubelet.State().Registrations; len(all) != 1 {
				t.Errorf("got registrations %v, want that of the other plugin", all)
			}
			end()
			w.waitKubelet("podgauge is registered", func(k kubelet.KubeletState) bool {
				r := k.Resources[gpuResource]
				return r.Allocatable == 2 && len(r.Sockets) == 1 && r.Sockets[0] != "foreign.sock"
			})
			w.waitLine(`podgauge_plugin_waiting{resource="nvidia.com/gpu"}`, " 0")
			program.WaitUntil(t, "/readyz returns ok", func() bool { code, body := w.getPath("/readyz"); return code == http.StatusOK && body == "ok\n" })
		})
	}
}

// TestTakeOver checks that --take-over registers at once.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	machine := newMachine(sim.H100)
	start, _ := otherPlugin(t, machine)
	w := newTestAppWith(t, testSetup{machine: machine, otherPlugin: start}, "--take-over")
	w.waitKubelet("podgauge is registered", func(k kubelet.KubeletState) bool { return len(k.Registrations) == 2 })
}

// TestWaitEndsWithResource checks that nothing waits for another plugin if the config excludes all devices.
func TestWaitEndsWithResource(t *testing.T) {
	t.Parallel()
	machine, config := newMachine(sim.H100), writeConfig(t, "version: v1\n")
	start, _ := otherPlugin(t, machine)
	w := newTestAppWith(t, testSetup{machine: machine, otherPlugin: start}, "--config-file="+config)
	w.waitLine(`podgauge_plugin_waiting{resource="nvidia.com/gpu"}`, " 1")
	writeFile(t, config, "version: v1\npodgauge: {select: {exclude: ["+string(machine.GPUs()[0])+"]}}\n")
	program.WaitUntil(t, "/readyz no longer names the wait", func() bool { _, body := w.getPath("/readyz"); return body == "ok\n" })
}

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
