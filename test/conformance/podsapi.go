package conformance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// podsAPICases is what a kubelet tells of its pods, from 1.37 on.
func podsAPICases() []Case {
	return []Case{
		newCase("a kubelet before 1.37 has no Pods API", noPodsAPI),
		newPodsAPICase("WatchPods names the pods that there are, and says that these are all", watchListsPods),
		newPodsAPICase("a new pod is ADDED without its container's id, and MODIFIED with it", watchPodStart),
		newPodsAPICase("a container that is restarted has another id", watchContainerRestart),
		newPodsAPICase("a pod that has ended is MODIFIED, DELETED with its names alone, and there for the next watcher", watchPodEnd),
		newPodsAPICase("a static pod whose manifest is removed is DELETED, and its phase was never another", watchPodRemoved),
		newPodsAPICase("the end of a pod that was rejected is told to nobody", watchPodRejected),
		newPodsAPICase("a pod that is not there is NotFound", getUnknownPod),
	}
}

// newPodsAPICase makes a row of kubelets that have a Pods API.
func newPodsAPICase(name string, play func(s *caseFixture)) Case {
	return newCase(name, func(s *caseFixture) {
		if s.k.Version() != kubelet.V136 {
			play(s)
		}
	})
}

func noPodsAPI(s *caseFixture) {
	_, err := os.Stat(s.podsSocket())
	if there := err == nil; there != (s.k.Version() != kubelet.V136) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Errorf("its socket: %v", err)
	}
}

func watchListsPods(s *caseFixture) {
	pod := s.podSpec("before", 0)
	pod.Labels = map[string]string{"team": "blue"}
	got := s.runAdmittedPod(pod)
	w := s.watchPods()
	told := w.waitFor("all are told", func(told []podEvent) bool { return w.synced(told) })
	first := slices.IndexFunc(told, func(e podEvent) bool { return e.uid == got.UID })
	if first < 0 || !w.synced(told[first:]) {
		s.Fatalf("of the pod it does not tell before that: %+v", told)
	}
	e := told[first]
	if e.kind != "ADDED" || e.name != got.Name || e.namespace != "default" || e.phase != "Running" || !strings.Contains(e.labels, "team") {
		s.Errorf("it tells %+v", e)
	}
	if len(e.ids) != 1 || len(e.ids[0]) != 64 {
		s.Errorf("its container's ids are %q", e.ids)
	}
	if e.hasCreationTime {
		s.Error("it says when a static pod was made")
	}
}

func watchPodStart(s *caseFixture) {
	w := s.watchPods()
	w.waitFor("all are told", w.synced)
	got := s.runAdmittedPod(s.podSpec("new", 0))
	told := w.waitForEvent(got.UID, "it runs", isRunning)
	if told[0].kind != "ADDED" || len(told[0].ids) > 0 {
		s.Errorf("first it tells %+v", told[0])
	}
	for _, e := range told[1:] {
		if e.kind != "MODIFIED" {
			s.Errorf("then it tells %+v", e)
		}
	}
}

func watchContainerRestart(s *caseFixture) {
	pod := s.podSpec("again", 0)
	got := s.runAdmittedPod(pod)
	w := s.watchPods()
	first := w.waitForEvent(got.UID, "it runs", isRunning)
	id := lastEvent(first).ids[0]
	if err := s.k.RestartContainer(s.ctx, pod, "main"); err != nil {
		s.Fatal(err)
	}
	w.waitForEvent(got.UID, "its container has another id", func(e podEvent) bool { return isRunning(e) && e.ids[0] != id })
}

