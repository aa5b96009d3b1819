package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
)

const (
	// visibleDevicesDir is the folder of the mounts that name devices for NVIDIA's container runtime.
	visibleDevicesDir = "/var/run/nvidia-container-devices"
	// cdiKind is the kind of the devices in podgauge's CDI spec, the same as of NVIDIA's plugin.
	cdiKind = "k8s.device-plugin.nvidia.com/gpu"
	// driverVersion is the driver version of the stand-in library, and part of the driver's file names.
	driverVersion = "580.95.05"
)

// TestDeviceListStrategies checks a container's environment, mounts and device nodes for each strategy. Only containerd 2 supports CDI.
func TestDeviceListStrategies(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{Containerd2: true})
	makeNodes(ctx, t, n)
	startKubelet(ctx, t, n)
	m := newMachine(t, n)
	driver := installDriver(t, n)
	for _, s := range []listStrategy{
		{list: "envvar", wantVariable: true},
		{list: "volume-mounts", wantMounts: true},
		{list: "cdi-annotations", wantAnnotations: true, wantEdits: true},
		{list: "cdi-cri", wantEdits: true},
		{list: "envvar,volume-mounts", wantVariable: true, wantMounts: true},
		{list: "volume-mounts,cdi-cri", wantMounts: true, wantEdits: true},
	} {
		t.Run(s.list, func(t *testing.T) { s.test(ctx, t, n, m, driver) })
	}
	t.Run("cdi-cri of MIG devices", func(t *testing.T) { cdiMIGDevice(ctx, t, n, m, driver) })
	t.Logf("containerd %s", programs.Containerd.Version)
}

// cdiMIGDevice allocates a MIG device by CDI and checks the device nodes: of the GPU, the GPU instance and the compute instance.
func cdiMIGDevice(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, driver driverInstallation) {
	makeCapabilities(ctx, t, n)
	all := newMIGDevices(7, "3g.40gb", "1g.10gb")
	m.setLines(t, scenarioLines(all)...)
	d := m.start(t, n, append(driver.flags(), "--device-list-strategy=cdi-cri", "--mig-strategy=mixed")...)
	large, small := migUUIDs(all, "3g.40gb"), migUUIDs(all, "1g.10gb")
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(7), largeMIGResource: large, smallMIGResource: small})
	if err := checkReady(ctx, d); err != nil {
		t.Fatal(err)
	}
	pod := podWithResource("mig-device", smallMIGResource, 1)
	runPod(ctx, t, n, pod)
	waitForDevices(ctx, t, n, pod)
	checkCapabilities(ctx, t, n, pod, all[1])
	removePod(ctx, t, n, pod)
	d.stop(t)
	waitForResources(ctx, t, n, idsByResource{})
}

// driverInstallation is a driver's library below a root, and a CDI hook that writes its arguments to hookOutput.
type driverInstallation struct{ root, library, hook, hookOutput string }

func installDriver(t *testing.T, n *node.RealNode) driverInstallation {
	t.Helper()
	d := driverInstallation{root: filepath.Join(n.Logs, "driver"), library: "/usr/lib64/libcuda.so." + driverVersion}
	d.hook, d.hookOutput = filepath.Join(d.root, "hook"), filepath.Join(n.Logs, "hooks.log")
	for path, content := range map[string]string{
		filepath.Join(d.root, d.library): "",
		d.hook:                           fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s\n", d.hookOutput),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// flags returns podgauge's flags for the location of the driver and the hook.
func (d driverInstallation) flags() []string {
	return []string{"--driver-root=" + d.root, "--dev-root=/", "--nvidia-cdi-hook-path=" + d.hook}
}

// listStrategy is a --device-list-strategy and its expected effects.
type listStrategy struct {
	list                                                 string
	wantVariable, wantMounts, wantAnnotations, wantEdits bool
}

func (s listStrategy) test(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, driver driverInstallation) {
	d := m.start(t, n, append(driver.flags(), "--device-list-strategy="+s.list)...)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(defaultGPUs)})
	if err := checkReady(ctx, d); err != nil { // ready after the CDI specs are written
		t.Fatal(err)
	}
	if s.wantEdits { // podgauge restores deleted specs
		if _, err := n.Shell(ctx, "rm /var/run/cdi/*"); err != nil {
			t.Fatal(err)
		}
		await(ctx, t, "the CDI spec is restored", func(ctx context.Context) error {
			_, err := n.Shell(ctx, "ls /var/run/cdi/*.json")
			return err
		})
	}
	pod := podWithResource(strings.ReplaceAll(s.list, ",", "-and-"), gpuResource, 2)
	runPod(ctx, t, n, pod)
	ids := waitForDevices(ctx, t, n, pod)
	s.checkVariable(ctx, t, n, pod, ids)
	s.checkMounts(ctx, t, n, pod, ids)
	s.checkAnnotation(ctx, t, n, pod, ids)
	s.checkEdits(ctx, t, n, pod, ids, driver)
	removePod(ctx, t, n, pod)
	d.stop(t)
	waitForResources(ctx, t, n, idsByResource{})
	// Specs are kept for restarts of containers. The next podgauge process removes specs that its strategy does not need.
	if out, err := n.Shell(ctx, "ls -A /var/run/cdi 2>/dev/null || true"); err != nil || (out != "") != s.wantEdits {
		t.Errorf("CDI specs after strategy %s: got %q, %v, want specs: %t", s.list, out, err, s.wantEdits)
	}
}

