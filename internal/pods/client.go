// Package pods follows the pods of the node over the kubelet's Pods API
// (v1alpha1.Pods, from Kubernetes 1.37 on), or over the same API of podgauge-kube
// if the kubelet has no Pods API.
//
// The API sends all pods and then every change, as whole objects. The client
// keeps a subset of each pod: identity, selected labels and container states.
// Without the API, only the features based on that subset are missing.
package pods

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// minBackoff and maxBackoff limit the delay after a failed stream.
	minBackoff, maxBackoff = 100 * time.Millisecond, 2 * time.Second
	// startupGracePeriod is the time after the start within which an
	// unavailable kubelet is not worth a log message.
	startupGracePeriod = 10 * time.Second
)

// ErrNoPodsAPI is the error if the kubelet has no Pods API: older than 1.37, or
// with the feature gate PodsAPI off.
var ErrNoPodsAPI = errors.New("the kubelet has no Pods API")

// Options configure a Client. Without further options than Pods, the client
// keeps no labels, logs nothing and uses only the kubelet's socket.
type Options struct {
	Labels []string // names of labels to keep; a trailing * makes a prefix
	// JobLabel is the name of a label with the id of the pod's HPC job, which
	// Workload keeps. Empty: none.
	JobLabel string
	Pods     *pubsub.Value[Pods] // receives the pods
	Log      *slog.Logger
	// OnPodAdded is called after the publication of a new pod that is not Ended;
	// also for each such pod of the first stream. May be nil.
	//
	// Both calls must be quick: the kubelet drops a watcher that is 100 events
	// behind. If a pod replaces an ended pod of the same name, OnPodEnded comes
	// first.
	OnPodAdded func(namespace, name string)
	// OnPodEnded is called after the publication of a pod that Ended or was
	// deleted; twice if a later stream lists a deleted pod. May be nil.
	OnPodEnded func(namespace, name string)
	// FallbackSocket serves the Pods API while no kubelet listens at its socket.
	// Empty: there is no such socket.
	FallbackSocket string
}

// Client follows the pods of one kubelet.
type Client struct {
	device.Heartbeat

	options   Options
	socket    string
	dial      dialFunc
	createdAt time.Time

	// All below belong to Run's goroutine.
	cache        podCache
	event        watchEvent // the newest
	backoff      retry.Backoff
	loggedSynced bool // the newest log message is about a sync
	loggedOutage bool // at least once
	loggedCut    bool // at least once
}

// dialFunc connects to a socket.
type dialFunc func(ctx context.Context, socket string) (net.Conn, error)

// New returns a client for the kubelet on a socket, which need not exist. It
// fails if a label is neither a name nor a prefix.
func New(socket string, o Options) (*Client, error) {
	return newClient(socket, o, func(ctx context.Context, socket string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	})
}

func newClient(socket string, o Options, dial dialFunc) (*Client, error) {
	if err := ValidateLabels(o.Labels); err != nil {
		return nil, err
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Client{
		options:   o,
		socket:    socket,
		dial:      dial,
		createdAt: time.Now(),
		event:     watchEvent{allowlist: o.Labels, jobLabel: o.JobLabel},
		backoff:   retry.Backoff{Min: minBackoff, Max: maxBackoff},
	}, nil
}

// Ready returns an error before the first attempt to list pods. Readiness does
// not depend on the result.
func (c *Client) Ready() error {
	if pods := c.options.Pods.Newest(); !pods.Synced && pods.Err == nil {
		return errors.New("pods not listed yet")
	}
	return nil
}

// recordFailure publishes that the pods are not synced. The last known pods stay.
func (c *Client) recordFailure(err error) {
	changed := c.cache.setErr(err)
	c.cache.syncing = nil
	c.publish(changed)
	switch {
	case c.loggedSynced:
		c.options.Log.Info("pods no longer synced, keeping the last known pods", "err", err)
	case !c.loggedOutage && !errors.Is(err, ErrNoPodsAPI) && time.Since(c.createdAt) > startupGracePeriod:
		c.options.Log.Warn("cannot list pods", "err", err)
	default:
		return
	}
	c.loggedSynced, c.loggedOutage = false, true
}

// applyEvent applies and publishes the newest event.
func (c *Client) applyEvent() error {
	c.cache.pods.updatedAt = time.Now()
	changed, err := c.cache.apply(&c.event)
	c.publish(changed)
	notify(c.cache.ended, c.options.OnPodEnded)
	notify(c.cache.added, c.options.OnPodAdded)
	c.cache.ended, c.cache.added = nil, nil
	if c.event.cut && !c.loggedCut {
		p := c.event.pod
		c.options.Log.Warn("containers and labels of pods left out above a limit",
			"namespace", p.Namespace, "pod", p.Name)
		c.loggedCut = true
	}
	if c.cache.pods.Synced && !c.loggedSynced {
		c.options.Log.Info("pods synced", "pods", c.cache.pods.Len())
		c.loggedSynced = true
	}
	return err
}

// notify calls observe, unless nil, for each pod.
func notify(pods []*Pod, observe func(namespace, name string)) {
	if observe == nil {
		return
	}
	for _, p := range pods {
		observe(p.Namespace, p.Name)
	}
}

func (c *Client) publish(changed bool) {
	if changed {
		c.options.Pods.Set(c.cache.pods)
	}
}
