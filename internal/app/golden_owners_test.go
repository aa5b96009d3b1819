package app_test

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
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// The golden files below cover all ways in which a kubelet allocates resources to containers.

// fakeProcFS is a fake /proc of a node with container processes.
type fakeProcFS struct {
	t    *testing.T
	root string
}

// newFakeProcFS returns a /proc without processes. If hidden is set, it is that of a container without hostPID.
func newFakeProcFS(t *testing.T, hidden bool) *fakeProcFS {
	t.Helper()
	p := &fakeProcFS{t: t, root: t.TempDir()}
	namespace := "pid:[4026531836]" // the kernel's initial namespace, equal on every machine
	if hidden {
		namespace = "pid:[4026532621]"
	}
	require.NoError(p.t, os.MkdirAll(filepath.Join(p.root, "self", "ns"), 0o755))
	require.NoError(p.t, os.Symlink(namespace, filepath.Join(p.root, "self", "ns", "pid")))
	return p
}

// addContainerProcess adds a process of a container, in the form of cgroup v2 and the systemd driver.
func (p *fakeProcFS) addContainerProcess(pid uint32, uid, container string) {
	p.t.Helper()
	uid = strings.ReplaceAll(uid, "-", "_")
	p.addProcess(pid, "/kubepods.slice/kubepods-pod"+uid+".slice/cri-containerd-"+container+".scope")
}

func (p *fakeProcFS) addProcess(pid uint32, cgroup string) {
	p.t.Helper()
	dir := filepath.Join(p.root, fmt.Sprint(pid))
	require.NoError(p.t, os.Mkdir(dir, 0o755))
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::"+cgroup+"\n"), 0o600))
}

// runProcess runs a process of a pod's container on its allocated GPU.
func (w *testApp) runProcess(p *fakeProcFS, pid uint32, owner kubelet.PodSpec, bytes, sm float64) {
	w.t.Helper()
	status, err := w.kubelet.Pod(owner)
	require.NoError(w.t, err)
	p.addContainerProcess(pid, status.UID, status.Containers[0].ID)
	w.machine.StartProcess(device.AdvertisedID(status.Containers[0].Devices[0].ID).Device(), pid, bytes, sm)
}

// newTimeSlicedApp returns a node with a GPU of four replicas, two of them allocated. One pod has two processes, and a third process is the
// node's own.
func newTimeSlicedApp(t *testing.T, hidden bool) *testApp {
	t.Helper()
	p := newFakeProcFS(t, hidden)
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.H100), procDir: p.root}, "--config-file="+sharedConfig(t, 4),
		"--metrics.set=none", "--metrics.include=nvidia_gpu_info,nvidia_gpu_container_*,nvidia_gpu_unattributed_*,nvidia_gpu_alloc*,nvidia_gpu_memory_*,nvidia_gpu_utilization_ratio,nvidia_gpu_energy*")
	w.waitAllocatable(gpuResource, 4)
	one, two := gpuPod("lab", "one", 1), gpuPod("lab", "two", 1)
	w.runPod(one)
	w.runPod(two)
	w.runProcess(p, 4001, one, 10<<30, 0.25)
	w.runProcess(p, 4002, one, 2<<30, 0.125)
	w.runProcess(p, 4003, two, 20<<30, 0.5)
	p.addProcess(4004, "/system.slice/nvidia-persistenced.service")
	w.machine.StartProcess(w.machine.AllocatableIDs()[0], 4004, 1<<30, 0)
	return w
}

// TestGoldenTimeSliced checks that usage is attributed to each container, and that the rest is unattributed.
func TestGoldenTimeSliced(t *testing.T) {
	t.Parallel()
	w := newTimeSlicedApp(t, false)
	w.waitLine(`nvidia_gpu_container_processes{container="main",gpu="0",mig_uuid="",namespace="lab",pod="two"`, " 1")
	w.waitLine(`nvidia_gpu_unattributed_processes{`, " 1")
	w.checkScrape("time_sliced", `nvidia_gpu_container_processes{container="main",gpu="0",mig_uuid="",namespace="lab",pod="one"`, " 2")
	w.checkPage("time_sliced")
}

// TestGoldenTimeSlicedHidden covers the same node without hostPID: no usage is attributed.
func TestGoldenTimeSlicedHidden(t *testing.T) {
	t.Parallel()
	w := newTimeSlicedApp(t, true)
	w.waitLine(`nvidia_gpu_memory_used_bytes{`, " 3.5433480192e+10")
	w.checkScrape("time_sliced_hidden", `nvidia_gpu_allocation_info{claim="",container="main"`, " 1")
}

