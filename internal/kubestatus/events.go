// Package kubestatus reports health to the Kubernetes API server: incidents as
// events of pods and of the node, and the health of the GPUs as a condition of
// the node.
//
// Both are derived from published state, so an API server that is away, slow or
// rejecting requests costs only a delay.
package kubestatus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// eventWindow is the age after which an incident or recovery is not
	// reported any more. Kubernetes keeps events for an hour.
	eventWindow = 10 * time.Minute
	// eventBurst and eventInterval are the rate of events of an object, as in
	// client-go's event recorder.
	eventBurst        = 25
	eventInterval     = 5 * time.Minute
	requestTimeout    = 10 * time.Second
	heartbeatInterval = 20 * time.Second
	// maxEventName is the maximum length of an object's name.
	maxEventName = 253
	// maxClockSkew is the allowed lead of the API server's clock over the
	// node's clock.
	maxClockSkew = 10 * time.Second
)

// component is the component of the events and the manager of the condition.
const component = "podgauge"

// Options of Events and Condition.
type Options struct {
	APIServer *kubeapi.Client
	NodeName  string
	State     *node.State
	Log       *slog.Logger
}

// Events reports each incident as an event of the affected pods and, if a
// device turned unhealthy or recovered, of the node.
//
// The name of an event follows from the incident, so a restart repeats no
// event. Repetitions of an incident update the count.
type Events struct {
	device.Heartbeat
	o Options

	// All below belong to Run's goroutine.
	reported map[eventKey]*reportState
	limiters map[string]*rate.Limiter // by namespace and name of the object
	requests requestState

	rejectionLoggedAt time.Time

	dropped atomic.Uint64
}

// eventKey identifies an event.
type eventKey struct {
	incident  uint64
	namespace string // of the pod; empty: of the node
	name      string
	recovered bool
}

// reportState is what the API server has of an event.
type reportState struct {
	incident *incident.Incident // in the newest snapshot
	seenAt   time.Time          // of the newest snapshot
	count    uint64             // reported repetitions; 0: not created
	want     uint64             // repetitions
	dueAt    time.Time
}

// NewEvents returns an Events.
func NewEvents(o Options) *Events {
	return &Events{
		o:        o,
		reported: map[eventKey]*reportState{},
		limiters: map[string]*rate.Limiter{},
		requests: newRequestState(o.Log),
	}
}

// Run reports incidents until ctx is done.
func (r *Events) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		r.Beat()
		snapshot, changed := r.o.State.Incidents.Get()
		delay := r.report(ctx, snapshot.Incidents)
		select {
		case <-ctx.Done():
		case <-changed:
			_ = retry.Sleep(ctx, minBackoff/5) // collects changes, and limits the rate after a failure
		case <-time.After(delay):
		}
	}
	return nil
}

// report sends what is due, and returns the delay until the next attempt. A
// failure that is not about the event ends the attempt.
func (r *Events) report(ctx context.Context, incidents []incident.Incident) time.Duration {
	now := time.Now()
	for _, key := range r.update(incidents, now) {
		state := r.reported[key]
		if state.count >= state.want || state.dueAt.After(now) {
			continue
		}
		limiter := r.limiter(key)
		if limiter.TokensAt(now) < 1 {
			state.dueAt = now.Add(rejectedDelay)
			continue
		}
		r.Beat()
		if err := r.send(ctx, key, state); err != nil {
			r.handleFailure(ctx, err, state)
			return 0
		}
		limiter.AllowN(now, 1)
		r.requests.succeeded()
	}
	return heartbeatInterval
}

// update returns the events of recent incidents, newest first, and removes the
// state of old events and unused limiters.
func (r *Events) update(incidents []incident.Incident, now time.Time) (recent []eventKey) {
	for n := range incidents {
		i := &incidents[n]
		for _, key := range keysOf(i, r.o.NodeName, now) {
			state := r.reported[key]
			if state == nil {
				state = &reportState{}
				r.reported[key] = state
			}
			if state.incident, state.seenAt, state.want = i, now, i.Count; key.recovered {
				state.want = 1
			}
			recent = append(recent, key)
		}
	}
	for key, state := range r.reported {
		if state.seenAt.Equal(now) {
			continue
		}
		if state.count < state.want {
			r.dropped.Add(1)
		}
		delete(r.reported, key)
	}
	for object, l := range r.limiters {
		if l.TokensAt(now) >= eventBurst {
			delete(r.limiters, object)
		}
	}
	return recent
}

