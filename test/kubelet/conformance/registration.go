package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
)

var registrationCases = []kubeletCase{
	{"only v1beta1 is supported", func(s *caseFixture) {
		p := s.startPlugin(pluginBehavior{})
		for _, version := range []string{"", "v1alpha", "v1beta2"} {
			request := &pluginapi.RegisterRequest{Version: version, Endpoint: p.Socket, ResourceName: s.resource}
			const want = `requested API version %q is not supported by kubelet. Supported version is ["v1beta1"]`
			err := deviceplugin.Register(s.ctx, s.path("device-plugins"), request)
			s.wantError(err, codes.Unknown, fmt.Sprintf(want, version))
		}
	}},
	{"a plugin without a listener is dialed until the deadline", func(s *caseFixture) {
		const deadline = time.Second
		start := time.Now()
		ctx, cancel := context.WithTimeout(s.ctx, deadline)
		defer cancel()
		request := &pluginapi.RegisterRequest{
			Version: pluginapi.Version, Endpoint: s.name + ".sock", ResourceName: s.resource,
		}
		err := deviceplugin.Register(ctx, s.path("device-plugins"), request)
		if status.Code(err) != codes.DeadlineExceeded { // the kubelet has the same deadline and may respond first
			s.wantError(err, codes.Unknown, "failed to dial device plugin: context deadline exceeded")
		}
		if took := time.Since(start); took < deadline {
			s.Errorf("Register took %v; want %v", took, deadline)
		}
	}},
	{"a plugin with failing GetDevicePluginOptions is rejected without ListAndWatch", func(s *caseFixture) {
		p := s.startPlugin(pluginBehavior{OptionsErr: errors.New("out of options")}, healthy("a")...)
		s.wantError(p.register(), codes.Unknown,
			"failed to get device plugin options: rpc error: code = Unknown desc = out of options")
		s.waitForAllocatable()
		if c := p.Calls(); c.Streams != 0 {
			s.Errorf("%d ListAndWatch calls; want none", c.Streams)
		}
	}},
	// The connection distinguishes the kubelet's stream from streams of other
	// clients.
	{"options and stream share one connection", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a")...)
		if c := p.Calls(); c.Options != 1 || c.Connections != 1 {
			s.Errorf("%d calls for options before the stream, %d connections; want one each", c.Options, c.Connections)
		}
	}},
	{"a second registration of a connected socket", registerTwice},
	{"a plugin stops after a second registration", stopAfterDoubleRegistration},
	{"an old plugin stops while the successor is connected", replacedPluginStops},
	{"a plugin may register again on a new socket", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b")...)
		p.Stop()
		s.waitForAllocatable()
		p.restarted().registerAndWait()
	}},
	{
		"the devices of a connected plugin remain after a failed registration and the end of the plugin",
		failedRegistrationKeepsDevices,
	},
}

// registerTwice checks that the second registration fails. Until 1.36 it
// succeeds, with a second stream.
func registerTwice(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b", "c", "d")...)
	err := p.register()
	if s.k.Version() == kubelet.V136 {
		s.must(err)
		p.waitForStreams(2)
	} else {
		s.wantError(err, codes.Unknown, "device plugin already connected: ")
		s.wantError(err, codes.Unknown, "/device-plugins/"+p.Socket)
		p.waitForStreams(1)
	}
	p.Send(healthy("a", "b")...)
	p.waitForList()
}

// stopAfterDoubleRegistration checks a defect since 1.37: the kubelet loses the
// client of the stream. The devices are allocatable for ever, and the socket's
// name can never register again.
func stopAfterDoubleRegistration(s *caseFixture) {
	old := s.k.Version() == kubelet.V136
	p := s.registerPlugin(healthy("a", "b", "c", "d")...)
	_ = p.register() // as in registerTwice
	// Until both streams have the list: a later list would undo the end of the
	// first stream.
	s.requireAllocatable("a", "b", "c", "d")
	p.Stop()
	if old { // until the streams have ended: a later end would disconnect the next registration
		s.requireAllocatable()
	} else {
		s.requireAllocatable("a", "b", "c", "d")
	}
	p.Serve()
	if old {
		p.registerAndWait()
		p.Stop()
		s.waitForAllocatable()
	} else {
		for range 2 {
			s.wantError(p.register(), codes.Unknown, "device plugin already connected: ")
			s.requireAllocatable("a", "b", "c", "d")
		}
		p.Stop()
	}
	s.registerPlugin(healthy("e", "f", "g")...) // on a new name
}

// replacedPluginStops checks that the successor of a replaced plugin remains
// connected. Until 1.36 the end of any stream disconnects it.
func replacedPluginStops(s *caseFixture) {
	old := s.registerPlugin(healthy("a", "b")...)
	successor := s.registerPlugin(healthy("a", "b", "c")...)
	old.Stop()
	if s.k.Version() == kubelet.V136 {
		s.waitForAllocatable()
		successor.waitForStreams(0)
		successor.Send(healthy("a", "b", "c", "d")...)
		s.requireAllocatable()
		return
	}
	successor.Send(healthy("a", "b", "c", "d")...)
	successor.waitForList()
	successor.waitForStreams(1)
}

// failedRegistrationKeepsDevices checks a defect: a failed registration of the
// same socket (1.37) or resource (1.36) deletes the client of the connected
// plugin. The end of the plugin's stream then removes no devices.
func failedRegistrationKeepsDevices(s *caseFixture) {
	p := s.registerPlugin(healthy("a", "b")...)
	failing := p
	if s.k.Version() == kubelet.V136 {
		failing = s.startPlugin(pluginBehavior{OptionsErr: errors.New("out of options")})
	}
	s.wantError(failing.register(), codes.Unknown, "")
	p.Stop()
	p.waitForStreams(0)
	s.requireAllocatable("a", "b")
	s.registerPlugin(healthy("c")...)
}
