package podresources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// patience is for what takes milliseconds on a machine that has nothing else to do.
const patience = 30 * time.Second

// kubeletOn runs a simulated kubelet until the test ends. It has been up for an
// hour where the options do not say otherwise.
func kubeletOn(t testing.TB, o kubelet.Options) *kubelet.Kubelet {
	t.Helper()
	if o.Dir == "" {
		o.Dir = shortDir(t)
	}
	if o.Since.IsZero() {
		o.Since = time.Now().Add(-time.Hour)
	}
	k := kubelet.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the kubelet ended: %v", err)
		}
	})
	await(t, k, func(s kubelet.State) bool { return s.Serving })
	return k
}

func await(t testing.TB, k *kubelet.Kubelet, wanted func(kubelet.State) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := k.Wait(ctx, wanted); err != nil {
		t.Fatal(err)
	}
}

// clientOf makes a client that nobody runs.
func clientOf(t testing.TB, socket string, trace Trace) *Client {
	t.Helper()
	c, err := New(socket, slog.New(slog.DiscardHandler), trace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	return c
}

// offer is a device plugin that grants everything.
type offer struct {
	pluginapi.UnimplementedDevicePluginServer
	k        *kubelet.Kubelet
	resource string
	lists    chan []*pluginapi.Device
	granted  func(resource string, ids []device.OfferedID)
}

// offers registers a plugin for devices, which serves until the test ends.
func offers(t testing.TB, k *kubelet.Kubelet, resource string, devices ...*pluginapi.Device) *offer {
	t.Helper()
	o := &offer{k: k, resource: resource, lists: make(chan []*pluginapi.Device, 1)}
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
	await(t, k, func(s kubelet.State) bool { return s.Resources[resource].Allocatable == len(devices) })
	return o
}

func (*offer) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (o *offer) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
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

func (o *offer) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	answer := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		var ids []device.OfferedID
		for _, id := range c.DevicesIds {
			ids = append(ids, device.OfferedID(id))
		}
		if o.granted != nil {
			o.granted(o.resource, ids)
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return answer, nil
}

func healthy(ids ...string) (list []*pluginapi.Device) {
	for _, id := range ids {
		list = append(list, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return list
}

// podOn is a pod of the API server, with a container for each number of GPUs.
func podOn(name string, gpus ...int) kubelet.Pod {
	p := kubelet.Pod{Namespace: "team", Name: name}
	for i, n := range gpus {
		p.Containers = append(p.Containers, kubelet.Container{Name: fmt.Sprintf("c%d", i), Limits: map[string]int{gpu: n}})
	}
	return p
}

func runs(t testing.TB, k *kubelet.Kubelet, p kubelet.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := k.RunPod(ctx, p); err != nil {
		t.Fatal(err)
	}
}

// held lists the holdings as "id pod/container", as far as somebody is named.
func held(h device.Holders) (list []string) {
	for _, r := range h.Held {
		list = append(list, fmt.Sprintf("%s %s/%s", r.Offered, r.Owner.Pod, r.Owner.Container))
	}
	return list
}

func wantHeld(t testing.TB, h device.Holders, want ...string) {
	t.Helper()
	if h.Err != nil {
		t.Error(h.Err)
	}
	if got := held(h); !slices.Equal(got, want) {
		t.Errorf("held are %q, want %q", got, want)
	}
}

func TestAPodThatEndedIsGoneFromTheNextAnswer(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	offers(t, k, gpu, healthy("a")...)
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	runs(t, k, podOn("one", 1))
	wantHeld(t, c.Owners(t.Context()), "a one/c0")
	if err := k.EndPod(podOn("one")); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, c.Owners(t.Context()))
}

// idsOf returns what the containers of the rows hold, sorted.
func idsOf(h device.Holders, pod, container string) (ids []string) {
	for _, r := range h.Held {
		if r.Owner.Pod == pod && r.Owner.Container == container {
			ids = append(ids, string(r.Offered))
		}
	}
	return ids
}

func TestTwoContainersOfAPod(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	offers(t, k, gpu, healthy("a", "b", "c")...)
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	runs(t, k, podOn("one", 1, 2))
	h := c.Owners(t.Context())
	first, second := idsOf(h, "one", "c0"), idsOf(h, "one", "c1")
	if all := slices.Sorted(slices.Values(slices.Concat(first, second))); len(first) != 1 || len(second) != 2 || !slices.Equal(all, []string{"a", "b", "c"}) {
		t.Errorf("the containers have %q and %q", first, second)
	}
	for _, id := range second {
		if hold, o := h.Of(device.ID(id)); hold != device.Held || o != (device.Owner{Namespace: "team", Pod: "one", Container: "c1"}) {
			t.Errorf("%s is held by %v", id, o)
		}
	}
}

func TestSidecarsAndInitContainers(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	o := offers(t, k, gpu, healthy("a", "b")...)
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	o.granted = c.Allocated
	one := map[string]int{gpu: 1}
	runs(t, k, kubelet.Pod{
		Namespace: "team", Name: "sidecar", Init: []kubelet.Container{{Name: "side", Limits: one, Sidecar: true}},
		Containers: []kubelet.Container{{Name: "main"}},
	})
	h := c.Owners(t.Context())
	ids := idsOf(h, "sidecar", "side")
	if len(ids) != 1 {
		t.Fatalf("held are %q", held(h))
	}
	other := map[string]string{"a": "b", "b": "a"}[ids[0]]
	wantState(t, h, device.ID(other), "idle")
	runs(t, k, kubelet.Pod{
		Namespace: "team", Name: "init", Init: []kubelet.Container{{Name: "first", Limits: one}},
		Containers: []kubelet.Container{{Name: "main"}},
	})
	h = c.Owners(t.Context())
	wantState(t, h, device.ID(other), "unnamed") // nobody will ever say who has it
	wantState(t, h, device.ID(ids[0]), "held by sidecar")
}

func TestADeviceOfTwoNUMANodesCountsOnce(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	devices := healthy("a", "b")
	for _, d := range devices {
		d.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 0}, {ID: 1}}}
	}
	offers(t, k, gpu, devices...)
	offers(t, k, "nvidia.com/mig", healthy("a", "c", "d")...)
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	runs(t, k, podOn("one", 2))
	wantHeld(t, c.Owners(t.Context()), "a one/c0", "b one/c0")
	if c.allocatable() != nil {
		t.Error("allocatable before it was asked for")
	}
	c.askAllocatable(t.Context())
	if got := fmt.Sprint(c.allocatable()); got != "map[nvidia.com/gpu:2 nvidia.com/mig:3]" {
		t.Errorf("allocatable are %s", got)
	}
}