// Dropped returns the number of events that became too old before the API
// server had them. It is safe for concurrent use.
func (r *Events) Dropped() uint64 { return r.dropped.Load() }

// keysOf returns the events of an incident that are not too old. The recovery
// may come hours after the incident.
func keysOf(i *incident.Incident, node string, now time.Time) (keys []eventKey) {
	if i.Historical || !i.MarkedUnhealthy && i.Action == "" {
		return nil
	}
	if i.RecoveredAt != nil && now.Sub(*i.RecoveredAt) <= eventWindow {
		keys = append(keys, eventKey{incident: i.ID, name: node, recovered: true})
	}
	if now.Sub(i.Last) > eventWindow {
		return keys
	}
	if i.MarkedUnhealthy {
		keys = append(keys, eventKey{incident: i.ID, name: node})
	}
	for _, c := range i.Affected {
		key := eventKey{incident: i.ID, namespace: c.Namespace, name: c.Pod}
		if c.Pod != "" && c.Last.IsZero() && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

func (r *Events) limiter(key eventKey) *rate.Limiter {
	object := key.namespace + "/" + key.name
	if r.limiters[object] == nil {
		r.limiters[object] = rate.NewLimiter(rate.Every(eventInterval), eventBurst)
	}
	return r.limiters[object]
}

// handleFailure logs a failed request, and waits unless the API server rejected
// the request: others are tried.
func (r *Events) handleFailure(ctx context.Context, err error, state *reportState) {
	now := time.Now()
	switch {
	case ctx.Err() != nil:
	case !isRejected(err):
		r.Beat()
		_ = retry.Sleep(ctx, r.requests.failed(err))
	default:
		state.dueAt = now.Add(rejectedDelay)
		if now.Sub(r.rejectionLoggedAt) > time.Hour {
			r.o.Log.Warn("API server rejected an event", "err", err)
			r.rejectionLoggedAt = now
		}
	}
}

// kubernetesEvent is an Event of core/v1.
type kubernetesEvent struct {
	APIVersion     string            `json:"apiVersion"`
	Kind           string            `json:"kind"`
	Metadata       map[string]string `json:"metadata"`
	InvolvedObject map[string]string `json:"involvedObject"`
	Reason         string            `json:"reason"`
	Message        string            `json:"message"`
	Type           string            `json:"type"`
	Source         map[string]string `json:"source"`
	FirstTimestamp time.Time         `json:"firstTimestamp"`
	LastTimestamp  time.Time         `json:"lastTimestamp"`
	Count          uint64            `json:"count"`

	ReportingComponent string `json:"reportingComponent"`
	ReportingInstance  string `json:"reportingInstance"`
}

// newEvent returns a warning about the node.
func (o *Options) newEvent(name, namespace string, first, last time.Time) kubernetesEvent {
	// as the kubelet's
	node := map[string]string{"apiVersion": "v1", "kind": "Node", "name": o.NodeName, "uid": o.NodeName}
	return kubernetesEvent{
		APIVersion:         "v1",
		Kind:               "Event",
		Metadata:           map[string]string{"name": name, "namespace": namespace},
		InvolvedObject:     node,
		Type:               "Warning",
		Source:             map[string]string{"component": component, "host": o.NodeName},
		FirstTimestamp:     first.UTC().Truncate(time.Second),
		LastTimestamp:      last.UTC().Truncate(time.Second),
		Count:              1,
		ReportingComponent: component,
		ReportingInstance:  o.NodeName,
	}
}

// send creates the event, or updates the count.
func (r *Events) send(ctx context.Context, key eventKey, state *reportState) error {
	i := state.incident
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	path := "/api/v1/namespaces/" + url.PathEscape(cmp.Or(key.namespace, "default")) + "/events"
	if state.count == 0 {
		e, err := r.event(ctx, i, key, state.want)
		if err != nil {
			return err
		}
		body, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, err = r.o.APIServer.Do(ctx, http.MethodPost, path, "application/json", body)
		if err == nil {
			state.count = state.want
		}
		if !kubeapi.IsCode(err, http.StatusConflict) {
			return err
		}
		// Created by an earlier process: the count may be outdated.
	}
	last := i.Last
	if key.recovered {
		last = *i.RecoveredAt
	}
	body, err := json.Marshal(map[string]any{"count": state.want, "lastTimestamp": last.UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	_, err = r.o.APIServer.Do(ctx, http.MethodPatch, path+"/"+url.PathEscape(eventName(i.ID, key)),
		"application/merge-patch+json", body)
	if kubeapi.IsCode(err, http.StatusNotFound) && state.count > 0 { // expired
		state.count = 0
		return nil
	}
	if err == nil {
		state.count = state.want
	}
	return err
}

// event returns the event of a key.
func (r *Events) event(ctx context.Context, i *incident.Incident, key eventKey, count uint64) (kubernetesEvent, error) {
	e := r.o.newEvent(eventName(i.ID, key), cmp.Or(key.namespace, "default"), i.First, i.Last)
	e.Reason, e.Message, e.Count = "GPUError", incidentMessage(i), count
	switch {
	case key.recovered:
		e.Reason, e.Type = "GPURecovered", "Normal"
		e.Message = deviceName(i.Device, i.GPU, i.Index, i.Profile) + " recovered after: " + faultMessage(i.Reason, "")
		e.FirstTimestamp = i.RecoveredAt.UTC().Truncate(time.Second)
		e.LastTimestamp = e.FirstTimestamp
	case i.Reason == device.ReasonRetired:
		e.Reason = "GPURetired"
	case i.MarkedUnhealthy:
		e.Reason = "GPUUnhealthy"
	}
	if key.namespace == "" {
		return e, nil
	}
	uid, err := r.podUID(ctx, i, key)
	if err != nil {
		return e, err
	}
	e.InvolvedObject = map[string]string{
		"apiVersion": "v1", "kind": "Pod", "namespace": key.namespace,
		"name": key.name,
	}
	if uid != "" {
		e.InvolvedObject["uid"] = uid
	}
	return e, nil
}

// podUID returns the UID of an affected pod, without which kubectl describe
// does not show the event. It is empty if the pod was deleted.
func (r *Events) podUID(ctx context.Context, i *incident.Incident, key eventKey) (string, error) {
	k := slices.IndexFunc(i.Affected, func(c incident.AffectedContainer) bool {
		return c.Namespace == key.namespace && c.Pod == key.name
	})
	affected := i.Affected[k]
	if uid := cmp.Or(affected.UID, r.o.State.PodMeta(key.namespace, key.name).UID); uid != "" {
		return uid, nil
	}
	body, err := r.o.APIServer.Do(ctx, http.MethodGet,
		"/api/v1/namespaces/"+url.PathEscape(key.namespace)+"/pods/"+url.PathEscape(key.name), "", nil)
	if kubeapi.IsCode(err, http.StatusNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var pod struct {
		Metadata struct {
			UID               string
			CreationTimestamp time.Time
			Annotations       map[string]string
		}
		Spec struct{ NodeName string }
	}
	if err := json.Unmarshal(body, &pod); err != nil {
		return "", fmt.Errorf("decode pod %s/%s: %w", key.namespace, key.name, err)
	}
	// kubectl describe uses the UID of the static pod
	mirrored := pod.Metadata.Annotations["kubernetes.io/config.mirror"]
	if mirrored == "" && (pod.Spec.NodeName != r.o.NodeName ||
		pod.Metadata.CreationTimestamp.After(affected.Since.Add(maxClockSkew))) {
		return "", nil // a later pod of the same name
	}
	return cmp.Or(mirrored, pod.Metadata.UID), nil
}

// eventName returns the name of an event: the object's name and the incident's
// ID.
func eventName(id uint64, key eventKey) string {
	suffix := fmt.Sprintf(".%016x", id)
	if key.recovered {
		suffix += ".recovered"
	}
	return strings.TrimRight(key.name[:min(len(key.name), maxEventName-len(suffix))], "-.") + suffix
}
