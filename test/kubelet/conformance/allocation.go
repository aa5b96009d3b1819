package conformance

import (
	"context"
	"fmt"
	"slices"
)

var allocationCases = []kubeletCase{
	{"Allocate is called once for each container and resource", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b", "c")...)
		pod := s.podSpec("two", 1)
		pod.Containers = append(pod.Containers, s.containerSpec("second", 2), s.containerSpec("third", 0))
		got := s.runAdmittedPod(pod)
		calls := p.Calls().Allocate
		if len(calls) != 2 || len(calls[0]) != 1 || len(calls[1]) != 2 {
			s.Fatalf("Allocate calls %q; want one of 1 and one of 2 devices", calls)
		}
		s.waitForListed(got.Name, fmt.Sprintf("main%v second%v third[]", calls[0], calls[1]))
	}},
	{"a container may have resources of several plugins", severalResources},
	{
		"if Allocate fails for one of several resources, the checkpoint has no entry and all devices are unallocated",
		oneOfSeveralFails,
	},
	{"a pod is rejected if Allocate fails, without a retry", func(s *caseFixture) {
		p := s.registerPluginWith(pluginBehavior{Allocate: failingAllocate}, healthy("a")...)
		s.runRejectedPod(s.podSpec("rejected", 1), "rpc error: code = Unknown desc = out of order")
		s.runAdmittedPod(s.podSpec("other", 0)) // takes longer than a retry
		p.wantAllocateCalls(1)
		s.waitForAllocatable("a")
	}},
	{"List has the pod before Allocate returns, and the allocation afterwards", func(s *caseFixture) {
		var during map[string]string
		var err error
		s.registerPluginWith(pluginBehavior{Allocate: func(context.Context) error {
			during, err = s.list()
			return nil
		}}, healthy("a")...)
		got := s.runAdmittedPod(s.podSpec("one", 1))
		if err != nil || len(during) != 1 || during[got.Name] != "main[]" {
			s.Errorf("List during Allocate: %q, %v; want the pod without a device", during, err)
		}
		s.waitForListed(got.Name, "main[a]")
	}},
	{"a pod that requests too many devices is rejected", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b")...)
		owner := s.runAdmittedPod(s.podSpec("owner", 1))
		s.runRejectedPod(s.podSpec("greedy", 2), s.unavailable(2, 1))
		p.wantAllocateCalls(1)
		if pods, err := s.list(); err != nil || len(pods) != 1 || pods[owner.Name] == "" {
			s.Errorf("List: %q, %v; want only pod %s", pods, err, owner.Name)
		}
	}},
	{"a pod is rejected while the plugin is stopped", func(s *caseFixture) {
		s.registerPlugin(healthy("a")...).Stop()
		s.waitForAllocatable()
		for n := range 2 { // also a pod that requests no device
			s.runRejectedPod(s.podSpec(fmt.Sprintf("early-%d", n), n), s.allUnhealthy())
		}
	}},
	// The scheduler would not schedule the pod; the kubelet admits the pod.
	{"a pod that requests a resource without a plugin runs without devices", func(s *caseFixture) {
		s.waitForListed(s.runAdmittedPod(s.podSpec("early", 1)).Name, "main[]")
	}},
	{"GetPreferredAllocation determines the devices, even if all devices are requested", func(s *caseFixture) {
		p := s.registerPluginWith(pluginBehavior{Prefer: lastIDs}, healthy("a", "b", "c", "d")...)
		s.waitForListed(s.runAdmittedPod(s.podSpec("first", 2)).Name, "main[c d]")
		s.runAdmittedPod(s.podSpec("rest", 2))
		p.wantPreferredCalls("[a b c d] [] 2", "[a b] [] 2")
	}},
	{"the kubelet adds devices to a GetPreferredAllocation response with too few ids", func(s *caseFixture) {
		prefer := func([]string, int) []string { return []string{"b", "unknown"} }
		p := s.registerPluginWith(pluginBehavior{Prefer: prefer}, healthy("a", "b", "c", "d")...)
		s.runAdmittedPod(s.podSpec("two", 2))
		got := p.Calls().Allocate[0]
		if len(got) != 2 || !slices.Contains(got, "b") || slices.Contains(got, "unknown") {
			s.Errorf("Allocate call %q; want b and another device", got)
		}
	}},
	{"GetPreferredAllocation must include the devices of an init container", func(s *caseFixture) {
		p := s.registerPluginWith(pluginBehavior{Prefer: lastIDs}, healthy("a", "b", "c", "d")...)
		s.waitForListed(s.runAdmittedPod(s.withInit(s.podSpec("prepared", 2), 1)).Name, "main[c d]")
		p.wantPreferredCalls("[a b c d] [] 1", "[a b c d] [d] 2")
	}},
	{"GetPreferredAllocation is not called if the devices of an init container suffice", func(s *caseFixture) {
		p := s.registerPluginWith(pluginBehavior{Prefer: lastIDs}, healthy("a", "b", "c")...)
		s.waitForListed(s.runAdmittedPod(s.withInit(s.podSpec("prepared", 1), 1)).Name, "main[c]")
		p.wantPreferredCalls("[a b c] [] 1")
	}},
	{"an init container's devices are reused for later containers and are not listed", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b", "c")...)
		got := s.runAdmittedPod(s.withInit(s.podSpec("prepared", 1), 2))
		calls := p.Calls().Allocate
		if len(calls) != 2 || !slices.Contains(calls[0], calls[1][0]) {
			s.Fatalf("Allocate calls %q; want the second device among the first devices", calls)
		}
		s.waitForListed(got.Name, "main"+fmt.Sprint(calls[1]))
		// The pod keeps the init container's second device.
		s.runRejectedPod(s.podSpec("greedy", 2), s.unavailable(2, 1))
	}},
	{"a sidecar keeps the devices and is listed first", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b")...)
		pod := s.withInit(s.podSpec("accompanied", 1), 1)
		side := s.containerSpec("side", 1)
		side.Sidecar = true
		pod.InitContainers = append(pod.InitContainers, side)
		got := s.runAdmittedPod(pod)
		calls := p.Calls().Allocate
		if len(calls) != 3 || calls[0][0] != calls[1][0] || calls[1][0] == calls[2][0] {
			s.Fatalf("Allocate calls %q; want the same for init container and sidecar, not for the container", calls)
		}
		s.waitForListed(got.Name, fmt.Sprintf("side%v main%v", calls[1], calls[2]))
	}},
	{"only healthy devices are allocated", func(s *caseFixture) {
		p := s.registerPlugin(append(healthy("a"), unhealthy("b", "c")...)...)
		s.waitForListed(s.runAdmittedPod(s.podSpec("one", 1)).Name, "main[a]")
		s.runRejectedPod(s.podSpec("two", 1), s.unavailable(1, 0))
		p.Send(healthy("a", "b", "c")...)
		p.waitForList()
		s.runAdmittedPod(s.podSpec("three", 2))
	}},
}