func TestReplicas(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	offers(t, k, gpu, healthy("a::0", "a::1")...)
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	runs(t, k, podOn("one", 1))
	wantState(t, c.Owners(t.Context()), "a", "held by one")
	runs(t, k, podOn("two", 1))
	h := c.Owners(t.Context())
	wantState(t, h, "a", "shared")
	if rows := h.Rows("a"); len(rows) != 2 || rows[0].Offered != "a::0" || rows[1].Offered != "a::1" {
		t.Errorf("the rows are %v", rows)
	}
	if err := k.EndPod(podOn("one")); err != nil {
		t.Fatal(err)
	}
	wantState(t, c.Owners(t.Context()), "a", "held by two")
	if got := len(c.known().Recent); got != 2 {
		t.Errorf("%d holders are remembered", got)
	}
}

// TestGreatAnswers: an answer may be longer than gRPC's limit of 4 MiB. With the race detector its 80,000 rows take two of
// the five seconds of a question, and more on a loaded machine: make test runs the test without it too.
func TestGreatAnswers(t *testing.T) {
	if raced {
		t.Skip("needs a build without the race detector")
	}
	k := kubeletOn(t, kubelet.Options{})
	offers(t, k, gpu, healthy("a")...)
	runs(t, k, podOn("one", 1))
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	for _, mib := range []int{0, 5, 0} {
		k.Trouble(kubelet.Trouble{ListBytes: mib << 20})
		begin := time.Now()
		h := c.Owners(t.Context())
		if h.Err != nil {
			t.Fatalf("%d MiB: %v", mib, h.Err)
		}
		t.Logf("%d MiB: %d holdings, %s", mib, len(h.Held), time.Since(begin).Round(time.Millisecond))
		wantState(t, h, "a", "held by one")
		if least := mib << 20 / 70; len(h.Held) < least {
			t.Errorf("%d holdings are known, want %d", len(h.Held), least)
		}
	}
}

