package app

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/apiserver"
)

// ownRegistrations returns the number of podgauge's registrations.
func (w *testApp) ownRegistrations() (n int) {
	for _, r := range w.kubelet.State().Registrations {
		if r.Endpoint != "foreign.sock" {
			n++
		}
	}
	return n
}

// TestFirstStartWaitsForOtherPlugin checks that podgauge does not register over another plugin, shows the wait, and registers once the
// other plugin is gone. The other plugin has the same ids, as NVIDIA's has.
func TestFirstStartWaitsForOtherPlugin(t *testing.T) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel() // the kubelet's allocatable devices are read every ten seconds
			machine, server, dir := newMachine(sim.H100, sim.H100), apiserver.Start(t), shortDir(t)
			ids := machine.AllocatableIDs()
			var end func()
			setup := testSetup{
				machine: machine, kubelet: kubelet.Options{Version: version},
				kubernetes: kubernetesOptions{events: true, client: server.Client(), nodeName: "node-a"},
				otherPlugin: func(k *kubelet.Kubelet) {
					end = startOtherVendorPlugin(t, k, gpuResource, map[string]int64{string(ids[0]): 0, string(ids[1]): 1})
				},
			}
			w := startWithSocketIn(t, dir, setup)
			w.waitLine(`podgauge_plugin_waiting{resource="nvidia.com/gpu"}`, " 1")
			waitUntil(t, "/readyz names the wait", func() bool {
				code, body := w.getPath("/readyz")
				return code == http.StatusOK && body == "ok\nnvidia.com/gpu: waiting: another device plugin serves the resource\n"
			})
			waitUntil(t, "an event names the wait", func() (found bool) {
				for _, e := range server.Events() {
					found = found || e["reason"] == "GPUPluginWaiting" && strings.Contains(fmt.Sprint(e["message"]), "another device plugin serves nvidia.com/gpu.")
				}
				return found
			})
			if _, page := w.getPath("/"); !strings.Contains(page, "another device plugin serves the resource") {
				t.Error("the page does not name the wait")
			}
			if n := w.ownRegistrations(); n != 0 {
				t.Errorf("got %d registrations beside the other plugin, want 0", n)
			}
			end()
			w.waitKubelet("podgauge is registered", func(k kubelet.KubeletState) bool {
				r := k.Resources[gpuResource]
				return r.Allocatable == 2 && len(r.Sockets) == 1 && r.Sockets[0] != "foreign.sock"
			})
			w.waitLine(`podgauge_plugin_waiting{resource="nvidia.com/gpu"}`, " 0")
			waitUntil(t, "/readyz returns ok", func() bool { code, body := w.getPath("/readyz"); return code == http.StatusOK && body == "ok\n" })
		})
	}
}

// TestTakeOver checks that --take-over registers at once.
func TestTakeOver(t *testing.T) {
	machine := newMachine(sim.H100)
	w := newTestAppWith(t, testSetup{machine: machine, otherPlugin: func(k *kubelet.Kubelet) {
		startOtherVendorPlugin(t, k, gpuResource, map[string]int64{string(machine.AllocatableIDs()[0]): 0})
	}}, "--take-over")
	waitUntil(t, "podgauge is registered", func() bool { return w.ownRegistrations() == 1 })
}

// TestWaitEndsWithResource checks that nothing waits for another plugin if the config excludes all devices.
func TestWaitEndsWithResource(t *testing.T) {
	machine := newMachine(sim.H100)
	id := machine.AllocatableIDs()[0]
	config := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("version: v1\n")
	w := newTestAppWith(t, testSetup{machine: machine, otherPlugin: func(k *kubelet.Kubelet) {
		startOtherVendorPlugin(t, k, gpuResource, map[string]int64{string(id): 0})
	}}, "--config-file="+config)
	w.waitLine(`podgauge_plugin_waiting{resource="nvidia.com/gpu"}`, " 1")
	write("version: v1\npodgauge: {select: {exclude: [" + string(id) + "]}}\n")
	waitUntil(t, "/readyz no longer names the wait", func() bool { _, body := w.getPath("/readyz"); return body == "ok\n" })
}