func severalResources(s *caseFixture) {
	other := newCaseFixture(s.T, s.k)
	p := s.registerPluginWith(pluginBehavior{PreStartRequired: true}, healthy("a", "b")...)
	q := other.registerPlugin(healthy("a", "c", "d")...) // ids are unique per resource only
	pod := s.podSpec("both", 2)
	pod.Containers[0].Limits[other.resource] = 3
	got := s.runAdmittedPod(pod)
	s.waitForListed(got.Name, "main[a b]")
	other.name = s.name // for list
	other.waitForListed(got.Name, "main[a c d]")
	if c := p.Calls(); fmt.Sprint(c.Allocate, c.PreStart) != "[[a b]] [[a b]]" {
		s.Errorf("Allocate calls %q, PreStartContainer calls %q; want [a b] each", c.Allocate, c.PreStart)
	}
	if c := q.Calls(); fmt.Sprint(c.Allocate, c.PreStart) != "[[a c d]] []" {
		s.Errorf("Allocate calls %q, PreStartContainer calls %q; want [a c d] and none", c.Allocate, c.PreStart)
	}
}

// oneOfSeveralFails repeats the pod, because the order of the resources is
// random.
func oneOfSeveralFails(s *caseFixture) {
	other := newCaseFixture(s.T, s.k)
	s.registerPlugin(healthy("a")...)
	other.registerPluginWith(pluginBehavior{Allocate: failingAllocate}, healthy("b")...)
	for i := range 4 {
		pod := s.podSpec(fmt.Sprint("rejected-", i), 1)
		pod.Containers[0].Limits[other.resource] = 1
		s.runRejectedPod(pod, "rpc error: code = Unknown desc = out of order")
		for _, entry := range s.readCheckpoint().PodDeviceEntries {
			if entry.ResourceName == s.resource || entry.ResourceName == other.resource {
				s.Errorf("the checkpoint has %+v", entry)
			}
		}
	}
	s.waitForListed(s.runAdmittedPod(s.podSpec("admitted", 1)).Name, "main[a]")
}
