package conformance

import (
	"fmt"
	"slices"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
)

// fakePlugin is a plugin of a case's resource.
type fakePlugin struct {
	*deviceplugin.Plugin
	fixture *caseFixture
}

type pluginBehavior = deviceplugin.Behavior

// startPlugin serves on a new socket name until the test ends.
func (s *caseFixture) startPlugin(b pluginBehavior, list ...*pluginapi.Device) *fakePlugin {
	s.Helper()
	s.socketCount++
	socket := fmt.Sprintf("%s-%d.sock", s.name, s.socketCount)
	return &fakePlugin{deviceplugin.Start(s, s.path("device-plugins"), socket, b, list...), s}
}

// registerPlugin starts a plugin and returns when the kubelet has the list.
func (s *caseFixture) registerPlugin(list ...*pluginapi.Device) *fakePlugin {
	s.Helper()
	return s.registerPluginWith(pluginBehavior{}, list...)
}

func (s *caseFixture) registerPluginWith(b pluginBehavior, list ...*pluginapi.Device) *fakePlugin {
	s.Helper()
	p := s.startPlugin(b, list...)
	p.registerAndWait()
	return p
}

// restarted stops the plugin and returns a new plugin with the same list on a
// new socket.
func (p *fakePlugin) restarted() *fakePlugin {
	p.fixture.Helper()
	p.Stop()
	return p.fixture.startPlugin(p.Behavior, p.Devices()...)
}

func (p *fakePlugin) register() error { return p.Register(p.fixture.ctx, p.fixture.resource) }

func (p *fakePlugin) registerAndWait() {
	p.fixture.Helper()
	p.fixture.must(p.register())
	p.waitForList()
}

// waitForList waits until the kubelet has the plugin's list.
func (p *fakePlugin) waitForList() {
	p.fixture.Helper()
	want := []string{}
	for _, d := range p.Devices() {
		if d.Health != pluginapi.Healthy {
			continue
		}
		if d.Topology == nil {
			want = append(want, d.ID)
		}
		for _, node := range d.GetTopology().GetNodes() {
			want = append(want, fmt.Sprintf("%s[%d]", d.ID, node.ID))
		}
	}
	slices.Sort(want)
	p.fixture.waitForAllocatable(slices.Compact(want)...)
}

func (p *fakePlugin) waitForStreams(want int) {
	p.fixture.Helper()
	p.fixture.waitForValue("open streams", func() (any, error) { return p.Calls().OpenStreams, nil }, want)
}

func (p *fakePlugin) wantAllocateCalls(want int) {
	p.fixture.Helper()
	if got := p.Calls().Allocate; len(got) != want {
		p.fixture.Errorf("Allocate calls %q; want %d", got, want)
	}
}

func (p *fakePlugin) wantPreferredCalls(want ...string) {
	p.fixture.Helper()
	if got := p.Calls().Preferred; !slices.Equal(got, want) {
		p.fixture.Errorf("GetPreferredAllocation calls %q; want %q", got, want)
	}
}
