// Package events reports incidents as events of the affected pods and of the
// node.
package events

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/kube/internal/nodes"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// window is the age after which an incident or recovery is not reported any
	// more. Kubernetes keeps events for an hour.
	window = 10 * time.Minute
	// burst and interval are the rate of events of an object, as in client-go's
	// event recorder.
	burst    = 25
	interval = 5 * time.Minute
	// nodeBurst and nodeInterval are the rate of all events of a node, which
	// could name any number of pods.
	nodeBurst    = 200
	nodeInterval = time.Second
	// laterDelay is the delay after a rejected event, and above the rate.
	laterDelay = 30 * time.Second
)

// Reporter reports each incident as an event of the affected pods and, if a
// device turned unhealthy or recovered, of the node. It reports also resources
// that wait for another device plugin. It is a nodes.Reporter.
//
// The name of an event follows from the incident, so a restart repeats no
// event. Repetitions of an incident update the count.
type Reporter struct {
	client   kubernetes.Interface
	log      *slog.Logger
	rejected *loglimit.Limiter[struct{}]
	dropped  atomic.Uint64
	nodes    sync.Map // *nodeEvents by name, which the calls for the node own
}

// nodeEvents is what the API server has of a node.
type nodeEvents struct {
	name     string
	reported map[eventKey]*reportState
	all      *rate.Limiter
	limiters map[string]*rate.Limiter // by namespace and name of the object
	waiting  waitingEvents
}

// reportState is what the API server has of an event.
type reportState struct {
	incident *incident.Incident // in the newest response
	count    uint64             // reported repetitions; 0: not created
	want     uint64             // repetitions
	dueAt    time.Time
}

// New returns a Reporter.
func New(client kubernetes.Interface, log *slog.Logger) *Reporter {
	return &Reporter{client: client, log: log, rejected: loglimit.New[struct{}](time.Hour)}
}

// Dropped returns the number of events that became too old before the API
// server had them.
func (r *Reporter) Dropped() uint64 { return r.dropped.Load() }

// Forget drops the state of a node.
func (r *Reporter) Forget(_ context.Context, node string) error {
	r.nodes.Delete(node)
	return nil
}

// Report sends what is due. A failure that is not about one event ends it.
func (r *Reporter) Report(ctx context.Context, node string, response *api.NodeResponse) (time.Duration, error) {
	stored, _ := r.nodes.LoadOrStore(node, &nodeEvents{
		name: node, all: rate.NewLimiter(rate.Every(nodeInterval), nodeBurst),
		limiters: map[string]*rate.Limiter{}, waiting: waitingEvents{client: r.client},
	})
	n, now := stored.(*nodeEvents), time.Now()
	var next time.Duration
	for _, key := range r.update(n, response.Incidents, now) {
		state := n.reported[key]
		if state.count >= state.want {
			continue
		}
		if !state.dueAt.After(now) {
			if err := r.sendLimited(ctx, n, key, state, now); err != nil {
				return 0, err
			}
		}
		if state.count < state.want {
			next = earlier(next, max(state.dueAt.Sub(now), time.Second))
		}
	}
	again, err := n.waiting.report(ctx, node, response.Resources)
	return earlier(next, again), err
}

// sendLimited sends an event, or postpones it above the rate and after a
// rejection.
func (r *Reporter) sendLimited(ctx context.Context, n *nodeEvents, key eventKey, state *reportState,
	now time.Time,
) error {
	limiter := n.limiter(key)
	if limiter.TokensAt(now) < 1 || n.all.TokensAt(now) < 1 {
		state.dueAt = now.Add(laterDelay)
		return nil
	}
	err := r.send(ctx, n.name, key, state)
	switch {
	case err == nil:
		limiter.AllowN(now, 1)
		n.all.AllowN(now, 1)
		return nil
	case !nodes.IsRejected(err) && !errors.Is(err, errOtherNode):
		return err
	}
	state.dueAt = now.Add(laterDelay)
	if r.rejected.Allow(struct{}{}, now) {
		r.log.Warn("event rejected", "node", n.name, "err", err)
	}
	return nil
}

// send creates the event, or updates the count.
func (r *Reporter) send(ctx context.Context, node string, key eventKey, state *reportState) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	i, api := state.incident, r.client.CoreV1().Events(cmp.Or(key.namespace, nodeNamespace))
	count := int32(min(state.want, math.MaxInt32)) //nolint:gosec // limited
	if state.count == 0 {
		e, err := newIncidentEvent(ctx, r.client, node, key, i, count)
		if err != nil {
			return err
		}
		_, err = api.Create(ctx, e, metav1.CreateOptions{})
		if err == nil {
			state.count = state.want
		}
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		// Created by an earlier process: the count may be outdated.
	}
	last := i.Last
	if key.recovered {
		last = *i.RecoveredAt
	}
	body, err := json.Marshal(map[string]any{"count": count, "lastTimestamp": metav1.NewTime(last)})
	if err != nil {
		return err
	}
	_, err = api.Patch(ctx, eventName(i.ID, key), types.MergePatchType, body, metav1.PatchOptions{})
	switch {
	case err == nil:
		state.count = state.want
	case apierrors.IsNotFound(err) && state.count > 0: // expired
		state.count = 0
		return nil
	}
	return err
}

// update returns the events of recent incidents, newest first, and removes the
// state of old events and unused limiters.
func (r *Reporter) update(n *nodeEvents, incidents []incident.Incident, now time.Time) (recent []eventKey) {
	reported := map[eventKey]*reportState{}
	for k := range incidents {
		i := &incidents[k]
		for _, key := range keysOf(i, n.name, now) {
			state := cmp.Or(n.reported[key], &reportState{})
			if state.incident, state.want = i, i.Count; key.recovered {
				state.want = 1
			}
			reported[key] = state
			recent = append(recent, key)
		}
	}
	for key, state := range n.reported {
		if reported[key] == nil && state.count < state.want {
			r.dropped.Add(1)
		}
	}
	n.reported = reported
	for object, l := range n.limiters {
		if l.TokensAt(now) >= burst {
			delete(n.limiters, object)
		}
	}
	return recent
}

// keysOf returns the events of an incident that are not too old. The recovery
// may come hours after the incident.
func keysOf(i *incident.Incident, node string, now time.Time) (keys []eventKey) {
	if i.Historical || !i.MarkedUnhealthy && i.Action == "" {
		return nil
	}
	if i.RecoveredAt != nil && now.Sub(*i.RecoveredAt) <= window {
		keys = append(keys, eventKey{incident: i.ID, name: node, recovered: true})
	}
	if now.Sub(i.Last) > window {
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

func (n *nodeEvents) limiter(key eventKey) *rate.Limiter {
	object := key.namespace + "/" + key.name
	if n.limiters[object] == nil {
		n.limiters[object] = rate.NewLimiter(rate.Every(interval), burst)
	}
	return n.limiters[object]
}
