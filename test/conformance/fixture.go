package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// caseFixture is what one habit needs: a kubelet, a resource of its own, and ways to look.
type caseFixture struct {
	*testing.T
	k           Kubelet
	ctx         context.Context // ends before the test's own deadline can
	resource    string
	name        string // the beginning of its pods' names
	socketCount int    // how many the habit has made
	lister      podresources.PodResourcesListerClient
}

// waitTimeout is how long a habit waits for something that a real kubelet does within a second or
// two.
const waitTimeout = 30 * time.Second

func newCaseFixture(t *testing.T, k Kubelet) *caseFixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*waitTimeout)
	t.Cleanup(cancel)
	// The kubelet remembers resources, so that each run of a habit needs one that it has not
	// seen.
	name := fmt.Sprintf("habit-%08x", rand.Uint32())
	s := &caseFixture{T: t, k: k, ctx: ctx, name: name, resource: "habits.test/" + name}
	s.lister = podresources.NewPodResourcesListerClient(s.dial("pod-resources"))
	return s
}

// dial keeps a connection that comes back fast where the kubelet was away.
func (s *caseFixture) dial(service string) *grpc.ClientConn {
	s.Helper()
	quick := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}
	conn, err := grpc.NewClient("unix:"+filepath.Join(s.k.Dir(), service, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second}))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	return conn
}

// register sends one registration, whose deadline is the plugin's own.
func (s *caseFixture) register(ctx context.Context, request *pluginapi.RegisterRequest) error {
	conn := s.dial("device-plugins")
	defer func() { _ = conn.Close() }()
	_, err := pluginapi.NewRegistrationClient(conn).Register(ctx, request)
	return err
}

// waitFor polls, since a kubelet tells nobody when it has done something.
func (s *caseFixture) waitFor(what string, try func() error) {
	s.Helper()
	deadline, tick := time.NewTimer(waitTimeout), time.NewTicker(25*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			s.Fatalf("%s: not after %v: %v", what, waitTimeout, err)
		case <-s.ctx.Done():
			s.Fatalf("%s: %v: %v", what, s.ctx.Err(), err)
		}
	}
}

// callWithRetry repeats a call that the rate limit has turned away.
func callWithRetry[Request, Answer any](s *caseFixture, call func(context.Context, Request, ...grpc.CallOption) (Answer, error), request Request) (Answer, error) {
	for {
		answer, err := call(s.ctx, request)
		if status.Code(err) != codes.ResourceExhausted {
			return answer, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.ctx.Done():
			return answer, err
		}
	}
}

// allocatable are the entries that GetAllocatableResources has for the habit's resource,
// sorted.
func (s *caseFixture) allocatable() ([]string, error) {
	answer, err := callWithRetry(s, s.lister.GetAllocatableResources, &podresources.AllocatableResourcesRequest{})
	return s.entries(answer.GetDevices()), err
}

func (s *caseFixture) entries(devices []*podresources.ContainerDevices) []string {
	all := []string{}
	for _, d := range devices {
		if d.ResourceName == s.resource {
			all = append(all, formatDevices(d))
		}
	}
	slices.Sort(all)
	return all
}

// formatDevices writes an entry as its ids and the NUMA nodes of its Topology: "a", "a[]", "a[0]".
func formatDevices(d *podresources.ContainerDevices) string {
	text := strings.Join(d.DeviceIds, ",")
	if d.Topology != nil {
		nodes := []int64{}
		for _, node := range d.Topology.Nodes {
			nodes = append(nodes, node.ID)
		}
		text += fmt.Sprint(nodes)
	}
	return text
}

func (s *caseFixture) waitForAllocatable(want ...string) {
	s.Helper()
	s.waitFor(fmt.Sprintf("GetAllocatableResources has %q", want), func() error {
		got, err := s.allocatable()
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it has %q", got)
		}
		return err
	})
}

// requireAllocatableUnchanged is for what must not happen: the kubelet has a while to do it, several times
// what it takes where it does.
func (s *caseFixture) requireAllocatableUnchanged(want ...string) {
	s.Helper()
	for range 10 {
		s.waitForAllocatable(want...)
		time.Sleep(25 * time.Millisecond)
	}
	if got, err := s.allocatable(); err != nil || !slices.Equal(got, want) {
		s.Fatalf("GetAllocatableResources has %q, %v; want %q to stay", got, err, want)
	}
}

// list is List, of the habit's own pods: for each its containers, and for each of these its
// entries, sorted.
func (s *caseFixture) list() (map[string][]listedContainer, error) {
	answer, err := callWithRetry(s, s.lister.List, &podresources.ListPodResourcesRequest{})
	pods := map[string][]listedContainer{}
	for _, pod := range answer.GetPodResources() {
		if strings.HasPrefix(pod.Name, s.name) {
			pods[pod.Name] = s.containers(pod)
		}
	}
	return pods, err
}

// listedContainer is a container of a pod.
type listedContainer struct {
	Name    string
	Devices []string
}

