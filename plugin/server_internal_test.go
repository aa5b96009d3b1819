package plugin

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/plugin/response"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestServerStopsAfterAFailure stops the gRPC server before or after the call
// of Serve.
func TestServerStopsAfterAFailure(t *testing.T) {
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // end of the test
	s, err := startServer(t.Context(), endpointFor(dir, Rules{}, nil).resourceState, "own.sock")
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
		{two, 0, 2 * minBackoff},
		{two, 0, 4 * minBackoff},
		{two, 0, 8 * minBackoff},
		{two, 0, 16 * minBackoff},
		{two, 0, 32 * minBackoff},
		{two, 0, 64 * minBackoff},
		{two, 0, maxBackoff},
		{two, 0, maxBackoff},
	} {
		if got := b.next(step.kubelet, step.stood); got != step.want {
			t.Errorf("pause %d: got %s, want %s", i, got, step.want)
		}
	}
}

// fakeStream is a stream whose Send is a function of the test.
type fakeStream struct {
	grpc.ServerStreamingServer[api.ListAndWatchResponse]
	ctx  context.Context
	send func(*api.ListAndWatchResponse) error
}

func (s *fakeStream) Context() context.Context                  { return s.ctx }
func (s *fakeStream) Send(list *api.ListAndWatchResponse) error { return s.send(list) }

// TestDeviceVanishesDuringSend checks that the device stays listed: the kubelet
// may choose from a list before Send returns.
func TestDeviceVanishesDuringSend(t *testing.T) {
	s := &server{
		resourceState: endpointFor("", Rules{}, ParseStatuses("0 1")).resourceState, stopping: make(chan struct{}),
		kubeletStreamOpened: make(chan struct{}), kubeletStreamEnded: make(chan struct{}),
	}
	err := s.ListAndWatch(nil, &fakeStream{ctx: t.Context(), send: func(*api.ListAndWatchResponse) error {
		lists, _ := Rules{}.deviceLists(ParseStatuses("0"))
		s.setDevices(lists[gpuResource], ParseStatuses("0"), device.Allocations{}, time.Now())
		return io.EOF
	}})
	if i, listed := s.list().find("GPU-1"); !listed || i.healthy || !errors.Is(err, io.EOF) {
		t.Errorf("got GPU-1 %+v, listed %t, error %v", i, listed, err)
	}
}

// FuzzAllocate requests arbitrary ids, and checks that Allocate grants only
// requested, healthy devices.
func FuzzAllocate(f *testing.F) {
	for _, seed := range []string{
		"", "GPU-a", "GPU-b,GPU-a::1", "GPU-b,GPU-a", "GPU-a::0,GPU-a::1", "GPU-a::01", "GPU-x", "GPU-a|GPU-b",
		"GPU-a|", ",", "::", "::GPU-a", "GPU-a::", "GPU-a::::1",
		"GPU-a:1", "gpu-a", "GPU-a\x00", "GPU-a,GPU-gone", "|||", " GPU-a", "GPU-a\xff",
		strings.Repeat("GPU-a::7,", 100),
	} {
		f.Add(seed)
	}
	gpu := func(name string, index int, healthy bool, nodes ...string) device.Status {
		id := device.ID(name)
		return device.Status{
			Device:  device.Device{ID: id, GPU: device.GPU(id), Index: index, DeviceNodes: nodes},
			Healthy: healthy,
		}
	}
	good := map[string]string{"GPU-b": "GPU-b", "GPU-a::0": "GPU-a", "GPU-a::1": "GPU-a"}
	rules := Rules{
		Response: response.Options{DeviceSpecs: true},
		Sharing: func(_ string, devices []device.Device) []config.DeviceSharing {
			sharing := make([]config.DeviceSharing, len(devices))
			sharing[slices.IndexFunc(devices, func(d device.Device) bool { return d.ID == "GPU-a" })].Replicas = 2
			return sharing
		},
	}
	statuses := []device.Status{gpu("GPU-x", 0, false), gpu("GPU-b", 1, true), gpu("GPU-a", 2, true, "/dev/nvidia2")}
	s := &server{resourceState: endpointFor("", rules, statuses).resourceState}
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