func (s listStrategy) checkVariable(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, ids []string) {
	t.Helper()
	switch {
	case s.wantEdits: // the spec disables NVIDIA's runtime for the container
		checkVisibleDevices(ctx, t, n, pod, "void")
	case s.wantMounts:
		checkVisibleDevices(ctx, t, n, pod, visibleDevicesDir)
	case s.wantVariable:
		checkVisibleDevices(ctx, t, n, pod, strings.Join(ids, ","))
	}
}

func (s listStrategy) checkMounts(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, ids []string) {
	t.Helper()
	mounts, err := containerMounts(ctx, n, pod, "main")
	got := slices.DeleteFunc(mounts, func(path string) bool { return !strings.HasPrefix(path, visibleDevicesDir) })
	want := []string{}
	for _, id := range ids {
		if s.wantMounts {
			want = append(want, filepath.Join(visibleDevicesDir, id))
		}
	}
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("mounts: got %q, %v, want %q", got, err, want)
	}
}

func (s listStrategy) checkAnnotation(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, ids []string) {
	t.Helper()
	annotations, err := containerAnnotations(ctx, n, pod, "main")
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for key, value := range annotations {
		if strings.HasPrefix(key, "cdi.k8s.io/nvidia-device-plugin_") {
			got = append(got, value)
		}
	}
	want := []string{}
	if s.wantAnnotations {
		names := []string{}
		for _, id := range ids {
			names = append(names, cdiKind+"="+id)
		}
		want = append(want, strings.Join(names, ","))
	}
	if !slices.Equal(got, want) {
		t.Errorf("CDI annotations of the container: got %q, want %q", got, want)
	}
}

// checkEdits checks the edits of the CDI spec: device nodes of exactly the pod's GPUs, the driver's library, and hooks that ran.
func (s listStrategy) checkEdits(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, ids []string, driver driverInstallation) {
	t.Helper()
	pid, err := n.ContainerPID(ctx, pod, "main")
	if err != nil {
		t.Fatal(err)
	}
	dev := fmt.Sprintf("/proc/%d/root/dev/", pid)
	nodes, err := filepath.Glob(dev + "nvidia*")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{}
	if s.wantEdits {
		for _, id := range ids {
			want = append(want, fmt.Sprintf("%snvidia%d", dev, indexOf(t, id)))
		}
		want = append(want, dev+"nvidiactl")
	}
	if !slices.Equal(nodes, want) {
		t.Errorf("device nodes of the container: got %q, want %q", nodes, want)
	}
	mounts, err := containerMounts(ctx, n, pod, "main")
	if err != nil || slices.Contains(mounts, driver.library) != s.wantEdits {
		t.Errorf("mounts: got %q, %v, want the driver's library: %t", mounts, err, s.wantEdits)
	}
	hookOutput, _ := os.ReadFile(driver.hookOutput)
	if ran := strings.Contains(string(hookOutput), "update-ldcache"); ran != s.wantEdits {
		t.Errorf("hook output: got %q, want hooks to run: %t", hookOutput, s.wantEdits)
	}
	if s.wantEdits {
		if err := os.Remove(driver.hookOutput); err != nil {
			t.Error(err)
		}
	}
}