func watchPodEnd(s *caseFixture) {
	w := s.watchPods()
	w.waitFor("all are told", w.synced)
	pod := s.podSpec("brief", 0)
	pod.RunOnce = true
	got := s.runAdmittedPod(pod)
	if err := s.k.EndPod(s.ctx, pod); err != nil {
		s.Fatal(err)
	}
	told := w.waitForEvent(got.UID, "it is over", func(e podEvent) bool { return e.kind == "DELETED" })
	if end := lastEvent(told); end.name != got.Name || end.namespace != "default" || end.phase != "" || len(end.ids) > 0 {
		s.Errorf("of its end it tells %+v", end)
	}
	if before := told[len(told)-2]; before.kind != "MODIFIED" || before.phase != "Succeeded" {
		s.Errorf("before its end it tells %+v", before)
	}
	again := s.watchPods().waitForEvent(got.UID, "the next watcher is told of it", func(podEvent) bool { return true })
	if again[0].kind != "ADDED" || again[0].phase != "Succeeded" {
		s.Errorf("the next watcher is told %+v", again[0])
	}
}

func watchPodRemoved(s *caseFixture) {
	pod := s.podSpec("removed", 0)
	got := s.runAdmittedPod(pod)
	w := s.watchPods()
	w.waitForEvent(got.UID, "it runs", isRunning)
	if err := s.k.RemovePod(s.ctx, pod); err != nil {
		s.Fatal(err)
	}
	told := w.waitForEvent(got.UID, "it is over", func(e podEvent) bool { return e.kind == "DELETED" })
	for _, e := range told[:len(told)-1] {
		if e.phase != "Running" {
			s.Errorf("before that it tells %+v", e)
		}
	}
}

func watchPodRejected(s *caseFixture) {
	s.registerPlugin(healthy("a")...)
	w := s.watchPods()
	w.waitFor("all are told", w.synced)
	pod := s.podSpec("greedy", 2)
	got := s.runRejectedPod(pod, fmt.Sprintf("requested number of devices unavailable for %s. Requested: 2, Available: 1", s.resource))
	if told := w.waitForEvent(got.UID, "it has failed", func(e podEvent) bool { return e.phase == "Failed" }); told[0].kind != "ADDED" {
		s.Errorf("first it tells %+v", told[0])
	}
	if err := s.k.RemovePod(s.ctx, pod); err != nil {
		s.Fatal(err)
	}
	s.waitFor("a new watcher is not told of it", func() error {
		fresh := s.watchPods()
		if told := fresh.waitFor("all are told", fresh.synced); slices.ContainsFunc(told, func(e podEvent) bool { return e.uid == got.UID }) {
			return fmt.Errorf("it is told %+v", told)
		}
		return nil
	})
	next := s.runAdmittedPod(s.podSpec("next", 0))
	w.waitForEvent(next.UID, "another pod runs", isRunning)
	if told := w.eventsOf(got.UID); lastEvent(told).kind == "DELETED" {
		s.Errorf("its end is told: %+v", told)
	}
}

func getUnknownPod(s *caseFixture) {
	s.waitFor("the kubelet is not initializing", func() error {
		_, err := s.podsClient().GetPod(s.ctx, &podsapi.GetPodRequest{PodUID: "missing"})
		if status.Code(err) == codes.FailedPrecondition {
			return err
		}
		return nil
	})
	_, err := s.podsClient().GetPod(s.ctx, &podsapi.GetPodRequest{PodUID: "missing"})
	s.wantError(err, codes.NotFound, "pod with UID missing not found")
}

// podEvent is what an event tells.
type podEvent struct {
	kind                         string
	name, namespace, uid, labels string
	hasCreationTime              bool // it has a time of creation
	phase                        string
	ids                          []string // of its containers that have one
}

func isRunning(e podEvent) bool { return e.phase == "Running" && len(e.ids) > 0 }

func lastEvent(events []podEvent) podEvent { return events[len(events)-1] }

func (s *caseFixture) podsSocket() string {
	return filepath.Join(s.k.Dir(), "pods-api", "pods-api.sock")
}

