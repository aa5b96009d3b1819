package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
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
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
)

// Short names for the cases.
var (
	healthy     = deviceplugin.Healthy
	unhealthy   = deviceplugin.Unhealthy
	onNUMANodes = deviceplugin.OnNUMANodes
)

// kubeletCase checks a behavior of the kubelet.
type kubeletCase struct {
	name string
	run  func(s *caseFixture)
}

// caseFixture has the kubelet and the resource of a case.
type caseFixture struct {
	*testing.T
	k           Kubelet
	ctx         context.Context // ends before the test's deadline
	resource    string
	name        string // prefix of pod and socket names
	socketCount int
	lister      podresources.PodResourcesListerClient
}

// waitTimeout is a generous limit: real kubelets need at most two seconds.
const waitTimeout = 30 * time.Second

func newCaseFixture(t *testing.T, k Kubelet) *caseFixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*waitTimeout)
	t.Cleanup(cancel)
	name := fmt.Sprintf("case-%08x", rand.Uint32()) // the kubelet keeps resources, so each run needs a new name
	s := &caseFixture{T: t, k: k, ctx: ctx, name: name, resource: "conformance.test/" + name}
	s.lister = podresources.NewPodResourcesListerClient(s.dial("pod-resources", "kubelet.sock"))
	return s
}

// dial returns a connection with fast reconnects after a restart of the
// kubelet.
func (s *caseFixture) dial(socket ...string) *grpc.ClientConn {
	s.Helper()
	fast := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}
	conn, err := grpc.NewClient("unix:"+s.path(socket...), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: fast, MinConnectTimeout: time.Second}))
	s.must(err)
	s.Cleanup(func() { _ = conn.Close() })
	return conn
}

// path returns a path in the kubelet's folder.
func (s *caseFixture) path(elem ...string) string {
	return filepath.Join(append([]string{s.k.Dir()}, elem...)...)
}

func (s *caseFixture) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// waitFor calls try until it returns no error. The kubelet's APIs have no
// notifications of changes.
func (s *caseFixture) waitFor(what string, try func() error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, waitTimeout)
	defer cancel()
	for err := try(); err != nil; err = try() {
		if ended := retry.Sleep(ctx, 25*time.Millisecond); ended != nil {
			s.Fatalf("%s: %v: %v", what, ended, err)
		}
	}
}

// waitForValue calls get until the value, formatted as text, equals want.
func (s *caseFixture) waitForValue(what string, get func() (any, error), want any) {
	s.Helper()
	s.waitFor(fmt.Sprintf("%s: want %v", what, want), func() error {
		got, err := get()
		if err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
			err = fmt.Errorf("got %v", got)
		}
		return err
	})
}

// callWithRetry repeats a call that the kubelet's rate limit rejects.
func callWithRetry[Request, Response any](
	s *caseFixture, call func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request,
) (Response, error) {
	for {
		response, err := call(s.ctx, request)
		if status.Code(err) != codes.ResourceExhausted || retry.Sleep(s.ctx, 20*time.Millisecond) != nil {
			return response, err
		}
	}
}

// allocatable returns the rows of GetAllocatableResources for the case's
// resource.
func (s *caseFixture) allocatable() (any, error) {
	response, err := callWithRetry(s, s.lister.GetAllocatableResources, &podresources.AllocatableResourcesRequest{})
	return s.rows(response.GetDevices()), err
}

func (s *caseFixture) waitForAllocatable(want ...string) {
	s.Helper()
	s.waitForValue("GetAllocatableResources", s.allocatable, want)
}

// requireAllocatable checks that the rows do not change, for several times the
// duration of a change.
func (s *caseFixture) requireAllocatable(want ...string) {
	s.Helper()
	for range 10 {
		s.waitForAllocatable(want...)
		time.Sleep(25 * time.Millisecond)
	}
	if got, err := s.allocatable(); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		s.Fatalf("GetAllocatableResources: %q, %v; want %q without changes", got, err, want)
	}
}

// rows returns the rows of the case's resource, sorted: ids and NUMA nodes,
// "a", "a[]", "a[0]".
func (s *caseFixture) rows(devices []*podresources.ContainerDevices) []string {
	all := []string{}
	for _, d := range devices {
		if d.ResourceName != s.resource {
			continue
		}
		row := strings.Join(d.DeviceIds, ",")
		if d.Topology != nil {
			nodes := []int64{}
			for _, node := range d.Topology.Nodes {
				nodes = append(nodes, node.ID)
			}
			row += fmt.Sprint(nodes)
		}
		all = append(all, row)
	}
	slices.Sort(all)
	return all
}

// containers returns a pod's containers with their rows: "main[a b] side[]".
func (s *caseFixture) containers(pod *podresources.PodResources) string {
	var all []string
	for _, c := range pod.GetContainers() {
		all = append(all, c.Name+fmt.Sprint(s.rows(c.Devices)))
	}
	return strings.Join(all, " ")
}

// list returns the containers of the case's pods, by pod.
func (s *caseFixture) list() (map[string]string, error) {
	response, err := callWithRetry(s, s.lister.List, &podresources.ListPodResourcesRequest{})
	pods := map[string]string{}
	for _, pod := range response.GetPodResources() {
		if strings.HasPrefix(pod.Name, s.name) {
			pods[pod.Name] = s.containers(pod)
		}
	}
	return pods, err
}

