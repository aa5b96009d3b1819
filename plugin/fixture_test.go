package plugin_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
)

const (
	resource    = "nvidia.com/gpu"
	testTimeout = 30 * time.Second // for events that take less than a second
)

// fixture is a node's folder with a plugin and, if the test starts it, a
// simulated kubelet.
type fixture struct {
	testing.TB
	ctx         context.Context
	dir         string // the kubelet's
	options     plugin.Options
	inventory   device.Inventory
	rules       pubsub.Value[plugin.Rules]
	allocations pubsub.Value[allocation.Snapshot]
	resources   pubsub.Value[[]plugin.Resource]
	kubelet     *kubelet.Kubelet
	plugin      *plugin.Plugin
	log         testlog.Buffer
	recorded    hookRecorder
}

// rejection is an event of EndpointHooks.OnRejected.
type rejection struct {
	ids    []device.AdvertisedID
	reason plugin.RejectReason
	err    error
}

// hookRecorder records the events of the plugin.
type hookRecorder struct {
	mu sync.Mutex
	// All fields below are guarded by mu.
	registered   []error
	allocateErrs []error
	allocated    [][]device.AdvertisedID
	rejected     []rejection
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*testTimeout)
	t.Cleanup(cancel)
	s := &fixture{TB: t, ctx: ctx, dir: background.Dir(t)}
	s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
	s.options = plugin.Options{
		Dir: s.sockets(), Log: s.log.Logger(), Hooks: &s.recorded,
		Devices: &s.inventory, Rules: &s.rules, Allocations: &s.allocations, Resources: &s.resources,
		Links: func() []device.Link { return nil },
	}
	return s
}

// eachVersion runs a test with each kubelet version.
func eachVersion(t *testing.T, test func(s *fixture)) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			s := newFixture(t)
			s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir, Version: version})
			test(s)
		})
	}
}

// sockets returns the folder of the sockets, or a path in it.
func (s *fixture) sockets(name ...string) string {
	return filepath.Join(append([]string{s.dir, "device-plugins"}, name...)...)
}

// startKubelet starts the kubelet and waits until it serves.
func (s *fixture) startKubelet() (end func()) {
	s.Helper()
	end = background.Run(s, s.kubelet.Run)
	s.wait("the kubelet serves", func(k kubelet.KubeletState) bool { return k.Serving })
	return end
}

// startPlugin starts the plugin.
func (s *fixture) startPlugin() (end func()) {
	s.plugin = plugin.New(s.options)
	return background.Run(s, s.plugin.Run)
}

// start starts kubelet and plugin, and waits until n healthy devices are
// registered.
func (s *fixture) start(n int) {
	s.Helper()
	s.inventory.Set(statuses(n))
	s.startKubelet()
	s.startPlugin()
	s.waitRegistered(n)
}

// wait waits for a state of the kubelet and returns the duration.
func (s *fixture) wait(event string, wanted func(kubelet.KubeletState) bool) time.Duration {
	s.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, testTimeout)
	defer cancel()
	if err := s.kubelet.Wait(ctx, wanted); err != nil {
		s.Fatalf("%s: %v\n%s", event, err, &s.log)
	}
	return time.Since(began)
}

// waitRegistered waits until the kubelet has n healthy devices on a single
// stream.
func (s *fixture) waitRegistered(n int) time.Duration {
	s.Helper()
	return s.waitNewSocket(n, "")
}

// waitNewSocket is waitRegistered on a new socket.
func (s *fixture) waitNewSocket(n int, old string) time.Duration {
	s.Helper()
	registrations := 0
	took := s.wait(fmt.Sprintf("%d devices on a single stream", n), func(k kubelet.KubeletState) bool {
		r := k.Resources[resource]
		registrations = len(k.Registrations)
		isRegistered := func(g kubelet.Registration) bool { return g.Endpoint == r.Sockets[0] && g.Err == nil }
		return r.Allocatable == n && len(r.Sockets) == 1 && r.Sockets[0] != old &&
			slices.ContainsFunc(k.Registrations, isRegistered)
	})
	// The kubelet may have the list before Register returns.
	s.poll("Register has returned", func() bool { return len(s.recorded.registrations()) >= registrations })
	return took
}

// socket returns the file name of the socket with the only live stream.
func (s *fixture) socket() string {
	s.Helper()
	live := s.kubelet.Resource(resource).Sockets
	if len(live) != 1 {
		s.Fatalf("live streams: got %q, want a single stream", live)
	}
	return live[0]
}

// restart restarts the kubelet and waits until the new kubelet serves.
func (s *fixture) restart(while func()) {
	s.Helper()
	s.must(s.kubelet.Restart(s.ctx, while))
}

func (s *fixture) must(err error) {
	s.Helper()
	require.NoError(s, err)
}

// leftSockets returns the plugin's sockets on disk.
func (s *fixture) leftSockets() []string {
	all, err := filepath.Glob(s.sockets("podgauge-*"))
	s.must(err)
	return all
}

