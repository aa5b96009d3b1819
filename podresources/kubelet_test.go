package podresources_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/podresources"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The tests in this file have a simulated kubelet, on real sockets.

// testTimeout limits steps that take milliseconds on an idle machine.
const testTimeout = 30 * time.Second

// simulated is a kubelet that has run for an hour, with a client.
type simulated struct {
	*kubelet.Kubelet
	t          *testing.T
	client     *podresources.Client
	onAllocate func(resource string, ids []device.AdvertisedID)
}

func startKubelet(t *testing.T, o kubelet.Options, options podresources.Options) *simulated {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.RunningSince = time.Now().Add(-time.Hour)
	s := &simulated{Kubelet: kubelet.New(o), t: t}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run of the kubelet: %v", err)
		}
	})
	s.await(func(k kubelet.KubeletState) bool { return k.Serving })
	var err error
	options.CheckpointPath = filepath.Join(filepath.Dir(s.RegistrationSocket()), podresources.CheckpointFile)
	s.client, err = podresources.New(s.PodResourcesSocket(), options)
	if err != nil {
		t.Fatal(err)
	}
	s.onAllocate = s.client.OnAllocated
	t.Cleanup(func() { s.client.Close() })
	return s
}

func (s *simulated) await(wanted func(kubelet.KubeletState) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testTimeout)
	defer cancel()
	if err := s.Wait(ctx, wanted); err != nil {
		s.t.Fatal(err)
	}
}

// awaitState waits for published allocations without a call.
func (s *simulated) awaitState(id device.ID, want string) {
	s.t.Helper()
	late := time.After(testTimeout)
	for {
		a, changed := s.client.Snapshot()
		if stateOf(a, id) == want {
			return
		}
		select {
		case <-changed:
		case <-late:
			s.t.Fatalf("device %s: got %s, want %s", id, stateOf(a, id), want)
		}
	}
}

// startRun runs the client until the end of the test.
func (s *simulated) startRun() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.client.Run(ctx) }()
	s.t.Cleanup(func() { cancel(); <-ended })
}

// plugin is a device plugin that rejects nothing.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	kubelet  *simulated
	resource string
	devices  []*pluginapi.Device
}

// startPlugin registers a plugin for devices until the end of the test.
func (s *simulated) startPlugin(resource string, devices ...*pluginapi.Device) {
	s.t.Helper()
	name := strings.ReplaceAll(resource, "/", "_") + ".sock"
	listener, err := net.Listen("unix", filepath.Join(filepath.Dir(s.RegistrationSocket()), name))
	if err != nil {
		s.t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, &plugin{kubelet: s, resource: resource, devices: devices})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	s.t.Cleanup(func() {
		server.Stop()
		<-served
	})
	conn, err := grpc.NewClient("unix://"+s.RegistrationSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(s.t.Context(), &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: name, ResourceName: resource,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.await(func(k kubelet.KubeletState) bool { return k.Resources[resource].Capacity == len(devices) })
}

func (*plugin) GetDevicePluginOptions(
	context.Context, *pluginapi.Empty,
) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(
	_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse],
) error {
	err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: p.devices})
	<-stream.Context().Done()
	return err
}

func (p *plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		var ids []device.AdvertisedID
		for _, id := range c.DevicesIds {
			ids = append(ids, device.AdvertisedID(id))
		}
		p.kubelet.onAllocate(p.resource, ids)
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return response, nil
}

func healthyDevices(ids ...string) (list []*pluginapi.Device) {
	for _, id := range ids {
		list = append(list, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return list
}

// gpuPod returns a pod of the API server with a container for each number of GPUs.
func gpuPod(name string, gpus ...int) kubelet.PodSpec {
	p := kubelet.PodSpec{Namespace: "team", Name: name}
	for i, n := range gpus {
		c := kubelet.ContainerSpec{Name: fmt.Sprint("c", i), Limits: map[string]int{gpu: n}}
		p.Containers = append(p.Containers, c)
	}
	return p
}

func (s *simulated) runPod(p kubelet.PodSpec) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testTimeout)
	defer cancel()
	if err := s.RunPod(ctx, p); err != nil {
		s.t.Fatal(err)
	}
}

// list returns the allocations as "id pod/container".
func (s *simulated) list() (list []string) {
	s.t.Helper()
	a := s.client.ListAllocations(s.t.Context())
	if a.Err != nil {
		s.t.Error(a.Err)
	}
	return format(a)
}

func format(a device.Allocations) (list []string) {
	for _, r := range a.All {
		list = append(list, fmt.Sprintf("%s %s/%s", r.DeviceID, r.Owner.Pod, r.Owner.Container))
	}
	return list
}

