package podresources

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const gpu = "nvidia.com/gpu"

// scriptedKubelet is a kubelet scripted by a test, in the test's bubble: hours take milliseconds. internal/sim/kubelet behaves like a real
// kubelet.
type scriptedKubelet struct {
	api.UnimplementedPodResourcesListerServer
	t *testing.T

	mu sync.Mutex
	// All fields below are guarded by mu.
	pods             []*api.PodResources
	onList           func(ctx context.Context) error   // called before List responds
	listCalls        []time.Time                       // times of the calls of List
	allocatableCalls int                               // number of calls of GetAllocatableResources
	allocatableErr   error                             // error of GetAllocatableResources
	allocatable      *api.AllocatableResourcesResponse // response without an error
	getCalls         []string                          // pods of the calls of Get
	onGet            func(ctx context.Context) error   // called before Get responds
	startedAt        time.Time
	dialDelay        time.Duration     // duration of a connection attempt
	listener         *bufconn.Listener // nil while down
	server           *grpc.Server
	serveErr         chan error
}

// kubeletAgeInTests is the age of the kubelets of most tests: old enough to be trusted.
const kubeletAgeInTests = time.Hour

// runScripted runs a test in a bubble, with a client and a kubelet of the given age.
func runScripted(t *testing.T, age time.Duration, test func(t *testing.T, k *scriptedKubelet, c *Client)) {
	t.Helper()
	runScriptedWith(t, age, Options{}, test)
}

func runScriptedWith(t *testing.T, age time.Duration, options Options, test func(t *testing.T, k *scriptedKubelet, c *Client)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		k := &scriptedKubelet{t: t}
		k.start(age)
		defer k.stop()
		c, err := newClient("", k.dial, options)
		if err != nil {
			t.Fatal(err)
		}
		defer c.kubelet.Close()
		test(t, k, c)
	})
}

// start starts the kubelet with the given age.
func (k *scriptedKubelet) start(age time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.startedAt = time.Now().Add(-age)
	listener, server, served := bufconn.Listen(1<<16), grpc.NewServer(), make(chan error, 1)
	api.RegisterPodResourcesListerServer(server, k)
	go func() { served <- server.Serve(listener) }()
	k.listener, k.server, k.serveErr = listener, server, served
}

// stop ends the server and waits until clients have noticed: an earlier call may fail on the old connection.
func (k *scriptedKubelet) stop() {
	k.mu.Lock()
	server, served := k.server, k.serveErr
	k.listener, k.server = nil, nil
	k.mu.Unlock()
	if server == nil {
		return
	}
	server.Stop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		k.t.Errorf("Serve: %v", err)
	}
	synctest.Wait()
}

func (k *scriptedKubelet) restart() {
	k.stop()
	k.start(0)
}

func (k *scriptedKubelet) dial(ctx context.Context, _ string) (net.Conn, error) {
	k.mu.Lock()
	listener, started, slow := k.listener, k.startedAt, k.dialDelay
	k.mu.Unlock()
	time.Sleep(slow)
	if listener == nil {
		return nil, errors.New("connection refused")
	}
	conn, err := listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return epochConn{conn, kubeletEpoch{connectedAt: time.Now(), kubeletStartedAt: started}}, nil
}

func (k *scriptedKubelet) List(ctx context.Context, _ *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	k.mu.Lock()
	k.listCalls = append(k.listCalls, time.Now())
	before := k.onList
	k.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return nil, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return &api.ListPodResourcesResponse{PodResources: k.pods}, nil
}

func (k *scriptedKubelet) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.allocatableCalls++
	if k.allocatable == nil {
		return &api.AllocatableResourcesResponse{}, k.allocatableErr
	}
	return k.allocatable, k.allocatableErr
}

func (k *scriptedKubelet) Get(ctx context.Context, r *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	k.mu.Lock()
	k.getCalls = append(k.getCalls, r.PodName)
	before := k.onGet
	k.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return nil, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.Namespace == r.PodNamespace && p.Name == r.PodName {
			return &api.GetPodResourcesResponse{PodResources: p}, nil
		}
	}
	return nil, errBroken
}

// setPods sets the pods of all later responses.
func (k *scriptedKubelet) setPods(pods ...*api.PodResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = pods
}

// setAllocatable sets the allocatable resources.
func (k *scriptedKubelet) setAllocatable(response *api.AllocatableResourcesResponse) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.allocatable = response
}

// setOnList sets a function to call before each response.
func (k *scriptedKubelet) setOnList(list func(ctx context.Context) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.onList = list
}

func (k *scriptedKubelet) allocatableCallCount() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.allocatableCalls
}

// listCallsSince returns the times of the calls of List since a time.
func (k *scriptedKubelet) listCallsSince(from time.Time) (after []time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, at := range k.listCalls {
		if !at.Before(from) {
			after = append(after, at.Sub(from))
		}
	}
	return after
}

// startRun runs the client until stop is called, or the test ends.
func (c *Client) startRun(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// newPod returns a pod "team/name" with a container "main" and the ids.
func newPod(name string, ids ...string) *api.PodResources {
	return newPodWith(name, newContainer("main", ids...))
}

func newPodWith(name string, containers ...*api.ContainerResources) *api.PodResources {
	return &api.PodResources{Namespace: "team", Name: name, Containers: containers}
}

func newContainer(name string, ids ...string) *api.ContainerResources {
	c := &api.ContainerResources{Name: name}
	for _, id := range ids { // an entry per device, as the kubelet sends
		c.Devices = append(c.Devices, &api.ContainerDevices{ResourceName: gpu, DeviceIds: []string{id}})
	}
	return c
}

func newOwner(pod string) device.Owner {
	return device.Owner{Namespace: "team", Pod: pod, Container: "main"}
}

// describeDevice returns the state of a device: "unallocated", "allocated to a", …
func describeDevice(h device.Allocations, id device.ID) string {
	state, owner := h.State(id)
	switch state {
	case device.Unallocated:
		return "unallocated"
	case device.Allocated:
		return "allocated to " + owner.Pod
	case device.AllocatedShared:
		return "shared"
	case device.AllocatedOwnerUnknown:
		return "pending"
	default:
		return "unknown"
	}
}

func wantDevice(t *testing.T, h device.Allocations, id device.ID, want string) {
	t.Helper()
	if got := describeDevice(h, id); got != want {
		t.Errorf("state of %s: got %s, want %s", id, got, want)
	}
}

// current returns the published allocations without a call.
func (c *Client) current() device.Allocations {
	h, _ := c.Snapshot()
	return h
}

// allocatableCounts returns the number of allocatable devices per resource; nil if unknown.
func (c *Client) allocatableCounts() map[string]int {
	r := c.current().Resources
	if !r.AllocatableKnown {
		return nil
	}
	counts := map[string]int{}
	for _, d := range r.Allocatable.Devices {
		counts[d.Resource]++
	}
	return counts
}

// kubeletLogBuffer is a log for concurrent reads and writes.
type kubeletLogBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *kubeletLogBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(b)
}

func (l *kubeletLogBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}

func (l *kubeletLogBuffer) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

var errBroken = errors.New("broken")
