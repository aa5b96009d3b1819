package e2e

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

const gpuResource = "nvidia.com/gpu"

// newNode returns a node without a kubelet.
func newNode(t *testing.T, o node.Options) *node.RealNode {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeout)
	defer cancel()
	return node.ForTest(ctx, t, o)
}

// startNode returns a node whose kubelet started an hour ago, by the time of its socket: in the kubelet's first minute, podgauge does
// not report devices without a pod as idle (ADR 21).
func startNode(t *testing.T, o node.Options) *node.RealNode {
	t.Helper()
	n := newNode(t, o)
	startKubelet(t, n)
	hourAgo := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(n.PodResourcesSocket(), hourAgo, hourAgo))
	return n
}

func startKubelet(t *testing.T, n *node.RealNode) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeout)
	defer cancel()
	start, err := n.StartKubelet(ctx)
	must(t, err)
	t.Logf("kubelet ready after %s", time.Since(start).Round(time.Millisecond))
}

func stopKubelet(t *testing.T, n *node.RealNode, signal syscall.Signal) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	must(t, n.StopKubelet(ctx, signal))
}

// measureRegistration calls begin, which causes a new kubelet socket, and returns the time from the socket to the wanted allocatable GPUs.
func measureRegistration(t *testing.T, n *node.RealNode, begin func(), want ...string) time.Duration {
	t.Helper()
	before, err := n.KubeletSocketTime()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeout)
	defer cancel()
	registered := make(chan error, 1)
	var took time.Duration // written before registered
	go func() {
		err := node.Until(ctx, "all GPUs are allocatable in the new kubelet", func(ctx context.Context) error {
			if created, err := n.KubeletSocketTime(); err != nil || created.Equal(before) {
				return fmt.Errorf("no new socket: %w", err)
			}
			return hasAllocatable(n, want...)(ctx)
		})
		created, _ := n.KubeletSocketTime()
		took = time.Since(created)
		registered <- err
	}()
	begin()
	must(t, <-registered)
	return took
}

// checkKubeletNotRestarted checks that the kubelet's process still runs.
func checkKubeletNotRestarted(t *testing.T, n *node.RealNode) {
	t.Helper()
	expect.NoError(t, n.Kubelet().Alive())
}

// idsByResource contains sorted device ids by resource.
type idsByResource map[string][]string

// waitForResources waits until exactly these devices are allocatable.
func waitForResources(t *testing.T, n *node.RealNode, want idsByResource) time.Duration {
	t.Helper()
	return await(t, fmt.Sprintf("allocatable devices are %s", want), hasResources(n, want))
}

// waitForAllocatable waits until exactly these GPUs are allocatable, and no other devices.
func waitForAllocatable(t *testing.T, n *node.RealNode, want ...string) time.Duration {
	t.Helper()
	return await(t, fmt.Sprintf("%d GPUs are allocatable", len(want)), hasAllocatable(n, want...))
}

func hasAllocatable(n *node.RealNode, want ...string) func(context.Context) error {
	if len(want) == 0 {
		return hasResources(n, idsByResource{})
	}
	return hasResources(n, idsByResource{gpuResource: want})
}

func hasResources(n *node.RealNode, want idsByResource) func(context.Context) error {
	return func(ctx context.Context) error {
		if got, err := n.AllAllocatable(ctx); err != nil || !reflect.DeepEqual(idsByResource(got), want) {
			return fmt.Errorf("allocatable devices: got %q, want %q, %w", got, map[string][]string(want), err)
		}
		return nil
	}
}

// String returns the number of devices of each resource.
func (r idsByResource) String() string {
	words := []string{}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		words = append(words, fmt.Sprintf("%d %s", len(r[name]), name))
	}
	return cmp.Or(strings.Join(words, ", "), "none")
}

// without returns all ids except these.
func without(all []string, ids ...string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(id string) bool { return slices.Contains(ids, id) })
}

// podWithResource returns a pod whose container "main" requests this count of a resource and runs until the pod is deleted.
func podWithResource(name, resource string, count int) node.StaticPod {
	return node.StaticPod{Name: name, Containers: []node.StaticContainer{{Name: "main", Limits: map[string]int{resource: count}}}}
}

