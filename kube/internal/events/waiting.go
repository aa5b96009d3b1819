package events

import (
	"context"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// waitingInterval is the interval of the event of a resource that waits: the API
// server deletes events after an hour.
const waitingInterval = time.Hour

// maxWaiting limits the events of a node: a node has at most a resource for each
// profile of MIG devices.
const maxWaiting = 32

// waitingEvents are the events of a node about resources that wait.
type waitingEvents struct {
	client  kubernetes.Interface
	created map[string]time.Time // by resource
}

// report reports, as an event of the node, each resource whose
// registration waits for another device plugin. While the event of an earlier
// process exists, no event is added.
func (w *waitingEvents) report(ctx context.Context, node string, resources []api.ResourceJSON) (
	next time.Duration, err error,
) {
	now, waiting := time.Now(), map[string]time.Time{}
	for _, resource := range resources[:min(len(resources), maxWaiting)] {
		if !resource.Waiting {
			continue
		}
		created := w.created[resource.Name]
		if now.Sub(created) >= waitingInterval {
			if err := w.create(ctx, node, resource.Name, now); err != nil {
				return 0, err
			}
			created = now
		}
		waiting[resource.Name] = created
		next = earlier(next, created.Add(waitingInterval).Sub(now))
	}
	w.created = waiting
	return next, nil
}

func (w *waitingEvents) create(ctx context.Context, node, resource string, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	name := fmt.Sprintf("%.230s.waiting-%08x", node, crc32.ChecksumIEEE([]byte(resource)))
	e := newEvent(name, nodeNamespace, node, now, now)
	e.Reason = "GPUPluginWaiting"
	e.Message = "podgauge waits: another device plugin serves " + resource +
		". Remove the other plugin, or start podgauge with --take-over."
	_, err := w.client.CoreV1().Events(nodeNamespace).Create(ctx, e, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// earlier returns the smaller delay; 0 is none.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
