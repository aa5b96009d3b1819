package conformance

import (
	"fmt"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

var listCases = []kubeletCase{
	{"a list replaces the previous list", listThenAllocatable(healthy("b", "c", "d"), "b", "c", "d")},
	{
		"an id that is listed twice counts once",
		listThenAllocatable(healthy("a", "b", "c", "d", "a", "b", "c", "d", "e"), "a", "b", "c", "d", "e"),
	},
	{
		"an id that is listed healthy and unhealthy is allocatable",
		listThenAllocatable(append(unhealthy("a", "b"), healthy("a")...), "a"),
	},
	{"only the string Healthy is healthy", listThenAllocatable([]*pluginapi.Device{
		{ID: "0"},
		{ID: "1", Health: "healthy"},
		{ID: "2", Health: "Healthy"},
		{ID: "3", Health: "Unhealthy"},
		{ID: "4", Health: "Healthy "},
	}, "2")},
	{"an unhealthy device is allocatable after recovery", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b")...)
		p.Send(append(healthy("a"), unhealthy("b")...)...)
		s.waitForAllocatable("a")
		p.Send(healthy("a", "b")...)
		s.waitForAllocatable("a", "b")
	}},
	{"an empty list removes all devices, and the next list adds devices", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b")...)
		p.Send()
		s.waitForAllocatable()
		s.runRejectedPod(s.podSpec("early", 1), s.allUnhealthy())
		p.Send(healthy("a")...)
		s.waitForAllocatable("a")
	}},
	{"an empty list keeps allocations and the registration of the resource", emptyListAllocated},
	// gRPC's default limit applies to messages that the kubelet receives.
	{"a list of more than 4 MiB ends the stream", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a")...)
		many := []*pluginapi.Device{}
		for i := range 70_000 {
			many = append(many, &pluginapi.Device{ID: fmt.Sprintf("%060d", i), Health: pluginapi.Healthy})
		}
		p.Send(many...)
		p.waitForStreams(0)
		s.waitForAllocatable()
	}},
	{"the end of a stream removes the devices, and the stream is not opened again", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b")...)
		p.EndStreams()
		s.waitForAllocatable()
		s.runRejectedPod(s.podSpec("late", 1), s.allUnhealthy())
		if c := p.Calls(); c.Streams != 1 {
			s.Errorf("%d ListAndWatch calls; want one per registration", c.Streams)
		}
		p.Send(healthy("a", "b")...)
		p.restarted().registerAndWait()
	}},
}

// listThenAllocatable returns a case that sends a second list and waits for the
// allocatable devices.
func listThenAllocatable(list []*pluginapi.Device, want ...string) func(*caseFixture) {
	return func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b")...)
		p.Send(list...)
		s.waitForAllocatable(want...)
	}
}

// emptyListAllocated checks that a plugin can withdraw all devices of a
// resource. The checkpoint keeps the resource, without devices.
func emptyListAllocated(s *caseFixture) {
	p := s.registerPlugin(healthy("a")...)
	pod := s.podSpec("owner", 1)
	got := s.runAdmittedPod(pod)
	p.Send()
	s.waitForAllocatable()
	s.waitForListed(got.Name, "main[a]")
	s.waitFor("the checkpoint has the resource without devices", func() error {
		if ids, ok := s.readCheckpoint().RegisteredDevices[s.resource]; !ok || len(ids) > 0 {
			return fmt.Errorf("checkpoint: %q, %t", ids, ok)
		}
		return nil
	})
	s.must(s.k.RestartContainer(s.ctx, pod, "main"))
	s.waitForListed(got.Name, "main[a]")
	p.waitForStreams(1)
}
