package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

var restartCases = []kubeletCase{
	{"the sockets of an ended kubelet refuse connections", func(s *caseFixture) {
		s.restart(syscall.SIGTERM, s.requireRefused)
	}},
	{"the sockets of a killed kubelet refuse connections", func(s *caseFixture) {
		s.restart(syscall.SIGKILL, s.requireRefused)
	}},
	{"a start of the kubelet removes sockets, but no files or folders", socketsRemoved},
	{"a plugin's stream and socket end with the kubelet", func(s *caseFixture) {
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			p := s.registerPlugin(healthy("a", "b")...)
			s.restart(signal, func() { p.waitForStreams(0) })
			if _, err := os.Lstat(s.path("device-plugins", p.Socket)); err == nil {
				s.Errorf("after %v the plugin's socket still exists", signal)
			}
			s.waitForAllocatable()
			p.restarted().registerAndWait()
		}
	}},
	{"an allocation is listed before the plugin registers again", ownerBeforePlugin},
	{"after a start, List lacks the pod or has the pod with the device", listAfterStart},
	{"the checkpoint has the pod's uid and devices", checkpointFile},
	// A new kubelet repeats the admission of running pods, and skips containers
	// that run. A regular init container does not run.
	{"a pod with an init container's devices is rejected by a new kubelet without the plugin", func(s *caseFixture) {
		s.registerPlugin(healthy("a", "b")...)
		pod := s.withInit(s.podSpec("prepared", 1), 1)
		s.runAdmittedPod(pod)
		s.restart(syscall.SIGTERM, nil)
		s.waitForStatus("the pod is rejected", pod, func(p kubelet.PodStatus) bool { return p.Phase == "Failed" })
	}},
	// No API server stores the failure of a static pod.
	{"a rejected static pod is admitted again by the next kubelet", func(s *caseFixture) {
		s.registerPluginWith(pluginBehavior{Allocate: failingAllocate}, healthy("a")...)
		pod := s.podSpec("rejected", 1)
		s.runRejectedPod(pod, "rpc error: code = Unknown desc = out of order")
		s.restart(syscall.SIGTERM, nil)
		// A kubelet whose node does not have the resource yet removes it from
		// the request (removeMissingExtendedResources in
		// pkg/kubelet/lifecycle/predicate.go), and the pod runs without a
		// device.
		s.waitForStatus("the pod is admitted again", pod, func(p kubelet.PodStatus) bool {
			runsWithout := p.Phase == "Running" && len(p.Containers) == 1 && len(p.Containers[0].Devices) == 0
			return runsWithout || strings.Contains(p.Message, "no healthy devices present")
		})
	}},
	{"a pod that is removed while the kubelet is stopped has no allocation after the start", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a")...)
		pod := s.podSpec("orphan", 1)
		got := s.runAdmittedPod(pod)
		s.restart(syscall.SIGTERM, func() {
			// Not Fatal: Restart may call whileDown in a new goroutine.
			if err := s.k.RemovePod(s.ctx, pod); err != nil {
				s.Error(err)
			}
		})
		p.restarted().registerAndWait()
		s.waitForListed(got.Name, "")
		s.waitFor("the device is unallocated", func() error {
			// A real kubelet releases the device after reading all pods, and
			// rejects earlier requests.
			if next := s.runPod(s.podSpec(fmt.Sprint("next-", time.Now().UnixNano()), 1)); next.Phase == "Failed" {
				return errors.New(next.Message)
			}
			return nil
		})
	}},
}

