package conformance

import (
	"fmt"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// listCases is what the kubelet makes of ListAndWatch.
func listCases() []Case {
	return []Case{
		newCase("a list replaces the one before", listReplaces),
		newCase("an id that is listed twice counts once", duplicateIDs),
		newCase("an id that is listed healthy and unhealthy is allocatable", contradictoryIDs),
		newCase("an empty list leaves nothing, and the next one counts", emptyList),
		newCase("an empty list leaves holders what they hold, and the resource registered", emptyListAllocated),
		newCase("only the word Healthy is healthy", healthStrings),
		newCase("an unhealthy device is not allocatable until it is healthy again", becomesUnhealthy),
		newCase("a list of more than 4 MiB ends the stream", listTooLarge),
		newCase("a stream that ends takes the devices with it and is not opened again", streamEnds),
	}
}

func listReplaces(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	p.send(healthy("b", "c", "d")...)
	s.waitForAllocatable("b", "c", "d")
}

func duplicateIDs(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b", "c", "d")...)
	p.send(healthy("a", "b", "c", "d", "a", "b", "c", "d", "e")...)
	s.waitForAllocatable("a", "b", "c", "d", "e")
}

func contradictoryIDs(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	p.send(append(devices(pluginapi.Unhealthy, "a", "b"), healthy("a")...)...)
	s.waitForAllocatable("a")
}

func emptyList(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	p.send()
	s.waitForAllocatable()
	s.runRejectedPod(s.podSpec("early", 1), fmt.Sprintf("no healthy devices present; cannot allocate unhealthy devices %s", s.resource))
	p.send(healthy("a")...)
	s.waitForAllocatable("a")
}

// emptyListAllocated is how a resource is taken away while its plugin goes on: the checkpoint names
// it still, with nothing to give.
func emptyListAllocated(s *caseFixture) {
	p := s.registerPlugin(healthy("a")...)
	pod := s.podSpec("holder", 1)
	got := s.runAdmittedPod(pod)
	p.send()
	s.waitForAllocatable()
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a"}}})
	s.waitFor("the checkpoint has the resource without devices", func() error {
		if ids, ok := s.readCheckpoint().Data.RegisteredDevices[s.resource]; !ok || len(ids) > 0 {
			return fmt.Errorf("it has %q, %t", ids, ok)
		}
		return nil
	})
	if err := s.k.RestartContainer(s.ctx, pod, "main"); err != nil {
		s.Fatal(err)
	}
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a"}}})
	if got := p.streamsOpen(); got != 1 {
		s.Errorf("the plugin has %d streams", got)
	}
}

func healthStrings(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b", "c")...)
	list := []*pluginapi.Device{}
	for i, health := range []string{"", "healthy", pluginapi.Healthy, pluginapi.Unhealthy, "Healthy "} {
		list = append(list, &pluginapi.Device{ID: fmt.Sprint(i), Health: health})
	}
	p.send(list...)
	s.waitForAllocatable("2")
}

func becomesUnhealthy(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	p.send(append(healthy("a"), devices(pluginapi.Unhealthy, "b")...)...)
	s.waitForAllocatable("a")
	p.send(healthy("a", "b")...)
	s.waitForAllocatable("a", "b")
}

// listTooLarge: the kubelet's end of the stream has gRPC's own limit.
func listTooLarge(s *caseFixture) {
	p := s.registerPlugin(healthy("a")...)
	many := []*pluginapi.Device{}
	for i := range 70_000 {
		many = append(many, &pluginapi.Device{ID: fmt.Sprintf("%060d", i), Health: pluginapi.Healthy})
	}
	p.send(many...)
	p.waitForStreams(0)
	s.waitForAllocatable()
}

func streamEnds(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	p.endStreams()
	s.waitForAllocatable()
	s.runRejectedPod(s.podSpec("late", 1), fmt.Sprintf("no healthy devices present; cannot allocate unhealthy devices %s", s.resource))
	if opened := p.streamsOpened(); opened != 1 {
		s.Errorf("ListAndWatch was called %d times; the kubelet does it once for each registration", opened)
	}
	p.restarted().registerAndWait()
}
