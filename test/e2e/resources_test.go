package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// idsByResource are ids by resource, each list sorted.
type idsByResource map[string][]string

// waitForResources waits until the kubelet would give away these ids and no others.
func waitForResources(ctx context.Context, t *testing.T, n *node.RealNode, want idsByResource) {
	t.Helper()
	await(ctx, t, fmt.Sprintf("the kubelet offers %s", want), hasResources(n, want))
}

func hasResources(n *node.RealNode, want idsByResource) func(context.Context) error {
	return func(ctx context.Context) error {
		if got, err := n.AllAllocatable(ctx); err != nil || !reflect.DeepEqual(idsByResource(got), want) {
			return fmt.Errorf("it offers %s: %w", idsByResource(got), err)
		}
		return nil
	}
}

// String counts.
func (r idsByResource) String() string {
	words := []string{}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		words = append(words, fmt.Sprintf("%d %s", len(r[name]), name))
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, ", ")
}

// podWithResource is a pod with one container that holds so many of a resource until it is removed.
func podWithResource(name, resource string, count int) node.StaticPod {
	return node.StaticPod{Name: name, Containers: []node.StaticContainer{{Name: "main", Limits: map[string]int{resource: count}}}}
}

// waitForDevices waits until the kubelet's List has a pod of asks with all its devices, and returns their ids, sorted.
func waitForDevices(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) []string {
	t.Helper()
	var held []string
	for resource, count := range p.Containers[0].Limits {
		if !strings.Contains(resource, "/") { // processors and memory
			continue
		}
		await(ctx, t, fmt.Sprintf("List has pod %s with its %s", p.Name, resource), func(ctx context.Context) error {
			holders, err := n.Owners(ctx, resource)
			if err != nil {
				return err
			}
			held = []string{}
			for id, h := range holders {
				if h == mainContainer(p) {
					held = append(held, id)
				}
			}
			if len(held) != count {
				return fmt.Errorf("it has %q", held)
			}
			return nil
		})
	}
	slices.Sort(held)
	return held
}

// runRejectedPod runs a pod that is not to be admitted, waits until the kubelet says so, and checks that the reason has all these words. The pod is
// taken away again.
func runRejectedPod(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod, reason string, words ...string) {
	t.Helper()
	status, err := n.RunPod(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if status.Phase != "Failed" || status.Reason != reason {
		t.Errorf("pod %s is %s %s (%s), not refused for %s", p.Name, status.Phase, status.Reason, status.Message, reason)
	}
	for _, word := range words {
		if !strings.Contains(status.Message, word) {
			t.Errorf("pod %s was refused without the word %q: %s", p.Name, word, status.Message)
		}
	}
	if err := n.DeletePod(p); err != nil {
		t.Fatal(err)
	}
}

// checkVisibleDevices checks the variable that NVIDIA's container runtime goes by.
func checkVisibleDevices(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod, want string) {
	t.Helper()
	env, err := containerEnv(ctx, n, p, "main")
	if got := env["NVIDIA_VISIBLE_DEVICES"]; err != nil || got != want {
		t.Errorf("pod %s sees %q (%v), and should see %q", p.Name, got, err, want)
	}
}

// checkSameContainer says why a pod is not in the container that it was in.
func checkSameContainer(ctx context.Context, n *node.RealNode, p node.StaticPod, before node.StaticPodStatus) error {
	now, err := n.Pod(ctx, p)
	if err != nil {
		return err
	}
	if len(now.Containers) == 0 {
		return fmt.Errorf("of the containers of pod %s nothing is said", p.Name)
	}
	if was, is := before.Containers[0], now.Containers[0]; is.ID != was.ID || is.State != "running" || is.Restarts != was.Restarts {
		return fmt.Errorf("pod %s was in %+v, and is in %+v", p.Name, was, is)
	}
	return nil
}

// listLengths are the lengths of the lists that have come for a resource, by the kubelet's log.
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

// waitForEmptyList waits until the kubelet was sent an empty list of a resource, as the last one.
func waitForEmptyList(ctx context.Context, t *testing.T, n *node.RealNode, resource string) {
	t.Helper()
	await(ctx, t, "the last list of "+resource+" is empty", func(context.Context) error {
		lengths, err := listLengths(n, resource)
		if err != nil || len(lengths) == 0 || lengths[len(lengths)-1] != 0 {
			return fmt.Errorf("they had %v: %w", lengths, err)
		}
		return nil
	})
}

// checkKubeletNotRestarted checks that the kubelet is the process that it was.
func checkKubeletNotRestarted(t *testing.T, n *node.RealNode) {
	t.Helper()
	select {
	case <-n.Kubelet().Done():
		t.Error(errors.New("the kubelet has ended"))
	default:
	}
}
