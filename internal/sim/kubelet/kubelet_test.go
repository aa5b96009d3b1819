package kubelet_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// waitTimeout is the limit of waits that take milliseconds.
const waitTimeout = 20 * time.Second

func TestRunFails(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		file: "not a directory",
		filepath.Join(dir, strings.Repeat("x", 100)): "invalid argument",
	} {
		if err := kubelet.New(kubelet.Options{Dir: dir}).Run(t.Context()); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("Run: got %v, want %q", err, want)
		}
	}
}

func TestRunningSince(t *testing.T) {
	t.Parallel()
	since := time.Now().Add(-time.Hour).Truncate(time.Second)
	k := start(t, kubelet.Options{RunningSince: since})
	modified := func() time.Time {
		info, err := os.Stat(k.PodResourcesSocket())
		if err != nil {
			t.Fatal(err)
		}
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
	k := start(t, kubelet.Options{Now: clock.now})
	p := registerPlugin(t, k, "a", "b")
	runPod(t, k, podWithGPUs("owner", 1))
	p.stop()
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Allocatable == 0 })
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
	waitForState(t, k, func(s kubelet.KubeletState) bool {
		const want = "endpoint not found in cache for a registered resource: " + gpuResource
		return s.Pods[0].Containers[0].WaitingReason == want
	})
}

// TestEmptyListHasNoCapacity withdraws a resource of a plugin. The resource
// remains registered for more than five minutes.
func TestEmptyListHasNoCapacity(t *testing.T) {
	t.Parallel()
	var clock fakeClock
	k := start(t, kubelet.Options{Now: clock.now})
	p := registerPlugin(t, k, "a", "b")
	runPod(t, k, podWithGPUs("owner", 1))
	p.lists <- nil
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Updates == 2 })
	clock.add(time.Hour)
	if got := k.Resource(gpuResource); got.Capacity != 0 || got.Allocatable != 0 || !got.Registered ||
		len(got.Devices) != 0 || len(got.Sockets) != 1 {
		t.Errorf("got resource %+v, want registered, without devices", got)
	}
	if got := list(t, k); len(got["default/owner/main"]) != 1 {
		t.Errorf("List: got %v, want a device of container main", got)
	}
	p.lists <- healthy("a", "b")
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Capacity == 2 })
}

func TestRepeatedLists(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	p := registerPlugin(t, k, "a", "b")
	p.lists <- healthy("b", "a")
	p.lists <- append(healthy("a"), &pluginapi.Device{
		ID: "b", Health: pluginapi.Healthy,
		Topology: &pluginapi.TopologyInfo{},
	})
	p.lists <- healthy("a", "b")
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Updates == 4 })
	p.stop()
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Allocatable == 0 })
	next := registerPlugin(t, k, "a", "b") // the first list of a stream is not a repeat
	if got := k.Resource(gpuResource); got.Updates != 5 || got.Repeats != 1 ||
		!reflect.DeepEqual(got.Sockets, []string{next.socket}) {
		t.Errorf("got resource %+v, want 5 lists, one of them repeated", got)
	}
	want := []kubelet.Registration{
		{Resource: gpuResource, Endpoint: p.socket},
		{Resource: gpuResource, Endpoint: next.socket},
	}
	if got := k.State().Registrations; !reflect.DeepEqual(got, want) {
		t.Errorf("got registrations %v, want %v", got, want)
	}
}

func TestDeletedPodIsListedForGracePeriod(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	registerPlugin(t, k, "a", "b")
	p, brief := podWithGPUs("stubborn", 1), podWithGPUs("brief", 1)
	p.GracePeriod, brief.GracePeriod = time.Hour, 50*time.Millisecond
	runPod(t, k, p)
	runPod(t, k, brief)
	if err := k.DeletePod(p); err != nil {
		t.Fatal(err)
	}
	if got := list(t, k); len(got["default/stubborn/main"]) != 1 {
		t.Errorf("List during the grace period: got %v, want the pod with its device", got)
	}
	var rejected *kubelet.AdmissionError
	if err := k.RunPod(t.Context(), podWithGPUs("next", 1)); !errors.As(err, &rejected) ||
		rejected.Reason != "UnexpectedAdmissionError" {
		t.Errorf("pod with the device of a terminating pod: got %v, want a rejection", err)
	}
	deleted := time.Now()
	if err := k.DeletePod(brief); err != nil {
		t.Fatal(err)
	}
	waitForState(t, k, func(s kubelet.KubeletState) bool { return len(s.Pods) == 2 })
	if took := time.Since(deleted); took < brief.GracePeriod {
		t.Errorf("removal of the pod: got it after %v, want the grace period", took)
	}
	if err := k.DeletePod(brief); !errors.Is(err, kubelet.ErrNoPod) {
		t.Errorf("second deletion: got %v, want ErrNoPod", err)
	}
	runPod(t, k, podWithGPUs("next", 1)) // the name of a failed pod may be used again
}

