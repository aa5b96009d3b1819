package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// restartCases is what a kubelet leaves behind, and finds again.
func restartCases() []Case {
	return []Case{
		newCase("a kubelet that was told to end leaves its sockets, and they refuse", func(s *caseFixture) { socketsRefuse(s, syscall.SIGTERM) }),
		newCase("a kubelet that was killed leaves its sockets, and they refuse", func(s *caseFixture) { socketsRefuse(s, syscall.SIGKILL) }),
		newCase("a start removes sockets, and neither files nor folders", socketsRemoved),
		newCase("a plugin's stream ends with the kubelet, and its socket is gone after it", pluginAcrossRestart),
		newCase("a holder is listed before its plugin is back", ownerBeforePlugin),
		newCase("after a start List is empty or right", listAfterStart),
		newCase("the checkpoint has the pod's uid and its devices", checkpointFile),
		newCase("a pod whose init container had a device is rejected by a start without the plugin", initContainerAcrossRestart),
		newCase("a static pod that was rejected is tried again by the next kubelet", rejectedAcrossRestart),
		newCase("a pod that ends while no kubelet runs holds nothing after", removedDuringRestart),
	}
}

func (s *caseFixture) socketPath(elem ...string) string {
	return filepath.Join(append([]string{s.k.Dir(), "device-plugins"}, elem...)...)
}

func socketsRefuse(s *caseFixture, signal syscall.Signal) {
	s.restart(signal, func() {
		for _, service := range []string{"device-plugins", "pod-resources"} {
			path := filepath.Join(s.k.Dir(), service, "kubelet.sock")
			if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
				s.Errorf("no socket is left: %v", err)
			}
			if conn, err := net.Dial("unix", path); !errors.Is(err, syscall.ECONNREFUSED) {
				s.Errorf("connect to %s: %v; want a refusal", path, err)
				if err == nil {
					_ = conn.Close()
				}
			}
		}
	})
}

func socketsRemoved(s *caseFixture) {
	dir := s.socketPath(s.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := s.socketPath(s.name + ".txt")
	if err := os.WriteFile(file, []byte("kept"), 0o644); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = os.Remove(file) })
	foreign, nested := s.socketPath(s.name+".sock"), filepath.Join(dir, "n.sock")
	for _, path := range []string{foreign, nested} {
		listener, err := net.Listen("unix", path)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { _ = listener.Close() })
	}
	s.restart(syscall.SIGTERM, nil)
	for path, want := range map[string]bool{dir: true, file: true, nested: true, foreign: false, s.socketPath("kubelet.sock"): true} {
		if _, err := os.Lstat(path); (err == nil) != want {
			s.Errorf("%s: %v; should it be there: %t", path, err, want)
		}
	}
}

func pluginAcrossRestart(s *caseFixture) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		p := s.registerPlugin(healthy("a", "b")...)
		s.restart(signal, func() { p.waitForStreams(0) })
		if _, err := os.Lstat(p.path()); err == nil {
			s.Errorf("after %v the plugin's socket is still there", signal)
		}
		s.waitForAllocatable()
		p.restarted().registerAndWait()
	}
}

func ownerBeforePlugin(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	pod := s.podSpec("holder", 1)
	got := s.runAdmittedPod(pod)
	before, err := s.list()
	if err != nil {
		s.Fatal(err)
	}
	s.restart(syscall.SIGTERM, nil)
	s.waitForListed(got.Name, before[got.Name])
	s.waitForAllocatable()
	next := p.restarted()
	next.registerAndWait()
	s.waitForListed(got.Name, before[got.Name])
	if n := p.allocations() + next.allocations(); n != 1 {
		s.Errorf("Allocate was called %d times", n)
	}
	if now, err := s.k.Pod(s.ctx, pod); err != nil || now.UID != got.UID || now.Phase != "Running" {
		s.Errorf("the pod is %+v, %v", now, err)
	}
	allocated := before[got.Name][0].Devices
	other := s.runAdmittedPod(s.podSpec("other", 1)) // gets the device that was not restored
	s.waitForListed(other.Name, []listedContainer{{"main", slices.DeleteFunc([]string{"a", "b"}, func(id string) bool { return slices.Contains(allocated, id) })}})
}

// listAfterStart looks from the socket's first answer on. An answer may lack the pod (a real
// kubelet's did in 10 of 10 restarts), but it never has the pod without its device.
func listAfterStart(s *caseFixture) {
	s.registerPlugin(healthy("a")...)
	got := s.runAdmittedPod(s.podSpec("holder", 1))
	want := []listedContainer{{"main", []string{"a"}}}
	s.waitForListed(got.Name, want)
	ctx, cancel := context.WithTimeout(s.ctx, waitTimeout)
	defer cancel()
	var answers [][]listedContainer // each answer's word on the pod
	var watch sync.WaitGroup
	defer watch.Wait()
	s.restart(syscall.SIGKILL, func() {
		watch.Go(func() {
			tick := time.NewTicker(15 * time.Millisecond) // the rate limit allows a hundred a second
			defer tick.Stop()
			for ctx.Err() == nil && (len(answers) == 0 || answers[len(answers)-1] == nil) {
				if answer, err := s.lister.List(ctx, &podresources.ListPodResourcesRequest{}); err == nil {
					answers = append(answers, s.containersOf(answer, got.Name))
				}
				<-tick.C
			}
		})
	})
	watch.Wait()
	for i, answer := range answers {
		if answer != nil && !reflect.DeepEqual(answer, want) {
			s.Errorf("answer %d of %d has %v", i, len(answers), answer)
		}
	}
	if len(answers) == 0 || answers[len(answers)-1] == nil {
		s.Errorf("the pod was not in the %d answers", len(answers))
	}
	s.Logf("%d answers without the pod before one with it", len(answers)-1)
}

