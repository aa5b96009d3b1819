package conformance

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// allocationCases is how pods come by their devices.
func allocationCases() []Case {
	return []Case{
		newCase("Allocate is called once for each container and resource", oneAllocatePerContainer),
		newCase("a container may have several resources, and each plugin is asked for its own", severalResources),
		newCase("where one of a container's resources fails none is written down, and all are free", oneOfSeveralFails),
		newCase("a pod is rejected where Allocate fails, and nobody tries again", allocateFails),
		newCase("an allocation is listed when Allocate has returned, and the pod before", listedAfterAllocate),
		newCase("a pod that asks for too much is rejected", tooManyRequested),
		newCase("a pod that comes while the plugin is away is rejected", pluginStopped),
		newCase("a pod that asks for what no plugin has ever offered runs without it", neverRegistered),
		newCase("GetPreferredAllocation is asked even where all are needed, and obeyed", preferred),
		newCase("GetPreferredAllocation that returns too little is filled up", preferredTooFew),
		newCase("GetPreferredAllocation must include what an init container had", preferredIncludes),
		newCase("GetPreferredAllocation is not asked where an init container had enough", preferredWithoutChoice),
		newCase("an init container's devices go to the containers after it and are not listed", initContainers),
		newCase("a sidecar keeps its devices and is listed first", sidecars),
		newCase("only healthy devices are allocated", onlyHealthyAllocated),
	}
}

func oneAllocatePerContainer(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b", "c")...)
	pod := s.podSpec("two", 1)
	pod.Containers = append(pod.Containers, s.containerSpec("second", 2), s.containerSpec("third", 0))
	got := s.runAdmittedPod(pod)
	sizes := []int{}
	all := []string{}
	p.read(func() int {
		for _, ids := range p.allocateCalls {
			sizes = append(sizes, len(ids))
			all = append(all, ids...)
		}
		return 0
	})
	slices.Sort(all)
	if !slices.Equal(sizes, []int{1, 2}) || !slices.Equal(all, []string{"a", "b", "c"}) {
		s.Errorf("Allocate was called for %d devices, %q", sizes, all)
	}
	pods, err := s.list()
	if err != nil {
		s.Fatal(err)
	}
	if containers := pods[got.Name]; len(containers) != 3 || len(containers[0].Devices) != 1 || len(containers[1].Devices) != 2 ||
		len(containers[2].Devices) != 0 {
		s.Errorf("List has %v", containers)
	}
}

// withResource is a stage with a resource of its own, whose devices the pods of s ask for.
func (s *caseFixture) withResource() *caseFixture {
	s.Helper()
	return newCaseFixture(s.T, s.k)
}

// seesResource is what List says of the pods of s and a resource that is not its own.
func (s *caseFixture) seesResource(other *caseFixture) *caseFixture {
	view := *s
	view.resource = other.resource
	return &view
}

func severalResources(s *caseFixture) {
	other := s.withResource()
	p, q := s.startPlugin(healthy("a", "b")...), other.startPlugin(healthy("a", "c", "d")...) // ids are a resource's own
	p.options.PreStartRequired = true
	p.registerAndWait()
	q.registerAndWait()
	pod := s.podSpec("both", 2)
	pod.Containers[0].Limits[other.resource] = 3
	got := s.runAdmittedPod(pod)
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a", "b"}}})
	s.seesResource(other).waitForListed(got.Name, []listedContainer{{"main", []string{"a", "c", "d"}}})
	p.mu.Lock()
	defer p.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if want := [][]string{{"a", "b"}}; !reflect.DeepEqual(p.allocateCalls, want) || !reflect.DeepEqual(p.preStartCalls, want) {
		s.Errorf("Allocate was called for %q and PreStartContainer for %q; want %q", p.allocateCalls, p.preStartCalls, want)
	}
	if want := [][]string{{"a", "c", "d"}}; !reflect.DeepEqual(q.allocateCalls, want) || len(q.preStartCalls) > 0 {
		s.Errorf("Allocate was called for %q and PreStartContainer for %q; want %q and none", q.allocateCalls, q.preStartCalls, want)
	}
}