func podWithGPUs(name string, gpus int) node.StaticPod {
	return podWithResource(name, gpuResource, gpus)
}

// mainContainer returns the owner key of a pod's container "main".
func mainContainer(p node.StaticPod) node.OwnerKey {
	return node.OwnerKey{Namespace: cmp.Or(p.Namespace, "default"), Pod: p.FullName(), Container: "main"}
}

// runPod runs a pod and returns its status and the time until all its containers ran.
func runPod(t *testing.T, n *node.RealNode, p node.StaticPod) (node.StaticPodStatus, time.Duration) {
	t.Helper()
	begin := time.Now()
	status := runPodToAnyEnd(t, n, p)
	if status.Phase == "Failed" {
		t.Fatalf("pod %s was rejected: %s: %s", p.Name, status.Reason, status.Message)
	}
	return status, time.Since(begin)
}

// runPodToAnyEnd runs a pod that may be rejected.
func runPodToAnyEnd(t *testing.T, n *node.RealNode, p node.StaticPod) node.StaticPodStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	status, err := n.RunPod(ctx, p)
	must(t, err)
	return status
}

// runRejectedPod runs a pod, checks that the kubelet rejects it with this reason and a message that contains all words, and deletes it.
func runRejectedPod(t *testing.T, n *node.RealNode, p node.StaticPod, reason string, words ...string) {
	t.Helper()
	status := runPodToAnyEnd(t, n, p)
	if status.Phase != "Failed" || status.Reason != reason {
		t.Errorf("pod %s: got %s %s (%s), want Failed %s", p.Name, status.Phase, status.Reason, status.Message, reason)
	}
	for _, word := range words {
		if !strings.Contains(status.Message, word) {
			t.Errorf("message of rejected pod %s: got %q, want %q in it", p.Name, status.Message, word)
		}
	}
	must(t, n.DeletePod(p))
}

// removePod deletes a pod and waits until the kubelet's List no longer contains it.
func removePod(t *testing.T, n *node.RealNode, p node.StaticPod) {
	t.Helper()
	must(t, n.DeletePod(p))
	waitForPodEnd(t, n, p)
}

// waitForPodEnd waits until the kubelet's List no longer contains the pod.
func waitForPodEnd(t *testing.T, n *node.RealNode, p node.StaticPod) {
	t.Helper()
	await(t, fmt.Sprintf("pod %s has ended", p.Name), func(ctx context.Context) error {
		pods, err := n.ListPodResources(ctx)
		for _, listed := range pods {
			if listed.Name == p.FullName() {
				return errors.New("List still contains the pod")
			}
		}
		return err
	})
}

// waitForOwners waits until the kubelet's List has all devices that the pods request, and returns the owner of each device.
func waitForOwners(t *testing.T, n *node.RealNode, pods ...node.StaticPod) map[string]node.OwnerKey {
	t.Helper()
	owners := map[string]node.OwnerKey{}
	for _, p := range pods {
		for _, c := range p.Containers {
			for resource, count := range c.Limits {
				if strings.Contains(resource, "/") { // not CPUs and memory
					owner := mainContainer(p)
					owner.Container = c.Name
					for _, id := range waitForContainer(t, n, owner, resource, count) {
						owners[id] = owner
					}
				}
			}
		}
	}
	return owners
}

// waitForContainer waits until the kubelet's List has this number of a container's devices, and returns their ids.
func waitForContainer(t *testing.T, n *node.RealNode, owner node.OwnerKey, resource string, count int) (ids []string) {
	t.Helper()
	await(t, fmt.Sprintf("List has %d %s of %v", count, resource, owner), func(ctx context.Context) error {
		owners, err := n.Owners(ctx, resource)
		ids = slices.DeleteFunc(slices.Sorted(maps.Keys(owners)), func(id string) bool { return owners[id] != owner })
		if len(ids) != count {
			return fmt.Errorf("devices: got %q, %w", ids, err)
		}
		return nil
	})
	return ids
}

