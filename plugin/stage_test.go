package plugin_test

import (
	"context"
	"errors"
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
	resource = "nvidia.com/gpu"
	patience = 30 * time.Second // for what happens within a second
)

// stage is a node's folder with the plugin in it, and a simulated kubelet where
// the test starts one.
type stage struct {
	*testing.T
	ctx     context.Context
	dir     string // the kubelet's
	options plugin.Options
	board   device.Board
	kubelet *kubelet.Kubelet
	plugin  *plugin.Plugin
	log     *lines
	seen    seen
}

// seen counts what the Trace tells.
type seen struct {
	mu sync.Mutex
	// All below are guarded by mu.
	registered []error
	streams    int
	most       int // streams at one time
	sent       []string
	answered   []error
	allocated  [][]device.OfferedID
	refused    []error
}

func newStage(t *testing.T) *stage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	t.Cleanup(cancel)
	s := &stage{T: t, ctx: ctx, dir: shortDir(t), log: newLines()}
	s.options = plugin.Options{
		Dir: s.sockets(), Look: s.board.Look, Log: slog.New(s.log), Trace: s.seen.trace(),
	}
	return s
}

// shortDir is a folder for sockets: t.TempDir has the test's name in it, and the
// path of a socket ends at 107 bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck // a test's
	return dir
}

// versions runs a test with each of the kubelet's versions.
func versions(t *testing.T, play func(s *stage)) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		t.Run(string(version), func(t *testing.T) {
			s := newStage(t)
			s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir, Version: version})
			play(s)
		})
	}
}

// sockets is the folder where sockets lie.
func (s *stage) sockets(name ...string) string {
	return filepath.Join(append([]string{s.dir, "device-plugins"}, name...)...)
}

// background runs a task until the test ends, or until the func returned is
// called: that one gives Run's error.
func (s *stage) background(name string, run func(context.Context) error) (end func() error) {
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	end = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return fmt.Errorf("%s does not end", name)
		}
	})
	s.Cleanup(func() {
		if err := end(); err != nil {
			s.Errorf("%s: %v", name, err)
		}
	})
	return end
}

// startKubelet returns when the kubelet serves.
func (s *stage) startKubelet() (end func() error) {
	s.Helper()
	end = s.background("kubelet", s.kubelet.Run)
	s.wait("the kubelet serves", func(k kubelet.State) bool { return k.Serving })
	return end
}

// startPlugin starts the plugin, which the test may then look at.
func (s *stage) startPlugin() (end func() error) {
	s.plugin = plugin.New(s.options)
	return s.background("plugin", s.plugin.Run)
}

// start brings up a node with n healthy devices, registered.
func (s *stage) start(n int) {
	s.Helper()
	s.board.Post(statuses(n))
	s.startKubelet()
	s.startPlugin()
	s.waitRegistered(n)
}

// wait waits until the kubelet's state is as wanted, and says how long it took.
func (s *stage) wait(what string, wanted func(kubelet.State) bool) time.Duration {
	s.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	if err := s.kubelet.Wait(ctx, wanted); err != nil {
		s.Fatalf("%s: %v\n%s", what, err, s.log)
	}
	return time.Since(began)
}

// waitRegistered waits until the kubelet has n healthy devices on one stream.
func (s *stage) waitRegistered(n int) time.Duration {
	s.Helper()
	return s.waitNewSocket(n, "")
}

// waitNewSocket waits until that stream is on another socket than the one before.
func (s *stage) waitNewSocket(n int, old string) time.Duration {
	s.Helper()
	registrations := 0
	took := s.wait(fmt.Sprintf("%d devices are offered on one stream", n), func(k kubelet.State) bool {
		r := k.Resources[resource]
		registrations = len(k.Registrations)
		return r.Allocatable == n && len(r.Sockets) == 1 && r.Sockets[0] != old && taken(k.Registrations, r.Sockets[0])
	})
	// The kubelet may have the list before the plugin has its answer.
	s.await("the plugin knows that it is registered", func() bool { return len(s.seen.registrations()) >= registrations })
	return took
}

// taken tells whether a socket's registration is done with.
func taken(all []kubelet.Registration, socket string) bool {
	return slices.ContainsFunc(all, func(r kubelet.Registration) bool { return r.Endpoint == socket && r.Err == nil })
}

// socket is the file name of the one live stream's socket.
func (s *stage) socket() string {
	s.Helper()
	live := s.kubelet.Resource(resource).Sockets
	if len(live) != 1 {
		s.Fatalf("live streams are on %q; want one", live)
	}
	return live[0]
}

