package podresources

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// testTimeout limits steps that take milliseconds on an idle machine.
const testTimeout = 30 * time.Second

// startKubelet runs a simulated kubelet, by default an hour old, until the end of the test.
func startKubelet(t testing.TB, o kubelet.Options) *kubelet.Kubelet {
	t.Helper()
	if o.Dir == "" {
		o.Dir = shortDir(t)
	}
	if o.RunningSince.IsZero() {
		o.RunningSince = time.Now().Add(-time.Hour)
	}
	k := kubelet.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run of the kubelet: got error %v", err)
		}
	})
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.Serving })
	return k
}

func awaitKubelet(t testing.TB, k *kubelet.Kubelet, wanted func(kubelet.KubeletState) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := k.Wait(ctx, wanted); err != nil {
		t.Fatal(err)
	}
}

// newTestClient returns a client without Run.
func newTestClient(t testing.TB, socket string, options Options) *Client {
	t.Helper()
	c, err := New(socket, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.kubelet.Close() })
	return c
}

// kubeletTestPlugin is a device plugin that rejects nothing.
type kubeletTestPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	kubelet    *kubelet.Kubelet
	resource   string
	lists      chan []*pluginapi.Device
	onAllocate func(resource string, ids []device.AdvertisedID)
}

// startPlugin registers a plugin for devices until the end of the test.
func startPlugin(t testing.TB, k *kubelet.Kubelet, resource string, devices ...*pluginapi.Device) *kubeletTestPlugin {
	t.Helper()
	o := &kubeletTestPlugin{kubelet: k, resource: resource, lists: make(chan []*pluginapi.Device, 1)}
	name := strings.ReplaceAll(resource, "/", "_") + ".sock"
	listener, err := net.Listen("unix", filepath.Join(filepath.Dir(k.RegistrationSocket()), name))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, o)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	o.lists <- devices
	conn, err := grpc.NewClient("unix://"+k.RegistrationSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(t.Context(), &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: name, ResourceName: resource,
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.Resources[resource].Allocatable == len(devices) })
	return o
}

func (*kubeletTestPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (o *kubeletTestPlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case list := <-o.lists:
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (o *kubeletTestPlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		var ids []device.AdvertisedID
		for _, id := range c.DevicesIds {
			ids = append(ids, device.AdvertisedID(id))
		}
		if o.onAllocate != nil {
			o.onAllocate(o.resource, ids)
		}
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
		p.Containers = append(p.Containers, kubelet.ContainerSpec{Name: fmt.Sprintf("c%d", i), Limits: map[string]int{gpu: n}})
	}
	return p
}

func runPod(t testing.TB, k *kubelet.Kubelet, p kubelet.PodSpec) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := k.RunPod(ctx, p); err != nil {
		t.Fatal(err)
	}
}

// formatAllocations formats allocations with an owner as "id pod/container".
func formatAllocations(h device.Allocations) (list []string) {
	for _, r := range h.All {
		list = append(list, fmt.Sprintf("%s %s/%s", r.DeviceID, r.Owner.Pod, r.Owner.Container))
	}
	return list
}

func wantAllocations(t testing.TB, h device.Allocations, want ...string) {
	t.Helper()
	if h.Err != nil {
		t.Error(h.Err)
	}
	if got := formatAllocations(h); !slices.Equal(got, want) {
		t.Errorf("allocations: got %q, want %q", got, want)
	}
}