// A client that starts with its kubelet knows nobody but who is named.
func TestAColdStart(t *testing.T) {
	for age, want := range map[time.Duration]string{0: "unknown", settleAfter - patience: "unknown", settleAfter: "idle", time.Hour: "idle", -time.Hour: "unknown"} {
		t.Run(age.String(), func(t *testing.T) {
			k := kubeletOn(t, kubelet.Options{Since: time.Now().Add(-age)})
			offers(t, k, gpu, healthy("a")...)
			runs(t, k, podOn("one", 1))
			c := clientOf(t, k.PodResourcesSocket(), Trace{})
			wantState(t, c.known(), "a", "unknown")
			h := c.Owners(t.Context())
			wantState(t, h, "a", "held by one")
			wantState(t, h, "b", want)
		})
	}
}

// A kubelet whose socket is of the future is a young one, and becomes older.
func TestTheAgeOfAKubelet(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{0: 0, time.Minute: time.Minute, -time.Minute: 0} {
		k := kubeletOn(t, kubelet.Options{Since: time.Now().Add(-since)})
		conn, err := dialer(k.PodResourcesSocket())(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		l := conn.LocalAddr().(link)
		if age := l.connected.Sub(l.kubeletStart); age < want || age > want+patience {
			t.Errorf("a kubelet since %s is taken for %s old", since, age)
		}
	}
}

func TestASocketOfAnyName(t *testing.T) {
	dir := filepath.Join(shortDir(t), "100% ü?#")
	k := kubeletOn(t, kubelet.Options{Dir: dir})
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	if h := c.Owners(t.Context()); h.Err != nil {
		t.Error(h.Err)
	}
}

// While it is restarted a kubelet is away, then names nobody, then its static pods
// and then the rest. Nobody who looks sees any of it.
func TestHoldersThroughRestarts(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{EmptyFor: -1, RestAfter: -1})
	offers(t, k, gpu, healthy("a", "b", "c", "d")...)
	static := podOn("static", 1)
	static.Static = true
	runs(t, k, static)
	runs(t, k, podOn("pod", 1, 1))
	var answers, failures atomic.Int64
	c := clientOf(t, k.PodResourcesSocket(), Trace{Called: func(_ string, _ time.Duration, err error) {
		if answers.Add(1); err != nil {
			failures.Add(1)
		}
	}})
	want := held(c.Owners(t.Context()))
	if len(want) != 3 {
		t.Fatalf("held are %q", want)
	}
	stop := hammer(t, c, want)
	defer stop()

	var files int
	for round := range 20 {
		signal := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[round%2]
		holdStatic, holdRest := make(chan struct{}), make(chan struct{})
		k.Trouble(kubelet.Trouble{HoldStatic: holdStatic, HoldRest: holdRest})
		away := func() { c.Owners(t.Context()) }
		if err := k.Restart(t.Context(), kubelet.RestartOptions{Signal: signal, While: away}); err != nil {
			t.Fatal(err)
		}
		awaitLists(t, k, 3) // that name nobody
		close(holdStatic)
		await(t, k, func(s kubelet.State) bool { return s.Pods[0].Listed })
		awaitLists(t, k, 3)
		close(holdRest)
		await(t, k, func(s kubelet.State) bool { return s.PodsRead })
		awaitLists(t, k, 3)
		if now := openFiles(t); round == 3 {
			files = now
		} else if round > 3 && now > files+2 { // a connection that is just made
			t.Errorf("after %d restarts %d files are open, after 3 they were %d", round+1, now, files)
		}
	}
	stop()
	wantHeld(t, c.Owners(t.Context()), want...)
	t.Logf("%d questions, %d of them failed", answers.Load(), failures.Load())
	if failures.Load() == 0 {
		t.Error("nobody asked while the kubelet was away")
	}
}

// hammer asks and looks, and wants to see the same holders all the time.
func hammer(t *testing.T, c *Client, want []string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	check := func(h device.Holders) {
		if got := held(h); !slices.Equal(got, want) || !h.Settled {
			t.Errorf("held are %q, want %q; settled is %t", got, want, h.Settled)
		}
	}
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				asking, cancel := context.WithTimeout(ctx, time.Second)
				check(c.Owners(asking))
				cancel()
				time.Sleep(50 * time.Millisecond) // all of them together stay within the rate limit
			}
		})
	}
	all.Go(func() { watch(ctx, c, check) })
	return sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
}