// poll waits for a condition without notification.
func (s *fixture) poll(event string, done func() bool) {
	s.Helper()
	deadline, tick := time.NewTimer(testTimeout), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			s.Fatalf("%s: not within %s\n%s", event, testTimeout, &s.log)
		}
	}
}

// receive waits for a value.
func receive[T any](s *fixture, sent <-chan T) (v T) {
	s.Helper()
	select {
	case v = <-sent:
	case <-time.After(testTimeout):
		s.Fatalf("got no value\n%s", &s.log)
	}
	return v
}

func gpuID(i int) device.ID { return device.ID(fmt.Sprintf("GPU-%d", i)) }

// statuses returns n healthy GPUs on two NUMA nodes.
func statuses(n int) []device.Status {
	all := make([]device.Status, n)
	for i := range all {
		all[i] = device.Status{Healthy: true, Device: device.Device{
			ID: gpuID(i), GPU: device.GPU(gpuID(i)), Index: i, Minor: i, NUMANode: i % 2,
			DeviceNodes: []string{"/dev/nvidiactl", fmt.Sprintf("/dev/nvidia%d", i)},
		}}
	}
	return all
}

// parseStatuses parses statuses: "0" is a GPU, "1m" a MIG-enabled GPU,
// "1/1g.10gb" a MIG device of GPU 1. "!" marks an unhealthy device.
func parseStatuses(words string) []device.Status {
	all := []device.Status{}
	for n, word := range strings.Fields(words) {
		word, unhealthy := strings.CutSuffix(word, "!")
		name, profile, isMIG := strings.Cut(word, "/")
		name, mig := strings.CutSuffix(name, "m")
		s := device.Status{Healthy: !unhealthy, Device: device.Device{
			GPU: device.GPU("GPU-" + name), MIGEnabled: mig, NUMANode: -1,
		}}
		fmt.Sscan(name, &s.Index) //nolint:errcheck // test data is valid
		s.ID = device.ID(s.GPU)
		if isMIG {
			s.ID, s.Profile = device.ID(fmt.Sprintf("MIG-%d", n)), profile
		}
		all = append(all, s)
	}
	return all
}

// parseAllocations parses ids of the resource, and resource=id.
func parseAllocations(words string) allocation.Snapshot {
	a := allocation.Snapshot{Complete: true}
	for word := range strings.FieldsSeq(words) {
		name, id, other := strings.Cut(word, "=")
		if !other {
			name, id = resource, word
		}
		a.All = append(a.All, allocation.Allocation{Resource: name, DeviceID: device.AdvertisedID(id)})
	}
	slices.SortFunc(a.All, allocation.Compare)
	return a
}

// pod returns a pod of a single container with n devices of a resource.
func pod(name, resource string, n int) kubelet.PodSpec {
	main := kubelet.ContainerSpec{Name: "main", Limits: map[string]int{resource: n}}
	return kubelet.PodSpec{Name: name, Containers: []kubelet.ContainerSpec{main}}
}

// unhealthy marks a GPU unhealthy.
func unhealthy(all []device.Status, i int, reason string) []device.Status {
	all[i].Healthy, all[i].Reason = false, reason
	return all
}

func (h *hookRecorder) record(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

func (h *hookRecorder) OnResourceAdded(string) {}
func (h *hookRecorder) OnListSent()            {}

func (h *hookRecorder) OnRegistered(_ string, err error) {
	h.record(func() { h.registered = append(h.registered, err) })
}

func (h *hookRecorder) OnCallServed(method string, _ time.Duration, err error) {
	if method == "Allocate" {
		h.record(func() { h.allocateErrs = append(h.allocateErrs, err) })
	}
}

func (h *hookRecorder) OnAllocated(_ string, ids []device.AdvertisedID) {
	h.record(func() { h.allocated = append(h.allocated, ids) })
}

func (h *hookRecorder) OnRejected(_ string, ids []device.AdvertisedID, reason plugin.RejectReason, err error) {
	h.record(func() { h.rejected = append(h.rejected, rejection{ids, reason, err}) })
}

func (h *hookRecorder) registrations() (all []error) {
	h.record(func() { all = slices.Clone(h.registered) })
	return all
}

// allocations returns the ids of each successful Allocate.
func (h *hookRecorder) allocations() (all [][]device.AdvertisedID) {
	h.record(func() { all = slices.Clone(h.allocated) })
	return all
}

// takeRejections returns the rejections since the last call.
func (h *hookRecorder) takeRejections() (all []rejection) {
	h.record(func() { all, h.rejected = h.rejected, nil })
	return all
}

// waitLine waits for the n-th line that contains a text.
func (s *fixture) waitLine(n int, text string) {
	s.Helper()
	s.poll(fmt.Sprintf("%d log lines with %q", n, text), func() bool { return len(s.log.Matching(text)) >= n })
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