// TestGoldenDRA covers claims of a GPU, a MIG device and a shared device of another driver. One claim has two pods.
func TestGoldenDRA(t *testing.T) {
	t.Parallel()
	m := newMachine(sim.H100, sim.H100)
	m.Partition(m.GPUs()[1], "3g.40gb", "1g.10gb")
	w := newTestAppWith(t, testSetup{machine: m}, "--device-plugin=false",
		"--metrics.set=none", "--metrics.include=nvidia_gpu_alloc*,nvidia_gpu_info,nvidia_gpu_memory_used_bytes,nvidia_gpu_energy*,podgauge_claim*,podgauge_kubelet*")
	whole := kubelet.ClaimSpec{Name: "whole", Devices: []kubelet.ClaimedDevice{{Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-0"}}}
	migClaim := kubelet.ClaimSpec{Namespace: "lab", Name: "slice", Devices: []kubelet.ClaimedDevice{{
		Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-1-mig-3g40gb-9-0",
		CDI: []string{"k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-1-mig-3g40gb-9-0"},
	}}}
	nic := kubelet.ClaimSpec{Name: "nic", Devices: []kubelet.ClaimedDevice{{Driver: "nic.example.com", Pool: "p", Device: "eth1", Share: "7ab9"}}}
	for name, claims := range map[string][]kubelet.ClaimSpec{"train": {whole, nic}, "notebook": {migClaim}, "reviewer": {migClaim}} {
		w.runPod(kubelet.PodSpec{Namespace: "lab", Name: name, Containers: []kubelet.ContainerSpec{{Name: "main", Claims: claims}}})
	}
	w.waitLine(`nvidia_gpu_allocated{container="main",gpu="0"`, " 1")
	w.waitLine(`nvidia_gpu_allocation_info{claim="slice",container="main",device_id="MIG-0000a101-5eed-5000-8000-000001000000",mig_uuid="MIG-0000a101-5eed-5000-8000-000001000000",namespace="lab",pod="notebook"`, " 1")
	w.checkScrape("dra", `nvidia_gpu_allocation_info{claim="slice",container="main",device_id="MIG-0000a101-5eed-5000-8000-000001000000",mig_uuid="MIG-0000a101-5eed-5000-8000-000001000000",namespace="lab",pod="reviewer"`, " 1")
}

// TestExcludedDevices checks that a device excluded by the configuration is exported as such, until a DRA driver allocates it.
func TestExcludedDevices(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4, sim.T4)}, "--exclude-devices=1")
	w.waitAllocatable(gpuResource, 1)
	w.waitLine(`nvidia_gpu_unallocatable_info{container="",gpu="1",mig_uuid="",namespace="",pod="",reason="excluded",`, " 1")
	if text := w.stableScrape(); strings.Count(text, "nvidia_gpu_unallocatable_info{") != 1 {
		t.Errorf("want only GPU 1 excluded:\n%s", text)
	}
	w.runPod(kubelet.PodSpec{Namespace: "lab", Name: "claim", Containers: []kubelet.ContainerSpec{{Name: "main", Claims: []kubelet.ClaimSpec{{
		Name: "one", PreparedCount: 1, Devices: []kubelet.ClaimedDevice{{
			Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-1", CDI: []string{"k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-1"},
		}},
	}}}}})
	w.waitScrape("no reason", func(text string) bool { return !strings.Contains(text, "nvidia_gpu_unallocatable_info{") })
}

