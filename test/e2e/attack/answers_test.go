package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// largeAnswers is a kubelet that answers with a pod of a MIG device, and with more after a change.
type largeAnswers struct {
	api.UnimplementedPodResourcesListerServer
	podsapi.UnimplementedPodsServer
	checkpoint string // the file

	mu          sync.Mutex
	list        []*api.PodResources               // guarded by mu
	allocatable *api.AllocatableResourcesResponse // guarded by mu
	events      [][]byte                          // guarded by mu; each a Pod
}

// answer sets the additional content of all answers.
func (k *largeAnswers) answer(list []*api.PodResources, allocatable *api.AllocatableResourcesResponse, events ...[]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list, k.allocatable, k.events = list, allocatable, events
}

func (k *largeAnswers) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.list == nil {
		return nil, errors.New("no answer")
	}
	return &api.ListPodResourcesResponse{PodResources: k.list}, nil
}

func (k *largeAnswers) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.allocatable == nil {
		return &api.AllocatableResourcesResponse{}, nil
	}
	return k.allocatable, nil
}

// WatchPods sends the events and ends the stream.
func (k *largeAnswers) WatchPods(_ *podsapi.WatchPodsRequest, stream podsapi.Pods_WatchPodsServer) error {
	k.mu.Lock()
	events := k.events
	k.mu.Unlock()
	for _, pod := range events {
		if err := stream.Send(&podsapi.WatchPodsEvent{Type: podsapi.EventType_ADDED, Pod: pod}); err != nil {
			return err
		}
	}
	return stream.Send(&podsapi.WatchPodsEvent{Type: podsapi.EventType_INITIAL_SYNC_COMPLETE})
}

// serve serves both APIs below dir until the test ends.
func (k *largeAnswers) serve(t *testing.T, dir string) {
	t.Helper()
	for _, socket := range []string{"pod-resources/kubelet.sock", "pods-api/pods-api.sock"} {
		path := filepath.Join(dir, socket)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		api.RegisterPodResourcesListerServer(server, k)
		podsapi.RegisterPodsServer(server, k)
		go server.Serve(listener) //nolint:errcheck // ended by Stop
		t.Cleanup(server.Stop)
	}
}

// newOwner returns a pod with a device.
func newOwner(device string) *api.PodResources {
	return &api.PodResources{Name: "owner", Namespace: "team", Containers: []*api.ContainerResources{{
		Name: "main", Devices: []*api.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{device}}},
	}}}
}

// The functions below return rows of a total size. Names differ, as names of the kubelet do.

func devicesOf(bytes int, id string) (all []*api.ContainerDevices) {
	for n := 0; bytes > 0; n++ {
		d := &api.ContainerDevices{ResourceName: fmt.Sprint("example.com/memory-", n%3), DeviceIds: []string{fmt.Sprintf(id, n)}}
		all = append(all, d)
		bytes -= len(d.ResourceName) + len(d.DeviceIds[0]) + 6
	}
	return all
}

func podsOf(bytes int, resources func(pod *api.PodResources, n int)) (all []*api.PodResources) {
	for n := 0; bytes > 0; n++ {
		p := &api.PodResources{Name: fmt.Sprint("pod-", n), Namespace: "load"}
		resources(p, n)
		all = append(all, p)
		bytes -= len(p.Name) + 1000
	}
	return all
}

func claimsOf(rows int) []*api.DynamicResource {
	claim := &api.DynamicResource{ClaimName: "many", ClaimNamespace: "load"}
	for n := range rows {
		claim.ClaimResources = append(claim.ClaimResources, &api.ClaimResource{
			DriverName: "nic.example.com", PoolName: "node", DeviceName: fmt.Sprint("nic-", n),
			CdiDevices: []*api.CDIDevice{{Name: fmt.Sprint("example.com/nic=", n)}},
		})
	}
	return []*api.DynamicResource{claim}
}

func withContainer(p *api.PodResources, c *api.ContainerResources) *api.PodResources {
	p.Containers = append(p.Containers, c)
	return p
}

// checkpointOf returns a checkpoint with entries of a total size.
func checkpointOf(t *testing.T, bytes int) []byte {
	t.Helper()
	type entry struct {
		PodUID, ContainerName, ResourceName string
		DeviceIDs                           map[string][]string
		AllocResp                           []byte
	}
	var entries []entry
	for n := 0; bytes > 0; n++ {
		entries = append(entries, entry{fmt.Sprint("uid-", n), "main", "example.com/device", map[string][]string{"0": {fmt.Sprint("device-", n)}}, make([]byte, 300)})
		bytes -= 540
	}
	content, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": entries, "RegisteredDevices": map[string]any{}}, "Checksum": 1})
	if err != nil {
		t.Fatal(err)
	}
	return content
}

