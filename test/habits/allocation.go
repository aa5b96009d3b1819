package habits

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// allocation is how pods come by their devices.
func allocation() []Habit {
	return []Habit{
		habit("Allocate is called once for each container and resource", oneCallEach),
		habit("a container may have several resources, and each plugin is asked for its own", severalResources),
		habit("where one of a container's resources fails none is written down, and all are free", oneOfSeveralFails),
		habit("a pod is rejected where Allocate fails, and nobody tries again", allocateFails),
		habit("an allocation is listed when Allocate has returned, and the pod before", listedAfterAllocate),
		habit("a pod that asks for too much is rejected", tooMuch),
		habit("a pod that comes while the plugin is away is rejected", pluginAway),
		habit("a pod that asks for what no plugin has ever offered runs without it", neverOffered),
		habit("GetPreferredAllocation is asked even where all are needed, and obeyed", preferred),
		habit("GetPreferredAllocation that returns too little is filled up", preferredTooLittle),
		habit("GetPreferredAllocation must include what an init container had", preferredIncludes),
		habit("GetPreferredAllocation is not asked where an init container had enough", preferredNeedless),
		habit("an init container's devices go to the containers after it and are not listed", initContainers),
		habit("a sidecar keeps its devices and is listed first", sidecars),
		habit("only healthy devices are allocated", onlyHealthy),
	}
}