// TestIgnoreClaimsFile checks that a claim counts as an allocation while the file lacks the claim.
func TestIgnoreClaimsFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "admin-claims")
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, "--ignore-claims-file="+file)
	w.runPod(kubelet.PodSpec{Namespace: "lab", Name: "monitor", Containers: []kubelet.ContainerSpec{{Name: "main", Claims: []kubelet.ClaimSpec{{
		Name: "admin", Devices: []kubelet.ClaimedDevice{{Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-0"}},
	}}}}})
	isAllocated := func(text string) bool { return strings.Contains(text, "nvidia_gpu_allocation_info{") }
	w.waitScrape("an allocation", isAllocated)
	require.NoError(t, os.WriteFile(file, []byte("lab/admin/gpu.nvidia.com\n"), 0o600))
	w.waitScrape("no allocation", func(text string) bool { return !isAllocated(text) })
}

// TestGoldenClaims covers claims of several GPUs, of two containers and with admin access, beside the device plugin, which still lists the
// claimed GPUs.
func TestGoldenClaims(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4, sim.T4, sim.T4, sim.T4)},
		"--ignore-claims=monitoring/exporter-*", "--exclude-devices=1,2",
		"--metrics.set=none", "--metrics.include=nvidia_gpu_alloc*,nvidia_gpu_energy*,nvidia_gpu_healthy,podgauge_claim*,podgauge_kubelet_up")
	w.waitAllocatable(gpuResource, 2)
	w.runPod(gpuPod("research", "train", 1))
	claimed := func(name string, gpus ...int) kubelet.ClaimSpec {
		c := kubelet.ClaimSpec{Name: name, PreparedCount: 2}
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
		claim           kubelet.ClaimSpec
		containers      []string
	}{
		{"lab", "pair", claimed("two", 1, 2), []string{"main"}},
		{"lab", "team", claimed("one", 3), []string{"main", "side"}},
		{"monitoring", "exporter", claimed("exporter-all", 0, 1, 2, 3), []string{"main"}}, // ignored
		{"tools", "smi", claimed("smi", 0), []string{"main"}},                             // like adminAccess
	} {
		spec := kubelet.PodSpec{Namespace: p.namespace, Name: p.name}
		for _, name := range p.containers {
			spec.Containers = append(spec.Containers, kubelet.ContainerSpec{Name: name, Claims: []kubelet.ClaimSpec{p.claim}})
		}
		w.runPod(spec)
	}
	w.waitLine(`nvidia_gpu_allocated{container="main",gpu="2",mig_uuid="",namespace="lab",pod="pair"`, " 1")
	w.waitLine(`nvidia_gpu_allocated{container="",gpu="3",mig_uuid="",namespace="lab",pod="team"`, " 1")
	w.waitAllocatable(gpuResource, 2)
	w.checkScrape("claims", `nvidia_gpu_allocation_info{claim="smi",container="main",device_id="GPU-0000a100-5eed-4000-8000-000000000000",mig_uuid="",namespace="tools",pod="smi"`, " 1")
}