func (s *caseFixture) requireRefused() {
	for _, service := range []string{"device-plugins", "pod-resources"} {
		path := s.path(service, "kubelet.sock")
		if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
			s.Errorf("%s: %v; want a socket", path, err)
		}
		conn, err := net.Dial("unix", path)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			s.Errorf("connect to %s: %v; want %v", path, err, syscall.ECONNREFUSED)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

func socketsRemoved(s *caseFixture) {
	dir, file := s.path("device-plugins", s.name), s.path("device-plugins", s.name+".txt")
	s.must(os.Mkdir(dir, 0o755))
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.must(os.WriteFile(file, []byte("kept"), 0o644))
	s.Cleanup(func() { _ = os.Remove(file) })
	foreign, nested := s.path("device-plugins", s.name+".sock"), filepath.Join(dir, "n.sock")
	for _, path := range []string{foreign, nested} {
		listener, err := net.Listen("unix", path)
		s.must(err)
		s.Cleanup(func() { _ = listener.Close() })
	}
	s.restart(syscall.SIGTERM, nil)
	for path, want := range map[string]bool{
		dir: true, file: true, nested: true, foreign: false, s.path("device-plugins", "kubelet.sock"): true,
	} {
		if _, err := os.Lstat(path); (err == nil) != want {
			s.Errorf("%s: %v; want exists: %t", path, err, want)
		}
	}
}

func ownerBeforePlugin(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	pod := s.podSpec("owner", 1)
	got := s.runAdmittedPod(pod)
	before := s.listed(got.Name)
	s.restart(syscall.SIGTERM, nil)
	s.waitForListed(got.Name, before)
	s.waitForAllocatable()
	next := p.restarted()
	next.registerAndWait()
	s.waitForListed(got.Name, before)
	p.wantAllocateCalls(1)
	next.wantAllocateCalls(0)
	// A restarted kubelet may not have the status yet.
	s.waitForStatus("the same pod to run", pod, func(now kubelet.PodStatus) bool {
		return now.UID == got.UID && now.Phase == "Running"
	})
	unallocated := map[string]string{"main[a]": "main[b]", "main[b]": "main[a]"}[before]
	s.waitForListed(s.runAdmittedPod(s.podSpec("other", 1)).Name, unallocated)
}

// listAfterStart calls List from the first response after a restart. Real
// kubelets lacked the pod at first in ten of ten restarts.
func listAfterStart(s *caseFixture) {
	s.registerPlugin(healthy("a")...)
	got := s.runAdmittedPod(s.podSpec("owner", 1))
	s.waitForListed(got.Name, "main[a]")
	ctx, cancel := context.WithTimeout(s.ctx, waitTimeout)
	defer cancel()
	var rows []string // of the pod, one per response
	var poll sync.WaitGroup
	defer poll.Wait()
	s.restart(syscall.SIGKILL, func() {
		poll.Go(func() {
			tick := time.NewTicker(15 * time.Millisecond) // below the rate limit
			defer tick.Stop()
			for ctx.Err() == nil && (len(rows) == 0 || rows[len(rows)-1] == "") {
				if response, err := s.lister.List(ctx, &podresources.ListPodResourcesRequest{}); err == nil {
					isPod := func(p *podresources.PodResources) bool { return p.Name == got.Name }
					i := slices.IndexFunc(response.PodResources, isPod)
					if rows = append(rows, ""); i >= 0 {
						rows[len(rows)-1] = s.containers(response.PodResources[i])
					}
				}
				<-tick.C
			}
		})
	})
	poll.Wait()
	if len(rows) == 0 || rows[len(rows)-1] != "main[a]" {
		s.Errorf("responses %q; want main[a] in the first response with the pod", rows)
	}
	s.Logf("%d responses without the pod", len(rows)-1)
}

func checkpointFile(s *caseFixture) {
	s.registerPlugin(healthy("a", "b")...)
	got := s.runAdmittedPod(s.podSpec("owner", 2))
	checkpoint := s.readCheckpoint()
	isOwn := func(e checkpointEntry) bool { return e.ResourceName == s.resource }
	i := slices.IndexFunc(checkpoint.PodDeviceEntries, isOwn)
	if i < 0 {
		s.Fatalf("no entry for %s in %+v", s.resource, checkpoint)
	}
	entry := checkpoint.PodDeviceEntries[i]
	slices.Sort(entry.DeviceIDs["-1"])
	if entry.PodUID != got.UID || entry.ContainerName != "main" || fmt.Sprint(entry.DeviceIDs) != "map[-1:[a b]]" {
		s.Errorf("entry %+v; want a and b of container main of pod %s", entry, got.UID)
	}
	registered := slices.Sorted(slices.Values(checkpoint.RegisteredDevices[s.resource]))
	if !slices.Equal(registered, []string{"a", "b"}) {
		s.Errorf("registered devices %q; want a and b", registered)
	}
}