const (
	mega = 1_000_000 // unit of the sizes of answers
	// hold is the duration of large answers, with a call of GetAllocatableResources.
	hold = 12 * time.Second
)

// TestLargeAnswers gives answers of a kubelet that are larger than podgauge's memory. It checks that podgauge keeps the last owners, and
// recovers with a small answer.
func TestLargeAnswers(t *testing.T) {
	for _, row := range []struct {
		name string
		up   string // podgauge_kubelet_up with the answer; "" either
		set  func(k *largeAnswers, owner *api.PodResources)
	}{
		{"List of 10 MB", "", func(k *largeAnswers, owner *api.PodResources) {
			k.answer(append(podsOf(10*mega, func(p *api.PodResources, n int) {
				withContainer(p, &api.ContainerResources{Name: "main", Devices: devicesOf(950, fmt.Sprint("device-", n, "-%d"))})
			}), owner), nil)
		}},
		{"List of 25 MB", "0", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner, withContainer(&api.PodResources{Name: "pod"}, &api.ContainerResources{Name: "main", Devices: devicesOf(25*mega, "device-%d")})}, nil)
		}},
		{"List of 60 MB", "0", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner, withContainer(&api.PodResources{Name: "pod"}, &api.ContainerResources{Name: "main", Devices: devicesOf(60*mega, "device-%d")})}, nil)
		}},
		{"List of 100 MB", "0", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner, withContainer(&api.PodResources{Name: "pod"}, &api.ContainerResources{Name: "main", Devices: devicesOf(100*mega, "device-%d")})}, nil)
		}},
		{"300,000 claim rows", "0", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner, withContainer(&api.PodResources{Name: "pod"}, &api.ContainerResources{Name: "main", DynamicResources: claimsOf(300_000)})}, nil)
		}},
		{"8,000 claim rows and device ids of the form of UUIDs", "1", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner, withContainer(&api.PodResources{Name: "pod"}, &api.ContainerResources{
				Name: "main", DynamicResources: claimsOf(8000), Devices: devicesOf(500_000, "GPU-%08x-0000-0000-0000-000000000000"),
			})}, nil)
		}},
		{"500 pods with 32 devices each", "1", func(k *largeAnswers, owner *api.PodResources) {
			pods := []*api.PodResources{owner}
			for n := range 500 {
				c := &api.ContainerResources{Name: "main"}
				for d := range 32 {
					c.Devices = append(c.Devices, &api.ContainerDevices{
						ResourceName: "nvidia.com/gpu", DeviceIds: []string{fmt.Sprintf("GPU-%08x-0000-0000-0000-%012x", n, d)},
						Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}},
					})
				}
				pods = append(pods, withContainer(&api.PodResources{Name: fmt.Sprint("pod-", n), Namespace: "load"}, c))
			}
			k.answer(pods, nil)
		}},
		{"300,000 device ids of the form of UUIDs", "0", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner, withContainer(&api.PodResources{Name: "pod"}, &api.ContainerResources{Name: "main", Devices: devicesOf(14*mega, "GPU-%08x-0000-0000-0000-000000000000")})}, nil)
		}},
		{"4,000,000 empty pods", "0", func(k *largeAnswers, owner *api.PodResources) {
			pods := make([]*api.PodResources, 4*mega)
			for i := range pods {
				pods[i] = &api.PodResources{}
			}
			k.answer(append(pods, owner), nil)
		}},
		{"14,000,000 CPU ids", "0", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner, withContainer(&api.PodResources{Name: "pod"}, &api.ContainerResources{Name: "main", CpuIds: make([]int64, 14*mega)})}, nil)
		}},
		{"names of 14 MB", "", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner, withContainer(&api.PodResources{Name: strings.Repeat("a", 8*mega)}, &api.ContainerResources{Name: strings.Repeat("b", 7*mega), CpuIds: []int64{1}})}, nil)
		}},
		{"List and GetAllocatableResources of 14 MB", "0", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner, withContainer(&api.PodResources{Name: "pod"}, &api.ContainerResources{Name: "main", DynamicResources: claimsOf(230_000)})}, &api.AllocatableResourcesResponse{Devices: devicesOf(14*mega, "GPU-%08x-0000-0000-0000-000000000000")})
		}},
		{"GetAllocatableResources of 100 MB", "1", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner}, &api.AllocatableResourcesResponse{Devices: devicesOf(100*mega, "device-%d")})
		}},
		{"a pod of 60 MB", "1", func(k *largeAnswers, owner *api.PodResources) {
			k.answer([]*api.PodResources{owner}, nil, podOf(1, 60*mega))
		}},
		{"16,000 pods of 40 kB", "1", func(k *largeAnswers, owner *api.PodResources) {
			var events [][]byte
			for n := range 16_000 {
				events = append(events, podOf(n, 40_000))
			}
			k.answer([]*api.PodResources{owner}, nil, events...)
		}},
	} {
		t.Run(row.name, func(t *testing.T) { testLargeAnswers(t, row.up, row.set) })
	}
}

