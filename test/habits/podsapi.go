package habits

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
	"google.golang.org/protobuf/encoding/protowire"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// podsAPI is what a kubelet tells of its pods, from 1.37 on.
func podsAPI() []Habit {
	return []Habit{
		habit("a kubelet before 1.37 has no Pods API", noPodsAPI),
		watching("WatchPods names the pods that there are, and says that these are all", watchBegins),
		watching("a new pod is ADDED without its container's id, and MODIFIED with it", watchStart),
		watching("a container that is restarted has another id", watchRestart),
		watching("a pod that has ended is MODIFIED, DELETED with its names alone, and there for the next watcher", watchEnd),
		watching("a static pod whose manifest is removed is DELETED, and its phase was never another", watchRemoved),
		watching("the end of a pod that was rejected is told to nobody", watchRejected),
		watching("a pod that is not there is NotFound", getNobody),
	}
}

// watching makes a row of kubelets that have a Pods API.
func watching(name string, play func(s *stage)) Habit {
	return habit(name, func(s *stage) {
		if s.k.Version() != kubelet.V136 {
			play(s)
		}
	})
}

func noPodsAPI(s *stage) {
	_, err := os.Stat(s.podsSocket())
	if there := err == nil; there != (s.k.Version() != kubelet.V136) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Errorf("its socket: %v", err)
	}
}

func watchBegins(s *stage) {
	pod := s.pod("before", 0)
	pod.Labels = map[string]string{"team": "blue"}
	got := s.runs(pod)
	w := s.watch()
	told := w.await("all are told", func(told []podEvent) bool { return w.synced(told) })
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
	if e.made {
		s.Error("it says when a static pod was made")
	}
}

func watchStart(s *stage) {
	w := s.watch()
	w.await("all are told", w.synced)
	got := s.runs(s.pod("new", 0))
	told := w.of(got.UID, "it runs", running)
	if told[0].kind != "ADDED" || len(told[0].ids) > 0 {
		s.Errorf("first it tells %+v", told[0])
	}
	for _, e := range told[1:] {
		if e.kind != "MODIFIED" {
			s.Errorf("then it tells %+v", e)
		}
	}
}

func watchRestart(s *stage) {
	pod := s.pod("again", 0)
	got := s.runs(pod)
	w := s.watch()
	first := w.of(got.UID, "it runs", running)
	id := last(first).ids[0]
	if err := s.k.RestartContainer(s.ctx, pod, "main"); err != nil {
		s.Fatal(err)
	}
	w.of(got.UID, "its container has another id", func(e podEvent) bool { return running(e) && e.ids[0] != id })
}

func watchEnd(s *stage) {
	w := s.watch()
	w.await("all are told", w.synced)
	pod := s.pod("brief", 0)
	pod.Once = true
	got := s.runs(pod)
	if err := s.k.EndPod(s.ctx, pod); err != nil {
		s.Fatal(err)
	}
	told := w.of(got.UID, "it is over", func(e podEvent) bool { return e.kind == "DELETED" })
	if end := last(told); end.name != got.Name || end.namespace != "default" || end.phase != "" || len(end.ids) > 0 {
		s.Errorf("of its end it tells %+v", end)
	}
	if before := told[len(told)-2]; before.kind != "MODIFIED" || before.phase != "Succeeded" {
		s.Errorf("before its end it tells %+v", before)
	}
	again := s.watch().of(got.UID, "the next watcher is told of it", func(podEvent) bool { return true })
	if again[0].kind != "ADDED" || again[0].phase != "Succeeded" {
		s.Errorf("the next watcher is told %+v", again[0])
	}
}

func watchRemoved(s *stage) {
	pod := s.pod("removed", 0)
	got := s.runs(pod)
	w := s.watch()
	w.of(got.UID, "it runs", running)
	if err := s.k.RemovePod(s.ctx, pod); err != nil {
		s.Fatal(err)
	}
	told := w.of(got.UID, "it is over", func(e podEvent) bool { return e.kind == "DELETED" })
	for _, e := range told[:len(told)-1] {
		if e.phase != "Running" {
			s.Errorf("before that it tells %+v", e)
		}
	}
}

