package plugin

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/plugin/response"
	"github.com/podgauge/podgauge/test/bubble"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// bindSocket creates a socket file without a server.
func bindSocket(t *testing.T, path string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		t.Cleanup(func() { syscall.Close(fd) }) //nolint:errcheck // end of the test
		err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: path})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// TestServerEnds covers the rows of the table at server for the step watch.
func TestServerEnds(t *testing.T) {
	open := func(s *server) {
		s.kubeletStream.Store(true)
		close(s.kubeletStreamOpened)
	}
	for _, c := range []struct {
		name   string
		event  func(t *testing.T, s *server)
		want   string        // reason of the end; empty: watch continues
		after  time.Duration // from event to end
		uptime time.Duration // of the kubelet's stream
	}{
		{"the kubelet opens no stream", func(*testing.T, *server) {}, "the kubelet opened no stream within 5s", streamTimeout, 0},
		{"the kubelet's stream ends", func(t *testing.T, s *server) {
			open(s)
			time.Sleep(time.Minute)
			close(s.kubeletStreamEnded)
		}, "the kubelet closed the stream", 0, time.Minute},
		{"the stream of a different client ends", func(t *testing.T, s *server) {
			open(s)
			err := s.ListAndWatch(nil, &fakeStream{ctx: t.Context(), send: func(*api.ListAndWatchResponse) error { return io.EOF }})
			if !errors.Is(err, io.EOF) {
				t.Errorf("second client: got error %v", err)
			}
		}, "", 0, 0},
		{"the gRPC server stops", func(t *testing.T, s *server) { open(s); close(s.serveDone) }, "serve: server stopped", 0, 0},
		{"the gRPC server fails", func(t *testing.T, s *server) {
			open(s)
			s.serveErr = errors.New("accept: too many open files")
			close(s.serveDone)
		}, "serve: accept: too many open files", 0, 0},
		{"the kubelet's socket is replaced", func(t *testing.T, s *server) {
			open(s)
			remove(t, s.kubeletSocket())
			bindSocket(t, s.kubeletSocket())
		}, "the kubelet's socket was replaced", 0, 0},
		{"the kubelet's socket vanishes", func(t *testing.T, s *server) { open(s); remove(t, s.kubeletSocket()) }, "", 0, 0},
		{"the own socket vanishes", func(t *testing.T, s *server) { open(s); remove(t, s.socketPath) }, "podgauge's socket was deleted", deletionTimeout, deletionTimeout},
		{"all sockets vanish, the own first", func(t *testing.T, s *server) {
			open(s)
			remove(t, s.socketPath)
			s.sockets.Set(struct{}{})
			time.Sleep(deletionTimeout / 2)
			remove(t, s.kubeletSocket())
		}, "", 0, 0},
		{"the list is empty", func(t *testing.T, s *server) { open(s); s.devices.Set(&deviceList{}) }, "device list is empty", emptyListTimeout, emptyListTimeout},
		{"the list is empty for less", func(t *testing.T, s *server) {
			open(s)
			list := s.list()
			s.devices.Set(&deviceList{})
			time.Sleep(emptyListTimeout - time.Second)
			s.devices.Set(list)
		}, "", 0, 0},
		{"PreStartRequired changes", func(t *testing.T, s *server) {
			open(s)
			list := *s.list()
			list.rules.PreStartCheck = true
			s.devices.Set(&list)
		}, "plugin options changed", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				dir, err := os.MkdirTemp("", "pg") // short: the path of a socket has at most 107 bytes
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir) //nolint:errcheck // end of the test
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s := &server{
					endpoint: endpointFor(dir, Rules{}, parseStatuses("0")...), socketPath: filepath.Join(dir, "own.sock"),
					stopping: make(chan struct{}), serveDone: make(chan struct{}),
					kubeletStreamOpened: make(chan struct{}), kubeletStreamEnded: make(chan struct{}),
				}
				bindSocket(t, s.socketPath)
				bindSocket(t, s.kubeletSocket())
				type end struct {
					uptime time.Duration
					err    error
					at     time.Time
				}
				ended := make(chan end, 1)
				go func() {
					uptime, err := s.watch(ctx, statSocket(s.kubeletSocket()))
					ended <- end{uptime, err, time.Now()}
				}()
				synctest.Wait()
				c.event(t, s)
				s.sockets.Set(struct{}{}) // as folderWatch does
				event := time.Now()
				time.Sleep(time.Hour)
				synctest.Wait()
				select {
				case e := <-ended:
					if e.err == nil || e.err.Error() != c.want || e.at.Sub(event) != c.after || e.uptime != c.uptime {
						t.Errorf("ended after %s with uptime %s: got %v, want %s, %s, %q", e.at.Sub(event), e.uptime, e.err, c.after, c.uptime, c.want)
					}
				default:
					if c.want != "" {
						t.Errorf("got no end, want %q", c.want)
					}
					cancel()
					if e := <-ended; e.err != nil {
						t.Errorf("end of the context: got %v", e.err)
					}
				}
			})
		})
	}
}

// TestServerStopsAfterAFailure stops the gRPC server before or after the call of Serve.
func TestServerStopsAfterAFailure(t *testing.T) {
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // end of the test
	s, err := endpointFor(dir, Rules{}).startServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.grpcServer.Stop()
	if _, err := s.watch(t.Context(), socketID{}); err == nil || !strings.HasPrefix(err.Error(), "serve: ") {
		t.Errorf("watch: got error %v", err)
	}
	s.stop() // returns
}

