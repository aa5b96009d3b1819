package conformance

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// podResourcesCases is what the PodResources service answers.
func podResourcesCases() []Case {
	return []Case{
		newCase("each device is an entry of its own", oneEntryPerDevice),
		newCase("Topology is copied, one entry for each node, and an empty one loses the device", topology),
		newCase("Topology is that of the time of the allocation", topologyChanges),
		newCase("a pod without devices is listed", listedWithoutDevices),
		newCase("Get is List for one pod", getOne),
		newCase("Get of a missing pod is of code Unknown", getMissing),
		newCase("GetAllocatableResources has the held devices too", allocatableIncludesAllocated),
		newCase("an unhealthy device stays with its holder", unhealthyAllocated),
		newCase("a device that vanishes stays with its holder and is called Healthy", removedAllocated),
		newCase("a plugin that dies leaves its devices with their holders, as healthy as they were", pluginStops),
	}
}

func oneEntryPerDevice(s *caseFixture) {
	s.registerPlugin(healthy("a", "b", "c")...)
	got := s.runAdmittedPod(s.podSpec("three", 3))
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a", "b", "c"}}})
	s.waitForAllocatable("a", "b", "c")
}

func topology(s *caseFixture) {
	s.registerPlugin(
		&pluginapi.Device{ID: "nil", Health: pluginapi.Healthy},
		onNUMANodes(&pluginapi.Device{ID: "empty", Health: pluginapi.Healthy}),
		onNUMANodes(&pluginapi.Device{ID: "one", Health: pluginapi.Healthy}, 0),
		onNUMANodes(&pluginapi.Device{ID: "two", Health: pluginapi.Healthy}, 0, 1),
	)
	s.waitForAllocatable("nil", "one[0]", "two[0]", "two[1]")
	got := s.runAdmittedPod(s.podSpec("all", 4))
	// A holder's devices are kept by node, and there "empty" is as good as nil.
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"empty", "nil", "one[0]", "two[0]", "two[1]"}}})
}

func topologyChanges(s *caseFixture) {
	p := s.registerPlugin(onNUMANodes(&pluginapi.Device{ID: "a", Health: pluginapi.Healthy}, 0))
	got := s.runAdmittedPod(s.podSpec("one", 1))
	p.send(onNUMANodes(&pluginapi.Device{ID: "a", Health: pluginapi.Healthy}, 1))
	s.waitForAllocatable("a[1]")
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a[0]"}}})
}

func listedWithoutDevices(s *caseFixture) {
	pod := kubelet.PodSpec{Name: s.name + "-plain", Static: true, Containers: []kubelet.ContainerSpec{{Name: "main"}, {Name: "second"}}}
	got := s.runAdmittedPod(pod)
	s.waitForListed(got.Name, []listedContainer{{"main", []string{}}, {"second", []string{}}})
}

func getOne(s *caseFixture) {
	s.registerPlugin(healthy("a")...)
	pod := s.podSpec("one", 1)
	side := s.containerSpec("side", 0)
	side.Sidecar = true
	pod.InitContainers = []kubelet.ContainerSpec{s.containerSpec("prepare", 1), side}
	status := s.runAdmittedPod(pod)
	got, err := s.get(status.Name)
	if err != nil || fmt.Sprint(got) != "[{side []} {main [a]}]" {
		s.Errorf("Get has %v, %v", got, err)
	}
}

func getMissing(s *caseFixture) {
	got := s.runAdmittedPod(s.podSpec("static", 0))
	for _, name := range []string{s.name, s.name + "-static"} { // a static pod's own name is not the kubelet's for it
		_, err := s.get(name)
		s.wantError(err, codes.Unknown, fmt.Sprintf("pod %s in namespace default not found", name))
	}
	if _, err := s.get(got.Name); err != nil {
		s.Errorf("Get of the full name: %v", err)
	}
}

func allocatableIncludesAllocated(s *caseFixture) {
	s.registerPlugin(healthy("a", "b")...)
	s.runAdmittedPod(s.podSpec("holder", 1))
	s.waitForAllocatable("a", "b")
}

func unhealthyAllocated(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	pod := s.podSpec("holder", 2)
	got := s.runAdmittedPod(pod)
	s.waitForHealth(pod, "a Healthy", "b Healthy")
	p.send(append(healthy("a"), devices(pluginapi.Unhealthy, "b")...)...)
	s.waitForAllocatable("a")
	s.waitForHealth(pod, "a Healthy", "b Unhealthy")
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a", "b"}}})
	p.send(healthy("a", "b")...)
	s.waitForHealth(pod, "a Healthy", "b Healthy")
	s.waitForAllocatable("a", "b")
}

func removedAllocated(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	pod := s.podSpec("holder", 2)
	got := s.runAdmittedPod(pod)
	p.send(append(healthy("a"), devices(pluginapi.Unhealthy, "b")...)...)
	s.waitForHealth(pod, "a Healthy", "b Unhealthy")
	p.send(healthy("a")...)
	s.waitForAllocatable("a")
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a", "b"}}})
	s.waitForHealth(pod, "a Healthy", "b Healthy")
	s.runRejectedPod(s.podSpec("next", 1), fmt.Sprintf("requested number of devices unavailable for %s. Requested: 1, Available: 0", s.resource))
}

func pluginStops(s *caseFixture) {
	p := s.registerPlugin(append(healthy("a"), devices(pluginapi.Unhealthy, "c")...)...)
	pod := s.podSpec("holder", 1)
	got := s.runAdmittedPod(pod)
	s.waitForHealth(pod, "a Healthy")
	p.stop()
	s.waitForAllocatable()
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a"}}})
	if health, err := s.health(pod); err != nil || !slices.Equal(health, []string{"a Healthy"}) {
		s.Errorf("allocatedResourcesStatus is %q, %v", health, err)
	}
	p.restarted().registerAndWait()
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a"}}})
}