func TestEndedPodIsUnallocated(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	startPlugin(t, k, gpu, healthyDevices("a")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	runPod(t, k, gpuPod("one", 1))
	wantAllocations(t, c.ListAllocations(t.Context()), "a one/c0")
	if err := k.EndPod(gpuPod("one")); err != nil {
		t.Fatal(err)
	}
	wantAllocations(t, c.ListAllocations(t.Context()))
}

// allocatedIDs returns the sorted ids of a container.
func allocatedIDs(h device.Allocations, pod, container string) (ids []string) {
	for _, r := range h.All {
		if r.Owner.Pod == pod && r.Owner.Container == container {
			ids = append(ids, string(r.DeviceID))
		}
	}
	return ids
}

func TestTwoContainersOfPod(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	startPlugin(t, k, gpu, healthyDevices("a", "b", "c")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	runPod(t, k, gpuPod("one", 1, 2))
	h := c.ListAllocations(t.Context())
	first, second := allocatedIDs(h, "one", "c0"), allocatedIDs(h, "one", "c1")
	if all := slices.Sorted(slices.Values(slices.Concat(first, second))); len(first) != 1 || len(second) != 2 || !slices.Equal(all, []string{"a", "b", "c"}) {
		t.Errorf("ids of the containers: got %q and %q", first, second)
	}
	for _, id := range second {
		if release, o := h.State(device.ID(id)); release != device.Allocated || o != (device.Owner{Namespace: "team", Pod: "one", Container: "c1"}) {
			t.Errorf("owner of %s: got %v", id, o)
		}
	}
}

func TestSidecarsAndInitContainers(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	o := startPlugin(t, k, gpu, healthyDevices("a", "b")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	o.onAllocate = c.OnAllocated
	one := map[string]int{gpu: 1}
	runPod(t, k, kubelet.PodSpec{
		Namespace: "team", Name: "sidecar", InitContainers: []kubelet.ContainerSpec{{Name: "side", Limits: one, Sidecar: true}},
		Containers: []kubelet.ContainerSpec{{Name: "main"}},
	})
	h := c.ListAllocations(t.Context())
	ids := allocatedIDs(h, "sidecar", "side")
	if len(ids) != 1 {
		t.Fatalf("allocations: got %q", formatAllocations(h))
	}
	other := map[string]string{"a": "b", "b": "a"}[ids[0]]
	wantDevice(t, h, device.ID(other), "unallocated")
	runPod(t, k, kubelet.PodSpec{
		Namespace: "team", Name: "init", InitContainers: []kubelet.ContainerSpec{{Name: "first", Limits: one}},
		Containers: []kubelet.ContainerSpec{{Name: "main"}},
	})
	h = c.ListAllocations(t.Context())
	wantDevice(t, h, device.ID(other), "pending") // no List contains the owner
	wantDevice(t, h, device.ID(ids[0]), "allocated to sidecar")
}

func TestDeviceOfTwoNUMANodesCountsOnce(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	devices := healthyDevices("a", "b")
	for _, d := range devices {
		d.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 0}, {ID: 1}}}
	}
	startPlugin(t, k, gpu, devices...)
	startPlugin(t, k, "nvidia.com/mig", healthyDevices("a", "c", "d")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	runPod(t, k, gpuPod("one", 2))
	wantAllocations(t, c.ListAllocations(t.Context()), "a one/c0", "b one/c0")
	if c.allocatableCounts() != nil {
		t.Error("allocatable devices are known before the first call")
	}
	c.fetchAllocatable(t.Context())
	if got := fmt.Sprint(c.allocatableCounts()); got != "map[nvidia.com/gpu:2 nvidia.com/mig:3]" {
		t.Errorf("allocatable: got %s", got)
	}
}

func TestReplicas(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	startPlugin(t, k, gpu, healthyDevices("a::0", "a::1")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	runPod(t, k, gpuPod("one", 1))
	wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
	runPod(t, k, gpuPod("two", 1))
	h := c.ListAllocations(t.Context())
	wantDevice(t, h, "a", "shared")
	if rows := h.ForDevice("a"); len(rows) != 2 || rows[0].DeviceID != "a::0" || rows[1].DeviceID != "a::1" {
		t.Errorf("allocations: got %v", rows)
	}
	if err := k.EndPod(gpuPod("one")); err != nil {
		t.Fatal(err)
	}
	wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to two")
	if got := len(c.current().Recent); got != 2 {
		t.Errorf("history: got %d owners", got)
	}
}

// TestLargeResponses exceeds gRPC's default limit of 4 MiB. With -race, 80,000 rows take two of callTimeout's five seconds, and more under
// load, so make test also runs the test without -race.
func TestLargeResponses(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector")
	}
	k := startKubelet(t, kubelet.Options{})
	startPlugin(t, k, gpu, healthyDevices("a")...)
	runPod(t, k, gpuPod("one", 1))
	c := newTestClient(t, k.PodResourcesSocket(), Options{Devices: claimIndex(func(device.Claim) (device.ID, bool) { return "", false })})
	for _, mib := range []int{0, 5, 0} {
		k.SetFaults(kubelet.Faults{ListBytes: mib << 20})
		begin := time.Now()
		h := c.ListAllocations(t.Context())
		if h.Err != nil {
			t.Fatalf("%d MiB: %v", mib, h.Err)
		}
		t.Logf("%d MiB: %s", mib, time.Since(begin).Round(time.Millisecond))
		wantDevice(t, h, "a", "allocated to one")
		if dropped := h.Resources.Allocated.Dropped; (len(dropped) > 0) != (mib > 0) || mib > 0 && dropped[0].IDs < mib<<20/70 {
			t.Errorf("%d MiB: got dropped ids %v, want at least %d", mib, dropped, mib<<20/70)
		}
	}
}

// TestColdStart starts client and kubelet together: only listed devices are known.
func TestColdStart(t *testing.T) {
	for age, want := range map[time.Duration]string{0: "unknown", settleTimeout - testTimeout: "unknown", settleTimeout: "unallocated", time.Hour: "unallocated", -time.Hour: "unknown"} {
		t.Run(age.String(), func(t *testing.T) {
			k := startKubelet(t, kubelet.Options{RunningSince: time.Now().Add(-age)})
			startPlugin(t, k, gpu, healthyDevices("a")...)
			runPod(t, k, gpuPod("one", 1))
			c := newTestClient(t, k.PodResourcesSocket(), Options{})
			wantDevice(t, c.current(), "a", "unknown")
			h := c.ListAllocations(t.Context())
			wantDevice(t, h, "a", "allocated to one")
			wantDevice(t, h, "b", want)
		})
	}
}

// TestKubeletAge checks that a socket with a future time counts as young, and ages from then on.
func TestKubeletAge(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{0: 0, time.Minute: time.Minute, -time.Minute: 0} {
		k := startKubelet(t, kubelet.Options{RunningSince: time.Now().Add(-since)})
		conn, err := newDialer(k.PodResourcesSocket())(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		l := conn.LocalAddr().(kubeletEpoch)
		if age := l.connectedAt.Sub(l.kubeletStartedAt); age < want || age > want+testTimeout {
			t.Errorf("kubelet of %s ago: got age %s", since, age)
		}
	}
}

func TestSocketOfAnyName(t *testing.T) {
	dir := filepath.Join(shortDir(t), "100% ü?#")
	k := startKubelet(t, kubelet.Options{Dir: dir})
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	if h := c.ListAllocations(t.Context()); h.Err != nil {
		t.Error(h.Err)
	}
}

// TestAllocationsAcrossRestarts restarts a kubelet: List contains no pods, then static pods, then all. Concurrent readers see no change.
func TestAllocationsAcrossRestarts(t *testing.T) {
	k := startKubelet(t, kubelet.Options{ReadPodsAtOnce: true})
	startPlugin(t, k, gpu, healthyDevices("a", "b", "c", "d")...)
	static := gpuPod("static", 1)
	static.Static = true
	runPod(t, k, static)
	runPod(t, k, gpuPod("pod", 1, 1))
	var calls, failures atomic.Int64
	c := newTestClient(t, k.PodResourcesSocket(), Options{OnCall: func(_ string, _ time.Duration, err error) {
		if calls.Add(1); err != nil {
			failures.Add(1)
		}
	}})
	want := formatAllocations(c.ListAllocations(t.Context()))
	if len(want) != 3 {
		t.Fatalf("allocations: got %q", want)
	}
	stop := startConcurrentReaders(t, c, want)
	defer stop()

	var files int
	for round := range 20 {
		releaseStaticPods, releaseAPIPods := make(chan struct{}), make(chan struct{})
		k.SetFaults(kubelet.Faults{HoldStaticPods: releaseStaticPods, HoldAPIPods: releaseAPIPods})
		away := func() { c.ListAllocations(t.Context()) }
		if err := k.Restart(t.Context(), away); err != nil {
			t.Fatal(err)
		}
		awaitLists(t, k, 3) // responses without pods
		close(releaseStaticPods)
		awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.Pods[0].InList })
		awaitLists(t, k, 3)
		close(releaseAPIPods)
		awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
		awaitLists(t, k, 3)
		if now := openFiles(t); round == 3 {
			files = now
		} else if round > 3 && now > files+2 { // for a new connection
			t.Errorf("open files after %d restarts: got %d, after 3: %d", round+1, now, files)
		}
	}
	stop()
	wantAllocations(t, c.ListAllocations(t.Context()), want...)
	t.Logf("%d calls of List, %d of them failed", calls.Load(), failures.Load())
	if failures.Load() == 0 {
		t.Error("no call failed during the restarts")
	}
}

