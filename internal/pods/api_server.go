package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/kubeapi"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// maxAPIServerBackoff limits the delay after a failed list or watch: all nodes of a cluster return to the API server at once.
const maxAPIServerBackoff = 10 * time.Second

var errNotListed = errors.New("the API server has not listed the pods yet")

// PodFollower follows the pods of the node at the API server: a kubeapi.Follower of /api/v1/pods.
type PodFollower interface {
	Follow(ctx context.Context, handle func(kubeapi.WatchEvent) error) error
}

// followAPIServer follows the pods until the watch ends. A nil error means that the next call continues without a gap.
func (c *Client) followAPIServer(ctx context.Context) error {
	if ps := &c.cache.pods; !ps.Synced && ps.Err == nil { // the API server may hang, and Ready must not wait
		c.publish(c.cache.setErr(errNotListed))
	}
	c.Rest()
	err := c.apiServer.Follow(ctx, func(e kubeapi.WatchEvent) error {
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

// handleAPIServerEvent applies an event of the API server like an event of the kubelet.
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

// jsonPod is the kept subset of a pod in the API server's JSON.
type jsonPod struct {
	Metadata struct {
		Name, Namespace, UID string
		CreationTimestamp    time.Time
		Labels, Annotations  map[string]string
	}
	Status struct {
		Phase, Reason                                                        string
		ContainerStatuses, InitContainerStatuses, EphemeralContainerStatuses []jsonContainer
	}
}

type jsonContainer struct {
	Name, ContainerID string
	RestartCount      int32
	State, LastState  jsonState
}

type jsonState struct {
	Running    *struct{}
	Terminated *struct {
		ExitCode   int32
		Reason     string
		FinishedAt time.Time
	}
}

// readJSON decodes an object of the API server.
func (e *watchEvent) readJSON(kind api.EventType, b []byte) error {
	var p jsonPod
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	e.kind = kind
	e.reset()
	text := func(s string) string { return e.text([]byte(s)) }
	state := func(s jsonState) ContainerState {
		switch t := s.Terminated; {
		case t != nil:
			c := ContainerState{Type: Terminated, Reason: text(t.Reason), ExitCode: t.ExitCode}
			if !t.FinishedAt.IsZero() {
				c.Finished = t.FinishedAt.Local()
			}
			return c
		case s.Running != nil:
			return ContainerState{Type: Running}
		}
		return ContainerState{}
	}
	m, status := &p.Metadata, &p.Status
	e.pod.Namespace, e.pod.Name, e.pod.UID, e.pod.Created = text(m.Namespace), text(m.Name), text(m.UID), m.CreationTimestamp
	e.pod.Phase, e.pod.Reason = text(status.Phase), text(status.Reason)
	e.mirrored = text(m.Annotations[mirrorAnnotation])
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		if e.allowlist.has([]byte(name)) && len(e.pod.Labels) < maxLabels {
			e.pod.Labels = append(e.pod.Labels, device.Label{Name: text(name), Value: text(m.Labels[name])})
		}
	}
	containers := slices.Concat(status.ContainerStatuses, status.InitContainerStatuses, status.EphemeralContainerStatuses)
	for _, c := range containers[:min(len(containers), maxContainers)] {
		e.pod.Containers = append(e.pod.Containers, Container{
			Name: text(c.Name), ID: withoutRuntime(text(c.ContainerID)), Restarts: c.RestartCount, State: state(c.State), LastState: state(c.LastState),
		})
	}
	return e.finish()
}