func watchRejected(s *stage) {
	s.offers(healthy("a")...)
	w := s.watch()
	w.await("all are told", w.synced)
	pod := s.pod("greedy", 2)
	got := s.rejected(pod, fmt.Sprintf("requested number of devices unavailable for %s. Requested: 2, Available: 1", s.resource))
	if told := w.of(got.UID, "it has failed", func(e podEvent) bool { return e.phase == "Failed" }); told[0].kind != "ADDED" {
		s.Errorf("first it tells %+v", told[0])
	}
	if err := s.k.RemovePod(s.ctx, pod); err != nil {
		s.Fatal(err)
	}
	s.await("a new watcher is not told of it", func() error {
		fresh := s.watch()
		if told := fresh.await("all are told", fresh.synced); slices.ContainsFunc(told, func(e podEvent) bool { return e.uid == got.UID }) {
			return fmt.Errorf("it is told %+v", told)
		}
		return nil
	})
	next := s.runs(s.pod("next", 0))
	w.of(next.UID, "another pod runs", running)
	if told := w.all(got.UID); last(told).kind == "DELETED" {
		s.Errorf("its end is told: %+v", told)
	}
}

func getNobody(s *stage) {
	s.await("the kubelet is not initializing", func() error {
		_, err := s.podsClient().ListPods(s.ctx, &podsapi.ListPodsRequest{})
		return err
	})
	_, err := s.podsClient().GetPod(s.ctx, &podsapi.GetPodRequest{PodUID: "nobody"})
	s.wantError(err, codes.NotFound, "pod with UID nobody not found")
}

// podEvent is what an event tells.
type podEvent struct {
	kind                         string
	name, namespace, uid, labels string
	made                         bool // it has a time of creation
	phase                        string
	ids                          []string // of its containers that have one
}

func running(e podEvent) bool { return e.phase == "Running" && len(e.ids) > 0 }

func last(told []podEvent) podEvent { return told[len(told)-1] }

func (s *stage) podsSocket() string { return filepath.Join(s.k.Dir(), "pods-api", "pods-api.sock") }

func (s *stage) podsClient() podsapi.PodsClient {
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
	s  *stage
	mu sync.Mutex
	// All below are guarded by mu.
	told []podEvent
	err  error // why it is told no more
}

// watch begins to watch as soon as the kubelet lets it, and ends with the habit.
func (s *stage) watch() *podWatch {
	s.Helper()
	w := &podWatch{s: s}
	client := s.podsClient()
	ctx, cancel := context.WithCancel(s.ctx)
	var stream grpc.ServerStreamingClient[podsapi.WatchPodsEvent]
	s.await("it may watch", func() (err error) {
		if stream, err = client.WatchPods(ctx, &podsapi.WatchPodsRequest{}); err != nil {
			return err
		}
		first, err := stream.Recv()
		if err == nil {
			w.told = append(w.told, readEvent(first))
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
				w.told = append(w.told, readEvent(e))
			}
			w.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	return w
}

// await waits until enough was told, and returns it.
func (w *podWatch) await(what string, enough func([]podEvent) bool) (told []podEvent) {
	w.s.Helper()
	w.s.await(what, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if told = slices.Clone(w.told); !enough(told) {
			return fmt.Errorf("it was told %+v: %w", told, w.err)
		}
		return nil
	})
	return told
}

// of waits until one such event was told of a pod, and returns all up to that one.
func (w *podWatch) of(uid, what string, such func(podEvent) bool) (told []podEvent) {
	w.s.Helper()
	w.await(what, func([]podEvent) bool {
		told = of(w.told, uid)
		i := slices.IndexFunc(told, such)
		if i >= 0 {
			told = told[:i+1]
		}
		return i >= 0
	})
	return told
}

// all is what was told of a pod.
func (w *podWatch) all(uid string) []podEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return of(w.told, uid)
}

func of(told []podEvent, uid string) []podEvent {
	return slices.DeleteFunc(slices.Clone(told), func(e podEvent) bool { return e.uid != uid })
}

func (w *podWatch) synced(told []podEvent) bool {
	return slices.ContainsFunc(told, func(e podEvent) bool { return e.kind == "INITIAL_SYNC_COMPLETE" })
}

// readEvent reads of a pod what the habits are about (core/v1/generated.proto in k8s.io/api).
func readEvent(from *podsapi.WatchPodsEvent) podEvent {
	e := podEvent{kind: from.Type.String()}
	each(from.Pod, func(field protowire.Number, value []byte) {
		switch field {
		case 1:
			each(value, e.readMetadata)
		case 3:
			each(value, e.readStatus)
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
		e.made = len(value) > 0
	case 11:
		e.labels += string(value)
	}
}

func (e *podEvent) readStatus(field protowire.Number, value []byte) {
	switch field {
	case 1:
		e.phase = string(value)
	case 8:
		each(value, func(field protowire.Number, value []byte) {
			if _, id, named := strings.Cut(string(value), "://"); field == 8 && named {
				e.ids = append(e.ids, id)
			}
		})
	}
}

// each calls for every field that has a length.
func each(message []byte, call func(field protowire.Number, value []byte)) {
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