// startConcurrentReaders starts scrapes and readers of snapshots, which check that the allocations never change.
func startConcurrentReaders(t *testing.T, c *Client, want []string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	check := func(h device.Allocations) {
		if got := formatAllocations(h); !slices.Equal(got, want) || !h.Complete {
			t.Errorf("allocations: got %q, want %q; complete: %t", got, want, h.Complete)
		}
	}
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				callCtx, cancel := context.WithTimeout(ctx, time.Second)
				check(c.ListAllocations(callCtx))
				cancel()
				time.Sleep(50 * time.Millisecond) // in total below the rate limit
			}
		})
	}
	all.Go(func() { watchAllocations(ctx, c, check) })
	return sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
}

// watchAllocations checks the allocations after each change.
func watchAllocations(ctx context.Context, c *Client, check func(device.Allocations)) {
	for {
		h, changed := c.Snapshot()
		check(h)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// awaitLists waits until List has been called n times from now on.
func awaitLists(t *testing.T, k *kubelet.Kubelet, n int) {
	t.Helper()
	n += k.State().Calls["List"]
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.Calls["List"] >= n })
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestDeviceChangesOwners passes a device from pod to pod. After each Allocate, no reader gets the device as unallocated or with an earlier
// owner.
func TestDeviceChangesOwners(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	o := startPlugin(t, k, gpu, healthyDevices("a")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	defer c.startRun(t)()
	c.ListAllocations(t.Context())
	var pods int
	var live atomic.Pointer[string] // the current owner; nil between pods
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	check := func(read func() device.Allocations) {
		before := live.Load()
		h := read()
		if before == nil || live.Load() != before {
			return
		}
		if got := describeDevice(h, "a"); got != "pending" && got != "allocated to "+*before {
			t.Errorf("device allocated to %s: got %s", *before, got)
		}
	}
	o.onAllocate = func(resource string, ids []device.AdvertisedID) {
		name := fmt.Sprintf("pod-%d", pods)
		c.OnAllocated(resource, ids)
		live.Store(&name)
		check(c.current)
	}
	all.Go(func() { watchAllocations(ctx, c, func(device.Allocations) { check(c.current) }) })
	for range 2 {
		all.Go(func() {
			for ctx.Err() == nil {
				check(func() device.Allocations { return c.ListAllocations(ctx) })
				time.Sleep(30 * time.Millisecond) // within the rate limit
			}
		})
	}
	for pods = range 20 {
		p := gpuPod(fmt.Sprintf("pod-%d", pods), 1)
		runPod(t, k, p)
		awaitAllocations(t, c, func(h device.Allocations) bool { return describeDevice(h, "a") == "allocated to "+p.Name })
		live.Store(nil)
		if err := k.EndPod(p); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitAllocations waits for published allocations without a call.
func awaitAllocations(t *testing.T, c *Client, wanted func(device.Allocations) bool) {
	t.Helper()
	late := time.After(testTimeout)
	for {
		h, changed := c.Snapshot()
		if wanted(h) {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("allocations: got %+v", h)
		}
	}
}

func TestListAtRateLimit(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	startPlugin(t, k, gpu, healthyDevices("a")...)
	runPod(t, k, gpuPod("one", 1))
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
	k.SetFaults(kubelet.Faults{ListErr: status.Error(codes.ResourceExhausted, "rejected by rate limit")})
	h := c.ListAllocations(t.Context())
	if status.Code(h.Err) != codes.ResourceExhausted {
		t.Errorf("Err: got %v", h.Err)
	}
	wantDevice(t, h, "a", "allocated to one")
	k.SetFaults(kubelet.Faults{})
	wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to one")
}

func TestSimulatedCheckpoint(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	o := startPlugin(t, k, gpu, healthyDevices("a", "b")...)
	one := map[string]int{gpu: 1}
	init := kubelet.PodSpec{
		Namespace: "team", Name: "init", InitContainers: []kubelet.ContainerSpec{{Name: "first", Limits: one}},
		Containers: []kubelet.ContainerSpec{{Name: "main"}},
	}
	var granted device.AdvertisedID
	o.onAllocate = func(_ string, ids []device.AdvertisedID) { granted = ids[0] }
	runPod(t, k, init)
	has := granted.Device()
	unallocated := map[device.ID]device.ID{"a": "b", "b": "a"}[has]

	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	c.options.CheckpointPath = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
	wantDevice(t, c.ListAllocations(t.Context()), has, "unallocated") // still unknown
	o.lists <- healthyDevices("a", "b")                               // like a starting plugin
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpu].Updates == 2 })
	now := time.Now() // a file's modification time may be some milliseconds early
	if err := os.Chtimes(c.options.CheckpointPath, now, now); err != nil {
		t.Fatal(err)
	}
	c.ListAllocations(t.Context())
	c.refreshCheckpoint()
	wantDevice(t, c.current(), has, "pending")
	wantDevice(t, c.current(), unallocated, "unallocated")

	c.mu.Lock() // Allocate returned ten seconds ago, and admission failed then
	c.tracker.recordAllocate(gpu, []device.AdvertisedID{unallocated.Advertised(), has.Advertised()}, time.Now().Add(-ownerLookupTimeout))
	c.mu.Unlock()
	c.refreshCheckpoint()
	wantDevice(t, c.current(), has, "pending")
	wantDevice(t, c.current(), unallocated, "unallocated")

	if err := k.DeletePod(init); err != nil {
		t.Fatal(err)
	}
	c.ListAllocations(t.Context()) // makes the kubelet release devices
	o.lists <- healthyDevices("a", "b")
	awaitKubelet(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpu].Updates == 3 })
	c.refreshCheckpoint()
	wantDevice(t, c.current(), has, "unallocated")
}

