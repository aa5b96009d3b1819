package plugin_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
)

const (
	resource    = "nvidia.com/gpu"
	testTimeout = 30 * time.Second // for events that take less than a second
)

// fixture is a node's folder with a plugin and, if the test starts one, a
// simulated kubelet.
type fixture struct {
	*testing.T
	ctx       context.Context
	dir       string // the kubelet's
	options   plugin.Options
	source    *plugin.FakeSource // the plugin's
	inventory device.Inventory
	kubelet   *kubelet.Kubelet
	plugin    *plugin.Plugin
	log       *logLines
	recorded  hookRecorder
}

// rejection is an event of EndpointHooks.OnRejected.
type rejection struct {
	ids    []device.AdvertisedID
	reason plugin.RejectReason
	err    error
}

// hookRecorder records the events of the plugin.
type hookRecorder struct {
	registeredAt chan time.Time // receives the time of each OnRegistered, unless nil

	mu sync.Mutex
	// All fields below are guarded by mu.
	registered   []error
	streams      int
	maxStreams   int // of streams at the same time
	sent         []string
	allocateErrs []error
	allocated    [][]device.AdvertisedID
	rejected     []rejection
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*testTimeout)
	t.Cleanup(cancel)
	s := &fixture{T: t, ctx: ctx, dir: shortDir(t), log: newLogLines()}
	s.source = &plugin.FakeSource{GetStatuses: s.inventory.Get}
	s.options = plugin.Options{Dir: s.sockets(), DeviceSource: s.source, Log: slog.New(s.log), Hooks: &s.recorded}
	return s
}

// shortDir returns a folder for sockets: t.TempDir contains the test's name,
// and a socket's path has at most 107 bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck // a test's
	return dir
}

// eachVersion runs a test with each kubelet version.
func eachVersion(t *testing.T, test func(s *fixture)) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		t.Run(string(version), func(t *testing.T) {
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

// background runs a task until the end of the test, or until the returned
// function is called, which returns the task's error.
func (s *fixture) background(name string, run func(context.Context) error) (end func() error) {
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	end = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(testTimeout):
			return fmt.Errorf("%s: no end", name)
		}
	})
	s.Cleanup(func() {
		if err := end(); err != nil {
			s.Errorf("%s: %v", name, err)
		}
	})
	return end
}

// startKubelet starts the kubelet and waits until it serves.
func (s *fixture) startKubelet() (end func() error) {
	s.Helper()
	end = s.background("kubelet", s.kubelet.Run)
	s.wait("the kubelet serves", func(k kubelet.KubeletState) bool { return k.Serving })
	return end
}

// startPlugin starts the plugin.
func (s *fixture) startPlugin() (end func() error) {
	s.plugin = plugin.New(s.options)
	return s.background("plugin", s.plugin.Run)
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
		s.Fatalf("%s: %v\n%s", event, err, s.log)
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
		return r.Allocatable == n && len(r.Sockets) == 1 && r.Sockets[0] != old &&
			isRegistered(k.Registrations, r.Sockets[0])
	})
	// The kubelet may have the list before Register returns.
	s.poll("Register has returned", func() bool { return len(s.recorded.registrations()) >= registrations })
	return took
}

// isRegistered reports whether the registration of a socket has succeeded.
func isRegistered(all []kubelet.Registration, socket string) bool {
	return slices.ContainsFunc(all, func(r kubelet.Registration) bool { return r.Endpoint == socket && r.Err == nil })
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
	if err := s.kubelet.Restart(s.ctx, while); err != nil {
		s.Fatal(err)
	}
}

// leftSockets returns the plugin's sockets on disk.
func (s *fixture) leftSockets() []string {
	all, err := filepath.Glob(s.sockets("podgauge-*"))
	if err != nil {
		s.Fatal(err)
	}
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
			s.Fatalf("%s: not within %s\n%s", event, testTimeout, s.log)
		}
	}
}

// receive waits for a value.
func receive[T any](s *fixture, sent <-chan T) (v T) {
	s.Helper()
	select {
	case v = <-sent:
	case <-time.After(testTimeout):
		s.Fatalf("got no value\n%s", s.log)
	}
	return v
}

// wantCleanRegistrations checks that each server had a new socket name without
// a folder, and that streams did not overlap.
func (s *fixture) wantCleanRegistrations() {
	s.Helper()
	names := map[string]bool{}
	for _, r := range s.kubelet.State().Registrations {
		if names[r.Endpoint] || strings.Contains(r.Endpoint, "/") {
			s.Errorf("registered as %q after %v, want a new name", r.Endpoint, names)
		}
		names[r.Endpoint] = true
	}
	s.recorded.mu.Lock()
	defer s.recorded.mu.Unlock()
	if s.recorded.maxStreams > 1 {
		s.Errorf("got %d streams at the same time", s.recorded.maxStreams)
	}
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

func (h *hookRecorder) OnResourceAdded(string)     {}
func (h *hookRecorder) OnResourceReleased(string)  {}
func (h *hookRecorder) OnOtherPlugin(string, bool) {}

func (h *hookRecorder) OnRegistered(_ string, err error) {
	h.record(func() { h.registered = append(h.registered, err) })
	if h.registeredAt != nil {
		h.registeredAt <- time.Now()
	}
}

func (h *hookRecorder) OnStreamCount(_ string, n int) {
	h.record(func() { h.streams, h.maxStreams = n, max(h.maxStreams, n) })
}

func (h *hookRecorder) OnListSent(_ string, devices, healthy int) {
	h.record(func() { h.sent = append(h.sent, fmt.Sprintf("%d/%d", healthy, devices)) })
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

func (h *hookRecorder) registrations() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]error(nil), h.registered...)
}

// logLines is a log handler that collects lines and notifies of each.
type logLines struct {
	mu      sync.Mutex
	all     []string      // guarded by mu
	changed chan struct{} // closed and replaced with each line; guarded by mu
}

func newLogLines() *logLines { return &logLines{changed: make(chan struct{})} }

func (l *logLines) Enabled(context.Context, slog.Level) bool { return true }
func (l *logLines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logLines) WithGroup(string) slog.Handler            { return l }

func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	line := r.Time.Format("05.000 ") + r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, line)
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

// matching returns the lines that contain a text.
func (l *logLines) matching(text string) (some []string) {
	for line := range strings.SplitSeq(l.String(), "\n") {
		if strings.Contains(line, text) {
			some = append(some, line)
		}
	}
	return some
}

// waitLine waits for the n-th line that contains a text.
func (s *fixture) waitLine(n int, text string) {
	s.Helper()
	deadline := time.After(testTimeout)
	for {
		s.log.mu.Lock()
		changed := s.log.changed
		s.log.mu.Unlock()
		if len(s.log.matching(text)) >= n {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			s.Fatalf("the log has no %d lines with %q:\n%s", n, text, s.log)
		}
	}
}
