package plugin

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/device"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// on makes a plugin that finds these on the board.
func on(dir string, statuses ...device.Status) *Plugin {
	return New(Options{
		Dir: dir, Resource: "nvidia.com/gpu", Log: slog.New(slog.DiscardHandler),
		Look: func() ([]device.Status, <-chan struct{}) { return statuses, nil },
	})
}

func TestALifeWhoseServerFails(t *testing.T) {
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a test's
	l, err := on(dir).begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.server.Stop() // as if it had failed by itself
	stood, err := l.watch(t.Context(), socketID{})
	if stood != 0 || err == nil || !strings.HasPrefix(err.Error(), "serve: ") {
		t.Errorf("it stood for %s and ended with %v", stood, err)
	}
	l.end() // returns
}

func TestBackoff(t *testing.T) {
	one, two := socketID{inode: 1}, socketID{inode: 1, ctime: syscall.Timespec{Nsec: 1}}
	var b backoff
	for i, step := range []struct {
		kubelet socketID
		stood   time.Duration
		want    time.Duration
	}{
		{one, 0, againFirst},
		{one, 0, 2 * againFirst},
		{one, steady / 2, 4 * againFirst},
		{one, 0, 8 * againFirst},
		{one, steady, againFirst},
		{one, 0, 2 * againFirst},
		{two, 0, againFirst},
		{two, time.Hour, againFirst},
		{two, time.Hour, againFirst},
	} {
		if got := b.after(step.kubelet, step.stood); got != step.want {
			t.Errorf("pause %d is %s; want %s", i, got, step.want)
		}
	}
}

func TestOrphaned(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // the path of a socket ends at 107 bytes
	p := on(".")
	bind := func(name string) {
		t.Helper()
		listener, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() }) //nolint:errcheck // a test's
	}
	l := &life{Plugin: p, socket: "own.sock"}
	bind("own.sock")
	bind("kubelet.sock")
	kubelet := identify(p.kubeletSocket())
	steps := []struct {
		name string
		do   func()
		want string
	}{
		{"as it was", func() {}, ""},
		{"the kubelet's socket has gone", func() { rename(t, "kubelet.sock", "old.sock") }, ""},
		{"and ours too", func() { rename(t, "own.sock", "own.old") }, ""},
		{"another kubelet", func() { bind("kubelet.sock") }, "the kubelet's socket was replaced"},
		{"which knows us not", func() { rename(t, "own.old", "own.sock") }, "the kubelet's socket was replaced"},
		{"its socket is a file", func() { rename(t, "kubelet.sock", "new.sock"); write(t, "kubelet.sock") }, ""},
	}
	for _, step := range steps {
		step.do()
		if got := l.orphaned(kubelet); (got == nil) != (step.want == "") || got != nil && got.Error() != step.want {
			t.Errorf("%s: %v; want %q", step.name, got, step.want)
		}
	}
	rename(t, "new.sock", "kubelet.sock")
	rename(t, "own.sock", "own.old")
	if err := l.orphaned(identify(p.kubeletSocket())); err == nil || err.Error() != "our socket was deleted" {
		t.Errorf("own socket deleted: %v", err)
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

// FuzzAllocate has arbitrary ids asked for: only healthy devices are granted, and
// only those that were asked for.
func FuzzAllocate(f *testing.F) {
	for _, seed := range []string{
		"", "GPU-a", "GPU-b,GPU-a", "GPU-a::0,GPU-a::1", "GPU-x", "GPU-a|GPU-b", "GPU-a|", ",", "::", "::GPU-a", "GPU-a::", "GPU-a::::1",
		"GPU-a:1", "gpu-a", "GPU-a\x00", "GPU-a,GPU-gone", "|||", " GPU-a", "GPU-a\xff", strings.Repeat("GPU-a::7,", 100),
	} {
		f.Add(seed)
	}
	healthy := []string{"GPU-a", "GPU-b"}
	l := &life{Plugin: on("", device.Status{Device: device.Device{ID: "GPU-x"}, Reason: "lost"},
		device.Status{Device: device.Device{ID: "GPU-b", Index: 1}, Healthy: true},
		device.Status{Device: device.Device{ID: "GPU-a", Index: 2, Nodes: []string{"/dev/nvidia2"}}, Healthy: true})}
	l.DeviceSpecs = true
	f.Fuzz(func(t *testing.T, text string) {
		r, wants, good := &api.AllocateRequest{}, [][]string{}, true
		for c := range strings.SplitSeq(text, "|") {
			var ids, want []string
			if c != "" {
				ids = strings.Split(c, ",")
			}
			for _, id := range ids {
				gpu, _, _ := strings.Cut(id, "::")
				want = append(want, gpu)
				good = good && slices.Contains(healthy, gpu)
			}
			good = good && len(ids) > 0
			slices.Sort(want)
			wants = append(wants, slices.Compact(want))
			r.ContainerRequests = append(r.ContainerRequests, &api.ContainerAllocateRequest{DevicesIds: ids})
		}
		answer, err := l.Allocate(context.Background(), r)
		if (err == nil) != good || err != nil && answer != nil {
			t.Fatalf("%q was answered %v, %v", text, answer, err)
		}
		for i, c := range answer.GetContainerResponses() {
			got := strings.Split(c.Envs[visibleDevices], ",")
			slices.Sort(got)
			if !slices.Equal(got, wants[i]) || (len(c.Devices) == 1) != slices.Contains(got, "GPU-a") {
				t.Errorf("%q gives container %d %q and %v; want %q", text, i, got, c.Devices, wants[i])
			}
		}
	})
}
