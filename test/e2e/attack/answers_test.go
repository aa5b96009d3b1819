package attack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// kubeletAnswer is the content of a kubelet's answers.
type kubeletAnswer struct {
	pods        []*api.PodResources // of List; an error if empty
	allocatable []*api.ContainerDevices
	events      [][]byte // of the Pods API; each a Pod
	checkpoint  []byte   // content of the file
}

// scriptedKubelet is a kubelet with one answer at a time.
type scriptedKubelet struct {
	api.UnimplementedPodResourcesListerServer
	podsapi.UnimplementedPodsServer
	answer atomic.Pointer[kubeletAnswer]
}

func (k *scriptedKubelet) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	if pods := k.answer.Load().pods; len(pods) > 0 {
		return &api.ListPodResourcesResponse{PodResources: pods}, nil
	}
	return nil, errors.New("no answer")
}

func (k *scriptedKubelet) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	return &api.AllocatableResourcesResponse{Devices: k.answer.Load().allocatable}, nil
}

// WatchPods sends the events and ends the stream.
func (k *scriptedKubelet) WatchPods(_ *podsapi.WatchPodsRequest, stream podsapi.Pods_WatchPodsServer) error {
	for _, pod := range k.answer.Load().events {
		if err := stream.Send(&podsapi.WatchPodsEvent{Type: podsapi.EventType_ADDED, Pod: pod}); err != nil {
			return err
		}
	}
	return stream.Send(&podsapi.WatchPodsEvent{Type: podsapi.EventType_INITIAL_SYNC_COMPLETE})
}

// serve serves both APIs below dir until the test ends.
func (k *scriptedKubelet) serve(t *testing.T, dir string) {
	t.Helper()
	for _, socket := range []string{"pod-resources/kubelet.sock", "pods-api/pods-api.sock"} {
		path := filepath.Join(dir, socket)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		listener, err := net.Listen("unix", path)
		require.NoError(t, err)
		server := grpc.NewServer()
		api.RegisterPodResourcesListerServer(server, k)
		podsapi.RegisterPodsServer(server, k)
		go server.Serve(listener) //nolint:errcheck // ended by Stop
		t.Cleanup(server.Stop)
	}
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

// podsOf returns pods with a container each.
func podsOf(count int, container func(pod int) *api.ContainerResources) (all []*api.PodResources) {
	for n := range count {
		all = append(all, &api.PodResources{Name: fmt.Sprint("pod-", n), Namespace: "load", Containers: []*api.ContainerResources{container(n)}})
	}
	return all
}

// onePod returns a pod with a container.
func onePod(c *api.ContainerResources) []*api.PodResources {
	c.Name = "main"
	return podsOf(1, func(int) *api.ContainerResources { return c })
}

// podOf returns a pod with containers of a total size.
func podOf(n, bytes int) []byte {
	name := fmt.Sprint("pod-", n)
	pod := v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "load", UID: types.UID("uid-" + name)}}
	for size := 0; size < bytes; {
		status := v1.ContainerStatus{Name: fmt.Sprint("container-", n, "-", len(pod.Status.ContainerStatuses))}
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
		size += status.Size()
	}
	wire, err := pod.Marshal()
	if err != nil {
		panic(err)
	}
	return wire
}

// checkpointOf returns a checkpoint with entries of a total size.
func checkpointOf(bytes int) []byte {
	response := strings.Repeat("A", 400)
	b := []byte(`{"Data": {"RegisteredDevices": {}, "PodDeviceEntries": [`)
	for n := 0; len(b) < bytes; n++ {
		b = fmt.Appendf(b, `{"PodUID": "uid-%d", "ContainerName": "main", "ResourceName": "example.com/device", "DeviceIDs": {"0": ["device-%[1]d"]}, "AllocResp": %q},`, n, response)
	}
	return append(b[:len(b)-1], `]}, "Checksum": 1}`...)
}

const (
	mega = 1_000_000 // unit of the sizes of answers
	// hold is the duration of large answers, with a call of GetAllocatableResources.
	hold = 12 * time.Second
	// uuidForm is the form of the ids of GPUs, which podgauge keeps.
	uuidForm = "GPU-%08x-0000-0000-0000-000000000000"
)