func TestBackoff(t *testing.T) {
	one, two := socketID{inode: 1}, socketID{inode: 1, mtime: syscall.Timespec{Nsec: 1}}
	b := backoff{Backoff: retry.Backoff{Min: minBackoff, Max: maxBackoff}}
	for i, step := range []struct {
		kubelet socketID
		stood   time.Duration
		want    time.Duration
	}{
		{one, 0, minBackoff},
		{one, 0, 2 * minBackoff},
		{one, backoffResetAfter / 2, 4 * minBackoff},
		{one, 0, 8 * minBackoff},
		{one, backoffResetAfter, minBackoff},
		{one, 0, 2 * minBackoff},
		{two, 0, minBackoff},
		{two, time.Hour, minBackoff},
		{two, time.Hour, minBackoff},
	} {
		if got := b.next(step.kubelet, step.stood); got != step.want {
			t.Errorf("pause %d: got %s, want %s", i, got, step.want)
		}
	}
}

func TestCheckSockets(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // the path of a socket ends at 107 bytes
	p := endpointFor(".", Rules{})
	bind := func(name string) {
		t.Helper()
		listener, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() }) //nolint:errcheck // end of the test
	}
	s := &server{endpoint: p, socketPath: "own.sock"}
	check := func(kubelet socketID) error {
		left := heartbeatInterval
		if s.ownSocketDeleted() {
			left = 0
		}
		return s.check(kubelet, heartbeatInterval, left)
	}
	bind("own.sock")
	bind("kubelet.sock")
	kubelet := statSocket(p.kubeletSocket())
	steps := []struct {
		name string
		do   func()
		want string
	}{
		{"no change", func() {}, ""},
		{"the kubelet's socket vanishes", func() { rename(t, "kubelet.sock", "old.sock") }, ""},
		{"the own socket too", func() { rename(t, "own.sock", "own.old") }, ""},
		{"a new kubelet", func() { bind("kubelet.sock") }, "the kubelet's socket was replaced"},
		{"a new kubelet, the own socket exists", func() { rename(t, "own.old", "own.sock") }, "the kubelet's socket was replaced"},
		{"a file in place of the socket", func() { rename(t, "kubelet.sock", "new.sock"); write(t, "kubelet.sock") }, ""},
	}
	for _, step := range steps {
		step.do()
		if got := check(kubelet); (got == nil) != (step.want == "") || got != nil && got.Error() != step.want {
			t.Errorf("%s: got %v, want %q", step.name, got, step.want)
		}
	}
	rename(t, "new.sock", "kubelet.sock")
	rename(t, "own.sock", "own.old")
	if err := check(statSocket(p.kubeletSocket())); err == nil || err.Error() != "podgauge's socket was deleted" {
		t.Errorf("own socket deleted: got %v", err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(filepath.Clean(path), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// FuzzAllocate requests arbitrary ids, and checks that Allocate grants only requested, healthy devices.
func FuzzAllocate(f *testing.F) {
	for _, seed := range []string{
		"", "GPU-a", "GPU-b,GPU-a::1", "GPU-b,GPU-a", "GPU-a::0,GPU-a::1", "GPU-a::01", "GPU-x", "GPU-a|GPU-b", "GPU-a|", ",", "::", "::GPU-a", "GPU-a::", "GPU-a::::1",
		"GPU-a:1", "gpu-a", "GPU-a\x00", "GPU-a,GPU-gone", "|||", " GPU-a", "GPU-a\xff", strings.Repeat("GPU-a::7,", 100),
	} {
		f.Add(seed)
	}
	gpu := func(name string, index int, healthy bool, nodes ...string) device.Status {
		id := device.ID(name)
		return device.Status{Device: device.Device{ID: id, GPU: device.GPU(id), Index: index, DeviceNodes: nodes}, Healthy: healthy}
	}
	good := map[string]string{"GPU-b": "GPU-b", "GPU-a::0": "GPU-a", "GPU-a::1": "GPU-a"}
	rules := Rules{Response: response.Options{DeviceSpecs: true}, Sharing: func(_ string, devices []device.Device) []config.DeviceSharing {
		sharing := make([]config.DeviceSharing, len(devices))
		sharing[slices.IndexFunc(devices, func(d device.Device) bool { return d.ID == "GPU-a" })].Replicas = 2
		return sharing
	}}
	s := &server{endpoint: endpointFor("", rules, gpu("GPU-x", 0, false), gpu("GPU-b", 1, true), gpu("GPU-a", 2, true, "/dev/nvidia2"))}
	f.Fuzz(func(t *testing.T, text string) {
		r, wants, granted := &api.AllocateRequest{}, [][]string{}, true
		for c := range strings.SplitSeq(text, "|") {
			var ids, want []string
			if c != "" {
				ids = strings.Split(c, ",")
			}
			for _, id := range ids {
				want = append(want, good[id])
				granted = granted && good[id] != ""
			}
			granted = granted && len(ids) > 0
			slices.Sort(want)
			wants = append(wants, slices.Compact(want))
			r.ContainerRequests = append(r.ContainerRequests, &api.ContainerAllocateRequest{DevicesIds: ids})
		}
		resp, err := s.Allocate(context.Background(), r)
		if (err == nil) != granted || err != nil && resp != nil {
			t.Fatalf("%q: got %v, %v", text, resp, err)
		}
		for i, c := range resp.GetContainerResponses() {
			got := strings.Split(c.Envs["NVIDIA_VISIBLE_DEVICES"], ",")
			slices.Sort(got)
			if !slices.Equal(got, wants[i]) || (len(c.Devices) == 1) != slices.Contains(got, "GPU-a") {
				t.Errorf("%q: container %d: got %q and %v, want %q", text, i, got, c.Devices, wants[i])
			}
		}
	})
}
