package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// waitTimeout is the limit of waits that take milliseconds.
const waitTimeout = 20 * time.Second

func TestRunningSince(t *testing.T) {
	t.Parallel()
	since := time.Now().Add(-time.Hour).Truncate(time.Second)
	k := background.Kubelet(t, kubelet.Options{RunningSince: since})
	modified := func() time.Time {
		info, err := os.Stat(k.PodResourcesSocket())
		require.NoError(t, err)
		return info.ModTime()
	}
	if got := modified(); !got.Equal(since) {
		t.Errorf("time of the socket: got %v, want %v", got, since)
	}
	restart(t, k, nil)
	if got := modified(); time.Since(got) > time.Minute {
		t.Errorf("time of the socket after a restart: got %v, want now", got)
	}
}

func TestCapacityWithoutPluginForFiveMinutes(t *testing.T) {
	t.Parallel()
	var clock fakeClock
	k := background.Kubelet(t, kubelet.Options{Now: clock.now})
	p := registerPlugin(t, k, deviceplugin.Behavior{}, "a", "b")
	runPod(t, k, podWithGPUs("owner", 1))
	p.Stop()
	background.Wait(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Allocatable == 0 })
	clock.add(5 * time.Minute)
	if got := k.Resource(gpuResource); got.Capacity != 2 || !got.Registered || len(got.Sockets) != 0 ||
		got.Devices[0].Healthy {
		t.Errorf("after five minutes: got %+v, want capacity 2", got)
	}
	clock.add(time.Second)
	if got := k.Resource(gpuResource); got.Capacity != 0 || got.Registered {
		t.Errorf("after the grace period: got %+v, want no capacity", got)
	}
	// A container cannot restart without an endpoint.
	ctx, cancel := context.WithCancel(t.Context())
	var restarted sync.WaitGroup
	defer restarted.Wait()
	defer cancel()
	restarted.Go(func() { _ = k.RestartContainer(ctx, podWithGPUs("owner", 1), "main") })
	background.Wait(t, k, func(s kubelet.KubeletState) bool {
		const want = "endpoint not found in cache for a registered resource: " + gpuResource
		return s.Pods[0].Containers[0].WaitingReason == want
	})
}

func TestRepeatedLists(t *testing.T) {
	t.Parallel()
	k := background.Kubelet(t, kubelet.Options{})
	p := registerPlugin(t, k, deviceplugin.Behavior{}, "a", "b")
	changed := deviceplugin.Healthy("a", "b")
	changed[1].Topology = &pluginapi.TopologyInfo{}
	for i, list := range [][]*pluginapi.Device{deviceplugin.Healthy("b", "a"), changed, deviceplugin.Healthy("a", "b")} {
		p.Send(list...)
		background.Wait(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Updates == 2+i })
	}
	p.Stop()
	background.Wait(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Allocatable == 0 })
	next := registerPlugin(t, k, deviceplugin.Behavior{}, "a", "b") // the first list of a stream is not a repeat
	if got := k.Resource(gpuResource); got.Updates != 5 || got.Repeats != 1 ||
		!reflect.DeepEqual(got.Sockets, []string{next.Socket}) {
		t.Errorf("got resource %+v, want 5 lists, one of them repeated", got)
	}
	want := []kubelet.Registration{
		{Resource: gpuResource, Endpoint: p.Socket},
		{Resource: gpuResource, Endpoint: next.Socket},
	}
	expect.DeepEqual(t, k.State().Registrations, want)
}