// oneOfSeveralFails: which of them comes first is chance.
func oneOfSeveralFails(s *caseFixture) {
	other := s.withResource()
	s.registerPlugin(healthy("a")...)
	q := other.startPlugin(healthy("b")...)
	q.allocate = func([]string) error { return errors.New("not today") }
	q.registerAndWait()
	for i := range 4 {
		pod := s.podSpec(fmt.Sprint("unlucky-", i), 1)
		pod.Containers[0].Limits[other.resource] = 1
		s.runRejectedPod(pod, "rpc error: code = Unknown desc = not today")
		if entries := s.readCheckpoint().Data.PodDeviceEntries; slices.ContainsFunc(entries, func(e recordedCheckpointEntry) bool {
			return e.ResourceName == s.resource || e.ResourceName == other.resource
		}) {
			s.Errorf("the checkpoint has %+v", entries)
		}
	}
	got := s.runAdmittedPod(s.podSpec("lucky", 1))
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a"}}})
}

func allocateFails(s *caseFixture) {
	p := s.startPlugin(healthy("a")...)
	p.allocate = func([]string) error { return errors.New("not today") }
	p.registerAndWait()
	pod := s.podSpec("unlucky", 1)
	s.runRejectedPod(pod, "rpc error: code = Unknown desc = not today")
	s.runAdmittedPod(s.podSpec("bystander", 0)) // by now a retry would have come
	if got := p.allocations(); got != 1 {
		s.Errorf("Allocate was called %d times", got)
	}
	s.waitForAllocatable("a")
}

func listedAfterAllocate(s *caseFixture) {
	p := s.startPlugin(healthy("a")...)
	var within map[string][]listedContainer
	var err error
	p.allocate = func([]string) error {
		within, err = s.list()
		return nil
	}
	p.registerAndWait()
	got := s.runAdmittedPod(s.podSpec("one", 1))
	if want := map[string][]listedContainer{got.Name: {{"main", []string{}}}}; err != nil || !reflect.DeepEqual(within, want) {
		s.Errorf("within Allocate, List has %v, %v; want %v", within, err, want)
	}
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a"}}})
}

func tooManyRequested(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	owner := s.runAdmittedPod(s.podSpec("holder", 1))
	s.runRejectedPod(s.podSpec("greedy", 2), fmt.Sprintf("requested number of devices unavailable for %s. Requested: 2, Available: 1", s.resource))
	if got := p.allocations(); got != 1 {
		s.Errorf("Allocate was called %d times", got)
	}
	if pods, err := s.list(); err != nil || len(pods) != 1 || len(pods[owner.Name]) != 1 {
		s.Errorf("List has %v, %v", pods, err)
	}
}

func pluginStopped(s *caseFixture) {
	p := s.registerPlugin(healthy("a")...)
	p.stop()
	s.waitForAllocatable()
	for n := range 2 { // even one that asks for none
		s.runRejectedPod(s.podSpec(fmt.Sprintf("early-%d", n), n), fmt.Sprintf("no healthy devices present; cannot allocate unhealthy devices %s", s.resource))
	}
}

// neverRegistered: the scheduler would not have sent the pod, but the kubelet takes it.
func neverRegistered(s *caseFixture) {
	got := s.runAdmittedPod(s.podSpec("hopeful", 1))
	s.waitForListed(got.Name, []listedContainer{{"main", []string{}}})
}

func preferred(s *caseFixture) {
	p := s.startPlugin(healthy("a", "b", "c", "d")...)
	p.options.GetPreferredAllocationAvailable = true
	p.preferFunc = lastIDs
	p.registerAndWait()
	first := s.runAdmittedPod(s.podSpec("first", 2))
	s.waitForListed(first.Name, []listedContainer{{"main", []string{"c", "d"}}})
	s.runAdmittedPod(s.podSpec("rest", 2)) // leaves nothing to prefer
	p.wantPreferredRequest("[a b c d] [] 2", "[a b] [] 2")
}

// wantPreferredRequest checks what GetPreferredAllocation was: what is available, what is to be in the
// answer, and how many.
func (p *fakePlugin) wantPreferredRequest(want ...string) {
	p.fixture.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := []string{}
	for _, r := range p.preferredCalls {
		available, include := slices.Sorted(slices.Values(r.AvailableDeviceIDs)), slices.Sorted(slices.Values(r.MustIncludeDeviceIDs))
		asked = append(asked, fmt.Sprint(available, include, r.AllocationSize))
	}
	if !slices.Equal(asked, want) {
		p.fixture.Errorf("GetPreferredAllocation was asked %q; want %q", asked, want)
	}
}