func oneCallEach(s *stage) {
	p := s.offers(healthy("a", "b", "c")...)
	pod := s.pod("two", 1)
	pod.Containers = append(pod.Containers, s.container("second", 2), s.container("third", 0))
	got := s.runs(pod)
	sizes := []int{}
	all := []string{}
	p.count(func() int {
		for _, ids := range p.allocated {
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

// beside is a stage with a resource of its own, whose devices the pods of s ask for.
func (s *stage) beside() *stage {
	s.Helper()
	return newStage(s.T, s.k)
}

// sees is what List says of the pods of s and a resource that is not its own.
func (s *stage) sees(other *stage) *stage {
	view := *s
	view.resource = other.resource
	return &view
}

func severalResources(s *stage) {
	other := s.beside()
	p, q := s.plugin(healthy("a", "b")...), other.plugin(healthy("a", "c", "d")...) // ids are a resource's own
	p.options.PreStartRequired = true
	p.registers()
	q.registers()
	pod := s.pod("both", 2)
	pod.Containers[0].Limits[other.resource] = 3
	got := s.runs(pod)
	s.awaitListed(got.Name, []listed{{"main", []string{"a", "b"}}})
	s.sees(other).awaitListed(got.Name, []listed{{"main", []string{"a", "c", "d"}}})
	p.mu.Lock()
	defer p.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if want := [][]string{{"a", "b"}}; !reflect.DeepEqual(p.allocated, want) || !reflect.DeepEqual(p.prestarted, want) {
		s.Errorf("Allocate was called for %q and PreStartContainer for %q; want %q", p.allocated, p.prestarted, want)
	}
	if want := [][]string{{"a", "c", "d"}}; !reflect.DeepEqual(q.allocated, want) || len(q.prestarted) > 0 {
		s.Errorf("Allocate was called for %q and PreStartContainer for %q; want %q and none", q.allocated, q.prestarted, want)
	}
}

// oneOfSeveralFails: which of them comes first is chance.
func oneOfSeveralFails(s *stage) {
	other := s.beside()
	s.offers(healthy("a")...)
	q := other.plugin(healthy("b")...)
	q.allocate = func([]string) error { return errors.New("not today") }
	q.registers()
	for i := range 4 {
		pod := s.pod(fmt.Sprint("unlucky-", i), 1)
		pod.Containers[0].Limits[other.resource] = 1
		s.rejected(pod, "rpc error: code = Unknown desc = not today")
		if entries := s.checkpoint().Data.PodDeviceEntries; slices.ContainsFunc(entries, func(e checkpointEntry) bool {
			return e.ResourceName == s.resource || e.ResourceName == other.resource
		}) {
			s.Errorf("the checkpoint has %+v", entries)
		}
	}
	got := s.runs(s.pod("lucky", 1))
	s.awaitListed(got.Name, []listed{{"main", []string{"a"}}})
}

func allocateFails(s *stage) {
	p := s.plugin(healthy("a")...)
	p.allocate = func([]string) error { return errors.New("not today") }
	p.registers()
	pod := s.pod("unlucky", 1)
	s.rejected(pod, "rpc error: code = Unknown desc = not today")
	s.runs(s.pod("bystander", 0)) // by now a retry would have come
	if got := p.allocations(); got != 1 {
		s.Errorf("Allocate was called %d times", got)
	}
	s.awaitAllocatable("a")
}

func listedAfterAllocate(s *stage) {
	p := s.plugin(healthy("a")...)
	var within map[string][]listed
	var err error
	p.allocate = func([]string) error {
		within, err = s.list()
		return nil
	}
	p.registers()
	got := s.runs(s.pod("one", 1))
	if want := map[string][]listed{got.Name: {{"main", []string{}}}}; err != nil || !reflect.DeepEqual(within, want) {
		s.Errorf("within Allocate, List has %v, %v; want %v", within, err, want)
	}
	s.awaitListed(got.Name, []listed{{"main", []string{"a"}}})
}

func tooMuch(s *stage) {
	p := s.offers(healthy("a", "b")...)
	holder := s.runs(s.pod("holder", 1))
	s.rejected(s.pod("greedy", 2), fmt.Sprintf("requested number of devices unavailable for %s. Requested: 2, Available: 1", s.resource))
	if got := p.allocations(); got != 1 {
		s.Errorf("Allocate was called %d times", got)
	}
	if pods, err := s.list(); err != nil || len(pods) != 1 || len(pods[holder.Name]) != 1 {
		s.Errorf("List has %v, %v", pods, err)
	}
}

func pluginAway(s *stage) {
	p := s.offers(healthy("a")...)
	p.stop()
	s.awaitAllocatable()
	for n := range 2 { // even one that asks for none
		s.rejected(s.pod(fmt.Sprintf("early-%d", n), n), fmt.Sprintf("no healthy devices present; cannot allocate unhealthy devices %s", s.resource))
	}
}

// neverOffered: the scheduler would not have sent the pod, but the kubelet takes it.
func neverOffered(s *stage) {
	got := s.runs(s.pod("hopeful", 1))
	s.awaitListed(got.Name, []listed{{"main", []string{}}})
}

func preferred(s *stage) {
	p := s.plugin(healthy("a", "b", "c", "d")...)
	p.options.GetPreferredAllocationAvailable = true
	p.prefer = lastOnes
	p.registers()
	first := s.runs(s.pod("first", 2))
	s.awaitListed(first.Name, []listed{{"main", []string{"c", "d"}}})
	s.runs(s.pod("rest", 2)) // leaves nothing to prefer
	p.wasAsked("[a b c d] [] 2", "[a b] [] 2")
}

// wasAsked checks what GetPreferredAllocation was: what is available, what is to be in the
// answer, and how many.
func (p *plugin) wasAsked(want ...string) {
	p.s.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := []string{}
	for _, r := range p.preferred {
		available, include := slices.Sorted(slices.Values(r.AvailableDeviceIDs)), slices.Sorted(slices.Values(r.MustIncludeDeviceIDs))
		asked = append(asked, fmt.Sprint(available, include, r.AllocationSize))
	}
	if !slices.Equal(asked, want) {
		p.s.Errorf("GetPreferredAllocation was asked %q; want %q", asked, want)
	}
}

func preferredTooLittle(s *stage) {
	p := s.plugin(healthy("a", "b", "c", "d")...)
	p.options.GetPreferredAllocationAvailable = true
	p.prefer = func([]string, int) []string { return []string{"b", "stranger"} }
	p.registers()
	s.runs(s.pod("two", 2))
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := p.allocated[0]; len(got) != 2 || !slices.Contains(got, "b") || slices.Contains(got, "stranger") {
		s.Errorf("Allocate was called for %q", got)
	}
}

// lastOnes prefers the last ids of all that it is shown.
func lastOnes(available []string, n int) []string {
	return slices.Sorted(slices.Values(available))[len(available)-n:]
}

func preferredIncludes(s *stage) {
	p := s.plugin(healthy("a", "b", "c", "d")...)
	p.options.GetPreferredAllocationAvailable = true
	p.prefer = lastOnes
	p.registers()
	pod := s.pod("prepared", 2)
	pod.Init = []kubelet.Container{s.container("prepare", 1)}
	got := s.runs(pod)
	s.awaitListed(got.Name, []listed{{"main", []string{"c", "d"}}})
	p.wasAsked("[a b c d] [] 1", "[a b c d] [d] 2")
}

func preferredNeedless(s *stage) {
	p := s.plugin(healthy("a", "b", "c")...)
	p.options.GetPreferredAllocationAvailable = true
	p.prefer = lastOnes
	p.registers()
	pod := s.pod("prepared", 1)
	pod.Init = []kubelet.Container{s.container("prepare", 1)}
	got := s.runs(pod)
	s.awaitListed(got.Name, []listed{{"main", []string{"c"}}})
	p.wasAsked("[a b c] [] 1")
}

func initContainers(s *stage) {
	p := s.offers(healthy("a", "b", "c")...)
	pod := s.pod("prepared", 1)
	pod.Init = []kubelet.Container{s.container("prepare", 2)}
	got := s.runs(pod)
	pods, err := s.list()
	if err != nil {
		s.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	containers := pods[got.Name]
	if len(p.allocated) != 2 || len(containers) != 1 || containers[0].Name != "main" || !reflect.DeepEqual(containers[0].Devices, p.allocated[1]) {
		s.Fatalf("Allocate was called for %q, and List has %v", p.allocated, containers)
	}
	if !slices.Contains(p.allocated[0], p.allocated[1][0]) {
		s.Errorf("the init container had %q, and the container got %q", p.allocated[0], p.allocated[1])
	}
	// The init container has run, and what it had beyond the container's share stays with the
	// pod: one device is left.
	s.rejected(s.pod("greedy", 2), fmt.Sprintf("requested number of devices unavailable for %s. Requested: 2, Available: 1", s.resource))
}

func sidecars(s *stage) {
	p := s.offers(healthy("a", "b")...)
	pod := s.pod("accompanied", 1)
	side := s.container("side", 1)
	side.Sidecar = true
	pod.Init = []kubelet.Container{s.container("prepare", 1), side}
	got := s.runs(pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.allocated) != 3 || p.allocated[0][0] != p.allocated[1][0] || p.allocated[1][0] == p.allocated[2][0] {
		s.Fatalf("Allocate was called for %q; want the same for the init container and the sidecar, and another for the container", p.allocated)
	}
	s.awaitListed(got.Name, []listed{{"side", p.allocated[1]}, {"main", p.allocated[2]}})
}

func onlyHealthy(s *stage) {
	p := s.offers(append(healthy("a"), devices(pluginapi.Unhealthy, "b", "c")...)...)
	got := s.runs(s.pod("one", 1))
	s.awaitListed(got.Name, []listed{{"main", []string{"a"}}})
	s.rejected(s.pod("two", 1), fmt.Sprintf("requested number of devices unavailable for %s. Requested: 1, Available: 0", s.resource))
	p.send(healthy("a", "b", "c")...)
	p.awaitTaken()
	s.runs(s.pod("three", 2))
}
