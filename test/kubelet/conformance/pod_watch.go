package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/internal/pods/podpb"
)

// podEvent is an event of WatchPods.
type podEvent struct {
	kind                                string
	name, namespace, uid, labels, phase string
	hasCreationTime                     bool
	ids                                 []string // of containers with an id
}

func isRunning(e podEvent) bool { return e.phase == "Running" && len(e.ids) > 0 }

func isDeleted(e podEvent) bool { return e.kind == "DELETED" }

func isSynced(events []podEvent) bool {
	return slices.ContainsFunc(events, func(e podEvent) bool { return e.kind == "INITIAL_SYNC_COMPLETE" })
}

func last(events []podEvent) podEvent { return events[len(events)-1] }

func eventsOf(events []podEvent, uid string) []podEvent {
	return slices.DeleteFunc(slices.Clone(events), func(e podEvent) bool { return e.uid != uid })
}

// podWatch collects the events of a WatchPods stream.
type podWatch struct {
	fixture *caseFixture
	mu      sync.Mutex // guards all below
	events  []podEvent
	err     error // of the stream
}

// watchPods opens a stream as soon as the kubelet allows, until the test ends.
func (s *caseFixture) watchPods() *podWatch {
	s.Helper()
	w := &podWatch{fixture: s}
	client := podsapi.NewPodsClient(s.dial("pods-api", "pods-api.sock"))
	ctx, cancel := context.WithCancel(s.ctx)
	var stream grpc.ServerStreamingClient[podsapi.WatchPodsEvent]
	s.waitFor("WatchPods", func() (err error) {
		if stream, err = client.WatchPods(ctx, &podsapi.WatchPodsRequest{}); err != nil {
			return err
		}
		return w.receive(stream)
	})
	var reader sync.WaitGroup
	s.Cleanup(func() { cancel(); reader.Wait() })
	reader.Go(func() {
		for w.receive(stream) == nil { //nolint:revive // receive has the effect
		}
	})
	return w
}

func (w *podWatch) receive(stream grpc.ServerStreamingClient[podsapi.WatchPodsEvent]) error {
	e, err := stream.Recv()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = err; err == nil {
		w.events = append(w.events, readEvent(e))
	}
	return err
}

func (w *podWatch) current() []podEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// waitFor waits until enough returns true, and returns the events so far.
func (w *podWatch) waitFor(what string, enough func([]podEvent) bool) (events []podEvent) {
	w.fixture.Helper()
	w.fixture.waitFor(what, func() error {
		if events = w.current(); !enough(events) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return fmt.Errorf("events %+v, %w", events, w.err)
		}
		return nil
	})
	return events
}

// waitForPod waits for an event of a pod, and returns the pod's events up to
// the match.
func (w *podWatch) waitForPod(uid, what string, matches func(podEvent) bool) (events []podEvent) {
	w.fixture.Helper()
	w.waitFor(what, func(all []podEvent) bool {
		events = eventsOf(all, uid)
		i := slices.IndexFunc(events, matches)
		events = events[:i+1]
		return i >= 0
	})
	return events
}

// readEvent decodes the fields that the cases check.
func readEvent(from *podsapi.WatchPodsEvent) podEvent {
	var p podpb.Pod
	_ = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(from.Pod, &p) // an invalid pod has no name
	m := p.GetMetadata()
	e := podEvent{
		kind: from.Type.String(), name: m.GetName(), namespace: m.GetNamespace(), uid: m.GetUid(),
		labels: fmt.Sprint(m.GetLabels()), phase: p.GetStatus().GetPhase(),
		hasCreationTime: m.GetCreationTimestamp().GetSeconds() != 0,
	}
	for _, c := range p.GetStatus().GetContainerStatuses() {
		if _, id, ok := strings.Cut(c.GetContainerId(), "://"); ok {
			e.ids = append(e.ids, id)
		}
	}
	return e
}