// TestLargeAnswers gives answers of a kubelet that are larger than podgauge's memory. It checks that podgauge keeps the last owners, and
// recovers with a small answer.
func TestLargeAnswers(t *testing.T) {
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err == nil && strings.Contains(string(cpu), "User Mode Linux") {
		t.Skip("user-mode Linux ends processes that allocate answers of 100 MB")
	}
	for _, row := range []struct {
		name   string
		up     string // podgauge_kubelet_up with the answer; "" either
		answer func() kubeletAnswer
	}{
		{"List of 10 MB", "", func() kubeletAnswer {
			return kubeletAnswer{pods: podsOf(10_000, func(n int) *api.ContainerResources {
				return &api.ContainerResources{Name: "main", Devices: devicesOf(950, fmt.Sprint("device-", n, "-%d"))}
			})}
		}},
		{"List of 100 MB", "0", func() kubeletAnswer {
			return kubeletAnswer{pods: onePod(&api.ContainerResources{Devices: devicesOf(100*mega, "device-%d")})}
		}},
		{"8,000 claim rows and device ids of the form of UUIDs", "1", func() kubeletAnswer {
			return kubeletAnswer{pods: onePod(&api.ContainerResources{DynamicResources: claimsOf(8000), Devices: devicesOf(500_000, uuidForm)})}
		}},
		{"500 pods with 32 devices each", "1", func() kubeletAnswer {
			return kubeletAnswer{pods: podsOf(500, func(n int) *api.ContainerResources {
				c := &api.ContainerResources{Name: "main"}
				for d := range 32 {
					c.Devices = append(c.Devices, &api.ContainerDevices{
						ResourceName: "nvidia.com/gpu", DeviceIds: []string{fmt.Sprintf("GPU-%08x-0000-0000-0000-%012x", n, d)},
						Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}},
					})
				}
				return c
			})}
		}},
		{"4,000,000 empty pods", "0", func() kubeletAnswer {
			return kubeletAnswer{pods: slices.Repeat([]*api.PodResources{{}}, 4*mega)}
		}},
		{"14,000,000 CPU ids", "0", func() kubeletAnswer {
			return kubeletAnswer{pods: onePod(&api.ContainerResources{CpuIds: make([]int64, 14*mega)})}
		}},
		{"names of 14 MB", "", func() kubeletAnswer {
			pods := onePod(&api.ContainerResources{CpuIds: []int64{1}})
			pods[0].Name, pods[0].Containers[0].Name = strings.Repeat("a", 8*mega), strings.Repeat("b", 7*mega)
			return kubeletAnswer{pods: pods}
		}},
		{"List and GetAllocatableResources of 14 MB", "0", func() kubeletAnswer {
			return kubeletAnswer{pods: onePod(&api.ContainerResources{DynamicResources: claimsOf(230_000)}), allocatable: devicesOf(14*mega, uuidForm)}
		}},
		{"GetAllocatableResources of 100 MB", "1", func() kubeletAnswer {
			return kubeletAnswer{allocatable: devicesOf(100*mega, "device-%d")}
		}},
		{"a pod of 60 MB", "1", func() kubeletAnswer { return kubeletAnswer{events: [][]byte{podOf(1, 60*mega)}} }},
		{"16,000 pods of 40 kB", "1", func() kubeletAnswer {
			var a kubeletAnswer
			for n := range 16_000 {
				a.events = append(a.events, podOf(n, 40_000))
			}
			return a
		}},
		{"checkpoint of 6 MB without List", "0", func() kubeletAnswer { return kubeletAnswer{checkpoint: checkpointOf(6 * mega)} }},
		{"checkpoint of 60 MB without List", "0", func() kubeletAnswer { return kubeletAnswer{checkpoint: checkpointOf(60 * mega)} }},
	} {
		t.Run(row.name, func(t *testing.T) { testLargeAnswer(t, row.up, row.answer()) })
	}
}

func testLargeAnswer(t *testing.T, up string, large kubeletAnswer) {
	cgroup := newMemoryCgroup(t)
	dir := program.ShortDir(t)
	plugins := filepath.Join(dir, "device-plugins")
	require.NoError(t, os.Mkdir(plugins, 0o755))
	k := &scriptedKubelet{}
	k.answer.Store(&kubeletAnswer{})
	k.serve(t, dir)
	podgauge := startPodgauge(t, cgroup, "http", "--kubelet-dir="+dir, "--device-plugin-dir="+plugins)
	id := regexp.MustCompile(`mig_uuid="(MIG-[^"]+)"`).FindStringSubmatch(podgauge.waitForDevices(t))[1]
	owner := &api.PodResources{Name: "owner", Namespace: "team", Containers: []*api.ContainerResources{{
		Name: "main", Devices: []*api.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{id}}},
	}}}
	owned := regexp.MustCompile(`nvidia_gpu_memory_used_bytes\{[^}]*container="main"[^}]*mig_uuid="` + id + `"[^}]*pod="owner"`)
	waitForUp := func(value string) {
		t.Helper()
		podgauge.waitForScrape(t, "podgauge_kubelet_up "+value+" and the owner", func(text string) bool {
			return strings.Contains(text, "\npodgauge_kubelet_up "+value) && owned.MatchString(text)
		})
	}
	small := kubeletAnswer{pods: []*api.PodResources{owner}}
	k.answer.Store(&small)
	waitForUp("1")
	if large.checkpoint == nil {
		large.pods = append(large.pods, owner)
	} else {
		require.NoError(t, os.WriteFile(filepath.Join(plugins, "kubelet_internal_checkpoint"), large.checkpoint, 0o600))
	}
	k.answer.Store(&large)
	if up != "" {
		waitForUp(up)
	}
	for end := time.Now().Add(hold); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if text, err := get(t, podgauge.metrics, time.Minute); !owned.MatchString(text) {
			t.Fatalf("the MIG device lost the owner: %v", err)
		}
	}
	k.answer.Store(&small)
	waitForUp("1")
	podgauge.checkMemory(t, cgroup)
}
