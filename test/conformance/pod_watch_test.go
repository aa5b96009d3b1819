package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/internal/wire"
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

// waitForPod waits for an event of a pod, and returns the pod's events up to the match.
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

// readEvent decodes the fields that the cases check (core/v1/generated.proto in k8s.io/api).
func readEvent(from *podsapi.WatchPodsEvent) podEvent {
	text := func(numbers ...uint64) string { return string(readField(from.Pod, numbers...)) }
	e := podEvent{
		kind: from.Type.String(), name: text(1, 1), namespace: text(1, 3), uid: text(1, 5), labels: text(1, 11), phase: text(3, 1),
		hasCreationTime: text(1, 8) != "", // an empty time is missing
	}
	_ = wire.WalkTag(readField(from.Pod, 3), 8<<3|wire.Length, func(container wire.Field) error {
		if _, id, ok := strings.Cut(string(readField(container.Bytes, 8)), "://"); ok {
			e.ids = append(e.ids, id)
		}
		return nil
	})
	return e
}

// readField returns the last field with these numbers, from the outer to the inner message; nil if there is no such field.
func readField(message []byte, numbers ...uint64) []byte {
	for _, number := range numbers {
		last, _ := wire.Last(message, number<<3|wire.Length)
		message = last.Bytes
	}
	return message
}
