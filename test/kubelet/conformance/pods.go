package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

var podCases = []kubeletCase{
	{"List and Get lack an ended pod, and the device is unallocated", func(s *caseFixture) {
		s.registerPlugin(healthy("a")...)
		pod := s.podSpec("brief", 1)
		pod.RunOnce = true
		got := s.runAdmittedPod(pod)
		s.waitForListed(got.Name, "main[a]")
		s.must(s.k.EndPod(s.ctx, pod))
		s.waitForListed(got.Name, "")
		_, err := s.get(got.Name)
		s.wantError(err, codes.Unknown, fmt.Sprintf("pod %s in namespace default not found", got.Name))
		s.waitForStatus("the pod has ended", pod, func(p kubelet.PodStatus) bool {
			return p.Phase == "Succeeded" || p.Phase == "Failed"
		})
		s.waitForListed(s.runAdmittedPod(s.podSpec("next", 1)).Name, "main[a]")
	}},
	// The kubelet allocates the device to the next pod during the grace period
	// of the containers.
	{"List lacks a removed static pod while the containers still run", func(s *caseFixture) {
		s.registerPlugin(healthy("a")...)
		pod := s.podSpec("stubborn", 1)
		pod.GracePeriod = 20 * time.Second
		got := s.runAdmittedPod(pod)
		s.waitForListed(got.Name, "main[a]")
		start := time.Now()
		s.must(s.k.RemovePod(s.ctx, pod))
		s.waitForListed(got.Name, "")
		s.waitForListed(s.runAdmittedPod(s.podSpec("next", 1)).Name, "main[a]")
		if took := time.Since(start); took > pod.GracePeriod/2 {
			s.Errorf("device was allocated again after %v, want less than half of the grace period", took)
		}
	}},
	{"a restarted container keeps the device without a second Allocate", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b")...)
		pod := s.podSpec("owner", 1)
		got := s.runAdmittedPod(pod)
		before := s.listed(got.Name)
		p.Send(unhealthy("a", "b")...) // health affects admission only
		s.waitForAllocatable()
		s.must(s.k.RestartContainer(s.ctx, pod, "main"))
		s.waitForListed(got.Name, before)
		p.wantAllocateCalls(1)
	}},
	{"PreStartContainer is called before each start", func(s *caseFixture) {
		p := s.registerPluginWith(pluginBehavior{PreStartRequired: true}, healthy("a")...)
		pod := s.podSpec("owner", 1)
		s.runAdmittedPod(pod)
		s.must(s.k.RestartContainer(s.ctx, pod, "main"))
		calls := func() (any, error) { return p.Calls().PreStart, nil }
		s.waitForValue("PreStartContainer calls", calls, [][]string{{"a"}, {"a"}})
	}},
	{"PreStartContainer is called before the start of an init container", func(s *caseFixture) {
		p := s.registerPluginWith(pluginBehavior{PreStartRequired: true}, healthy("a", "b")...)
		pod := s.withInit(s.podSpec("prepared", 1), 2)
		pod.Containers = append(pod.Containers, s.containerSpec("without", 0))
		s.runAdmittedPod(pod)
		if c := p.Calls(); len(c.Allocate) != 2 || fmt.Sprint(c.PreStart) != fmt.Sprint(c.Allocate) {
			s.Errorf("PreStartContainer calls %q, Allocate calls %q; want the same two calls", c.PreStart, c.Allocate)
		}
	}},
	{"a container waits, with its device, if PreStartContainer fails", func(s *caseFixture) {
		notReady := func() error { return errors.New("not ready") }
		s.registerPluginWith(pluginBehavior{PreStartRequired: true, PreStart: notReady}, healthy("a")...)
		pod := s.podSpec("waiting", 1)
		s.Cleanup(func() { _ = s.k.RemovePod(context.WithoutCancel(s.ctx), pod) })
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		defer cancel()
		if got, err := s.k.RunPod(ctx, pod); err == nil {
			s.Fatalf("the pod has started: %+v", got)
		}
		got, err := s.k.Pod(s.ctx, pod)
		if err != nil || got.Phase != "Pending" || len(got.Containers) != 1 || got.Containers[0].Running {
			s.Errorf("pod %+v, %v; want a waiting container", got, err)
		}
		s.waitForListed(got.Name, "main[a]")
		s.waitForHealth(pod, "a Healthy")
	}},
}