// TestContainers has a pod of two containers, a sidecar and an init container,
// which List never names.
func TestContainers(t *testing.T) {
	s := startKubelet(t, kubelet.Options{}, podresources.Options{})
	s.startPlugin(gpu, healthyDevices("a", "b", "c", "d", "e")...)
	s.runPod(gpuPod("pair", 1, 2))
	s.runPod(kubelet.PodSpec{
		Namespace: "team", Name: "sidecar",
		InitContainers: []kubelet.ContainerSpec{{Name: "side", Limits: map[string]int{gpu: 1}, Sidecar: true}},
		Containers:     []kubelet.ContainerSpec{{Name: "main"}},
	})
	s.runPod(kubelet.PodSpec{
		Namespace: "team", Name: "init",
		InitContainers: []kubelet.ContainerSpec{{Name: "first", Limits: map[string]int{gpu: 1}}},
		Containers:     []kubelet.ContainerSpec{{Name: "main"}},
	})
	owners := map[string]int{}
	for _, row := range s.list() {
		_, owner, _ := strings.Cut(row, " ")
		owners[owner]++
	}
	if got := fmt.Sprint(owners); got != "map[/:1 pair/c0:1 pair/c1:2 sidecar/side:1]" {
		t.Errorf("owners: got %s", got)
	}
	if err := s.EndPod(gpuPod("pair")); err != nil {
		t.Fatal(err)
	}
	if got := s.list(); len(got) != 2 {
		t.Errorf("after the end of a pod: got %q", got)
	}
}

// TestSocketOfAnyName has a path with characters of URLs, and a proxy.
func TestSocketOfAnyName(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	startKubelet(t, kubelet.Options{Dir: filepath.Join(t.TempDir(), "100% ü?#")}, podresources.Options{}).list()
}

// TestOwnersAcrossRestarts restarts the kubelet: List has no pods, then static pods,
// then all. No reader sees a change.
func TestOwnersAcrossRestarts(t *testing.T) {
	s := startKubelet(t, kubelet.Options{ReadPodsAtOnce: true}, podresources.Options{})
	s.startPlugin(gpu, healthyDevices("a", "b", "c", "d")...)
	static := gpuPod("static", 1)
	static.Static = true
	s.runPod(static)
	s.runPod(gpuPod("pod", 1, 1))
	want := s.list()
	check := func(a device.Allocations) {
		if got := format(a); !slices.Equal(got, want) || !a.Complete {
			t.Errorf("allocations: got %q, want %q; complete: %t", got, want, a.Complete)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				check(s.client.ListAllocations(ctx))
				time.Sleep(20 * time.Millisecond) // within the kubelet's limit
			}
		})
	}
	awaitLists := func() {
		calls := s.State().Calls["List"]
		s.await(func(k kubelet.KubeletState) bool { return k.Calls["List"] >= calls+3 })
	}
	for range 10 {
		releaseStatic, releaseAPI := make(chan struct{}), make(chan struct{})
		s.SetFaults(kubelet.Faults{HoldStaticPods: releaseStatic, HoldAPIPods: releaseAPI})
		if err := s.Restart(t.Context(), func() { check(s.client.ListAllocations(ctx)) }); err != nil {
			t.Fatal(err)
		}
		awaitLists()
		close(releaseStatic)
		s.await(func(k kubelet.KubeletState) bool { return k.Pods[0].InList })
		awaitLists()
		close(releaseAPI)
		s.await(func(k kubelet.KubeletState) bool { return k.PodsRead })
		awaitLists()
	}
}