func (s *caseFixture) containers(pod *podresources.PodResources) []listedContainer {
	all := []listedContainer{}
	for _, c := range pod.Containers {
		all = append(all, listedContainer{c.Name, s.entries(c.Devices)})
	}
	return all
}

// waitForListed waits until List shows a pod like this; nil means not at all.
func (s *caseFixture) waitForListed(pod string, want []listedContainer) {
	s.Helper()
	s.waitFor(fmt.Sprintf("List has %v for pod %s", want, pod), func() error {
		pods, err := s.list()
		if err == nil && !reflect.DeepEqual(pods[pod], want) {
			err = fmt.Errorf("it has %v", pods)
		}
		return err
	})
}

func (s *caseFixture) get(pod string) ([]listedContainer, error) {
	answer, err := callWithRetry(s, s.lister.Get, &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: pod})
	if err != nil {
		return nil, err
	}
	return s.containers(answer.PodResources), nil
}

// podSpec names a pod of the habit's with one container "main" that asks for n devices.
func (s *caseFixture) podSpec(name string, n int) kubelet.PodSpec {
	return kubelet.PodSpec{Name: s.name + "-" + name, Static: true, Containers: []kubelet.ContainerSpec{s.containerSpec("main", n)}}
}

func (s *caseFixture) containerSpec(name string, n int) kubelet.ContainerSpec {
	return kubelet.ContainerSpec{Name: name, Limits: map[string]int{s.resource: n}}
}

// runPod runs a pod, and removes it when the test ends.
func (s *caseFixture) runPod(pod kubelet.PodSpec) kubelet.PodStatus {
	s.Helper()
	s.Cleanup(func() { _ = s.k.RemovePod(context.WithoutCancel(s.ctx), pod) }) // may be gone already
	got, err := s.k.RunPod(s.ctx, pod)
	if err != nil {
		s.Fatal(err)
	}
	return got
}

// runAdmittedPod is run of a pod that has to be admitted.
func (s *caseFixture) runAdmittedPod(pod kubelet.PodSpec) kubelet.PodStatus {
	s.Helper()
	got := s.runPod(pod)
	if got.Phase == "Failed" {
		s.Fatalf("pod %s was rejected: %s: %s", pod.Name, got.Reason, got.Message)
	}
	return got
}

// runRejectedPod is run of a pod that must not be admitted, with a reason that the test knows.
func (s *caseFixture) runRejectedPod(pod kubelet.PodSpec, reason string) kubelet.PodStatus {
	s.Helper()
	got := s.runPod(pod)
	want := fmt.Sprintf("Allocate failed due to %s, which is unexpected", reason)
	if got.Phase != "Failed" || got.Reason != "UnexpectedAdmissionError" || !strings.Contains(got.Message, want) {
		s.Errorf("pod %s: %s %s %q; want Failed UnexpectedAdmissionError %q", pod.Name, got.Phase, got.Reason, got.Message, want)
	}
	s.waitForListed(got.Name, nil)
	return got
}

// waitForHealth waits until a container's allocatedResourcesStatus is this: "a Healthy".
func (s *caseFixture) waitForHealth(pod kubelet.PodSpec, want ...string) {
	s.Helper()
	s.waitFor(fmt.Sprintf("allocatedResourcesStatus is %q", want), func() error {
		got, err := s.health(pod)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
}

func (s *caseFixture) health(pod kubelet.PodSpec) ([]string, error) {
	status, err := s.k.Pod(s.ctx, pod)
	all := []string{}
	for _, container := range status.Containers {
		for _, d := range container.Devices {
			if d.Resource != s.resource {
				return nil, fmt.Errorf("container %s has a status of %s", container.Name, d.Resource)
			}
			all = append(all, d.ID+" "+d.Health)
		}
	}
	slices.Sort(all)
	return all, err
}

// restart restarts the kubelet; while may be nil.
func (s *caseFixture) restart(signal syscall.Signal, while func()) {
	s.Helper()
	if while == nil {
		while = func() {}
	}
	if err := s.k.Restart(s.ctx, signal, while); err != nil {
		s.Fatal(err)
	}
}

// wantError checks an error's code, and its text if there is one to check.
func (s *caseFixture) wantError(err error, code codes.Code, text string) {
	s.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		s.Errorf("the error is %v; want code %v and %q", err, code, text)
	}
}

func healthy(ids ...string) []*pluginapi.Device { return devices(pluginapi.Healthy, ids...) }

func devices(health string, ids ...string) []*pluginapi.Device {
	all := []*pluginapi.Device{}
	for _, id := range ids {
		all = append(all, &pluginapi.Device{ID: id, Health: health})
	}
	return all
}

// onNUMANodes gives a device a Topology with these nodes.
func onNUMANodes(d *pluginapi.Device, nodes ...int64) *pluginapi.Device {
	d.Topology = &pluginapi.TopologyInfo{}
	for _, node := range nodes {
		d.Topology.Nodes = append(d.Topology.Nodes, &pluginapi.NUMANode{ID: node})
	}
	return d
}