// TestSharedGPUClaims has 48 pods, each with a claim of a share of one GPU. The first pod has a second claim, and the second pod has two shares by
// one claim.
func TestSharedGPUClaims(t *testing.T) {
	t.Parallel()
	const shares = 48
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.H100)}, "--device-plugin=false", "--metrics.pod-uid",
		"--metrics.set=none", "--metrics.include=nvidia_gpu_alloc*,podgauge_claim*,podgauge_kubelet_up")
	claim := func(name string, ids ...int) kubelet.ClaimSpec {
		c := kubelet.ClaimSpec{Name: name}
		for _, id := range ids {
			c.Devices = append(c.Devices, kubelet.ClaimedDevice{Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-0", Share: fmt.Sprint("share-", id)})
		}
		return c
	}
	uids := map[string]string{} // by pod
	for i := range shares {
		name := fmt.Sprint("infer-", i)
		c := kubelet.ContainerSpec{Name: "main", Claims: []kubelet.ClaimSpec{claim(fmt.Sprint("share-", i), i)}}
		switch i {
		case 0:
			c.Claims = append(c.Claims, claim("more", shares))
		case 1:
			c.Claims[0] = claim("share-1", 1, shares+1)
		}
		p := kubelet.PodSpec{Namespace: "serving", Name: name, Containers: []kubelet.ContainerSpec{c}}
		w.runPod(p)
		status, err := w.kubelet.Pod(p)
		require.NoError(t, err)
		uids[name] = status.UID
	}
	const device, prefix = "GPU-0000a100-5eed-4000-8000-000000000000", "\nnvidia_gpu_allocation_info{"
	allocated := func(claim, pod string) string {
		return fmt.Sprintf(prefix+`claim=%q,container="main",device_id=%q,mig_uuid="",namespace="serving",pod=%q,pod_uid=%q,resource="gpu.nvidia.com",uuid=%q} 1`,
			claim, device, pod, uids[pod], device)
	}
	w.waitScrape("all claims", func(text string) bool {
		for i := range shares {
			if !strings.Contains(text, allocated(fmt.Sprint("share-", i), fmt.Sprint("infer-", i))) {
				return false
			}
		}
		return strings.Contains(text, allocated("more", "infer-0")) && strings.Count(text, prefix) == shares+1 &&
			strings.Count(text, "\npodgauge_claim_info{") == shares+2 && // of each share
			strings.Count(text, "\nnvidia_gpu_allocation_ratio{") == shares && // of each container, infer-0 with two claims of the 49
			strings.Contains(text, fmt.Sprintf(`pod="infer-0",resource="gpu.nvidia.com",uuid=%q} %v`+"\n", device, 2.0/(shares+1))) &&
			strings.Contains(text, "\n"+`nvidia_gpu_allocated{container="",gpu="0",mig_uuid="",namespace="",pod="",uuid="`+device+`"} 1`)
	})
}

// TestGoldenOtherVendor covers another vendor's devices, exclusive CPUs and reserved memory.
func TestGoldenOtherVendor(t *testing.T) {
	t.Parallel()
	const nics = "nic.example.com/vf"
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4), kubelet: kubelet.Options{
		ExclusiveCPUs: []int64{2, 3, 4, 5, 6, 7},
		Memory: []kubelet.MemoryBlock{
			{Type: "memory", Bytes: 64 << 30, NUMANodes: []int64{0}}, {Type: "memory", Bytes: 64 << 30, NUMANodes: []int64{1}}, {Type: "hugepages-1Gi", Bytes: 8 << 30, NUMANodes: []int64{1}},
		},
	}}, "--metrics.set=none", "--metrics.include=nvidia_gpu_alloc*,podgauge_*")
	w.waitAllocatable(gpuResource, 1)
	startOtherVendorPlugin(t, w.kubelet, nics, map[string]int64{"vf-0": 0, "vf-1": 0, "vf-2": 1})
	w.waitAllocatable(nics, 3)
	w.runPod(kubelet.PodSpec{Namespace: "net", Name: "router", Containers: []kubelet.ContainerSpec{
		{Name: "data", Limits: map[string]int{nics: 3}, ExclusiveCPUs: []int64{2, 3, 4}, Memory: []kubelet.MemoryBlock{
			{Type: "memory", Bytes: 96 << 30, NUMANodes: []int64{0, 1}}, {Type: "hugepages-1Gi", Bytes: 2 << 30, NUMANodes: []int64{1}},
		}},
		{Name: "control", ExclusiveCPUs: []int64{5}, Memory: []kubelet.MemoryBlock{{Type: "memory", Bytes: 1 << 30, NUMANodes: []int64{1}}}},
		{Name: "log"},
	}})
	w.runPod(gpuPod("research", "train", 1))
	w.waitLine(`nvidia_gpu_allocated{container="main",gpu="0"`, " 1")
	w.waitCounted(nics, 3)
	w.checkScrape("foreign", `podgauge_resource_allocation_info{container="data",device_id="vf-2"`, " 1")
}

// TestGooglePlugin covers metrics beside Google's device plugin, whose ids are not UUIDs.
func TestGooglePlugin(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, "--device-plugin=false", "--metrics.set=minimal")
	startOtherVendorPlugin(t, w.kubelet, gpuResource, map[string]int64{"nvidia0/vgpu1": 0})
	w.waitAllocatable(gpuResource, 1)
	w.runPod(gpuPod("research", "train", 1))
	w.waitLine(`nvidia_gpu_allocation_info{claim="",container="main",device_id="GPU-0000a100-5eed-4000-8000-000000000000::1"`, " 1")
	w.waitLine(`nvidia_gpu_healthy{container="main",gpu="0",mig_uuid="",namespace="research",pod="train"`, " 1")
}

// TestGoldenTooManyDevices covers a plugin with a device per MiB of memory: the devices are only counted.
func TestGoldenTooManyDevices(t *testing.T) {
	t.Parallel()
	const memory, ids = "example.com/gpu-memory", 5000
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, "--metrics.set=none", "--metrics.include=podgauge_resource_*")
	w.waitAllocatable(gpuResource, 1)
	nodes := map[string]int64{}
	for i := range ids {
		nodes[fmt.Sprint("memory-", i)] = 0
	}
	startOtherVendorPlugin(t, w.kubelet, memory, nodes)
	w.waitAllocatable(memory, ids)
	w.runPod(kubelet.PodSpec{Namespace: "lab", Name: "notebook", Containers: []kubelet.ContainerSpec{{Name: "main", Limits: map[string]int{memory: 4500}}}})
	w.waitLine(`podgauge_resource_dropped_ids{list="allocatable",resource="example.com/gpu-memory"}`, " 5000")
	w.checkScrape("countless_devices", `podgauge_resource_dropped_ids{list="allocated",resource="example.com/gpu-memory"}`, " 4500")
}

