package habits

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// podResources is what the PodResources service answers.
func podResources() []Habit {
	return []Habit{
		habit("each device is an entry of its own", entryEach),
		habit("Topology is copied, one entry for each node, and an empty one loses the device", topology),
		habit("Topology is that of the time of the allocation", topologyChanges),
		habit("a pod without devices is listed", listedWithout),
		habit("Get is List for one pod", getOne),
		habit("Get of a missing pod is of code Unknown", getMissing),
		habit("GetAllocatableResources has the held devices too", allocatableHeld),
		habit("an unhealthy device stays with its holder", unhealthyHeld),
		habit("a device that vanishes stays with its holder and is called Healthy", vanishedHeld),
		habit("a plugin that dies leaves its devices with their holders, as healthy as they were", pluginDies),
		habit("a hundred calls a second, ten at once", rateLimit),
	}
}

func entryEach(s *stage) {
	s.offers(healthy("a", "b", "c")...)
	got := s.runs(s.pod("three", 3))
	s.awaitListed(got.Name, []listed{{"main", []string{"a", "b", "c"}}})
	s.awaitAllocatable("a", "b", "c")
}

func topology(s *stage) {
	s.offers(
		&pluginapi.Device{ID: "nil", Health: pluginapi.Healthy},
		on(&pluginapi.Device{ID: "empty", Health: pluginapi.Healthy}),
		on(&pluginapi.Device{ID: "one", Health: pluginapi.Healthy}, 0),
		on(&pluginapi.Device{ID: "two", Health: pluginapi.Healthy}, 0, 1),
	)
	s.awaitAllocatable("nil", "one[0]", "two[0]", "two[1]")
	got := s.runs(s.pod("all", 4))
	// A holder's devices are kept by node, and there "empty" is as good as nil.
	s.awaitListed(got.Name, []listed{{"main", []string{"empty", "nil", "one[0]", "two[0]", "two[1]"}}})
}

func topologyChanges(s *stage) {
	p := s.offers(on(&pluginapi.Device{ID: "a", Health: pluginapi.Healthy}, 0))
	got := s.runs(s.pod("one", 1))
	p.send(on(&pluginapi.Device{ID: "a", Health: pluginapi.Healthy}, 1))
	s.awaitAllocatable("a[1]")
	s.awaitListed(got.Name, []listed{{"main", []string{"a[0]"}}})
}

func listedWithout(s *stage) {
	pod := kubelet.Pod{Name: s.name + "-plain", Static: true, Containers: []kubelet.Container{{Name: "main"}, {Name: "second"}}}
	got := s.runs(pod)
	s.awaitListed(got.Name, []listed{{"main", []string{}}, {"second", []string{}}})
}

func getOne(s *stage) {
	s.offers(healthy("a")...)
	pod := s.pod("one", 1)
	side := s.container("side", 0)
	side.Sidecar = true
	pod.Init = []kubelet.Container{s.container("prepare", 1), side}
	status := s.runs(pod)
	got, err := s.get(status.Name)
	if err != nil || fmt.Sprint(got) != "[{side []} {main [a]}]" {
		s.Errorf("Get has %v, %v", got, err)
	}
}

func getMissing(s *stage) {
	got := s.runs(s.pod("static", 0))
	for _, name := range []string{s.name, s.name + "-static"} { // a static pod's own name is not the kubelet's for it
		_, err := s.get(name)
		s.wantError(err, codes.Unknown, fmt.Sprintf("pod %s in namespace default not found", name))
	}
	if _, err := s.get(got.Name); err != nil {
		s.Errorf("Get of the full name: %v", err)
	}
}

func allocatableHeld(s *stage) {
	s.offers(healthy("a", "b")...)
	s.runs(s.pod("holder", 1))
	s.awaitAllocatable("a", "b")
}

func unhealthyHeld(s *stage) {
	p := s.offers(healthy("a", "b")...)
	pod := s.pod("holder", 2)
	got := s.runs(pod)
	s.awaitHealth(pod, "a Healthy", "b Healthy")
	p.send(append(healthy("a"), devices(pluginapi.Unhealthy, "b")...)...)
	s.awaitAllocatable("a")
	s.awaitHealth(pod, "a Healthy", "b Unhealthy")
	s.awaitListed(got.Name, []listed{{"main", []string{"a", "b"}}})
	p.send(healthy("a", "b")...)
	s.awaitHealth(pod, "a Healthy", "b Healthy")
	s.awaitAllocatable("a", "b")
}

func vanishedHeld(s *stage) {
	p := s.offers(healthy("a", "b")...)
	pod := s.pod("holder", 2)
	got := s.runs(pod)
	p.send(append(healthy("a"), devices(pluginapi.Unhealthy, "b")...)...)
	s.awaitHealth(pod, "a Healthy", "b Unhealthy")
	p.send(healthy("a")...)
	s.awaitAllocatable("a")
	s.awaitListed(got.Name, []listed{{"main", []string{"a", "b"}}})
	s.awaitHealth(pod, "a Healthy", "b Healthy")
	s.rejected(s.pod("next", 1), fmt.Sprintf("requested number of devices unavailable for %s. Requested: 1, Available: 0", s.resource))
}

func pluginDies(s *stage) {
	p := s.offers(append(healthy("a"), devices(pluginapi.Unhealthy, "c")...)...)
	pod := s.pod("holder", 1)
	got := s.runs(pod)
	s.awaitHealth(pod, "a Healthy")
	p.stop()
	s.awaitAllocatable()
	s.awaitListed(got.Name, []listed{{"main", []string{"a"}}})
	if health, err := s.health(pod); err != nil || !slices.Equal(health, []string{"a Healthy"}) {
		s.Errorf("allocatedResourcesStatus is %q, %v", health, err)
	}
	p.again().registers()
	s.awaitListed(got.Name, []listed{{"main", []string{"a"}}})
}

// rateLimit: the bucket is the service's, whatever the method and whoever calls.
func rateLimit(s *stage) {
	s.await("the first of many calls is answered", func() error {
		_, err := s.lister.List(s.ctx, &podresources.ListPodResourcesRequest{})
		return err
	})
	answers := map[string]int{}
	for i := range 60 {
		var err error
		if i%2 == 0 {
			_, err = s.lister.List(s.ctx, &podresources.ListPodResourcesRequest{})
		} else {
			_, err = s.lister.GetAllocatableResources(s.ctx, &podresources.AllocatableResourcesRequest{})
		}
		answers[fmt.Sprintf("%s %s", status.Code(err), status.Convert(err).Message())]++
	}
	const rejected = "ResourceExhausted rejected by rate limit"
	// How many are answered depends on what earlier calls have left in the bucket.
	if answers[rejected] == 0 || answers["OK "]+answers[rejected] != 60 {
		s.Errorf("60 calls were answered %v", answers)
	}
	s.await("the bucket fills again", func() error {
		_, err := s.lister.List(s.ctx, &podresources.ListPodResourcesRequest{})
		return err
	})
}