// waitForDevices waits until the kubelet's List has all devices that a pod requests, and returns the sorted ids.
func waitForDevices(t *testing.T, n *node.RealNode, p node.StaticPod) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(waitForOwners(t, n, p)))
}

// runPodWithGPU runs a pod with a GPU and returns the pod, its status and the id of the GPU.
func runPodWithGPU(t *testing.T, n *node.RealNode, name string) (node.StaticPod, node.StaticPodStatus, string) {
	t.Helper()
	pod := podWithGPUs(name, 1)
	status, _ := runPod(t, n, pod)
	return pod, status, waitForDevices(t, n, pod)[0]
}

// hasDeviceHealth returns a condition for await: the pod's status has exactly this device, with this health.
func hasDeviceHealth(n *node.RealNode, pod node.StaticPod, want node.DeviceHealth) func(context.Context) error {
	return func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		// The status lacks containers for some time after the kubelet's start.
		if err == nil && (len(status.Containers) == 0 || !slices.Equal(status.Containers[0].Devices, []node.DeviceHealth{want})) {
			err = fmt.Errorf("containers of the pod: got %+v, want device %v", status.Containers, want)
		}
		return err
	}
}

// checkSameContainer returns an error unless a pod's container still runs and was not restarted.
func checkSameContainer(ctx context.Context, n *node.RealNode, p node.StaticPod, before node.StaticPodStatus) error {
	now, err := n.Pod(ctx, p)
	if err != nil {
		return err
	}
	if len(now.Containers) == 0 {
		return fmt.Errorf("no containers in the status of pod %s", p.Name)
	}
	if was, is := before.Containers[0], now.Containers[0]; is.ID != was.ID || is.State != "running" || is.Restarts != was.Restarts {
		return fmt.Errorf("container of pod %s: got %+v, want %+v", p.Name, is, was)
	}
	return nil
}

// gpuListTimes returns the times at which the current kubelet received device lists of GPUs, from the kubelet's log.
func gpuListTimes(t *testing.T, n *node.RealNode) (times []time.Time) {
	t.Helper()
	out, err := n.Kubelet().Output()
	must(t, err)
	year := fmt.Sprint(time.Now().Year())
	for _, line := range linesWith(out, `"State pushed for device plugin" resource="`+gpuResource+`"`) {
		// I1121 09:04:25.123456    1234 client.go:98] "State pushed for device plugin" resource="nvidia.com/gpu" resourceCapacity=8
		at, err := time.ParseInLocation("20060102 15:04:05.000000", year+line[1:21], time.Local)
		must(t, err)
		times = append(times, at)
	}
	return times
}

// firstListAfter waits for a device list after begin in the kubelet's log, and returns its time.
func firstListAfter(t *testing.T, n *node.RealNode, begin time.Time) (at time.Time) {
	t.Helper()
	await(t, "the kubelet logs a device list", func(context.Context) error {
		times := gpuListTimes(t, n)
		i := slices.IndexFunc(times, begin.Before)
		if i < 0 {
			return errors.New("no device list in the kubelet's log")
		}
		at = times[i]
		return nil
	})
	return at
}

// waitForEmptyList waits until the kubelet's latest device list of a resource is empty, by the kubelet's log.
func waitForEmptyList(t *testing.T, n *node.RealNode, resource string) {
	t.Helper()
	await(t, "the latest device list of "+resource+" is empty", func(context.Context) error {
		out, err := n.Kubelet().Output()
		length := -1
		for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
			// "Processed device updates for resource" resourceName="nvidia.com/gpu" totalCount=8 healthyCount=8
			_, rest, found := strings.Cut(lines.Text(), `"Processed device updates for resource" resourceName="`+resource+`" totalCount=`)
			if found {
				number, _, _ := strings.Cut(rest, " ")
				length, err = strconv.Atoi(number)
			}
		}
		if err != nil || length != 0 {
			return fmt.Errorf("length of the device list: got %d, %w", length, err)
		}
		return nil
	})
}
