package podresources_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/podresources"
	"github.com/podgauge/podgauge/test/bubble"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	ms     = time.Millisecond
	gpu    = "nvidia.com/gpu"
	ownPod = "podgauge-x7k2p"
	// longAgo is the age of most kubelets: their restart is over.
	longAgo = time.Hour
)

var errBroken = errors.New("broken")

// scriptedKubelet is a kubelet scripted by a test, in the test's bubble: hours take
// milliseconds. internal/sim/kubelet behaves like a real kubelet.
type scriptedKubelet struct {
	api.UnimplementedPodResourcesListerServer
	t          *testing.T
	client     *podresources.Client
	log        logBuffer // of the client
	checkpoint string    // path of the file

	mu sync.Mutex
	// All fields below are guarded by mu.
	pods             []*api.PodResources
	onList           func(ctx context.Context) error // called before List responds
	listCalls        []time.Time
	getErr           error
	getCalls         []string // pods of the calls of Get
	allocatableCalls int
	allocatableErr   error
	allocatable      *api.AllocatableResourcesResponse
	startedAt        time.Time
	listener         *bufconn.Listener // nil while down
	server           *grpc.Server
	serveErr         chan error
}

// inBubble runs a test with a client of a kubelet that has been running for a time.
func inBubble(t *testing.T, age time.Duration, options podresources.Options, test func(k *scriptedKubelet)) {
	t.Helper()
	checkpoint := filepath.Join(t.TempDir(), podresources.CheckpointFile)
	bubble.Test(t, func(t *testing.T) {
		k := &scriptedKubelet{t: t, checkpoint: checkpoint}
		k.start(age)
		defer k.stop()
		k.newClient(options)
		defer func() { k.client.Close() }()
		test(k)
	})
}

// newClient replaces the client, as a restart of podgauge does.
func (k *scriptedKubelet) newClient(options podresources.Options) {
	if k.client != nil {
		k.client.Close()
	}
	options.Log, options.CheckpointPath = slog.New(slog.NewTextHandler(&k.log, nil)), k.checkpoint
	var err error
	if k.client, err = podresources.NewWithDial("", k.dial, options); err != nil {
		k.t.Fatal(err)
	}
}

func (k *scriptedKubelet) start(age time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	listener, server, served := bufconn.Listen(1<<16), grpc.NewServer(), make(chan error, 1)
	api.RegisterPodResourcesListerServer(server, k)
	go func() { served <- server.Serve(listener) }()
	k.startedAt, k.listener, k.server, k.serveErr = time.Now().Add(-age), listener, server, served
}

// stop ends the server and waits until clients have noticed.
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

func (k *scriptedKubelet) restart(pods ...*api.PodResources) {
	k.stop()
	k.setPods(pods...)
	k.start(0)
}

func (k *scriptedKubelet) dial(ctx context.Context) (net.Conn, time.Time, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.listener == nil {
		return nil, time.Time{}, errors.New("connection refused")
	}
	conn, err := k.listener.DialContext(ctx)
	return conn, k.startedAt, err
}

func (k *scriptedKubelet) List(
	ctx context.Context, _ *api.ListPodResourcesRequest,
) (*api.ListPodResourcesResponse, error) {
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

func (k *scriptedKubelet) GetAllocatableResources(
	context.Context, *api.AllocatableResourcesRequest,
) (*api.AllocatableResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.allocatableCalls++
	if k.allocatable == nil {
		return &api.AllocatableResourcesResponse{}, k.allocatableErr
	}
	return k.allocatable, k.allocatableErr
}

func (k *scriptedKubelet) Get(
	_ context.Context, r *api.GetPodResourcesRequest,
) (*api.GetPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.getCalls = append(k.getCalls, r.PodName)
	i := slices.IndexFunc(k.pods, func(p *api.PodResources) bool {
		return p.Namespace == r.PodNamespace && p.Name == r.PodName
	})
	if k.getErr != nil || i < 0 {
		return nil, errors.Join(k.getErr, errBroken)
	}
	return &api.GetPodResourcesResponse{PodResources: k.pods[i]}, nil
}

// set changes fields of the kubelet.
func (k *scriptedKubelet) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

// setPods sets the pods of all later responses.
func (k *scriptedKubelet) setPods(pods ...*api.PodResources) { k.set(func() { k.pods = pods }) }

// callsSince returns the calls of List since a time.
func (k *scriptedKubelet) callsSince(from time.Time) (after []time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, at := range k.listCalls {
		if !at.Before(from) {
			after = append(after, at.Sub(from))
		}
	}
	return after
}

// run runs the client until stop is called.
func (k *scriptedKubelet) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.client.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			k.t.Errorf("Run: %v", err)
		}
	})
}

// list calls List as a scrape does.
func (k *scriptedKubelet) list() device.Allocations {
	return k.client.ListAllocations(context.Background())
}

// published returns the allocations without a call.
func (k *scriptedKubelet) published() device.Allocations {
	a, _ := k.client.Snapshot()
	return a
}

// want compares published states: "unallocated", "one" (the owner), "pending"
// (allocated without an owner), "shared" or "unknown", each after the device.
func (k *scriptedKubelet) want(states ...string) {
	k.t.Helper()
	for pair := range slices.Chunk(states, 2) {
		if got := stateOf(k.published(), device.ID(pair[0])); got != pair[1] {
			k.t.Errorf("device %s: got %s, want %s", pair[0], got, pair[1])
		}
	}
}

// wantListed calls List and compares.
func (k *scriptedKubelet) wantListed(states ...string) {
	k.t.Helper()
	k.list()
	k.want(states...)
}

func stateOf(a device.Allocations, id device.ID) string {
	switch state, owner := a.State(id); state {
	case device.Allocated:
		return owner.Pod
	case device.Unallocated:
		return "unallocated"
	case device.AllocatedShared:
		return "shared"
	case device.AllocatedOwnerUnknown:
		return "pending"
	default:
		return "unknown"
	}
}

// allocate has the plugin return from Allocate.
func (k *scriptedKubelet) allocate(ids ...device.AdvertisedID) { k.client.OnAllocated(gpu, ids) }

// writeCheckpoint writes a checkpoint from pairs of an id and a pod's UID.
func (k *scriptedKubelet) writeCheckpoint(entries ...string) {
	k.t.Helper()
	type entry struct {
		PodUID, ContainerName, ResourceName string
		DeviceIDs                           map[int][]string
	}
	var content struct {
		Data struct{ PodDeviceEntries []entry }
	}
	for pair := range slices.Chunk(entries, 2) {
		e := entry{pair[1], "main", gpu, map[int][]string{-1: {pair[0]}}}
		content.Data.PodDeviceEntries = append(content.Data.PodDeviceEntries, e)
	}
	b, err := json.Marshal(content)
	if err != nil {
		k.t.Fatal(err)
	}
	k.writeFile(string(b))
}

func (k *scriptedKubelet) writeFile(content string) {
	k.t.Helper()
	temporary := k.checkpoint + "~"
	if err := os.WriteFile(temporary, []byte(content), 0o600); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Rename(temporary, k.checkpoint); err != nil {
		k.t.Fatal(err)
	}
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

// numbered returns n strings of a format.
func numbered(n int, format string) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return all
}

// logBuffer is a log for concurrent reads and writes.
type logBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}
