package pods

import (
	"context"
	"errors"
	"fmt"

	"github.com/podgauge/podgauge/internal/kubeapi"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

var errNotListed = errors.New("the API server has not listed the pods yet")

// followAPIServer follows the pods until the watch ends. A nil error means that
// the next call continues without a gap.
func (c *Client) followAPIServer(ctx context.Context) error {
	if ps := &c.cache.pods; !ps.Synced && ps.Err == nil { // the API server may hang, and Ready must not wait
		c.publish(c.cache.setErr(errNotListed))
	}
	c.Rest()
	err := c.options.APIServer.Follow(ctx, func(e kubeapi.WatchEvent) error {
		c.Beat()
		defer c.Rest()
		return c.handleAPIServerEvent(e)
	})
	c.Beat()
	if err != nil {
		return fmt.Errorf("follow pods at the API server: %w", err)
	}
	return nil
}

// handleAPIServerEvent applies an event of the API server like an event of the
// kubelet.
func (c *Client) handleAPIServerEvent(e kubeapi.WatchEvent) (err error) {
	switch e.Type {
	case kubeapi.ListStarted:
		c.cache.startSync()
		return nil
	case kubeapi.Resumed:
		c.event.kind = resumed
	case kubeapi.ListEnded:
		c.event.kind = api.EventType_INITIAL_SYNC_COMPLETE
	default:
		err = c.event.readJSON(api.EventType(api.EventType_value[string(e.Type)]), e.Object)
	}
	if err != nil {
		return err
	}
	return c.applyEvent()
}