func TestDeletedPodIsListedForGracePeriod(t *testing.T) {
	t.Parallel()
	k := background.Kubelet(t, kubelet.Options{})
	registerPlugin(t, k, deviceplugin.Behavior{}, "a", "b")
	p, brief := podWithGPUs("stubborn", 1), podWithGPUs("brief", 1)
	p.GracePeriod, brief.GracePeriod = time.Hour, 50*time.Millisecond
	runPod(t, k, p)
	runPod(t, k, brief)
	require.NoError(t, k.DeletePod(p))
	if got := list(t, k); len(got["default/stubborn/main"]) != 1 {
		t.Errorf("List during the grace period: got %v, want the pod with its device", got)
	}
	var rejected *kubelet.AdmissionError
	if err := k.RunPod(t.Context(), podWithGPUs("next", 1)); !errors.As(err, &rejected) ||
		rejected.Reason != "UnexpectedAdmissionError" {
		t.Errorf("pod with the device of a terminating pod: got %v, want a rejection", err)
	}
	deleted := time.Now()
	require.NoError(t, k.DeletePod(brief))
	background.Wait(t, k, func(s kubelet.KubeletState) bool { return len(s.Pods) == 2 })
	if took := time.Since(deleted); took < brief.GracePeriod {
		t.Errorf("removal of the pod: got it after %v, want the grace period", took)
	}
	if err := k.DeletePod(brief); !errors.Is(err, kubelet.ErrNoPod) {
		t.Errorf("second deletion: got %v, want ErrNoPod", err)
	}
	runPod(t, k, podWithGPUs("next", 1)) // the name of a failed pod may be used again
}

func TestDeviceDroppedDuringAllocateCrashes(t *testing.T) {
	t.Parallel()
	k := kubelet.New(kubelet.Options{Dir: background.Dir(t)})
	ended := make(chan error)
	go func() { ended <- k.Run(t.Context()) }()
	background.Wait(t, k, func(s kubelet.KubeletState) bool { return s.Serving })
	var p *deviceplugin.Plugin
	p = registerPlugin(t, k, deviceplugin.Behavior{Allocate: func(ctx context.Context) error {
		p.Send(deviceplugin.Healthy("b")...)
		return k.Wait(ctx, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Updates == 2 })
	}}, "a")
	ctx, cancel := context.WithCancel(t.Context())
	var pods sync.WaitGroup
	defer pods.Wait()
	defer cancel()
	pods.Go(func() { _ = k.RunPod(ctx, podWithGPUs("unlucky", 1)) })
	if err := <-ended; err == nil || !strings.Contains(err.Error(),
		"device a of nvidia.com/gpu was dropped from the list during its Allocate") {
		t.Errorf("Run: got %v, want a crash", err)
	}
}

func restart(t testing.TB, k *kubelet.Kubelet, while func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.NoError(t, k.Restart(ctx, while))
}

// fakeClock is a clock that add advances. The zero value is ready for use.
type fakeClock struct {
	mu     sync.Mutex // guards passed
	offset time.Duration
}

func (c *fakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(1e9, 0).Add(c.offset)
}

func (c *fakeClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gpuResource = "nvidia.com/gpu"

var socketCount atomic.Int32 // makes the names of the plugins unique

// registerPlugin starts a plugin and waits until the kubelet has its GPUs.
func registerPlugin(t testing.TB, k *kubelet.Kubelet, b deviceplugin.Behavior, ids ...string) *deviceplugin.Plugin {
	t.Helper()
	dir, socket := filepath.Dir(k.RegistrationSocket()), fmt.Sprintf("plugin-%d.sock", socketCount.Add(1))
	p := deviceplugin.Start(t, dir, socket, b, deviceplugin.Healthy(ids...)...)
	require.NoError(t, p.Register(t.Context(), gpuResource))
	background.Wait(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Allocatable == len(ids) })
	return p
}

// podWithGPUs returns a pod of the API server with a container that requests n
// GPUs.
func podWithGPUs(name string, n int) kubelet.PodSpec {
	main := kubelet.ContainerSpec{Name: "main", Limits: map[string]int{gpuResource: n}}
	return kubelet.PodSpec{Name: name, Containers: []kubelet.ContainerSpec{main}}
}

func runPod(t testing.TB, k *kubelet.Kubelet, p kubelet.PodSpec) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.NoError(t, k.RunPod(ctx, p))
}

// list returns the ids of List by "namespace/pod/container". It makes a new
// connection, without the backoff of an earlier kubelet.
func list(t testing.TB, k *kubelet.Kubelet) map[string][]string {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+k.PodResourcesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // of a test
	client := podresources.NewPodResourcesListerClient(conn)
	resp, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{})
	require.NoError(t, err)
	all := map[string][]string{}
	for _, p := range resp.PodResources {
		for _, c := range p.Containers {
			key := p.Namespace + "/" + p.Name + "/" + c.Name
			all[key] = []string{}
			for _, d := range c.Devices {
				all[key] = append(all[key], d.DeviceIds...)
			}
		}
	}
	return all
}
