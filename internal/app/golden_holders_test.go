package app

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// What containers have of a node, in all the ways in which a kubelet gives it to them.

// processes is a /proc of a node, with the processes of containers.
type processes struct {
	t    testing.TB
	root string
}

// newProcesses has none yet. With hidden it is that of a container without hostPID.
func newProcesses(t testing.TB, hidden bool) *processes {
	t.Helper()
	p := &processes{t: t, root: t.TempDir()}
	namespace := "pid:[4026531836]" // the kernel's first, on every machine
	if hidden {
		namespace = "pid:[4026532621]"
	}
	p.must(os.MkdirAll(filepath.Join(p.root, "self", "ns"), 0o755))
	p.must(os.Symlink(namespace, filepath.Join(p.root, "self", "ns", "pid")))
	return p
}

func (p *processes) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// in has a process run in a container, as cgroup v2 and the systemd driver write that.
func (p *processes) in(pid uint32, uid, container string) {
	p.t.Helper()
	uid = strings.ReplaceAll(uid, "-", "_")
	p.at(pid, "/kubepods.slice/kubepods-pod"+uid+".slice/cri-containerd-"+container+".scope")
}

func (p *processes) at(pid uint32, cgroup string) {
	p.t.Helper()
	dir := filepath.Join(p.root, fmt.Sprint(pid))
	p.must(os.Mkdir(dir, 0o755))
	p.must(os.WriteFile(filepath.Join(dir, "comm"), []byte("python\n"), 0o600))
	p.must(os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::"+cgroup+"\n"), 0o600))
}

// runs has the container of a pod run a process on the GPU that it holds.
func (w *world) runs(p *processes, pid uint32, of kubelet.Pod, bytes, sm float64) {
	w.t.Helper()
	status, err := w.kubelet.Pod(of)
	if err != nil {
		w.t.Fatal(err)
	}
	container, err := w.kubelet.ContainerID(of, of.Containers[0].Name)
	if err != nil {
		w.t.Fatal(err)
	}
	p.in(pid, status.UID, container)
	w.machine.Run(device.OfferedID(status.Containers[0].Devices[0].ID).Device(), pid, bytes, sm)
}

// timeSliced is a node with a GPU of which four replicas are offered; two pods hold one each.
// One of them has two processes, and a third process is of the node itself.
func timeSliced(t *testing.T, hidden bool) *world {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newProcesses(t, hidden)
	w := newWorldOf(t, setting{machine: machineWith(sim.H100), proc: p.root}, "--config-file="+config,
		"--metrics.include=nvidia_gpu_container_*,nvidia_gpu_unattributed_*,nvidia_gpu_alloc*,nvidia_gpu_memory_*,nvidia_gpu_utilization_ratio,nvidia_gpu_energy*")
	w.untilAllocatable(resource, 4)
	one, two := pod("lab", "one", 1), pod("lab", "two", 1)
	w.run(one)
	w.run(two)
	w.runs(p, 4001, one, 10<<30, 0.25)
	w.runs(p, 4002, one, 2<<30, 0.125)
	w.runs(p, 4003, two, 20<<30, 0.5)
	p.at(4004, "/system.slice/nvidia-persistenced.service")
	w.machine.Run(w.machine.IDs()[0], 4004, 1<<30, 0)
	return w
}

// TestGoldenTimeSliced has each container its share, and nobody the rest.
func TestGoldenTimeSliced(t *testing.T) {
	t.Parallel()
	w := timeSliced(t, false)
	w.until(`nvidia_gpu_container_processes{container="main",gpu="0",mig_uuid="",namespace="lab",pod="two"`, " 1")
	w.until(`nvidia_gpu_unattributed_processes{`, " 1")
	w.shows("time_sliced", `nvidia_gpu_container_processes{container="main",gpu="0",mig_uuid="",namespace="lab",pod="one"`, " 2")
	w.showsPage("time_sliced")
}

// TestGoldenTimeSlicedHidden is the same without hostPID: of no container anything is said.
func TestGoldenTimeSlicedHidden(t *testing.T) {
	t.Parallel()
	w := timeSliced(t, true)
	w.until(`nvidia_gpu_memory_used_bytes{`, " 3.5433480192e+10")
	w.shows("time_sliced_hidden", `nvidia_gpu_allocation_info{container="main"`, " 1")
}

// TestGoldenDRA has a GPU, a slice and a share of another driver's device held by claims,
// one of them by two pods.
func TestGoldenDRA(t *testing.T) {
	t.Parallel()
	m := machineWith(sim.H100, sim.H100)
	m.Partition(m.GPUs()[1], "3g.40gb", "1g.10gb")
	w := newWorldOf(t, setting{machine: m}, "--device-plugin=false",
		"--metrics.include=nvidia_gpu_alloc*,nvidia_gpu_info,nvidia_gpu_memory_used_bytes,nvidia_gpu_energy*,podgauge_claim*,podgauge_kubelet*")
	ours := kubelet.Claim{Name: "whole", Devices: []kubelet.ClaimedDevice{{Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-0"}}}
	slice := kubelet.Claim{Namespace: "lab", Name: "slice", Devices: []kubelet.ClaimedDevice{{
		Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-1-mig-3g40gb-9-0",
		CDI: []string{"k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-1-mig-3g40gb-9-0"},
	}}}
	nic := kubelet.Claim{Name: "nic", Devices: []kubelet.ClaimedDevice{{Driver: "nic.example.com", Pool: "p", Device: "eth1", Share: "7ab9"}}}
	for name, claims := range map[string][]kubelet.Claim{"train": {ours, nic}, "notebook": {slice}, "reviewer": {slice}} {
		w.run(kubelet.Pod{Namespace: "lab", Name: name, Containers: []kubelet.Container{{Name: "main", Claims: claims}}})
	}
	w.until(`nvidia_gpu_allocated{container="main",gpu="0"`, " 1")
	w.until(`nvidia_gpu_allocation_info{container="main",device_id="MIG-0000a101-5eed-5000-8000-000001000000",mig_uuid="MIG-0000a101-5eed-5000-8000-000001000000",namespace="lab",pod="notebook"`, " 1")
	w.shows("dra", `nvidia_gpu_allocation_info{container="main",device_id="MIG-0000a101-5eed-5000-8000-000001000000",mig_uuid="MIG-0000a101-5eed-5000-8000-000001000000",namespace="lab",pod="reviewer"`, " 1")
}

// TestGoldenClaims has claims of several GPUs, of two containers and with admin access, beside
// the device plugin: its GPUs stay in its list, and with their owners.
func TestGoldenClaims(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, setting{machine: machineWith(sim.T4, sim.T4, sim.T4, sim.T4)},
		"--ignore-claims=monitoring/exporter-*", "--exclude-devices=1,2",
		"--metrics.include=nvidia_gpu_alloc*,nvidia_gpu_energy*,nvidia_gpu_healthy,podgauge_claim*,podgauge_kubelet_up")
	w.untilAllocatable(resource, 2)
	w.run(pod("research", "train", 1))
	claimed := func(name string, gpus ...int) kubelet.Claim {
		c := kubelet.Claim{Name: name, Prepared: 2}
		for _, i := range gpus {
			gpu := fmt.Sprint("gpu-", i)
			c.Devices = append(c.Devices, kubelet.ClaimedDevice{
				Driver: "gpu.nvidia.com", Pool: "node-a", Device: gpu,
				CDI: []string{"k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-" + gpu},
			})
		}
		return c
	}
	for _, p := range []struct {
		namespace, name string
		claim           kubelet.Claim
		containers      []string
	}{
		{"lab", "pair", claimed("two", 1, 2), []string{"main"}},
		{"lab", "team", claimed("one", 3), []string{"main", "side"}},
		{"monitoring", "exporter", claimed("exporter-all", 0, 1, 2, 3), []string{"main"}}, // ignored
		{"tools", "smi", claimed("smi", 0), []string{"main"}},                             // as if with adminAccess
	} {
		of := kubelet.Pod{Namespace: p.namespace, Name: p.name}
		for _, name := range p.containers {
			of.Containers = append(of.Containers, kubelet.Container{Name: name, Claims: []kubelet.Claim{p.claim}})
		}
		w.run(of)
	}
	w.until(`nvidia_gpu_allocated{container="main",gpu="2",mig_uuid="",namespace="lab",pod="pair"`, " 1")
	w.until(`nvidia_gpu_allocated{container="",gpu="3",mig_uuid="",namespace="lab",pod="team"`, " 1")
	w.untilAllocatable(resource, 2)
	w.shows("claims", `nvidia_gpu_allocation_info{container="main",device_id="GPU-0000a100-5eed-4000-8000-000000000000",mig_uuid="",namespace="tools",pod="smi"`, " 1")
}

// TestGoldenForeign has devices of another vendor's plugin, CPUs and memory that are some
// container's alone.
func TestGoldenForeign(t *testing.T) {
	t.Parallel()
	const nics = "nic.example.com/vf"
	w := newWorldOf(t, setting{machine: machineWith(sim.T4), kubelet: kubelet.Options{
		CPUs: []int64{2, 3, 4, 5, 6, 7},
		Memory: []kubelet.MemoryBlock{
			{Type: "memory", Bytes: 64 << 30, Node: 0}, {Type: "memory", Bytes: 64 << 30, Node: 1}, {Type: "hugepages-1Gi", Bytes: 8 << 30, Node: 1},
		},
	}}, "--metrics.include=nvidia_gpu_alloc*,podgauge_*")
	w.untilAllocatable(resource, 1)
	w.offerForeign(nics, map[string]int64{"vf-0": 0, "vf-1": 0, "vf-2": 1})
	w.untilAllocatable(nics, 3)
	w.run(kubelet.Pod{Namespace: "net", Name: "router", Containers: []kubelet.Container{
		{Name: "data", Limits: map[string]int{nics: 3}, CPUs: 3, Memory: map[string]uint64{"memory": 96 << 30, "hugepages-1Gi": 2 << 30}},
		{Name: "control", CPUs: 1, Memory: map[string]uint64{"memory": 1 << 30}},
		{Name: "log"},
	}})
	w.run(pod("research", "train", 1))
	w.until(`nvidia_gpu_allocated{container="main",gpu="0"`, " 1")
	w.untilCounted(nics, 3)
	w.shows("foreign", `podgauge_resource_allocation_info{container="data",device_id="vf-2"`, " 1")
}

// TestGoldenCountlessDevices has a plugin to which each MiB of memory is a device: they are
// counted, and nothing else.
func TestGoldenCountlessDevices(t *testing.T) {
	t.Parallel()
	const memory, ids = "example.com/gpu-memory", 5000
	w := newWorldOf(t, setting{machine: machineWith(sim.T4)}, "--metrics.include=podgauge_resource_*")
	w.untilAllocatable(resource, 1)
	nodes := map[string]int64{}
	for i := range ids {
		nodes[fmt.Sprint("memory-", i)] = 0
	}
	w.offerForeign(memory, nodes)
	w.untilAllocatable(memory, ids)
	w.run(kubelet.Pod{Namespace: "lab", Name: "notebook", Containers: []kubelet.Container{{Name: "main", Limits: map[string]int{memory: 4500}}}})
	w.until(`podgauge_resource_dropped_ids{list="allocatable",resource="example.com/gpu-memory"}`, " 5000")
	w.shows("countless_devices", `podgauge_resource_dropped_ids{list="allocated",resource="example.com/gpu-memory"}`, " 4500")
}

// TestGoldenPodLabels has the Pods API's UID and chosen labels, two of which Prometheus
// takes for one.
func TestGoldenPodLabels(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, setting{machine: machineWith(sim.T4)}, "--metrics.pod-uid", "--metrics.labels-allowlist=app.kubernetes.io/*,team,cost-center,cost.center",
		"--metrics.include=nvidia_gpu_alloc*,nvidia_gpu_energy*")
	w.untilAllocatable(resource, 1)
	train := pod("research", "train", 1)
	train.Labels = map[string]string{"app.kubernetes.io/name": "llama", "app.kubernetes.io/part-of": "lab", "team": "a", "cost-center": "17", "cost.center": "18", "pod-template-hash": "5f6"}
	w.run(train)
	status, err := w.kubelet.Pod(train)
	if err != nil {
		t.Fatal(err)
	}
	w.made = strings.NewReplacer(status.UID, "<the pod's>")
	w.shows("pod_labels", `nvidia_gpu_allocation_info{container="main",device_id="GPU-0000a100-5eed-4000-8000-000000000000",label_app_kubernetes_io_name="llama"`, " 1")
}

// TestGoldenUnknownOwners has no kubelet that answers, and then one that has just started: each
// reading is there, with labels as far as owners are known, and nothing is said to be idle.
func TestGoldenUnknownOwners(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	w := newWorldOf(t, setting{machine: machineWith(sim.T4, sim.T4), without: true, dir: dir})
	w.machine.Busy(w.machine.IDs()[0], 0.5)
	w.until(`nvidia_gpu_power_watts{container="",gpu="0"`, " 39.5")
	w.shows("kubelet_absent", "podgauge_kubelet_up", " 0")
	if code, text := w.status("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "podresources: owners of devices are unknown") ||
		!strings.Contains(text, filepath.Join(dir, "pod-resources", "kubelet.sock")) {
		t.Errorf("/readyz: %d %q", code, text)
	}

	w.kubelet = kubelet.New(kubelet.Options{Dir: dir})
	w.startKubelet()
	w.untilRegistered()
	w.run(pod("research", "train", 1))
	w.until(`nvidia_gpu_allocated{container="main",gpu="0"`, " 1")
	w.untilCounted(resource, 2)
	w.shows("first_minute", "podgauge_kubelet_up", " 1")
	until(t, "/readyz answers ok", func() bool { code, _ := w.status("/readyz"); return code == http.StatusOK })
}
