package conformance

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// podLifecycleCases is what becomes of pods and their devices.
func podLifecycleCases() []Case {
	return []Case{
		newCase("a pod that has ended by itself is gone, and its device is free", podEnds),
		newCase("a static pod leaves List while its containers still run", manifestRemoved),
		newCase("a container that is restarted keeps its device without a new Allocate", containerRestarts),
		newCase("PreStartContainer comes before each start", preStart),
		newCase("PreStartContainer comes before an init container's start as well", preStartInit),
		newCase("a container whose PreStartContainer fails waits with its device", preStartFails),
	}
}

func podEnds(s *caseFixture) {
	s.registerPlugin(healthy("a")...)
	pod := s.podSpec("brief", 1)
	pod.RunOnce = true
	got := s.runAdmittedPod(pod)
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a"}}})
	if err := s.k.EndPod(s.ctx, pod); err != nil {
		s.Fatal(err)
	}
	s.waitForListed(got.Name, nil)
	_, err := s.get(got.Name)
	s.wantError(err, codes.Unknown, fmt.Sprintf("pod %s in namespace default not found", got.Name))
	s.waitFor("the pod's status says that it has ended", func() error {
		now, err := s.k.Pod(s.ctx, pod)
		if err == nil && now.Phase != "Succeeded" && now.Phase != "Failed" {
			err = fmt.Errorf("it is %s", now.Phase)
		}
		return err
	})
	next := s.runAdmittedPod(s.podSpec("next", 1))
	s.waitForListed(next.Name, []listedContainer{{"main", []string{"a"}}})
}

// manifestRemoved: the kubelet forgets a static pod at once, and its device is the next pod's
// while the containers run out their grace.
func manifestRemoved(s *caseFixture) {
	s.registerPlugin(healthy("a")...)
	pod := s.podSpec("stubborn", 1)
	pod.GracePeriod = 20 * time.Second
	got := s.runAdmittedPod(pod)
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a"}}})
	start := time.Now()
	if err := s.k.RemovePod(s.ctx, pod); err != nil {
		s.Fatal(err)
	}
	s.waitForListed(got.Name, nil)
	next := s.runAdmittedPod(s.podSpec("next", 1))
	s.waitForListed(next.Name, []listedContainer{{"main", []string{"a"}}})
	if took := time.Since(start); took > pod.GracePeriod/2 {
		s.Errorf("it took %v; its containers had %v", took, pod.GracePeriod)
	}
}

func containerRestarts(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	pod := s.podSpec("holder", 1)
	got := s.runAdmittedPod(pod)
	before, err := s.list()
	if err != nil {
		s.Fatal(err)
	}
	p.send(devices(pluginapi.Unhealthy, "a", "b")...) // health counts at admission alone
	s.waitForAllocatable()
	if err := s.k.RestartContainer(s.ctx, pod, "main"); err != nil {
		s.Fatal(err)
	}
	s.waitForListed(got.Name, before[got.Name])
	if n := p.allocations(); n != 1 {
		s.Errorf("Allocate was called %d times", n)
	}
}

func preStart(s *caseFixture) {
	p := s.startPlugin(healthy("a")...)
	p.options.PreStartRequired = true
	p.registerAndWait()
	pod := s.podSpec("holder", 1)
	s.runAdmittedPod(pod)
	if err := s.k.RestartContainer(s.ctx, pod, "main"); err != nil {
		s.Fatal(err)
	}
	s.waitFor("PreStartContainer was called twice", func() error {
		if n := p.prestarts(); n != 2 {
			return fmt.Errorf("it was called %d times", n)
		}
		return nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, got := range p.preStartCalls {
		if !slices.Equal(got, []string{"a"}) {
			s.Errorf("PreStartContainer was called for %q", got)
		}
	}
}

func preStartInit(s *caseFixture) {
	p := s.startPlugin(healthy("a", "b")...)
	p.options.PreStartRequired = true
	p.registerAndWait()
	pod := s.podSpec("prepared", 1)
	pod.InitContainers = []kubelet.ContainerSpec{s.containerSpec("prepare", 2)}
	pod.Containers = append(pod.Containers, s.containerSpec("without", 0))
	s.runAdmittedPod(pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !reflect.DeepEqual(p.preStartCalls, p.allocateCalls) || len(p.allocateCalls) != 2 {
		s.Errorf("PreStartContainer was called for %q, and Allocate for %q", p.preStartCalls, p.allocateCalls)
	}
}

func preStartFails(s *caseFixture) {
	p := s.startPlugin(healthy("a")...)
	p.options.PreStartRequired = true
	p.preStart = func() error { return errors.New("not ready") }
	p.registerAndWait()
	pod := s.podSpec("waiting", 1)
	s.Cleanup(func() { _ = s.k.RemovePod(context.WithoutCancel(s.ctx), pod) })
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	if got, err := s.k.RunPod(ctx, pod); err == nil {
		s.Fatalf("the pod has started: %+v", got)
	}
	got, err := s.k.Pod(s.ctx, pod)
	if err != nil || got.Phase != "Pending" || len(got.Containers) != 1 || got.Containers[0].Running {
		s.Errorf("the pod is %+v, %v; want it to wait", got, err)
	}
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a"}}})
	s.waitForHealth(pod, "a Healthy")
}