// TestRejectedPod rejects a pod after Allocate and leaves a stale entry in the checkpoint.
func TestRejectedPod(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	o := startPlugin(t, k, gpu, healthyDevices("a", "b", "c")...)
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	c.options.CheckpointPath = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
	runPod(t, k, gpuPod("old", 1))
	c.ListAllocations(t.Context())
	old := c.current().All[0].DeviceID.Device()
	var granted device.ID
	o.onAllocate = func(resource string, ids []device.AdvertisedID) {
		granted = ids[0].Device()
		c.mu.Lock() // Allocate returned ten seconds ago
		c.tracker.recordAllocate(resource, ids, time.Now().Add(-ownerLookupTimeout))
		c.mu.Unlock()
	}
	// "old" was first listed long before the rejected pod, and the client has caught up.
	c.mu.Lock()
	c.tracker.caughtUp = true
	for name, presence := range c.tracker.lifetimes.pods {
		presence.firstListed = presence.firstListed.Add(-ownerLookupTimeout - maxAdmissionDelay)
		c.tracker.lifetimes.pods[name] = presence
	}
	c.mu.Unlock()
	if err := k.RunPod(t.Context(), gpuPod("greedy", 1, 5)); err == nil {
		t.Fatal("a pod whose request is too large was admitted")
	}
	if n, err := readCheckpoint(c.options.CheckpointPath); err != nil || n.allocated[allocationKey{gpu, granted.Advertised()}] == "" {
		t.Fatalf("checkpoint: got %v, %v", n.allocated, err)
	}
	h := c.ListAllocations(t.Context())
	c.refreshCheckpoint()
	wantDevice(t, h, granted, "unallocated")
	wantDevice(t, c.current(), granted, "unallocated")
	wantDevice(t, c.current(), old, "allocated to old")
}

