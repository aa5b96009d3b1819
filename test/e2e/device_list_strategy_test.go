package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

const (
	// visibleDevicesDir is the folder of the mounts that name devices for NVIDIA's container runtime.
	visibleDevicesDir = "/var/run/nvidia-container-devices"
	// cdiKind is the kind of the devices in podgauge's CDI spec, the same as of NVIDIA's plugin.
	cdiKind = "k8s.device-plugin.nvidia.com/gpu"
	// driverVersion is the driver version of the stand-in library, and part of the driver's file names.
	driverVersion = "580.95.05"
)

// TestDeviceListStrategies checks a container's environment, mounts and device nodes for each strategy.
func TestDeviceListStrategies(t *testing.T) {
	n := startNode(t, node.Options{})
	makeNodes(t, n)
	m := newMachine(t, n)
	driver := installDriver(t, n)
	for _, s := range []listStrategy{
		{list: "envvar", wantVariable: "@IDS@"},
		{list: "volume-mounts", wantVariable: visibleDevicesDir, wantMounts: true},
		// A CDI spec disables NVIDIA's runtime for the container.
		{list: "cdi-annotations", wantVariable: "void", wantAnnotations: true, wantEdits: true},
		{list: "cdi-cri", wantVariable: "void", wantEdits: true},
		{list: "envvar,volume-mounts", wantVariable: visibleDevicesDir, wantMounts: true},
		{list: "volume-mounts,cdi-cri", wantVariable: "void", wantMounts: true, wantEdits: true},
	} {
		t.Run(s.list, func(t *testing.T) { s.test(t, n, m, driver) })
	}
	t.Run("cdi-cri of MIG devices", func(t *testing.T) { cdiMIGDevice(t, n, m, driver) })
}

// driverInstallation is a driver's library below a root, and a CDI hook that writes its arguments to hookOutput.
type driverInstallation struct{ root, library, hook, hookOutput string }

func installDriver(t *testing.T, n *node.RealNode) driverInstallation {
	t.Helper()
	root := filepath.Join(n.Logs, "driver")
	d := driverInstallation{
		root: root, library: "/usr/lib64/libcuda.so." + driverVersion,
		hook: filepath.Join(root, "hook"), hookOutput: filepath.Join(n.Logs, "hooks.log"),
	}
	must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(d.library)), 0o755))
	must(t, os.WriteFile(filepath.Join(root, d.library), nil, 0o755))
	must(t, os.WriteFile(d.hook, fmt.Appendf(nil, "#!/bin/sh\necho \"$@\" >>%s\n", d.hookOutput), 0o755))
	return d
}

// flags returns podgauge's flags for the location of the driver and the hook.
func (d driverInstallation) flags(strategy string) []string {
	return []string{"--driver-root=" + d.root, "--dev-root=/", "--nvidia-cdi-hook-path=" + d.hook, "--device-list-strategy=" + strategy}
}

// listStrategy is a --device-list-strategy and its expected effects.
type listStrategy struct {
	list                                   string
	wantVariable                           string // @IDS@ are the ids of the devices
	wantMounts, wantAnnotations, wantEdits bool
}

func (s listStrategy) test(t *testing.T, n *node.RealNode, m *simulatedMachine, driver driverInstallation) {
	d := m.start(t, n, driver.flags(s.list)...)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	d.waitUntilReady(t) // after the CDI specs are written
	if s.wantEdits {    // podgauge restores deleted specs
		_, err := n.Shell(t.Context(), "rm /var/run/cdi/*")
		must(t, err)
		await(t, "the CDI spec is restored", func(ctx context.Context) error {
			_, err := n.Shell(ctx, "ls /var/run/cdi/*.json")
			return err
		})
	}
	pod := podWithGPUs(strings.ReplaceAll(s.list, ",", "-and-"), 2)
	runPod(t, n, pod)
	ids := waitForDevices(t, n, pod)
	checkVisibleDevices(t, n, pod, strings.ReplaceAll(s.wantVariable, "@IDS@", strings.Join(ids, ",")))
	s.checkMounts(t, n, pod, ids)
	s.checkAnnotation(t, n, pod, ids)
	s.checkEdits(t, n, pod, ids, driver)
	removePod(t, n, pod)
	d.stop(t)
	waitForAllocatable(t, n)
	// Specs are kept for restarts of containers. The next podgauge process removes specs that its strategy does not need.
	if out, err := n.Shell(t.Context(), "ls -A /var/run/cdi 2>/dev/null || true"); err != nil || (out != "") != s.wantEdits {
		t.Errorf("CDI specs after strategy %s: got %q, %v, want specs: %t", s.list, out, err, s.wantEdits)
	}
}

