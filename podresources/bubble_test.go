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
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const gpu = "nvidia.com/gpu"

// scripted is a kubelet that says what the test has it say, in the test's bubble:
// hours of it take milliseconds. internal/sim/kubelet has the habits of a real one.
type scripted struct {
	api.UnimplementedPodResourcesListerServer
	t *testing.T

	mu sync.Mutex
	// All below are guarded by mu.
	pods     []*api.PodResources
	list     func(ctx context.Context) error   // what happens before List answers
	asked    []time.Time                       // when List was
	counts   int                               // how often GetAllocatableResources was
	countErr error                             // its answer
	offer    *api.AllocatableResourcesResponse // where that is none
	got      []string                          // the pods that Get was asked about
	get      func(ctx context.Context) error   // what happens before it answers
	started  time.Time
	slow     time.Duration     // how long a connection takes
	listener *bufconn.Listener // nil while it is down
	server   *grpc.Server
	served   chan error
}

// age is how old the kubelets of most tests are: old enough to be believed.
const age = time.Hour

// bubble runs a test in a bubble, with a kubelet of that age and a client of it.
func bubble(t *testing.T, age time.Duration, test func(t *testing.T, k *scripted, c *Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &scripted{t: t}
		k.start(age)
		defer k.stop()
		c, err := newClient(k.dial, slog.New(slog.DiscardHandler), Trace{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.conn.Close()
		test(t, k, c)
	})
}

// start begins a life of the kubelet, of which some is over already.
func (k *scripted) start(age time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.started = time.Now().Add(-age)
	listener, server, served := bufconn.Listen(1<<16), grpc.NewServer(), make(chan error, 1)
	api.RegisterPodResourcesListerServer(server, k)
	go func() { served <- server.Serve(listener) }()
	k.listener, k.server, k.served = listener, server, served
}

// stop ends the server, and waits until clients have noticed: a question before that may fail on the old connection.
func (k *scripted) stop() {
	k.mu.Lock()
	server, served := k.server, k.served
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

func (k *scripted) restart() {
	k.stop()
	k.start(0)
}

func (k *scripted) dial(ctx context.Context, _ string) (net.Conn, error) {
	k.mu.Lock()
	listener, started, slow := k.listener, k.started, k.slow
	k.mu.Unlock()
	time.Sleep(slow)
	if listener == nil {
		return nil, errors.New("connection refused")
	}
	conn, err := listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return linked{conn, link{connected: time.Now(), kubeletStart: started}}, nil
}

func (k *scripted) List(ctx context.Context, _ *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	k.mu.Lock()
	k.asked = append(k.asked, time.Now())
	before := k.list
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

func (k *scripted) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts++
	if k.offer == nil {
		return &api.AllocatableResourcesResponse{}, k.countErr
	}
	return k.offer, k.countErr
}

func (k *scripted) Get(ctx context.Context, r *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	k.mu.Lock()
	k.got = append(k.got, r.PodName)
	before := k.get
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

// says sets the pods of the answers from now on.
func (k *scripted) says(pods ...*api.PodResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = pods
}

// gives sets what it would give away from now on.
func (k *scripted) gives(offer *api.AllocatableResourcesResponse) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.offer = offer
}

// before sets what happens before each answer.
func (k *scripted) before(list func(ctx context.Context) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = list
}

func (k *scripted) counted() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.counts
}

// since returns when List was asked, from a time on.
func (k *scripted) since(from time.Time) (after []time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, at := range k.asked {
		if !at.Before(from) {
			after = append(after, at.Sub(from))
		}
	}
	return after
}

// runs runs the client until the bubble's test ends.
func (c *Client) runs(t *testing.T) (stop func()) {
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

// pod is a pod "team/name" with one container "main" that holds the ids.
func pod(name string, ids ...string) *api.PodResources {
	return podOf(name, container("main", ids...))
}

func podOf(name string, containers ...*api.ContainerResources) *api.PodResources {
	return &api.PodResources{Namespace: "team", Name: name, Containers: containers}
}

func container(name string, ids ...string) *api.ContainerResources {
	c := &api.ContainerResources{Name: name}
	for _, id := range ids { // one entry a device, as a kubelet does it
		c.Devices = append(c.Devices, &api.ContainerDevices{ResourceName: gpu, DeviceIds: []string{id}})
	}
	return c
}

func owner(pod string) device.Owner {
	return device.Owner{Namespace: "team", Pod: pod, Container: "main"}
}

// state tells what is known of a device, in a word: "idle", "held by a", …
func state(h device.Holders, id device.ID) string {
	hold, owner := h.Of(id)
	switch hold {
	case device.Idle:
		return "idle"
	case device.Held:
		return "held by " + owner.Pod
	case device.Shared:
		return "shared"
	case device.Unnamed:
		return "unnamed"
	default:
		return "unknown"
	}
}

func wantState(t *testing.T, h device.Holders, id device.ID, want string) {
	t.Helper()
	if got := state(h, id); got != want {
		t.Errorf("%s is %s, want %s", id, got, want)
	}
}

// known asks nobody.
func (c *Client) known() device.Holders {
	h, _ := c.Look()
	return h
}

// allocatable are how many devices of each resource the kubelet would give away; nil
// while it does not say.
func (c *Client) allocatable() map[string]int {
	r := c.known().Resources
	if !r.Known {
		return nil
	}
	counts := map[string]int{}
	for _, d := range r.Devices {
		counts[d.Resource]++
	}
	return counts
}

// lines is a log that can be read while it is written.
type lines struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}

func (l *lines) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

var errBroken = errors.New("broken")