// TestGoldenPodLabels covers UIDs and selected labels from the Pods API. Two of the labels have the same name in Prometheus.
func TestGoldenPodLabels(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, "--metrics.pod-uid", "--metrics.labels-allowlist=app.kubernetes.io/*,team,cost-center,cost.center",
		"--metrics.set=none", "--metrics.include=nvidia_gpu_alloc*,nvidia_gpu_energy*")
	w.waitAllocatable(gpuResource, 1)
	train := gpuPod("research", "train", 1)
	train.Labels = map[string]string{"app.kubernetes.io/name": "llama", "app.kubernetes.io/part-of": "lab", "team": "a", "cost-center": "17", "cost.center": "18", "pod-template-hash": "5f6"}
	w.runPod(train)
	status, err := w.kubelet.Pod(train)
	require.NoError(t, err)
	w.replacer = strings.NewReplacer(status.UID, "<the pod's>")
	w.checkScrape("pod_labels", `nvidia_gpu_allocation_info{claim="",container="main",device_id="GPU-0000a100-5eed-4000-8000-000000000000",label_app_kubernetes_io_name="llama"`, " 1")
}

// TestGoldenHPCJobs covers a GPU with two jobs of mapping files, one whose pod has a label with its job, and one without a job, also in the
// names of dcgm-exporter; and an incident with both.
func TestGoldenHPCJobs(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "0"), []byte("1234\n1235\n"), 0o600))
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4, sim.T4, sim.T4)}, "--job-mapping-dir="+folder, "--job-label=slurm/job",
		"--metrics.set=none", "--metrics.include=nvidia_gpu_allocation_info", "--metrics.dcgm", "--metrics.exclude=DCGM_FI_PROF_*,DCGM_FI_DEV_[A-FH-Z]*")
	w.waitAllocatable(gpuResource, 3)
	worker := gpuPod("slurm", "worker-0", 2)
	worker.Labels = map[string]string{"slurm/job": "77", "batch.kubernetes.io/job-name": "slurm", "private": "x"}
	w.runPod(worker)
	w.runPod(gpuPod("slurm", "worker-1", 1))
	w.waitLine(`nvidia_gpu_allocation_info{claim="",container="main",device_id="GPU-0000a101-5eed-4000-8000-000000000001",hpc_job="77"`, " 1")
	w.checkScrape("hpc_jobs", `nvidia_gpu_allocation_info{claim="",container="main",device_id="GPU-0000a100-5eed-4000-8000-000000000000",hpc_job="1235"`, " 1")
	w.machine.Fail(w.machine.AllocatableIDs()[0], "xid 79")
	program.WaitUntil(t, "an incident with jobs and labels", func() bool {
		_, body := w.getPath("/api/v1/incidents")
		return strings.Contains(body, `"labels":{"batch.kubernetes.io/job-name":"slurm","slurm/job":"77"}`) &&
			strings.Contains(body, `"hpc_jobs":["1234","1235"]`)
	})
}

// TestGoldenUnknownOwners covers no kubelet, and then a kubelet that has just started: readings are exported, with labels of known owners,
// and no device counts as idle.
func TestGoldenUnknownOwners(t *testing.T) {
	t.Parallel()
	dir := program.ShortDir(t)
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4, sim.T4), noKubelet: true, dir: dir})
	w.machine.SetUtilization(w.machine.AllocatableIDs()[0], 0.5)
	w.waitLine(`nvidia_gpu_power_watts{container="",gpu="0"`, " 39.5")
	w.checkScrape("kubelet_absent", "podgauge_kubelet_up", " 0")
	if code, text := w.getPath("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "podresources: owners of devices are unknown") ||
		!strings.Contains(text, filepath.Join(dir, "pod-resources", "kubelet.sock")) {
		t.Errorf("/readyz: got %d %q", code, text)
	}

	w.kubelet = kubelet.New(kubelet.Options{Dir: dir})
	w.startKubelet()
	w.waitRegistered()
	w.runPod(gpuPod("research", "train", 1))
	w.waitLine(`nvidia_gpu_allocated{container="main",gpu="0"`, " 1")
	w.waitCounted(gpuResource, 2)
	w.checkScrape("first_minute", "podgauge_kubelet_up", " 1")
	program.WaitUntil(t, "/readyz returns ok", func() bool { code, _ := w.getPath("/readyz"); return code == http.StatusOK })
}
