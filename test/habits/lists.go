package habits

import (
	"fmt"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// lists is what the kubelet makes of ListAndWatch.
func lists() []Habit {
	return []Habit{
		habit("a list replaces the one before", listReplaces),
		habit("an id that is listed twice counts once", duplicateIDs),
		habit("an id that is listed healthy and unhealthy is allocatable", contradictoryIDs),
		habit("an empty list leaves nothing, and the next one counts", emptyList),
		habit("an empty list leaves holders what they hold, and the resource registered", emptyListHeld),
		habit("only the word Healthy is healthy", healthWords),
		habit("an unhealthy device is not allocatable until it is healthy again", turnsUnhealthy),
		habit("a list of more than 4 MiB ends the stream", listTooBig),
		habit("a stream that ends takes the devices with it and is not opened again", streamEnds),
	}
}

func listReplaces(s *stage) {
	p := s.offers(healthy("a", "b")...)
	p.send(healthy("b", "c", "d")...)
	s.awaitAllocatable("b", "c", "d")
}

func duplicateIDs(s *stage) {
	p := s.offers(healthy("a", "b", "c", "d")...)
	p.send(healthy("a", "b", "c", "d", "a", "b", "c", "d", "e")...)
	s.awaitAllocatable("a", "b", "c", "d", "e")
}

func contradictoryIDs(s *stage) {
	p := s.offers(healthy("a", "b")...)
	p.send(append(devices(pluginapi.Unhealthy, "a", "b"), healthy("a")...)...)
	s.awaitAllocatable("a")
}

func emptyList(s *stage) {
	p := s.offers(healthy("a", "b")...)
	p.send()
	s.awaitAllocatable()
	s.rejected(s.pod("early", 1), fmt.Sprintf("no healthy devices present; cannot allocate unhealthy devices %s", s.resource))
	p.send(healthy("a")...)
	s.awaitAllocatable("a")
}

// emptyListHeld is how a resource is taken away while its plugin goes on: the checkpoint names
// it still, with nothing to give.
func emptyListHeld(s *stage) {
	p := s.offers(healthy("a")...)
	pod := s.pod("holder", 1)
	got := s.runs(pod)
	p.send()
	s.awaitAllocatable()
	s.awaitListed(got.Name, []listed{{"main", []string{"a"}}})
	s.await("the checkpoint has the resource without devices", func() error {
		if ids, ok := s.checkpoint().Data.RegisteredDevices[s.resource]; !ok || len(ids) > 0 {
			return fmt.Errorf("it has %q, %t", ids, ok)
		}
		return nil
	})
	if err := s.k.RestartContainer(s.ctx, pod, "main"); err != nil {
		s.Fatal(err)
	}
	s.awaitListed(got.Name, []listed{{"main", []string{"a"}}})
	if got := p.streamsOpen(); got != 1 {
		s.Errorf("the plugin has %d streams", got)
	}
}

func healthWords(s *stage) {
	p := s.offers(healthy("a", "b", "c")...)
	list := []*pluginapi.Device{}
	for i, health := range []string{"", "healthy", pluginapi.Healthy, pluginapi.Unhealthy, "Healthy "} {
		list = append(list, &pluginapi.Device{ID: fmt.Sprint(i), Health: health})
	}
	p.send(list...)
	s.awaitAllocatable("2")
}

func turnsUnhealthy(s *stage) {
	p := s.offers(healthy("a", "b")...)
	p.send(append(healthy("a"), devices(pluginapi.Unhealthy, "b")...)...)
	s.awaitAllocatable("a")
	p.send(healthy("a", "b")...)
	s.awaitAllocatable("a", "b")
}

// listTooBig: the kubelet's end of the stream has gRPC's own limit.
func listTooBig(s *stage) {
	p := s.offers(healthy("a")...)
	many := []*pluginapi.Device{}
	for i := range 70_000 {
		many = append(many, &pluginapi.Device{ID: fmt.Sprintf("%060d", i), Health: pluginapi.Healthy})
	}
	p.send(many...)
	p.awaitStreams(0)
	s.awaitAllocatable()
}

func streamEnds(s *stage) {
	p := s.offers(healthy("a", "b")...)
	p.hangUp()
	s.awaitAllocatable()
	s.rejected(s.pod("late", 1), fmt.Sprintf("no healthy devices present; cannot allocate unhealthy devices %s", s.resource))
	if opened := p.streamsOpened(); opened != 1 {
		s.Errorf("ListAndWatch was called %d times; the kubelet does it once for each registration", opened)
	}
	p.again().registers()
}
