package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

var podsAPICases = []kubeletCase{
	{"the Pods API exists since 1.37", func(s *caseFixture) {
		_, err := os.Stat(s.path("pods-api", "pods-api.sock"))
		want := s.k.Version() != kubelet.V136
		if (err == nil) != want || err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.Errorf("socket of the Pods API: %v; want exists: %t", err, want)
		}
	}},
	{"WatchPods sends all pods, and INITIAL_SYNC_COMPLETE", withPodsAPI(watchListsPods)},
	{"a new pod is ADDED without a container id, and MODIFIED with the id", withPodsAPI(func(s *caseFixture) {
		w := s.watchPods()
		w.waitFor("initial sync", isSynced)
		got := s.runAdmittedPod(s.podSpec("new", 0))
		events := w.waitForPod(got.UID, "pod runs", isRunning)
		if events[0].kind != "ADDED" || len(events[0].ids) > 0 {
			s.Errorf("first event %+v; want ADDED without ids", events[0])
		}
		for _, e := range events[1:] {
			if e.kind != "MODIFIED" {
				s.Errorf("later event %+v; want MODIFIED", e)
			}
		}
	})},
	{"a restarted container has a new id", withPodsAPI(func(s *caseFixture) {
		pod := s.podSpec("again", 0)
		got := s.runAdmittedPod(pod)
		w := s.watchPods()
		id := last(w.waitForPod(got.UID, "pod runs", isRunning)).ids[0]
		s.must(s.k.RestartContainer(s.ctx, pod, "main"))
		w.waitForPod(got.UID, "another container id", func(e podEvent) bool { return isRunning(e) && e.ids[0] != id })
	})},
	{"an ended pod is MODIFIED, DELETED without status, and ADDED for the next watcher", withPodsAPI(watchPodEnd)},
	{"a static pod without a manifest is DELETED, and Running until then", withPodsAPI(func(s *caseFixture) {
		pod := s.podSpec("removed", 0)
		got := s.runAdmittedPod(pod)
		w := s.watchPods()
		w.waitForPod(got.UID, "pod runs", isRunning)
		s.must(s.k.RemovePod(s.ctx, pod))
		events := w.waitForPod(got.UID, "DELETED", isDeleted)
		ran := slices.IndexFunc(events, isRunning) // the first event may be older than the start of the pod
		for _, e := range events[ran : len(events)-1] {
			if e.phase != "Running" {
				s.Errorf("event before DELETED %+v; want phase Running", e)
			}
		}
	})},
	{"the end of a rejected pod is not sent", withPodsAPI(watchPodRejected)},
	{"GetPod of a missing pod returns NotFound", withPodsAPI(func(s *caseFixture) {
		client := podsapi.NewPodsClient(s.dial("pods-api", "pods-api.sock"))
		var err error
		s.waitFor("the kubelet has initialized", func() error {
			_, err = client.GetPod(s.ctx, &podsapi.GetPodRequest{PodUID: "missing"})
			if status.Code(err) != codes.NotFound {
				return err
			}
			return nil
		})
		s.wantError(err, codes.NotFound, "pod with UID missing not found")
	})},
}

// withPodsAPI skips kubelets without a Pods API.
func withPodsAPI(run func(s *caseFixture)) func(s *caseFixture) {
	return func(s *caseFixture) {
		if s.k.Version() != kubelet.V136 {
			run(s)
		}
	}
}

func watchListsPods(s *caseFixture) {
	pod := s.podSpec("before", 0)
	pod.Labels = map[string]string{"team": "blue"}
	got := s.runAdmittedPod(pod)
	events := s.watchPods().waitFor("initial sync", isSynced)
	i := slices.IndexFunc(events, func(e podEvent) bool { return e.uid == got.UID })
	if i < 0 || !isSynced(events[i:]) {
		s.Fatalf("events %+v; want pod %s before the end of the initial sync", events, got.UID)
	}
	e := events[i]
	hasNames := e.name == got.Name && e.namespace == "default" && strings.Contains(e.labels, "team")
	if e.kind != "ADDED" || !hasNames || e.phase != "Running" || e.hasCreationTime {
		s.Errorf("event %+v; want pod %s, running, with labels and without a creation time", e, got.Name)
	}
	if len(e.ids) != 1 || len(e.ids[0]) != 64 {
		s.Errorf("container ids %q; want one of 64 digits", e.ids)
	}
}

func watchPodEnd(s *caseFixture) {
	w := s.watchPods()
	w.waitFor("initial sync", isSynced)
	pod := s.podSpec("brief", 0)
	pod.RunOnce = true
	got := s.runAdmittedPod(pod)
	s.must(s.k.EndPod(s.ctx, pod))
	events := w.waitForPod(got.UID, "DELETED", isDeleted)
	if end := last(events); end.name != got.Name || end.namespace != "default" || end.phase != "" || len(end.ids) > 0 {
		s.Errorf("DELETED %+v; want only the names", end)
	}
	if before := events[len(events)-2]; before.kind != "MODIFIED" || before.phase != "Succeeded" {
		s.Errorf("event before DELETED %+v; want MODIFIED, Succeeded", before)
	}
	next := s.watchPods().waitForPod(got.UID, "first event", func(podEvent) bool { return true })
	if next[0].kind != "ADDED" || next[0].phase != "Succeeded" {
		s.Errorf("event of the next watcher %+v; want ADDED, Succeeded", next[0])
	}
}

func watchPodRejected(s *caseFixture) {
	s.registerPlugin(healthy("a")...)
	w := s.watchPods()
	w.waitFor("initial sync", isSynced)
	pod := s.podSpec("greedy", 2)
	got := s.runRejectedPod(pod, s.unavailable(2, 1))
	events := w.waitForPod(got.UID, "pod has failed", func(e podEvent) bool { return e.phase == "Failed" })
	if events[0].kind != "ADDED" {
		s.Errorf("first event %+v; want ADDED", events[0])
	}
	s.must(s.k.RemovePod(s.ctx, pod))
	s.waitFor("a new watcher gets no event of the pod", func() error {
		if events := eventsOf(s.watchPods().waitFor("initial sync", isSynced), got.UID); len(events) > 0 {
			return fmt.Errorf("got %+v", events)
		}
		return nil
	})
	next := s.runAdmittedPod(s.podSpec("next", 0))
	w.waitForPod(next.UID, "another pod runs", isRunning)
	if events := eventsOf(w.current(), got.UID); isDeleted(last(events)) {
		s.Errorf("events %+v; want no DELETED", events)
	}
}
