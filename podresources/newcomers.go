package podresources

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	// mostNewcomers bounds how many pods are asked about one by one: a List answers for all
	// of them, and costs the kubelet's limit no more than one of these.
	mostNewcomers = 3
	// newcomerAsks is how often one is asked about before a List is.
	newcomerAsks = 2
)

// newcomers are pods of which somebody has told that they are new here: one of them may be
// whom an allocation waits for. Then Get is asked about it in place of a List: its answer
// is of one pod, and not of all that the node has.
type newcomers []newcomer

type newcomer struct {
	name podName
	came time.Time
	asks int
}

func (n *newcomers) arrived(name podName, now time.Time) {
	*n = slices.DeleteFunc(*n, func(c newcomer) bool { return c.name == name || now.Sub(c.came) > admittedWithin+lookFor })
	*n = append(*n, newcomer{name: name, came: now})
}

// next are those that may have been allocated something since a time, and are not known to
// have something already. It counts them as asked about.
func (n *newcomers) next(since time.Time, has func(podName) bool) (names []podName) {
	for _, c := range *n {
		if c.asks < newcomerAsks && c.came.After(since.Add(-admittedWithin)) && !has(c.name) {
			names = append(names, c.name)
		}
	}
	if len(names) > mostNewcomers {
		return nil
	}
	for i := range *n {
		if slices.Contains(names, (*n)[i].name) {
			(*n)[i].asks++
		}
	}
	return names
}

// Arrived says that a pod is new on this node, and may soon hold what somebody was
// allocated. It may be called for pods that hold nothing.
func (c *Client) Arrived(namespace, pod string) {
	now := time.Now()
	c.mu.Lock()
	c.newcomers.arrived(podName{namespace, pod}, now)
	_, waits := c.memory.waits(now)
	c.mu.Unlock()
	if !waits {
		return
	}
	select {
	case c.came <- struct{}{}:
	default:
	}
}

// askNewcomers asks about those who may be waited for, and tells whether the kubelet has
// answered: then a List can wait.
func (c *Client) askNewcomers(ctx context.Context) bool {
	now := time.Now()
	c.mu.Lock()
	var names []podName
	since, waits := c.memory.waits(now)
	// A List that is overdue, or that the kubelet does not answer, is not to wait.
	if waits && c.holders.Err == nil && now.Sub(c.holders.At) < idleEvery && c.noGet != c.memory.link {
		names = c.newcomers.next(since, c.memory.has)
	}
	c.mu.Unlock()
	for _, name := range names {
		if err := c.askNewcomer(ctx, name); err != nil {
			return false
		}
	}
	return len(names) > 0
}

// askNewcomer asks about one. That there is no such pod is an answer too.
func (c *Client) askNewcomer(ctx context.Context, name podName) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := c.begin(ctx); err != nil {
		return err
	}
	defer c.end()
	asked := time.Now()
	var from peer.Peer
	pod, err := c.askPod(ctx, name, grpc.Peer(&from))
	over, _ := from.LocalAddr.(link)
	switch {
	case err == nil:
		rows := c.rowsOf(pod)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.publish(c.memory.name(rows, over, asked))
		return nil
	case lacksGet(err):
		c.mu.Lock()
		defer c.mu.Unlock()
		c.noGet = c.memory.link
		return err
	case status.Code(err) == codes.Unknown: // no such pod, or it has ended (server_v1.go: not NotFound)
		return nil
	default:
		return err
	}
}

// lacksGet tells whether a kubelet does not answer Get at all: one before 1.27, or one up
// to 1.33 whose gate KubeletPodResourcesGet is off, as it was by default
// (pkg/kubelet/apis/podresources/server_v1.go).
func lacksGet(err error) bool {
	return status.Code(err) == codes.Unimplemented ||
		status.Code(err) == codes.Unknown && strings.Contains(err.Error(), "Get method disabled")
}

func (c *Client) askPod(ctx context.Context, name podName, options ...grpc.CallOption) (*api.PodResources, error) {
	var answer *api.GetPodResourcesResponse
	err := c.call(ctx, "Get", func(ctx context.Context) (err error) {
		answer, err = c.list.Get(ctx, &api.GetPodResourcesRequest{PodName: name.pod, PodNamespace: name.namespace}, options...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask about pod %s/%s: %w", name.namespace, name.pod, err)
	}
	return answer.GetPodResources(), nil
}