func (s *caseFixture) podsClient() podsapi.PodsClient {
	s.Helper()
	conn, err := grpc.NewClient("unix:"+s.podsSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	return podsapi.NewPodsClient(conn)
}

// podWatch is what one watcher was told.
type podWatch struct {
	fixture *caseFixture
	mu      sync.Mutex
	// All below are guarded by mu.
	events []podEvent
	err    error // why it is told no more
}

// watchPods begins to watch as soon as the kubelet lets it, and ends with the habit.
func (s *caseFixture) watchPods() *podWatch {
	s.Helper()
	w := &podWatch{fixture: s}
	client := s.podsClient()
	ctx, cancel := context.WithCancel(s.ctx)
	var stream grpc.ServerStreamingClient[podsapi.WatchPodsEvent]
	s.waitFor("it may watch", func() (err error) {
		if stream, err = client.WatchPods(ctx, &podsapi.WatchPodsRequest{}); err != nil {
			return err
		}
		first, err := stream.Recv()
		if err == nil {
			w.events = append(w.events, readEvent(first))
		}
		return err
	})
	var reader sync.WaitGroup
	s.Cleanup(func() { cancel(); reader.Wait() })
	reader.Go(func() {
		for {
			e, err := stream.Recv()
			w.mu.Lock()
			if w.err = err; err == nil {
				w.events = append(w.events, readEvent(e))
			}
			w.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	return w
}

// waitFor waits until enough was told, and returns it.
func (w *podWatch) waitFor(what string, enough func([]podEvent) bool) (events []podEvent) {
	w.fixture.Helper()
	w.fixture.waitFor(what, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if events = slices.Clone(w.events); !enough(events) {
			return fmt.Errorf("it was told %+v: %w", events, w.err)
		}
		return nil
	})
	return events
}

// waitForEvent waits until one such event was told of a pod, and returns all up to that one.
func (w *podWatch) waitForEvent(uid, what string, matches func(podEvent) bool) (events []podEvent) {
	w.fixture.Helper()
	w.waitFor(what, func([]podEvent) bool {
		events = eventsOfPod(w.events, uid)
		i := slices.IndexFunc(events, matches)
		if i >= 0 {
			events = events[:i+1]
		}
		return i >= 0
	})
	return events
}

// eventsOf is what was told of a pod.
func (w *podWatch) eventsOf(uid string) []podEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return eventsOfPod(w.events, uid)
}

func eventsOfPod(events []podEvent, uid string) []podEvent {
	return slices.DeleteFunc(slices.Clone(events), func(e podEvent) bool { return e.uid != uid })
}

func (w *podWatch) synced(events []podEvent) bool {
	return slices.ContainsFunc(events, func(e podEvent) bool { return e.kind == "INITIAL_SYNC_COMPLETE" })
}

// readEvent reads of a pod what the habits are about (core/v1/generated.proto in k8s.io/api).
func readEvent(from *podsapi.WatchPodsEvent) podEvent {
	e := podEvent{kind: from.Type.String()}
	forEachField(from.Pod, func(field protowire.Number, value []byte) {
		switch field {
		case 1:
			forEachField(value, e.readMetadata)
		case 3:
			forEachField(value, e.readStatus)
		}
	})
	return e
}

func (e *podEvent) readMetadata(field protowire.Number, value []byte) {
	switch field {
	case 1:
		e.name = string(value)
	case 3:
		e.namespace = string(value)
	case 5:
		e.uid = string(value)
	case 8: // an empty time is none
		e.hasCreationTime = len(value) > 0
	case 11:
		e.labels += string(value)
	}
}

func (e *podEvent) readStatus(field protowire.Number, value []byte) {
	switch field {
	case 1:
		e.phase = string(value)
	case 8:
		forEachField(value, func(field protowire.Number, value []byte) {
			if _, id, named := strings.Cut(string(value), "://"); field == 8 && named {
				e.ids = append(e.ids, id)
			}
		})
	}
}

// forEachField calls for every field that has a length.
func forEachField(message []byte, call func(field protowire.Number, value []byte)) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		length := protowire.ConsumeFieldValue(field, kind, message)
		if length < 0 {
			return
		}
		if value, n := protowire.ConsumeBytes(message); kind == protowire.BytesType && n > 0 {
			call(field, value)
		}
		message = message[length:]
	}
}
