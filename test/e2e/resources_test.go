package e2e

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// idsByResource contains sorted device ids by resource.
type idsByResource map[string][]string

// waitForResources waits until exactly these devices are allocatable.
func waitForResources(ctx context.Context, t *testing.T, n *node.RealNode, want idsByResource) {
	t.Helper()
	await(ctx, t, fmt.Sprintf("allocatable devices are %s", want), hasResources(n, want))
}

func hasResources(n *node.RealNode, want idsByResource) func(context.Context) error {
	return func(ctx context.Context) error {
		if got, err := n.AllAllocatable(ctx); err != nil || !reflect.DeepEqual(idsByResource(got), want) {
			return fmt.Errorf("allocatable devices: got %s, want %s, %w", idsByResource(got), want, err)
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
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// podWithResource returns a pod whose container "main" requests this count of a resource and runs until the pod is deleted.
func podWithResource(name, resource string, count int) node.StaticPod {
	return node.StaticPod{Name: name, Containers: []node.StaticContainer{{Name: "main", Limits: map[string]int{resource: count}}}}
}

// waitForDevices waits until the kubelet's List has all devices that a pod's container "main" requests, and returns the sorted ids.
func waitForDevices(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) []string {
	t.Helper()
	var ids []string
	for resource, count := range p.Containers[0].Limits {
		if !strings.Contains(resource, "/") { // CPUs and memory
			continue
		}
		await(ctx, t, fmt.Sprintf("List has pod %s with its %s", p.Name, resource), func(ctx context.Context) error {
			owners, err := n.Owners(ctx, resource)
			if err != nil {
				return err
			}
			ids = []string{}
			for id, owner := range owners {
				if owner == mainContainer(p) {
					ids = append(ids, id)
				}
			}
			if len(ids) != count {
				return fmt.Errorf("devices: got %q, want %d", ids, count)
			}
			return nil
		})
	}
	slices.Sort(ids)
	return ids
}

// runRejectedPod runs a pod, checks that the kubelet rejects it with this reason and a message that contains all words, and deletes it.
func runRejectedPod(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod, reason string, words ...string) {
	t.Helper()
	status, err := n.RunPod(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if status.Phase != "Failed" || status.Reason != reason {
		t.Errorf("pod %s: got %s %s (%s), want Failed %s", p.Name, status.Phase, status.Reason, status.Message, reason)
	}
	for _, word := range words {
		if !strings.Contains(status.Message, word) {
			t.Errorf("message of rejected pod %s: got %q, want %q in it", p.Name, status.Message, word)
		}
	}
	if err := n.DeletePod(p); err != nil {
		t.Fatal(err)
	}
}

// checkVisibleDevices checks the environment variable of NVIDIA's container runtime.
func checkVisibleDevices(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod, want string) {
	t.Helper()
	env, err := containerEnv(ctx, n, p, "main")
	if got := env["NVIDIA_VISIBLE_DEVICES"]; err != nil || got != want {
		t.Errorf("NVIDIA_VISIBLE_DEVICES of pod %s: got %q (%v), want %q", p.Name, got, err, want)
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

// listLengths returns the lengths of a resource's device lists, from the kubelet's log.
func listLengths(n *node.RealNode, resource string) ([]int, error) {
	out, err := n.Kubelet().Output()
	if err != nil {
		return nil, err
	}
	lengths := []int{}
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		// "Processed device updates for resource" resourceName="nvidia.com/gpu" totalCount=8 healthyCount=8
		_, rest, found := strings.Cut(lines.Text(), `"Processed device updates for resource" resourceName="`+resource+`" totalCount=`)
		if !found {
			continue
		}
		number, _, _ := strings.Cut(rest, " ")
		length, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("read the kubelet's log: %w", err)
		}
		lengths = append(lengths, length)
	}
	return lengths, nil
}

// waitForEmptyList waits until the kubelet's latest device list of a resource is empty.
func waitForEmptyList(ctx context.Context, t *testing.T, n *node.RealNode, resource string) {
	t.Helper()
	await(ctx, t, "the latest device list of "+resource+" is empty", func(context.Context) error {
		lengths, err := listLengths(n, resource)
		if err != nil || len(lengths) == 0 || lengths[len(lengths)-1] != 0 {
			return fmt.Errorf("lengths of device lists: got %v, %w", lengths, err)
		}
		return nil
	})
}

// checkKubeletNotRestarted checks that the kubelet's process still runs.
func checkKubeletNotRestarted(t *testing.T, n *node.RealNode) {
	t.Helper()
	select {
	case <-n.Kubelet().Done():
		t.Error("the kubelet has exited")
	default:
	}
}
