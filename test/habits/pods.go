package habits

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

// podLives is what becomes of pods and their devices.
func podLives() []Habit {
	return []Habit{
		habit("a pod that has ended by itself is gone, and its device is free", podEnds),
		habit("a static pod leaves List while its containers still run", manifestRemoved),
		habit("a container that is restarted keeps its device without a new Allocate", containerRestarts),
		habit("PreStartContainer comes before each start", preStart),
		habit("PreStartContainer comes before an init container's start as well", preStartInit),
		habit("a container whose PreStartContainer fails waits with its device", preStartFails),
	}
}

func podEnds(s *stage) {
	s.offers(healthy("a")...)
	pod := s.pod("brief", 1)
	pod.Once = true
	got := s.runs(pod)
	s.awaitListed(got.Name, []listed{{"main", []string{"a"}}})
	if err := s.k.EndPod(s.ctx, pod); err != nil {
		s.Fatal(err)
	}
	s.awaitListed(got.Name, nil)
	_, err := s.get(got.Name)
	s.wantError(err, codes.Unknown, fmt.Sprintf("pod %s in namespace default not found", got.Name))
	s.await("the pod's status says that it has ended", func() error {
		now, err := s.k.Pod(s.ctx, pod)
		if err == nil && now.Phase != "Succeeded" && now.Phase != "Failed" {
			err = fmt.Errorf("it is %s", now.Phase)
		}
		return err
	})
	next := s.runs(s.pod("next", 1))
	s.awaitListed(next.Name, []listed{{"main", []string{"a"}}})
}

// manifestRemoved: the kubelet forgets a static pod at once, and its device is the next pod's
// while the containers run out their grace.
func manifestRemoved(s *stage) {
	s.offers(healthy("a")...)
	pod := s.pod("stubborn", 1)
	pod.Grace = 20 * time.Second
	got := s.runs(pod)
	s.awaitListed(got.Name, []listed{{"main", []string{"a"}}})
	start := time.Now()
	if err := s.k.RemovePod(s.ctx, pod); err != nil {
		s.Fatal(err)
	}
	s.awaitListed(got.Name, nil)
	next := s.runs(s.pod("next", 1))
	s.awaitListed(next.Name, []listed{{"main", []string{"a"}}})
	if took := time.Since(start); took > pod.Grace/2 {
		s.Errorf("it took %v; its containers had %v", took, pod.Grace)
	}
}

func containerRestarts(s *stage) {
	p := s.offers(healthy("a", "b")...)
	pod := s.pod("holder", 1)
	got := s.runs(pod)
	before, err := s.list()
	if err != nil {
		s.Fatal(err)
	}
	p.send(devices(pluginapi.Unhealthy, "a", "b")...) // health counts at admission alone
	s.awaitAllocatable()
	if err := s.k.RestartContainer(s.ctx, pod, "main"); err != nil {
		s.Fatal(err)
	}
	s.awaitListed(got.Name, before[got.Name])
	if n := p.allocations(); n != 1 {
		s.Errorf("Allocate was called %d times", n)
	}
}

func preStart(s *stage) {
	p := s.plugin(healthy("a")...)
	p.options.PreStartRequired = true
	p.registers()
	pod := s.pod("holder", 1)
	s.runs(pod)
	if err := s.k.RestartContainer(s.ctx, pod, "main"); err != nil {
		s.Fatal(err)
	}
	s.await("PreStartContainer was called twice", func() error {
		if n := p.prestarts(); n != 2 {
			return fmt.Errorf("it was called %d times", n)
		}
		return nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, got := range p.prestarted {
		if !slices.Equal(got, []string{"a"}) {
			s.Errorf("PreStartContainer was called for %q", got)
		}
	}
}

func preStartInit(s *stage) {
	p := s.plugin(healthy("a", "b")...)
	p.options.PreStartRequired = true
	p.registers()
	pod := s.pod("prepared", 1)
	pod.Init = []kubelet.Container{s.container("prepare", 2)}
	pod.Containers = append(pod.Containers, s.container("without", 0))
	s.runs(pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !reflect.DeepEqual(p.prestarted, p.allocated) || len(p.allocated) != 2 {
		s.Errorf("PreStartContainer was called for %q, and Allocate for %q", p.prestarted, p.allocated)
	}
}

func preStartFails(s *stage) {
	p := s.plugin(healthy("a")...)
	p.options.PreStartRequired = true
	p.prestart = func() error { return errors.New("not ready") }
	p.registers()
	pod := s.pod("waiting", 1)
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
	s.awaitListed(got.Name, []listed{{"main", []string{"a"}}})
	s.awaitHealth(pod, "a Healthy")
}
