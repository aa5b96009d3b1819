package peers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

const (
	resource    = "nvidia.com/gpu"
	gpuCount    = 8
	waitTimeout = time.Minute
)

// machine is a simulated kubelet and the NVML stand-in's GPUs.
type machine struct {
	dir, library string
	gpus         int
	scenarioFile string
	scenario     *nvmltest.Scenario
	kubelet      *kubelet.Kubelet
}

func newMachine(t *testing.T, library string, gpus int) *machine {
	t.Helper()
	dir := program.ShortDir(t)
	n := &machine{dir: dir, library: library, gpus: gpus, scenarioFile: filepath.Join(dir, "scenario"), kubelet: background.Kubelet(t, kubelet.Options{Dir: dir})}
	n.scenario = nvmltest.NewScenario(n.scenarioFile)
	require.NoError(t, n.scenario.Set(fmt.Sprintf("gpus %d", gpus), "gpu * utilization 0~100/20s", "gpu * power 70000~700000/30s"))
	return n
}

func (n *machine) wait(t *testing.T, cond func(kubelet.KubeletState) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.NoError(t, n.kubelet.Wait(ctx, cond))
}

// waitForHealthy waits until the kubelet has a number of healthy GPUs.
func (n *machine) waitForHealthy(t *testing.T, count int) {
	t.Helper()
	n.wait(t, func(s kubelet.KubeletState) bool {
		return s.Resources[resource].Registered && s.Resources[resource].Allocatable == count
	})
}

// runPods runs pods with one GPU each, and pods without a GPU.
func (n *machine) runPods(t *testing.T, withGPU, without int) {
	t.Helper()
	for i := range withGPU + without {
		container := kubelet.ContainerSpec{Name: "main"}
		if i < withGPU {
			container.Limits = map[string]int{resource: 1}
		}
		spec := kubelet.PodSpec{Namespace: "research", Name: fmt.Sprintf("pod-%d", i), Containers: []kubelet.ContainerSpec{container, {Name: "sidecar"}}}
		require.NoError(t, n.kubelet.RunPod(t.Context(), spec))
	}
}

func (n *machine) pluginSocket(t *testing.T) string {
	t.Helper()
	sockets := n.kubelet.Resource(resource).Sockets
	if len(sockets) != 1 {
		t.Fatalf("sockets of the device plugin: got %d, want 1", len(sockets))
	}
	return filepath.Join(n.dir, "device-plugins", sockets[0])
}

// nvmlLibrary builds the NVML stand-in and returns its folder.
func nvmlLibrary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := nvmltest.Build(dir); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, os.MkdirAll("/var/lib/kubelet", 0o755)) // mount point for the peer
	return dir
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return runtime.GOARCH
}