// watch checks what is known whenever it has changed.
func watch(ctx context.Context, c *Client, check func(device.Holders)) {
	for {
		h, changed := c.Look()
		check(h)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// awaitLists returns when List was asked n times from now on.
func awaitLists(t *testing.T, k *kubelet.Kubelet, n int) {
	t.Helper()
	n += k.State().Calls["List"]
	await(t, k, func(s kubelet.State) bool { return s.Calls["List"] >= n })
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A device goes from pod to pod. From the moment of its allocation nobody sees it
// idle, or with a holder from before.
func TestADeviceThatChangesHands(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	o := offers(t, k, gpu, healthy("a")...)
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	defer c.runs(t)()
	c.Owners(t.Context())
	var pods int
	var live atomic.Pointer[string] // the pod that has it; nil where it may be idle
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	check := func(look func() device.Holders) {
		before := live.Load()
		h := look()
		if before == nil || live.Load() != before {
			return
		}
		if got := state(h, "a"); got != "unnamed" && got != "held by "+*before {
			t.Errorf("allocated for %s, the device is %s", *before, got)
		}
	}
	o.granted = func(resource string, ids []device.OfferedID) {
		name := fmt.Sprintf("pod-%d", pods)
		c.Allocated(resource, ids)
		live.Store(&name)
		check(c.known)
	}
	all.Go(func() { watch(ctx, c, func(device.Holders) { check(c.known) }) })
	for range 2 {
		all.Go(func() {
			for ctx.Err() == nil {
				check(func() device.Holders { return c.Owners(ctx) })
				time.Sleep(30 * time.Millisecond) // within the rate limit
			}
		})
	}
	for pods = range 20 {
		p := podOn(fmt.Sprintf("pod-%d", pods), 1)
		runs(t, k, p)
		waitFor(t, c, func(h device.Holders) bool { return state(h, "a") == "held by "+p.Name })
		live.Store(nil)
		if err := k.EndPod(p); err != nil {
			t.Fatal(err)
		}
	}
}

// waitFor returns when what is known is as wanted, without asking.
func waitFor(t *testing.T, c *Client, wanted func(device.Holders) bool) {
	t.Helper()
	late := time.After(patience)
	for {
		h, changed := c.Look()
		if wanted(h) {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("known is %+v", h)
		}
	}
}

// Others use up what the kubelet answers, until it turns the client away as well.
func TestTheRealRateLimit(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	offers(t, k, gpu, healthy("a")...)
	runs(t, k, podOn("one", 1))
	c, other := clientOf(t, k.PodResourcesSocket(), Trace{}), clientOf(t, k.PodResourcesSocket(), Trace{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wantState(t, c.Owners(ctx), "a", "held by one")
	var others sync.WaitGroup
	defer others.Wait()
	crowd, stop := context.WithCancel(ctx)
	defer stop()
	for range 32 {
		others.Go(func() {
			for crowd.Err() == nil {
				other.list.GetAllocatableResources(crowd, &podresourcesapi.AllocatableResourcesRequest{})
			}
		})
	}
	var h device.Holders
	for h.Err == nil && ctx.Err() == nil {
		h = c.Owners(ctx)
		wantState(t, h, "a", "held by one")
	}
	stop()
	if status.Code(h.Err) != codes.ResourceExhausted || k.State().Limited == 0 {
		t.Errorf("Err is %v", h.Err)
	}
}

func TestTheSimulatedKubeletsCheckpoint(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	o := offers(t, k, gpu, healthy("a", "b")...)
	one := map[string]int{gpu: 1}
	init := kubelet.Pod{
		Namespace: "team", Name: "init", Init: []kubelet.Container{{Name: "first", Limits: one}},
		Containers: []kubelet.Container{{Name: "main"}},
	}
	var granted device.OfferedID
	o.granted = func(_ string, ids []device.OfferedID) { granted = ids[0] }
	runs(t, k, init)
	has := granted.Device()
	free := map[device.ID]device.ID{"a": "b", "b": "a"}[has]

	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	c.Checkpoint = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
	wantState(t, c.Owners(t.Context()), has, "idle") // it cannot be known
	o.lists <- healthy("a", "b")                     // as a plugin does that begins
	await(t, k, func(s kubelet.State) bool { return s.Resources[gpu].Updates == 2 })
	now := time.Now() // a file's own time may be some milliseconds early
	if err := os.Chtimes(c.Checkpoint, now, now); err != nil {
		t.Fatal(err)
	}
	c.Owners(t.Context())
	c.readCheckpoint()
	wantState(t, c.known(), has, "unnamed")
	wantState(t, c.known(), free, "idle")

	c.mu.Lock() // Allocate returned ten seconds ago, and admission failed then
	c.memory.allocated(gpu, []device.OfferedID{free.Offered(), has.Offered()}, time.Now().Add(-lookFor))
	c.mu.Unlock()
	c.readCheckpoint()
	wantState(t, c.known(), has, "unnamed")
	wantState(t, c.known(), free, "idle")

	if err := k.DeletePod(init); err != nil {
		t.Fatal(err)
	}
	c.Owners(t.Context()) // has the kubelet free what is left
	o.lists <- healthy("a", "b")
	await(t, k, func(s kubelet.State) bool { return s.Resources[gpu].Updates == 3 })
	c.readCheckpoint()
	wantState(t, c.known(), has, "idle")
}

// A pod that is turned away after Allocate leaves an entry in the checkpoint that
// nobody takes away.
func TestAPodThatIsTurnedAway(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	o := offers(t, k, gpu, healthy("a", "b", "c")...)
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	c.Checkpoint = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
	runs(t, k, podOn("old", 1))
	c.Owners(t.Context())
	old := c.known().Held[0].Offered.Device()
	var granted device.ID
	o.granted = func(resource string, ids []device.OfferedID) {
		granted = ids[0].Device()
		c.mu.Lock() // Allocate returned ten seconds ago
		c.memory.allocated(resource, ids, time.Now().Add(-lookFor))
		c.mu.Unlock()
	}
	// The one that stays came ten seconds before the one that is turned away, and
	// the client is that old as well.
	c.mu.Lock()
	c.memory.caughtUp = true
	for name, came := range c.memory.arrivals.pods {
		came.first = came.first.Add(-lookFor - admittedWithin)
		c.memory.arrivals.pods[name] = came
	}
	c.mu.Unlock()
	if err := k.RunPod(t.Context(), podOn("greedy", 1, 5)); err == nil {
		t.Fatal("a pod was admitted that asks for too much")
	}
	if n, err := readNotes(c.Checkpoint); err != nil || n.allocated[allocation{gpu, granted.Offered()}] == "" {
		t.Fatalf("the checkpoint has %v, %v", n.allocated, err)
	}
	h := c.Owners(t.Context())
	c.readCheckpoint()
	wantState(t, h, granted, "idle")
	wantState(t, c.known(), granted, "idle")
	wantState(t, c.known(), old, "held by old")
}

func TestAHangingKubelet(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	offers(t, k, gpu, healthy("a")...)
	runs(t, k, podOn("one", 1))
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	at := c.Owners(t.Context()).At
	hold := make(chan struct{})
	k.Trouble(kubelet.Trouble{HoldList: hold})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	h := c.Owners(ctx)
	wantState(t, h, "a", "held by one")
	if status.Code(h.Err) != codes.DeadlineExceeded || !h.At.Equal(at) {
		t.Errorf("Err is %v, At %s after the answer", h.Err, h.At.Sub(at))
	}
	close(hold)
	if h := c.Owners(t.Context()); h.Err != nil || !h.At.After(at) {
		t.Errorf("after the hang Err is %v", h.Err)
	}
}

func TestNoKubelet(t *testing.T) {
	c := clientOf(t, filepath.Join(shortDir(t), "kubelet.sock"), Trace{})
	for range 3 {
		h := c.Owners(t.Context())
		if status.Code(errors.Unwrap(h.Err)) != codes.Unavailable || !strings.Contains(h.Err.Error(), "no such file") {
			t.Errorf("Err is %v", h.Err)
		}
		wantState(t, h, "a", "unknown")
	}
}