func preferredTooFew(s *caseFixture) {
	p := s.startPlugin(healthy("a", "b", "c", "d")...)
	p.options.GetPreferredAllocationAvailable = true
	p.preferFunc = func([]string, int) []string { return []string{"b", "stranger"} }
	p.registerAndWait()
	s.runAdmittedPod(s.podSpec("two", 2))
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := p.allocateCalls[0]; len(got) != 2 || !slices.Contains(got, "b") || slices.Contains(got, "stranger") {
		s.Errorf("Allocate was called for %q", got)
	}
}

// lastIDs prefers the last ids of all that it is shown.
func lastIDs(available []string, n int) []string {
	return slices.Sorted(slices.Values(available))[len(available)-n:]
}

func preferredIncludes(s *caseFixture) {
	p := s.startPlugin(healthy("a", "b", "c", "d")...)
	p.options.GetPreferredAllocationAvailable = true
	p.preferFunc = lastIDs
	p.registerAndWait()
	pod := s.podSpec("prepared", 2)
	pod.InitContainers = []kubelet.ContainerSpec{s.containerSpec("prepare", 1)}
	got := s.runAdmittedPod(pod)
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"c", "d"}}})
	p.wantPreferredRequest("[a b c d] [] 1", "[a b c d] [d] 2")
}

func preferredWithoutChoice(s *caseFixture) {
	p := s.startPlugin(healthy("a", "b", "c")...)
	p.options.GetPreferredAllocationAvailable = true
	p.preferFunc = lastIDs
	p.registerAndWait()
	pod := s.podSpec("prepared", 1)
	pod.InitContainers = []kubelet.ContainerSpec{s.containerSpec("prepare", 1)}
	got := s.runAdmittedPod(pod)
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"c"}}})
	p.wantPreferredRequest("[a b c] [] 1")
}

func initContainers(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b", "c")...)
	pod := s.podSpec("prepared", 1)
	pod.InitContainers = []kubelet.ContainerSpec{s.containerSpec("prepare", 2)}
	got := s.runAdmittedPod(pod)
	pods, err := s.list()
	if err != nil {
		s.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	containers := pods[got.Name]
	if len(p.allocateCalls) != 2 || len(containers) != 1 || containers[0].Name != "main" || !reflect.DeepEqual(containers[0].Devices, p.allocateCalls[1]) {
		s.Fatalf("Allocate was called for %q, and List has %v", p.allocateCalls, containers)
	}
	if !slices.Contains(p.allocateCalls[0], p.allocateCalls[1][0]) {
		s.Errorf("the init container had %q, and the container got %q", p.allocateCalls[0], p.allocateCalls[1])
	}
	// The init container has run, and what it had beyond the container's share stays with the
	// pod: one device is left.
	s.runRejectedPod(s.podSpec("greedy", 2), fmt.Sprintf("requested number of devices unavailable for %s. Requested: 2, Available: 1", s.resource))
}

func sidecars(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	pod := s.podSpec("accompanied", 1)
	side := s.containerSpec("side", 1)
	side.Sidecar = true
	pod.InitContainers = []kubelet.ContainerSpec{s.containerSpec("prepare", 1), side}
	got := s.runAdmittedPod(pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.allocateCalls) != 3 || p.allocateCalls[0][0] != p.allocateCalls[1][0] || p.allocateCalls[1][0] == p.allocateCalls[2][0] {
		s.Fatalf("Allocate was called for %q; want the same for the init container and the sidecar, and another for the container", p.allocateCalls)
	}
	s.waitForListed(got.Name, []listedContainer{{"side", p.allocateCalls[1]}, {"main", p.allocateCalls[2]}})
}

func onlyHealthyAllocated(s *caseFixture) {
	p := s.registerPlugin(append(healthy("a"), devices(pluginapi.Unhealthy, "b", "c")...)...)
	got := s.runAdmittedPod(s.podSpec("one", 1))
	s.waitForListed(got.Name, []listedContainer{{"main", []string{"a"}}})
	s.runRejectedPod(s.podSpec("two", 1), fmt.Sprintf("requested number of devices unavailable for %s. Requested: 1, Available: 0", s.resource))
	p.send(healthy("a", "b", "c")...)
	p.waitForList()
	s.runAdmittedPod(s.podSpec("three", 2))
}
