package podresources

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestResourcesOfNode covers all resources of a node, of all plugins and drivers, with the simulated kubelet.
func TestResourcesOfNode(t *testing.T) {
	k := startKubelet(t, kubelet.Options{
		ExclusiveCPUs:  []int64{2, 3, 4, 5},
		Memory:         []kubelet.MemoryBlock{{Type: "memory", Bytes: 8 << 30, NUMANodes: []int64{0}}, {Type: "memory", Bytes: 8 << 30, NUMANodes: []int64{1}}},
		ReadPodsAtOnce: true,
	})
	devices := healthyDevices("nic-0", "nic-1", "nic-2")
	devices[0].Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}, {ID: 0}}}
	devices[1].Topology = devices[0].Topology
	devices[2].Health = pluginapi.Unhealthy
	startPartlyHealthyPlugin(t, k, "example.com/nic", 2, devices...)
	startPlugin(t, k, gpu, healthyDevices("a", "b")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	c.options.Devices = claimIndex(func(claim device.Claim) (device.ID, bool) { return "b", claim.Device == "gpu-1" })
	claim := kubelet.ClaimSpec{Name: "ours", Devices: []kubelet.ClaimedDevice{{Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-1", CDI: []string{"x/y=gpu-1"}}}}
	runPod(t, k, kubelet.PodSpec{
		Namespace: "team", Name: "one", ExclusiveCPUs: []int64{2}, Memory: []kubelet.MemoryBlock{{Type: "memory", Bytes: 2 << 30, NUMANodes: []int64{0}}},
		Containers: []kubelet.ContainerSpec{
			{
				Name: "main", Limits: map[string]int{"example.com/nic": 2, gpu: 1}, Claims: []kubelet.ClaimSpec{claim},
				ExclusiveCPUs: []int64{3, 4}, Memory: []kubelet.MemoryBlock{{Type: "memory", Bytes: 12 << 30, NUMANodes: []int64{0, 1}}},
			},
			{Name: "plain"},
		},
	})
	h := c.ListAllocations(t.Context())
	c.fetchAllocatable(t.Context())
	r := c.current().Resources
	mine := h.All[0].DeviceID // chosen by the kubelet
	pod, main := device.Owner{Namespace: "team", Pod: "one"}, device.Owner{Namespace: "team", Pod: "one", Container: "main"}
	const nic = "example.com/nic"
	want := fmt.Sprintf("%+v", device.NodeResources{
		AllocatableKnown: true,
		Allocatable: device.ResourceSet{
			Devices: []device.ResourceDevice{
				{Resource: nic, ID: "nic-0", NUMANodes: []int{0, 1}},
				{Resource: nic, ID: "nic-1", NUMANodes: []int{0, 1}},
				{Resource: gpu, ID: "a"},
				{Resource: gpu, ID: "b"},
			},
			CPUs:   []device.ExclusiveCPUs{{CPUs: []int64{2, 3, 4, 5}}},
			Memory: []device.ReservedMemory{{Type: "memory", Bytes: 8 << 30, NUMANodes: []int{0}}, {Type: "memory", Bytes: 8 << 30, NUMANodes: []int{1}}},
		},
		Allocated: device.ResourceSet{
			Devices: []device.ResourceDevice{
				{Owner: main, Resource: nic, ID: "nic-0", NUMANodes: []int{0, 1}},
				{Owner: main, Resource: nic, ID: "nic-1", NUMANodes: []int{0, 1}},
				{Owner: main, Resource: gpu, ID: string(mine)},
			},
			CPUs:   []device.ExclusiveCPUs{{Owner: pod, CPUs: []int64{2}}, {Owner: main, CPUs: []int64{3, 4}}},
			Memory: []device.ReservedMemory{{Owner: pod, Type: "memory", Bytes: 2 << 30, NUMANodes: []int{0}}, {Owner: main, Type: "memory", Bytes: 12 << 30, NUMANodes: []int{0, 1}}},
			Claims: []device.Claim{{
				Owner: main, ClaimNamespace: "team", ClaimName: "ours", Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-1", CDI: []string{"x/y=gpu-1"},
			}},
		},
	})
	if got := fmt.Sprintf("%+v", r); got != want {
		t.Errorf("resources: got\n%s\nwant\n%s", got, want)
	}
	wantClaimed := device.Allocation{Resource: "gpu.nvidia.com", DeviceID: "b", Owner: device.Owner{Namespace: "team", Pod: "one", Container: "main"}}
	if !slices.Contains(h.All, wantClaimed) {
		t.Errorf("allocations: %v", h.All)
	}

	// All resources remain throughout a restart.
	static, rest := make(chan struct{}), make(chan struct{})
	k.SetFaults(kubelet.Faults{HoldStaticPods: static, HoldAPIPods: rest})
	wantUnchanged := func(event string) {
		t.Helper()
		now := c.ListAllocations(t.Context()).Resources
		if unsafe.SliceData(now.Allocated.Devices) != unsafe.SliceData(r.Allocated.Devices) || unsafe.SliceData(now.Allocated.CPUs) != unsafe.SliceData(r.Allocated.CPUs) ||
			unsafe.SliceData(now.Allocated.Memory) != unsafe.SliceData(r.Allocated.Memory) || unsafe.SliceData(now.Allocated.Claims) != unsafe.SliceData(r.Allocated.Claims) {
			t.Errorf("%s: %v", event, now)
		}
	}
	if err := k.Restart(t.Context(), func() { wantUnchanged("while the kubelet is down") }); err != nil {
		t.Fatal(err)
	}
	wantUnchanged("before the kubelet has read its pods")
	close(static)
	close(rest)
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
	wantUnchanged("after the kubelet has read its pods")
	c.fetchAllocatable(t.Context())
	if now := c.current().Resources; !now.AllocatableKnown || len(now.Allocatable.Devices) > 0 || unsafe.SliceData(now.Allocatable.CPUs) != unsafe.SliceData(r.Allocatable.CPUs) {
		t.Errorf("allocatable before the plugins registered again: %v", now)
	}
	if err := k.EndPod(kubelet.PodSpec{Namespace: "team", Name: "one"}); err != nil {
		t.Fatal(err)
	}
	if got := formatResources(c.ListAllocations(t.Context()).Resources); len(got) > 0 {
		t.Errorf("resources after the end of the pod: %q", got)
	}
}

// TestSimulatedGet adds a pod on the simulated kubelet: Get returns the owner without a List.
func TestSimulatedGet(t *testing.T) {
	for name, getErr := range map[string]error{"with Get": nil, "without": status.Error(codes.Unimplemented, "unknown method Get")} {
		t.Run(name, func(t *testing.T) {
			k := startKubelet(t, kubelet.Options{})
			o := startPlugin(t, k, gpu, healthyDevices("a")...)
			k.SetFaults(kubelet.Faults{GetErr: getErr})
			c := newTestClient(t, k.PodResourcesSocket(), Options{})
			c.options.CheckpointPath = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
			o.onAllocate = func(resource string, ids []device.AdvertisedID) {
				c.OnPodAdded("team", "one")
				c.OnAllocated(resource, ids)
			}
			defer c.startRun(t)()
			// Run stops reading the checkpoint ten seconds after the first response.
			awaitAllocations(t, c, func(h device.Allocations) bool { return !h.At.IsZero() })
			c.mu.Lock()
			c.tracker.caughtUp = true
			c.mu.Unlock()
			before := k.State().Calls
			runPod(t, k, gpuPod("one", 1))
			awaitAllocations(t, c, func(h device.Allocations) bool { return describeDevice(h, "a") == "allocated to one" })
			after := k.State().Calls
			lists, gets := after["List"]-before["List"], after["Get"]-before["Get"]
			if gets != 1 || getErr == nil && lists > 1 || getErr != nil && lists == 0 {
				t.Errorf("got %d Lists and %d Gets", lists, gets)
			}
		})
	}
}

// startPartlyHealthyPlugin is startPlugin with a number of healthy devices.
func startPartlyHealthyPlugin(t testing.TB, k *kubelet.Kubelet, resource string, healthy int, devices ...*pluginapi.Device) {
	t.Helper()
	o := startPlugin(t, k, resource)
	o.lists <- devices
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.Resources[resource].Allocatable == healthy })
}