func TestEndedPodRemainsUntilDeletion(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	registerPlugin(t, k, "a")
	p := podWithGPUs("brief", 1)
	runPod(t, k, p)
	if err := k.RunPod(t.Context(), p); err == nil {
		t.Error("second pod with the name: got no error")
	}
	if err := k.EndPod(p); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Pod(p); err != nil || got.Phase != "Succeeded" || got.InList || got.Containers[0].Running {
		t.Errorf("got pod %+v, error %v, want Succeeded and unlisted", got, err)
	}
	restart(t, k, nil)
	if got, err := k.Pod(p); err != nil || got.Phase != "Succeeded" {
		t.Errorf("pod after a restart: got %+v, error %v, want Succeeded", got, err)
	}
	if err := k.DeletePod(p); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Pod(p); !errors.Is(err, kubelet.ErrNoPod) {
		t.Errorf("deleted pod: got %v, want ErrNoPod", err)
	}
}

func TestListAfterStart(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{ReadPodsAtOnce: true})
	registerPlugin(t, k, "a", "b")
	static := podWithGPUs("static", 1)
	static.Static = true
	runPod(t, k, static)
	runPod(t, k, podWithGPUs("api", 1))
	releaseStatic, releaseAPI := make(chan struct{}), make(chan struct{})
	k.SetFaults(kubelet.Faults{HoldStaticPods: releaseStatic, HoldAPIPods: releaseAPI})
	restart(t, k, nil)
	if got := list(t, k); len(got) != 0 {
		t.Errorf("List before any pod is read: got %v, want none", got)
	}
	if _, err := lister(t, k).Get(t.Context(),
		&podresources.GetPodResourcesRequest{
			PodNamespace: "default",
			PodName:      "api",
		}); status.Code(err) != codes.Unknown {
		t.Errorf("Get before any pod is read: got %v, want code Unknown", err)
	}
	close(releaseStatic)
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.Pods[0].InList })
	if got := list(t, k); len(got) != 1 || len(got["default/static-node-a/main"]) != 1 {
		t.Errorf("List with static pods: got %v, want the static pod", got)
	}
	close(releaseAPI)
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
	if got := list(t, k); len(got) != 2 || len(got["default/api/main"]) != 1 {
		t.Errorf("List with all pods: got %v, want both pods", got)
	}
}

func TestCorruptCheckpointIsIgnored(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	registerPlugin(t, k, "a")
	runPod(t, k, podWithGPUs("owner", 1))
	restart(t, k, func() {
		path := filepath.Join(filepath.Dir(k.RegistrationSocket()), "kubelet_internal_checkpoint")
		if err := os.WriteFile(path, []byte(`{"Data":`), 0o644); err != nil {
			t.Error(err)
		}
	})
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
	if got, want := list(t, k), map[string][]string{"default/owner/main": {}}; !reflect.DeepEqual(got, want) {
		t.Errorf("List: got %v, want %v", got, want)
	}
}

func TestHangingAllocateBlocksNextPod(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	p := servePlugin(t, k)
	entered := make(chan struct{}, 10)
	p.allocate = func(ctx context.Context) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	p.sendHealthy(t, k, "a")
	var pods sync.WaitGroup
	defer pods.Wait()
	pods.Go(func() {
		if err := k.RunPod(t.Context(), podWithGPUs("hung", 1)); err == nil {
			t.Error("RunPod before the end of Allocate: got no error")
		}
	})
	<-entered
	err := callAndCancel(t, func(ctx context.Context) error { return k.RunPod(ctx, kubelet.PodSpec{Name: "next"}) },
		func() {
			waitForState(t, k, func(s kubelet.KubeletState) bool { return len(s.Pods) == 2 })
		})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("next pod: got %v, want it to wait", err)
	}
	if got, want := list(t, k), map[string][]string{"default/hung/main": {}}; !reflect.DeepEqual(got, want) {
		t.Errorf("List: got %v, want %v", got, want)
	}
	// The next kubelet admits both pods again, without a plugin.
	restart(t, k, nil)
	waitForState(t, k, func(s kubelet.KubeletState) bool {
		return s.Pods[0].Phase == "Failed" &&
			s.Pods[1].Phase == "Running"
	})
}

func TestDeviceDroppedDuringAllocateCrashes(t *testing.T) {
	t.Parallel()
	k := kubelet.New(kubelet.Options{Dir: shortDir(t)})
	ended := make(chan error)
	go func() { ended <- k.Run(t.Context()) }()
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.Serving })
	p := servePlugin(t, k)
	p.allocate = func(ctx context.Context) error {
		p.lists <- healthy("b")
		return k.Wait(ctx, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Updates == 2 })
	}
	p.sendHealthy(t, k, "a")
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

func TestWaitsEndWithTheContext(t *testing.T) {
	t.Parallel()
	k := kubelet.New(kubelet.Options{Dir: shortDir(t)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Wait(ctx, func(kubelet.KubeletState) bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: got %v, want Canceled", err)
	}
	if err := k.Restart(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Restart: got %v, want Canceled", err)
	}
	if err := k.RunPod(ctx, podWithGPUs("one", 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("RunPod: got %v, want Canceled", err)
	}
}

func restart(t testing.TB, k *kubelet.Kubelet, while func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := k.Restart(ctx, while); err != nil {
		t.Fatal(err)
	}
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