// TestDeviceChangesOwners passes a device from pod to pod. After each Allocate, no
// reader gets the device as unallocated or with an earlier owner.
func TestDeviceChangesOwners(t *testing.T) {
	s := startKubelet(t, kubelet.Options{}, podresources.Options{})
	s.startPlugin(gpu, healthyDevices("a")...)
	s.startRun()
	s.list()
	var current atomic.Pointer[string] // the owner; nil between pods
	check := func(read func() device.Allocations) {
		before := current.Load()
		got := stateOf(read(), "a")
		if before != nil && current.Load() == before && got != "pending" && got != *before {
			t.Errorf("device of %s: got %s", *before, got)
		}
	}
	var name string
	s.onAllocate = func(resource string, ids []device.AdvertisedID) {
		s.client.OnAllocated(resource, ids)
		pod := name
		current.Store(&pod)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	readers.Go(func() {
		for ctx.Err() == nil {
			_, changed := s.client.Snapshot()
			check(func() device.Allocations { a, _ := s.client.Snapshot(); return a })
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	})
	readers.Go(func() {
		for ctx.Err() == nil {
			check(func() device.Allocations { return s.client.ListAllocations(ctx) })
			time.Sleep(20 * time.Millisecond) // within the kubelet's limit
		}
	})
	for i := range 20 {
		name = fmt.Sprint("pod-", i)
		s.runPod(gpuPod(name, 1))
		s.awaitState("a", name)
		current.Store(nil)
		if err := s.EndPod(gpuPod(name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestResourcesOfNode covers all resources of a node, of all plugins and drivers.
func TestResourcesOfNode(t *testing.T) {
	block := func(gib uint64, nodes ...int64) kubelet.MemoryBlock {
		return kubelet.MemoryBlock{Type: "memory", Bytes: gib << 30, NUMANodes: nodes}
	}
	claimed := func(claim device.Claim) (device.ID, bool) { return "b", claim.Device == "gpu-1" }
	s := startKubelet(t, kubelet.Options{
		ExclusiveCPUs: []int64{2, 3, 4, 5}, Memory: []kubelet.MemoryBlock{block(8, 0), block(8, 1)}, ReadPodsAtOnce: true,
	}, podresources.Options{Devices: ownDevices(), ClaimedDevice: claimed})
	const nic = "example.com/nic"
	devices := healthyDevices("nic-0", "nic-1", "nic-2")
	devices[0].Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}, {ID: 0}}}
	devices[1].Topology = devices[0].Topology
	devices[2].Health = pluginapi.Unhealthy
	s.startPlugin(nic, devices...)
	s.startPlugin(gpu, healthyDevices("a")...)
	s.startRun()
	s.runPod(kubelet.PodSpec{
		Namespace: "team", Name: "one", ExclusiveCPUs: []int64{2}, Memory: []kubelet.MemoryBlock{block(2, 0)},
		Containers: []kubelet.ContainerSpec{{
			Name: "main", Limits: map[string]int{nic: 2, gpu: 1}, ExclusiveCPUs: []int64{4, 3},
			Memory: []kubelet.MemoryBlock{block(12, 0, 1)},
			Claims: []kubelet.ClaimSpec{{Name: "ours", Devices: []kubelet.ClaimedDevice{
				{Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-1", CDI: []string{"x/y=gpu-1"}},
			}}},
		}, {Name: "plain"}},
	})
	s.awaitState("a", "one")
	s.awaitState("b", "one")
	s.client.OnListSent()
	pod := device.Owner{Namespace: "team", Pod: "one"}
	main := device.Owner{Namespace: "team", Pod: "one", Container: "main"}
	want := fmt.Sprintf("%+v", device.NodeResources{
		AllocatableKnown: true,
		Allocatable: device.ResourceSet{
			Devices: []device.ResourceDevice{
				{Resource: nic, ID: "nic-0", NUMANodes: []int{0, 1}},
				{Resource: nic, ID: "nic-1", NUMANodes: []int{0, 1}},
				{Resource: gpu, ID: "a"},
			},
			CPUs: []device.ExclusiveCPUs{{CPUs: []int64{2, 3, 4, 5}}},
			Memory: []device.ReservedMemory{
				{Type: "memory", Bytes: 8 << 30, NUMANodes: []int{0}}, {Type: "memory", Bytes: 8 << 30, NUMANodes: []int{1}},
			},
		},
		Allocated: device.ResourceSet{
			Devices: []device.ResourceDevice{
				{Owner: main, Resource: nic, ID: "nic-0", NUMANodes: []int{0, 1}},
				{Owner: main, Resource: nic, ID: "nic-1", NUMANodes: []int{0, 1}},
				{Owner: main, Resource: gpu, ID: "a"},
			},
			CPUs: []device.ExclusiveCPUs{{Owner: pod, CPUs: []int64{2}}, {Owner: main, CPUs: []int64{3, 4}}},
			Memory: []device.ReservedMemory{
				{Owner: pod, Type: "memory", Bytes: 2 << 30, NUMANodes: []int{0}},
				{Owner: main, Type: "memory", Bytes: 12 << 30, NUMANodes: []int{0, 1}},
			},
			Claims: []device.Claim{{
				Owner: main, ClaimNamespace: "team", ClaimName: "ours", Driver: "gpu.nvidia.com", Pool: "node-a",
				Device: "gpu-1", CDI: []string{"x/y=gpu-1"},
			}},
		},
	})
	s.await(func(k kubelet.KubeletState) bool { return k.Calls["GetAllocatableResources"] > 1 })
	got := fmt.Sprintf("%+v", s.client.ListAllocations(t.Context()).Resources)
	if got != want {
		t.Errorf("resources: got\n%s\nwant\n%s", got, want)
	}
	if err := s.Restart(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprintf("%+v", s.client.ListAllocations(t.Context()).Resources.Allocated)
	if !strings.Contains(got, before) {
		t.Errorf("allocated resources after a restart: got\n%s", before)
	}
}
