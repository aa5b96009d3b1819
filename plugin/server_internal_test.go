package plugin

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/plugin/response"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func TestALifeWhoseServerFails(t *testing.T) {
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a test's
	s, err := endpointFor(dir, Rules{}).startServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.grpcServer.Stop() // as if it had failed by itself
	uptime, err := s.watch(t.Context(), socketID{})
	if uptime != 0 || err == nil || !strings.HasPrefix(err.Error(), "serve: ") || strings.Contains(err.Error(), "%!") {
		t.Errorf("it stood for %s and ended with %v", uptime, err)
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
			t.Errorf("pause %d is %s; want %s", i, got, step.want)
		}
	}
}

func TestOrphaned(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // the path of a socket ends at 107 bytes
	p := endpointFor(".", Rules{})
	bind := func(name string) {
		t.Helper()
		listener, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() }) //nolint:errcheck // a test's
	}
	s := &server{endpoint: p, socketPath: "own.sock"}
	bind("own.sock")
	bind("kubelet.sock")
	kubelet := statSocket(p.kubeletSocket())
	steps := []struct {
		name string
		do   func()
		want string
	}{
		{"as it was", func() {}, ""},
		{"the kubelet's socket has gone", func() { rename(t, "kubelet.sock", "old.sock") }, ""},
		{"and ours too", func() { rename(t, "own.sock", "own.old") }, ""},
		{"another kubelet", func() { bind("kubelet.sock") }, "kubelet's socket was replaced"},
		{"which knows us not", func() { rename(t, "own.old", "own.sock") }, "kubelet's socket was replaced"},
		{"its socket is a file", func() { rename(t, "kubelet.sock", "new.sock"); write(t, "kubelet.sock") }, ""},
	}
	for _, step := range steps {
		step.do()
		if got := s.checkSockets(kubelet); (got == nil) != (step.want == "") || got != nil && got.Error() != step.want {
			t.Errorf("%s: %v; want %q", step.name, got, step.want)
		}
	}
	rename(t, "new.sock", "kubelet.sock")
	rename(t, "own.sock", "own.old")
	if err := s.checkSockets(statSocket(p.kubeletSocket())); err == nil || err.Error() != "own socket was deleted" {
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
	rules := Rules{ResponseOptions: func(string) response.Options { return response.Options{DeviceSpecs: true} }, Sharing: func(_ string, devices []device.Device) []Sharing {
		shares := make([]Sharing, len(devices))
		shares[slices.IndexFunc(devices, func(d device.Device) bool { return d.ID == "GPU-a" })].Replicas = 2
		return shares
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
		answer, err := s.Allocate(context.Background(), r)
		if (err == nil) != granted || err != nil && answer != nil {
			t.Fatalf("%q was answered %v, %v", text, answer, err)
		}
		for i, c := range answer.GetContainerResponses() {
			got := strings.Split(c.Envs["NVIDIA_VISIBLE_DEVICES"], ",")
			slices.Sort(got)
			if !slices.Equal(got, wants[i]) || (len(c.Devices) == 1) != slices.Contains(got, "GPU-a") {
				t.Errorf("%q gives container %d %q and %v; want %q", text, i, got, c.Devices, wants[i])
			}
		}
	})
}