// checkMounts checks the mounts that name devices, and the driver's library, which a CDI spec mounts.
func (s listStrategy) checkMounts(t *testing.T, n *node.RealNode, pod node.StaticPod, ids []string) {
	t.Helper()
	mounts := containerMounts(t, n, pod)
	for _, id := range uuids(defaultGPUs) {
		if got, want := slices.Contains(mounts, filepath.Join(visibleDevicesDir, id)), s.wantMounts && slices.Contains(ids, id); got != want {
			t.Errorf("mount of %s: got %t, want %t", id, got, want)
		}
	}
	if got := slices.Contains(mounts, "/usr/lib64/libcuda.so."+driverVersion); got != s.wantEdits {
		t.Errorf("mounts: got %q, want the driver's library: %t", mounts, s.wantEdits)
	}
}

func (s listStrategy) checkAnnotation(t *testing.T, n *node.RealNode, pod node.StaticPod, ids []string) {
	t.Helper()
	got, want := []string{}, []string{}
	for key, value := range containerAnnotations(t, n, pod) {
		if strings.HasPrefix(key, "cdi.k8s.io/nvidia-device-plugin_") {
			got = append(got, value)
		}
	}
	if s.wantAnnotations {
		want = append(want, fmt.Sprintf("%[1]s=%[2]s,%[1]s=%[3]s", cdiKind, ids[0], ids[1]))
	}
	expect.EqualSlices(t, got, want, "CDI annotations of the container")
}

// checkEdits checks the edits of the CDI spec: device nodes of exactly the pod's GPUs, and hooks that ran.
func (s listStrategy) checkEdits(t *testing.T, n *node.RealNode, pod node.StaticPod, ids []string, driver driverInstallation) {
	t.Helper()
	nodes := []string{}
	if s.wantEdits {
		nodes = append(nodes, fmt.Sprintf("nvidia%d", indexOf(t, ids[0])), fmt.Sprintf("nvidia%d", indexOf(t, ids[1])), "nvidiactl")
	}
	checkDeviceNodes(t, n, pod, nodes...)
	hookOutput, _ := os.ReadFile(driver.hookOutput)
	if ran := strings.Contains(string(hookOutput), "update-ldcache"); ran != s.wantEdits {
		t.Errorf("hook output: got %q, want hooks to run: %t", hookOutput, s.wantEdits)
	}
	os.RemoveAll(driver.hookOutput)
}

// cdiMIGDevice allocates a MIG device by CDI and checks the device nodes: of the GPU, the GPU instance and the compute instance.
func cdiMIGDevice(t *testing.T, n *node.RealNode, m *simulatedMachine, driver driverInstallation) {
	makeCapabilities(t, n)
	all := newMIGDevices(7, "3g.40gb", "1g.10gb")
	must(t, m.Set(scenarioLines(all)...))
	d := m.start(t, n, append(driver.flags("cdi-cri"), "--mig-strategy=mixed")...)
	waitForResources(t, n, idsByResource{gpuResource: uuids(7), largeMIGResource: {all[0].uuid()}, smallMIGResource: {all[1].uuid()}})
	d.waitUntilReady(t)
	pod := podWithResource("mig-device", smallMIGResource, 1)
	runPod(t, n, pod)
	checkDeviceNodes(t, n, pod, all[1].deviceNodes()...)
}