func (s *caseFixture) containersOf(answer *podresources.ListPodResourcesResponse, name string) []listedContainer {
	for _, pod := range answer.PodResources {
		if pod.Name == name {
			return s.containers(pod)
		}
	}
	return nil
}

func checkpointFile(s *caseFixture) {
	s.registerPlugin(healthy("a", "b")...)
	got := s.runAdmittedPod(s.podSpec("holder", 2))
	checkpoint := s.readCheckpoint()
	for _, entry := range checkpoint.Data.PodDeviceEntries {
		if entry.ResourceName != s.resource {
			continue
		}
		slices.Sort(entry.DeviceIDs["-1"])
		if text := fmt.Sprint(entry.PodUID, entry.ContainerName, entry.DeviceIDs); text != fmt.Sprint(got.UID, "main", "map[-1:[a b]]") {
			s.Errorf("the entry is %s; the pod's uid is %s", text, got.UID)
		}
		if registered := slices.Sorted(slices.Values(checkpoint.Data.RegisteredDevices[s.resource])); !slices.Equal(registered, []string{"a", "b"}) {
			s.Errorf("registered are %q", registered)
		}
		return
	}
	s.Errorf("there is no entry for %s in %+v", s.resource, checkpoint)
}

// recordedCheckpoint is what the kubelet has written down.
type recordedCheckpoint struct {
	Data struct {
		PodDeviceEntries  []recordedCheckpointEntry
		RegisteredDevices map[string][]string
	}
	Checksum uint64
}

type recordedCheckpointEntry struct {
	PodUID, ContainerName, ResourceName string
	DeviceIDs                           map[string][]string
	AllocResp                           []byte
}

func (s *caseFixture) readCheckpoint() recordedCheckpoint {
	s.Helper()
	b, err := os.ReadFile(s.socketPath("kubelet_internal_checkpoint"))
	if err != nil {
		s.Fatal(err)
	}
	var c recordedCheckpoint
	if err := json.Unmarshal(b, &c); err != nil {
		s.Fatal(err)
	}
	return c
}

func removedDuringRestart(s *caseFixture) {
	p := s.registerPlugin(healthy("a")...)
	pod := s.podSpec("orphan", 1)
	got := s.runAdmittedPod(pod)
	s.restart(syscall.SIGTERM, func() {
		if err := s.k.RemovePod(s.ctx, pod); err != nil {
			s.Error(err)
		}
	})
	p.restarted().registerAndWait()
	s.waitForListed(got.Name, nil)
	next := kubelet.PodSpec{}
	s.waitFor("its device is free", func() error {
		// The real one frees it when it has read all pods, and rejects whoever comes before.
		next = s.podSpec(fmt.Sprint("next-", time.Now().UnixNano()), 1)
		if status := s.runPod(next); status.Phase == "Failed" {
			return errors.New(status.Message)
		}
		return nil
	})
}

// initContainerAcrossRestart: the kubelet admits running pods anew when it starts, and lets
// containers pass that run. A regular init container does not run any more, so that the pod is
// turned away for want of its plugin, although nothing in it needs one.
func initContainerAcrossRestart(s *caseFixture) {
	s.registerPlugin(healthy("a", "b")...)
	pod := s.podSpec("prepared", 1)
	pod.InitContainers = []kubelet.ContainerSpec{s.containerSpec("prepare", 1)}
	s.runAdmittedPod(pod)
	s.restart(syscall.SIGTERM, nil)
	s.waitFor("the pod is rejected", func() error {
		now, err := s.k.Pod(s.ctx, pod)
		if err == nil && now.Phase != "Failed" {
			err = fmt.Errorf("it is %+v", now)
		}
		return err
	})
}

// rejectedAcrossRestart: the API server would remember that the pod has failed; of a static pod
// only the kubelet knew.
func rejectedAcrossRestart(s *caseFixture) {
	p := s.startPlugin(healthy("a")...)
	p.allocate = func([]string) error { return errors.New("not today") }
	p.registerAndWait()
	pod := s.podSpec("unlucky", 1)
	s.runRejectedPod(pod, "rpc error: code = Unknown desc = not today")
	s.restart(syscall.SIGTERM, nil)
	s.waitFor("the pod is rejected for another reason", func() error {
		now, err := s.k.Pod(s.ctx, pod)
		if err == nil && !strings.Contains(now.Message, "no healthy devices present") {
			err = fmt.Errorf("it is %+v", now)
		}
		return err
	})
}