// restart restarts the kubelet and returns when the new one serves.
func (s *stage) restart(o kubelet.RestartOptions) {
	s.Helper()
	err := s.kubelet.Restart(s.ctx, o)
	if errors.Is(err, kubelet.ErrNewInode) {
		s.Log(err) // as tmpfs has it
	} else if err != nil {
		s.Fatal(err)
	}
}

// left lists the plugin's sockets on disk.
func (s *stage) left() []string {
	all, err := filepath.Glob(s.sockets("podgauge-*"))
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// await polls for what nobody tells.
func (s *stage) await(what string, done func() bool) {
	s.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			s.Fatalf("%s: not after %s\n%s", what, patience, s.log)
		}
	}
}

// next takes what a test's other side sends.
func next[T any](s *stage, sent <-chan T) (v T) {
	s.Helper()
	select {
	case v = <-sent:
	case <-time.After(patience):
		s.Fatalf("nothing comes\n%s", s.log)
	}
	return v
}

// wantCleanRegistrations checks what holds however the test went: every life had a
// name of its own, a bare one, and there was never more than one stream.
func (s *stage) wantCleanRegistrations() {
	s.Helper()
	names := map[string]bool{}
	for _, r := range s.kubelet.State().Registrations {
		if names[r.Endpoint] || strings.Contains(r.Endpoint, "/") {
			s.Errorf("registered as %q after %v", r.Endpoint, names)
		}
		names[r.Endpoint] = true
	}
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	if s.seen.most > 1 {
		s.Errorf("%d streams were live at one time", s.seen.most)
	}
}

func id(i int) device.ID { return device.ID(fmt.Sprintf("GPU-%d", i)) }

// statuses are n healthy GPUs on two NUMA nodes.
func statuses(n int) []device.Status {
	all := make([]device.Status, n)
	for i := range all {
		all[i] = device.Status{Healthy: true, Device: device.Device{
			ID: id(i), GPU: device.GPU(id(i)), Index: i, Minor: i, NUMANode: i % 2,
			Nodes: []string{"/dev/nvidiactl", fmt.Sprintf("/dev/nvidia%d", i)},
		}}
	}
	return all
}

// unhealthy is the statuses with one GPU failed.
func unhealthy(all []device.Status, i int, reason string) []device.Status {
	all[i].Healthy, all[i].Reason = false, reason
	return all
}

func (c *seen) trace() plugin.Trace {
	note := func(change func()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		change()
	}
	return plugin.Trace{
		Registered: func(_ string, err error) { note(func() { c.registered = append(c.registered, err) }) },
		Streaming:  func(_ string, n int) { note(func() { c.streams, c.most = n, max(c.most, n) }) },
		Sent: func(_ string, devices, healthy int) {
			note(func() { c.sent = append(c.sent, fmt.Sprintf("%d/%d", healthy, devices)) })
		},
		Answered: func(method string, _ time.Duration, err error) {
			note(func() {
				if method == "Allocate" {
					c.answered = append(c.answered, err)
				}
			})
		},
		Allocated: func(_ string, ids []device.OfferedID) { note(func() { c.allocated = append(c.allocated, ids) }) },
		Refused: func(_ string, _ []device.OfferedID, _ plugin.Why, err error) {
			note(func() { c.refused = append(c.refused, err) })
		},
	}
}

func (c *seen) registrations() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]error(nil), c.registered...)
}

// lines is a log that tests can wait on.
type lines struct {
	mu      sync.Mutex
	all     []string      // guarded by mu
	changed chan struct{} // closed and replaced with each line; guarded by mu
}

func newLines() *lines { return &lines{changed: make(chan struct{})} }

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	line := r.Time.Format("05.000 ") + r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, line)
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

// with returns the lines that have a text in them.
func (l *lines) with(text string) (some []string) {
	for line := range strings.SplitSeq(l.String(), "\n") {
		if strings.Contains(line, text) {
			some = append(some, line)
		}
	}
	return some
}

// waitLine waits for the n-th line with a text.
func (s *stage) waitLine(n int, text string) {
	s.Helper()
	deadline := time.After(patience)
	for {
		s.log.mu.Lock()
		changed := s.log.changed
		s.log.mu.Unlock()
		if len(s.log.with(text)) >= n {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			s.Fatalf("the log has no %d lines with %q:\n%s", n, text, s.log)
		}
	}
}
