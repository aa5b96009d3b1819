package podresources_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/podresources"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/bufserver"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
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
	t           *testing.T
	client      *podresources.Client
	allocations *pubsub.Value[allocation.Snapshot] // of the client
	log         testlog.Buffer                     // of the client
	checkpoint  string                             // path of the file
	server      bufserver.Server

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
	k.allocations = &pubsub.Value[allocation.Snapshot]{}
	options.Log, options.CheckpointPath, options.Allocations = k.log.Logger(), k.checkpoint, k.allocations
	var err error
	k.client, err = podresources.NewWithDial("", k.dial, options)
	require.NoError(k.t, err)
}

func (k *scriptedKubelet) start(age time.Duration) {
	k.set(func() { k.startedAt = time.Now().Add(-age) })
	k.server.Start(func(s grpc.ServiceRegistrar) { api.RegisterPodResourcesListerServer(s, k) })
}

// stop ends the server and waits until clients have noticed.
func (k *scriptedKubelet) stop() {
	k.server.Stop(k.t)
	synctest.Wait()
}

func (k *scriptedKubelet) restart(pods ...*api.PodResources) {
	k.stop()
	k.setPods(pods...)
	k.start(0)
}

func (k *scriptedKubelet) dial(ctx context.Context) (net.Conn, time.Time, error) {
	conn, err := k.server.Dial(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	return conn, k.startedAt, err
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

func (k *scriptedKubelet) Get(_ context.Context, r *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
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
func (k *scriptedKubelet) run() (stop func()) { return background.Run(k.t, k.client.Run) }

// list calls List as a scrape does.
func (k *scriptedKubelet) list() allocation.Snapshot {
	return k.client.ListAllocations(context.Background())
}

// published returns the allocations without a call.
func (k *scriptedKubelet) published() allocation.Snapshot {
	a, _ := k.allocations.Get()
	return a
}

// want compares published states: "unallocated", "one" (the owner), "pending"
// (allocated without an owner), "shared" or "unknown", each after the device.
func (k *scriptedKubelet) want(states ...string) {
	k.t.Helper()
	for pair := range slices.Chunk(states, 2) {
		expect.Equal(k.t, stateOf(k.published(), device.ID(pair[0])), pair[1], "device", pair[0])
	}
}

// wantListed calls List and compares.
func (k *scriptedKubelet) wantListed(states ...string) {
	k.t.Helper()
	k.list()
	k.want(states...)
}

func stateOf(a allocation.Snapshot, id device.ID) string {
	switch state, owner := a.State(id); state {
	case allocation.Allocated:
		return owner.Pod
	case allocation.Unallocated:
		return "unallocated"
	case allocation.Shared:
		return "shared"
	case allocation.OwnerUnknown:
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
	require.NoError(k.t, err)
	k.writeFile(string(b))
}

func (k *scriptedKubelet) writeFile(content string) {
	k.t.Helper()
	temporary := k.checkpoint + "~"
	require.NoError(k.t, os.WriteFile(temporary, []byte(content), 0o600))
	require.NoError(k.t, os.Rename(temporary, k.checkpoint))
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

func newOwner(pod string) allocation.Owner {
	return allocation.Owner{Namespace: "team", Pod: pod, Container: "main"}
}

// numbered returns n strings of a format.
func numbered(n int, format string) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return all
}

// TestResourcesOfPod lists the CPUs, memory and claims of a pod over a socket
// whose path has characters of URLs, beside a proxy, before and after a restart
// of the kubelet.
func TestResourcesOfPod(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	k := background.Kubelet(t, kubelet.Options{
		Dir: filepath.Join(background.Dir(t), "100% ü?#"), RunningSince: time.Now().Add(-time.Hour), ReadPodsAtOnce: true,
	})
	client, err := podresources.New(k.PodResourcesSocket(), podresources.Options{
		Allocations: &pubsub.Value[allocation.Snapshot]{}, Devices: ownDevices(),
		ClaimedDevice: func(claim allocation.Claim) (device.ID, bool) { return "b", claim.Device == "gpu-1" },
	})
	require.NoError(t, err)
	defer client.Close()
	claimed := kubelet.ClaimedDevice{Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-1", CDI: []string{"x/y=gpu-1"}}
	require.NoError(t, k.RunPod(ctx, kubelet.PodSpec{
		Namespace: "team", Name: "one", ExclusiveCPUs: []int64{2},
		Containers: []kubelet.ContainerSpec{{
			Name: "main", ExclusiveCPUs: []int64{4, 3},
			Memory: []kubelet.MemoryBlock{{Type: "memory", Bytes: 12 << 30, NUMANodes: []int64{0, 1}}},
			Claims: []kubelet.ClaimSpec{{Name: "ours", Devices: []kubelet.ClaimedDevice{claimed}}},
		}},
	}))
	pod, main := allocation.Owner{Namespace: "team", Pod: "one"}, newOwner("one")
	want := fmt.Sprintf("%+v", allocation.ResourceSet{
		CPUs:   []allocation.ExclusiveCPUs{{Owner: pod, CPUs: []int64{2}}, {Owner: main, CPUs: []int64{3, 4}}},
		Memory: []allocation.ReservedMemory{{Owner: main, Type: "memory", Bytes: 12 << 30, NUMANodes: []int{0, 1}}},
		Claims: []allocation.Claim{{
			Owner: main, ClaimNamespace: "team", ClaimName: "ours", Driver: "gpu.nvidia.com", Pool: "node-a",
			Device: "gpu-1", CDI: []string{"x/y=gpu-1"},
		}},
	})
	for range 2 {
		a := client.ListAllocations(ctx)
		if got := fmt.Sprintf("%+v", a.Resources.Allocated); a.Err != nil || got != want || stateOf(a, "b") != "one" {
			t.Errorf("resources: got\n%s\nwant\n%s\n%v", got, want, a.Err)
		}
		require.NoError(t, k.Restart(ctx, nil))
	}
}
