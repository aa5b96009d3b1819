package events

import (
	"context"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// waitingInterval is the interval of the event of a resource that waits: the API
// server deletes events after an hour.
const waitingInterval = time.Hour

// reportWaiting reports, as an event of the node, each resource whose
// registration waits for another device plugin. While the event of an earlier
// process exists, no event is added.
func (r *Reporter) reportWaiting(ctx context.Context, n *nodeEvents, resources []api.ResourceJSON) (
	next time.Duration, err error,
) {
	now, waiting := time.Now(), map[string]time.Time{}
	for _, resource := range resources {
		if !resource.Waiting {
			continue
		}
		created := n.waiting[resource.Name]
		if now.Sub(created) >= waitingInterval {
			if err := r.createWaiting(ctx, n.name, resource.Name, now); err != nil {
				return 0, err
			}
			created = now
		}
		waiting[resource.Name] = created
		next = earlier(next, created.Add(waitingInterval).Sub(now))
	}
	n.waiting = waiting
	return next, nil
}

func (r *Reporter) createWaiting(ctx context.Context, node, resource string, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	name := fmt.Sprintf("%.230s.waiting-%08x", node, crc32.ChecksumIEEE([]byte(resource)))
	e := newEvent(name, nodeNamespace, node, now, now)
	e.Reason = "GPUPluginWaiting"
	e.Message = "podgauge waits: another device plugin serves " + resource +
		". Remove the other plugin, or start podgauge with --take-over."
	_, err := r.client.CoreV1().Events(nodeNamespace).Create(ctx, e, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