// listed returns the containers of a pod.
func (s *caseFixture) listed(pod string) string {
	s.Helper()
	pods, err := s.list()
	s.must(err)
	return pods[pod]
}

// waitForListed waits until List has a pod with the wanted containers; "" waits
// until List lacks the pod.
func (s *caseFixture) waitForListed(pod, want string) {
	s.Helper()
	s.waitForValue("List of pod "+pod, func() (any, error) {
		pods, err := s.list()
		return pods[pod], err
	}, want)
}

func (s *caseFixture) get(pod string) (string, error) {
	request := &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: pod}
	response, err := callWithRetry(s, s.lister.Get, request)
	return s.containers(response.GetPodResources()), err
}

// podSpec returns a pod with a container "main" requesting n devices.
func (s *caseFixture) podSpec(name string, n int) kubelet.PodSpec {
	main := s.containerSpec("main", n)
	return kubelet.PodSpec{Name: s.name + "-" + name, Static: true, Containers: []kubelet.ContainerSpec{main}}
}

func (s *caseFixture) containerSpec(name string, n int) kubelet.ContainerSpec {
	return kubelet.ContainerSpec{Name: name, Limits: map[string]int{s.resource: n}}
}

// runPod runs a pod, and removes the pod when the test ends.
func (s *caseFixture) runPod(pod kubelet.PodSpec) kubelet.PodStatus {
	s.Helper()
	s.Cleanup(func() { _ = s.k.RemovePod(context.WithoutCancel(s.ctx), pod) }) // the pod may be removed already
	got, err := s.k.RunPod(s.ctx, pod)
	s.must(err)
	return got
}

func (s *caseFixture) runAdmittedPod(pod kubelet.PodSpec) kubelet.PodStatus {
	s.Helper()
	got := s.runPod(pod)
	if got.Phase == "Failed" {
		s.Fatalf("pod %s was rejected: %s: %s", pod.Name, got.Reason, got.Message)
	}
	return got
}

func (s *caseFixture) runRejectedPod(pod kubelet.PodSpec, reason string) kubelet.PodStatus {
	s.Helper()
	got := s.runPod(pod)
	want := fmt.Sprintf("Allocate failed due to %s, which is unexpected", reason)
	if got.Phase != "Failed" || got.Reason != "UnexpectedAdmissionError" || !strings.Contains(got.Message, want) {
		s.Errorf("pod %s: %s %s %q; want Failed UnexpectedAdmissionError %q",
			pod.Name, got.Phase, got.Reason, got.Message, want)
	}
	s.waitForListed(got.Name, "")
	return got
}

// unavailable returns the kubelet's reason for rejecting a request of too many
// devices.
func (s *caseFixture) unavailable(requested, available int) string {
	return fmt.Sprintf("requested number of devices unavailable for %s. Requested: %d, Available: %d",
		s.resource, requested, available)
}

// allUnhealthy returns the kubelet's reason for rejecting a request without
// healthy devices.
func (s *caseFixture) allUnhealthy() string {
	return "no healthy devices present; cannot allocate unhealthy devices " + s.resource
}

// waitForHealth waits for a pod's allocatedResourcesStatus: "a Healthy".
func (s *caseFixture) waitForHealth(pod kubelet.PodSpec, want ...string) {
	s.Helper()
	s.waitForValue("allocatedResourcesStatus", func() (any, error) {
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
	}, want)
}

// waitForStatus waits until a pod's status is accepted.
func (s *caseFixture) waitForStatus(what string, pod kubelet.PodSpec, accept func(kubelet.PodStatus) bool) {
	s.Helper()
	s.waitFor(what, func() error {
		got, err := s.k.Pod(s.ctx, pod)
		if err == nil && !accept(got) {
			err = fmt.Errorf("got %+v", got)
		}
		return err
	})
}

// restart restarts the kubelet; whileDown may be nil.
func (s *caseFixture) restart(signal syscall.Signal, whileDown func()) {
	s.Helper()
	if whileDown == nil {
		whileDown = func() {}
	}
	s.must(s.k.Restart(s.ctx, signal, whileDown))
}

// wantError checks the code of a gRPC error and a part of its message.
func (s *caseFixture) wantError(err error, code codes.Code, text string) {
	s.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		s.Errorf("error %v; want code %v and %q", err, code, text)
	}
}

func failingAllocate(context.Context) error { return errors.New("out of order") }

// lastIDs prefers the last of the sorted ids.
func lastIDs(available []string, n int) []string { return available[len(available)-n:] }

// withInit adds an init container with a request for n devices.
func (s *caseFixture) withInit(pod kubelet.PodSpec, n int) kubelet.PodSpec {
	pod.InitContainers = []kubelet.ContainerSpec{s.containerSpec("prepare", n)}
	return pod
}

// checkpointData is the part of kubelet_internal_checkpoint that podgauge
// reads.
type checkpointData struct {
	PodDeviceEntries  []checkpointEntry
	RegisteredDevices map[string][]string
}

type checkpointEntry struct {
	PodUID, ContainerName, ResourceName string
	DeviceIDs                           map[string][]string
}

func (s *caseFixture) readCheckpoint() checkpointData {
	s.Helper()
	b, err := os.ReadFile(s.path("device-plugins", "kubelet_internal_checkpoint"))
	s.must(err)
	var c struct{ Data checkpointData }
	s.must(json.Unmarshal(b, &c))
	return c.Data
}