func TestHangingKubelet(t *testing.T) {
	k := startKubelet(t, kubelet.Options{})
	startPlugin(t, k, gpu, healthyDevices("a")...)
	runPod(t, k, gpuPod("one", 1))
	c := newTestClient(t, k.PodResourcesSocket(), Options{})
	at := c.ListAllocations(t.Context()).At
	release := make(chan struct{})
	k.SetFaults(kubelet.Faults{HoldList: release})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	h := c.ListAllocations(ctx)
	wantDevice(t, h, "a", "allocated to one")
	if status.Code(h.Err) != codes.DeadlineExceeded || !h.At.Equal(at) {
		t.Errorf("got Err %v, At %s after the last response", h.Err, h.At.Sub(at))
	}
	close(release)
	if h := c.ListAllocations(t.Context()); h.Err != nil || !h.At.After(at) {
		t.Errorf("after the hang: got Err %v", h.Err)
	}
}

func TestNoKubelet(t *testing.T) {
	c := newTestClient(t, filepath.Join(shortDir(t), "kubelet.sock"), Options{})
	for range 3 {
		h := c.ListAllocations(t.Context())
		if status.Code(errors.Unwrap(h.Err)) != codes.Unavailable || !strings.Contains(h.Err.Error(), "no such file") {
			t.Errorf("Err: got %v", h.Err)
		}
		wantDevice(t, h, "a", "unknown")
	}
}
