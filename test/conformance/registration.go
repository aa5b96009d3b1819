package conformance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// registrationCases is what the kubelet makes of Register.
func registrationCases() []Case {
	return []Case{
		newCase("a resource's name is a domain, a slash and a name", invalidNames),
		newCase("only v1beta1 is spoken", invalidVersions),
		newCase("a plugin that does not listen is dialled until the deadline", nothingListens),
		newCase("a plugin whose options fail is refused and never watched", optionsFail),
		newCase("one connection has the question for the options, and then the stream", singleConnection),
		newCase("a second registration of a live socket", registerTwice),
		newCase("a plugin that stops after a second registration", stopAfterDoubleRegistration),
		newCase("an old plugin stops while its successor is connected", replacedPluginStops),
		newCase("a plugin that comes back on a fresh socket is taken", registersAgain),
		newCase("a failed registration leaves the live plugin on the node", failedRegistrationKeepsLive),
	}
}

func invalidNames(s *caseFixture) {
	p := s.startPlugin()
	for _, name := range []string{
		"", "gpu", "/gpu", "nvidia.com/", "nvidia.com/gpu/0", "kubernetes.io/gpu", "node.kubernetes.io/gpu", "requests.nvidia.com/gpu",
		"NVIDIA.com/gpu", "nvidia..com/gpu", "nvidia.com/-gpu", "nvidia.com/" + strings.Repeat("x", 64), strings.Repeat("x", 245) + "/gpu", "nvidia.com/gp\"u",
	} {
		err := s.register(s.ctx, &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: p.socket, ResourceName: name})
		s.wantError(err, codes.Unknown, fmt.Sprintf("the ResourceName %q is invalid", name))
	}
}

func invalidVersions(s *caseFixture) {
	p := s.startPlugin()
	for _, version := range []string{"", "v1alpha", "v1beta2"} {
		err := s.register(s.ctx, &pluginapi.RegisterRequest{Version: version, Endpoint: p.socket, ResourceName: s.resource})
		s.wantError(err, codes.Unknown,
			fmt.Sprintf("requested API version %q is not supported by kubelet. Supported version is [\"v1beta1\"]", version))
	}
}

func nothingListens(s *caseFixture) {
	const deadline = time.Second
	ctx, cancel := context.WithTimeout(s.ctx, deadline)
	defer cancel()
	start := time.Now()
	err := s.register(ctx, &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: s.name + ".sock", ResourceName: s.resource})
	if status.Code(err) != codes.DeadlineExceeded { // the kubelet has the same deadline, and may be the first to say so
		s.wantError(err, codes.Unknown, "failed to dial device plugin: context deadline exceeded")
	}
	if took := time.Since(start); took < deadline {
		s.Errorf("it took %v; the kubelet goes on dialling until %v are over", took, deadline)
	}
}

func optionsFail(s *caseFixture) {
	p := s.startPlugin(healthy("a")...)
	p.optionsErr = errors.New("out of options")
	s.wantError(p.register(), codes.Unknown, "failed to get device plugin options: rpc error: code = Unknown desc = out of options")
	s.waitForAllocatable()
	if opened := p.streamsOpened(); opened != 0 {
		s.Errorf("ListAndWatch was called %d times", opened)
	}
}

// singleConnection: a plugin can tell the kubelet's stream from those of other programs by the
// connection on which the options were asked for.
func singleConnection(s *caseFixture) {
	p := s.registerPlugin(healthy("a")...)
	asked, connected := p.read(func() int { return p.optionsCalls }), p.read(func() int { return p.connections })
	if asked != 1 || connected != 1 {
		s.Errorf("the options were asked for %d times before the stream; there are %d connections", asked, connected)
	}
}

// registerTwice is where the versions part: until 1.36 the second registration is as good as
// the first, and there are two streams.
func registerTwice(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b", "c", "d")...)
	err := p.register()
	if s.k.Version() == kubelet.V136 {
		if err != nil {
			s.Errorf("the second registration failed: %v", err)
		}
		p.waitForStreams(2)
	} else {
		s.wantError(err, codes.Unknown, "device plugin already connected: ")
		s.wantError(err, codes.Unknown, "/device-plugins/"+p.socket)
		p.waitForStreams(1)
	}
	p.send(healthy("a", "b")...)
	p.waitForList()
}

// stopAfterDoubleRegistration is the trap of 1.37: the kubelet has forgotten the plugin that it
// still watches. When that one stops, its devices stay on the node for ever, and its socket's
// name is spoilt.
func stopAfterDoubleRegistration(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b", "c", "d")...)
	_ = p.register()                                  // registerTwice says how it ends
	s.requireAllocatableUnchanged("a", "b", "c", "d") // until the list has come on both streams: the later one could undo the end of the other
	p.stop()
	// Until the old streams have ended: an end that comes while the next registration is under
	// way takes that one for the old one.
	if s.k.Version() == kubelet.V136 {
		s.requireAllocatableUnchanged()
	} else {
		s.requireAllocatableUnchanged("a", "b", "c", "d") // nobody is there who has them
	}
	p.serve()
	for range 2 {
		err := p.register()
		if s.k.Version() == kubelet.V136 {
			if err != nil {
				s.Errorf("the same socket's name did not do: %v", err)
			}
			p.waitForList()
			break
		}
		s.wantError(err, codes.Unknown, "device plugin already connected: ")
		s.requireAllocatableUnchanged("a", "b", "c", "d")
	}
	p.stop()
	if s.k.Version() == kubelet.V136 {
		s.waitForAllocatable() // again, an end that comes too late would take down the successor
	}
	s.registerPlugin(healthy("e", "f", "g")...) // on a name of its own
}

// replacedPluginStops: until 1.36 whichever stream ends takes the resource's current plugin down.
func replacedPluginStops(s *caseFixture) {
	old := s.registerPlugin(healthy("a", "b")...)
	successor := s.registerPlugin(healthy("a", "b", "c")...)
	old.stop()
	if s.k.Version() == kubelet.V136 {
		s.waitForAllocatable()
		successor.waitForStreams(0)
		successor.send(healthy("a", "b", "c", "d")...)
		s.requireAllocatableUnchanged()
		return
	}
	successor.send(healthy("a", "b", "c", "d")...)
	successor.waitForList()
	successor.waitForStreams(1)
}

func registersAgain(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	p.stop()
	s.waitForAllocatable()
	next := p.restarted()
	if next.path() == p.path() || filepath.Dir(next.path()) != filepath.Dir(p.path()) {
		s.Fatalf("the socket is %s, and was %s", next.path(), p.path())
	}
	next.registerAndWait()
}

// failedRegistrationKeepsLive: the kubelet looks the plugin up when its stream ends, and a registration
// that failed on the same socket (1.37) or resource (before) has taken it out of the book.
// Nobody takes its devices off the node.
func failedRegistrationKeepsLive(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	failing := p
	if s.k.Version() == kubelet.V136 {
		failing = s.startPlugin()
		failing.optionsErr = errors.New("out of options")
	}
	s.wantError(failing.register(), codes.Unknown, "")
	p.stop()
	p.waitForStreams(0)
	s.requireAllocatableUnchanged("a", "b")
	s.registerPlugin(healthy("c")...)
}