// podOf returns a pod with containers of a total size.
func podOf(n, bytes int) []byte {
	field := func(number int, content string) string {
		b := []byte{byte(number<<3 | 2)}
		for size := len(content); ; size >>= 7 {
			if size < 1<<7 {
				return string(append(b, byte(size))) + content
			}
			b = append(b, byte(size)|1<<7)
		}
	}
	name := fmt.Sprint("pod-", n)
	var status strings.Builder
	for i := 0; status.Len() < bytes; i++ {
		status.WriteString(field(8, field(1, fmt.Sprint("container-", n, "-", i))))
	}
	return []byte(field(1, field(1, name)+field(3, "load")+field(5, "uid-"+name)) + field(3, status.String()))
}

// TestLargeCheckpoint has large checkpoints while the kubelet does not answer.
func TestLargeCheckpoint(t *testing.T) {
	for _, bytes := range []int{6 * mega, 60 * mega} {
		t.Run(fmt.Sprint(bytes), func(t *testing.T) {
			testLargeAnswers(t, "0", func(k *largeAnswers, _ *api.PodResources) {
				if err := os.WriteFile(k.checkpoint, checkpointOf(t, bytes), 0o600); err != nil {
					t.Error(err)
				}
				k.answer(nil, nil)
			})
		})
	}
}

func testLargeAnswers(t *testing.T, up string, set func(k *largeAnswers, owner *api.PodResources)) {
	cgroup := newMemoryCgroup(t, memoryLimit)
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	plugins := filepath.Join(dir, "device-plugins")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	k := &largeAnswers{checkpoint: filepath.Join(plugins, "kubelet_internal_checkpoint")}
	k.serve(t, dir)
	podgauge := startPodgauge(t, cgroup, "--kubelet-dir="+dir, "--device-plugin-dir="+plugins)
	podgauge.waitForDevices(t, gpus+gpus*migDevicesPerGPU)
	device := regexp.MustCompile(`mig_uuid="(MIG-[^"]+)"`).FindStringSubmatch(podgauge.scrape(t))[1]
	owned := regexp.MustCompile(`nvidia_gpu_memory_used_bytes\{[^}]*container="main"[^}]*mig_uuid="` + device + `"[^}]*pod="owner"`)
	owner := newOwner(device)
	waitFor := func(what string, holds func(text string) bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			text := podgauge.scrape(t)
			if holds(text) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("not within 20 s: %s\n%s", what, regexp.MustCompile(`(?m)^podgauge_kubelet.*`).FindAllString(text, -1))
			}
		}
	}
	isUp := func(value string) func(string) bool {
		return func(text string) bool {
			return strings.Contains(text, "\npodgauge_kubelet_up "+value) && owned.MatchString(text)
		}
	}
	k.answer([]*api.PodResources{owner}, nil)
	waitFor("owner of the MIG device", isUp("1"))
	set(k, owner)
	if up != "" {
		waitFor("podgauge_kubelet_up "+up, isUp(up))
	}
	for end := time.Now().Add(hold); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if text := podgauge.scrape(t); !owned.MatchString(text) {
			t.Fatal("the MIG device lost the owner")
		}
	}
	k.answer([]*api.PodResources{owner}, nil)
	waitFor("recovery", isUp("1"))
	t.Logf("figure: peak memory of the cgroup: %.1f of %d MiB; peak resident memory: %s",
		float64(cgroup.peak(t))/(1<<20), memoryLimit>>20, podgauge.peakResident(t))
	if killed := cgroup.killed(t); killed != "0" {
		t.Errorf("processes killed by the OOM killer: got %s, want 0", killed)
	}
}

// scrape returns the text of /metrics, and fails the test if podgauge has exited.
func (p *podgaugeUnderAttack) scrape(t *testing.T) string {
	t.Helper()
	select {
	case <-p.exited:
		t.Fatal("podgauge exited")
	default:
	}
	text, err := p.get(t.Context(), "/metrics", time.Minute)
	if err != nil {
		t.Logf("scrape: %v", err)
	}
	return text
}
