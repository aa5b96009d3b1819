package kubestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/http"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/retry"
)

// ReportWaiting reports, as an event of the node, each resource whose
// registration waits for another device plugin, until ctx is done. While the
// event of an earlier process exists, no event is added.
func ReportWaiting(ctx context.Context, o Options) error {
	var reported []string
	requests := newRequestState(o.Log)
	for ctx.Err() == nil {
		resources, changed := o.State.WaitingResources()
		delay := time.Hour
		for _, resource := range resources {
			if slices.Contains(reported, resource) {
				continue
			}
			if err := o.createWaitingEvent(ctx, resource); err != nil && ctx.Err() == nil {
				delay = requests.failed(err)
				break
			}
			requests.succeeded()
			reported = append(reported, resource)
		}
		select {
		case <-ctx.Done():
		case <-changed:
			_ = retry.Sleep(ctx, minBackoff/5) // collects changes, and limits the rate after a failure
			waiting, _ := o.State.WaitingResources()
			reported = slices.DeleteFunc(reported, func(resource string) bool {
				return !slices.Contains(waiting, resource)
			})
		case <-time.After(delay):
			reported = nil // the API server deletes events after an hour
		}
	}
	return nil
}

func (o Options) createWaitingEvent(ctx context.Context, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now := time.Now()
	name := fmt.Sprintf("%.230s.waiting-%08x", o.NodeName, crc32.ChecksumIEEE([]byte(resource)))
	e := o.newEvent(name, "default", now, now)
	e.Reason = "GPUPluginWaiting"
	e.Message = "podgauge waits: another device plugin serves " + resource +
		". Remove the other plugin, or start podgauge with --take-over."
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = o.APIServer.Do(ctx, http.MethodPost, "/api/v1/namespaces/default/events", "application/json", body)
	if kubeapi.IsCode(err, http.StatusConflict) {
		return nil
	}
	return err
}
