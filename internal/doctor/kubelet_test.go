package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// offerer is a device plugin that has a list and does nothing else.
type offerer struct {
	pluginapi.UnimplementedDevicePluginServer
	ids  []string
	over chan struct{}
}

func (o *offerer) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	list := &pluginapi.ListAndWatchResponse{}
	for _, id := range o.ids {
		list.Devices = append(list.Devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	if err := stream.Send(list); err != nil {
		return err
	}
	select {
	case <-o.over:
	case <-stream.Context().Done():
	}
	return nil
}

func (*offerer) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// offers has a plugin offer these ids.
func (s *stage) offers(socket string, ids ...string) {
	s.Helper()
	l, err := net.Listen("unix", filepath.Join(s.DevicePluginDir, socket))
	s.must(err)
	server, over := grpc.NewServer(), make(chan struct{})
	pluginapi.RegisterDevicePluginServer(server, &offerer{ids: ids, over: over})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	s.Cleanup(func() { close(over); server.Stop(); <-ended })
	conn, err := grpc.NewClient("unix:"+s.kubelet.RegistrationSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.must(err)
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(s.Context(), &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: socket, ResourceName: gpu})
	s.must(err)
	s.must(s.kubelet.Wait(s.Context(), func(k kubelet.State) bool { return k.Resources[gpu].Allocatable == len(ids) }))
}

var kubeletCases = []findingCase{
	{check: "device plugins", verdict: Skipped, found: "--device-plugin=false", change: func(s *stage) { s.Offers = false }},
	{check: "device plugins", verdict: OK, found: "can be written to", change: func(s *stage) { s.container(s.KubeletDir) }},
	{check: "device plugins", verdict: Failure, found: "container's own", mend: "hostPath", change: func(s *stage) { s.container() }},
	{check: "device plugins", verdict: Failure, found: "no such file", mend: "--root-dir", noKubelet: true, change: func(*stage) {}},
	{check: "device plugins", verdict: Failure, found: "is no folder", change: func(s *stage) { s.DevicePluginDir = filepath.Join(s.Proc, "self", "mountinfo") }},
	{check: "device plugins", verdict: Failure, found: "read-only file system (-rwx", mend: "readOnly", change: func(s *stage) { s.files.refused[s.DevicePluginDir] = errors.New("read-only file system") }},

	{check: "registration", verdict: OK, found: "the kubelet listens", change: func(*stage) {}},
	{check: "registration", verdict: Skipped, found: "--device-plugin=false", change: func(s *stage) { s.Offers = false }},
	{check: "registration", verdict: Failure, found: "no such file", mend: "--device-plugin-dir", noKubelet: true, change: func(*stage) {}},
	{check: "registration", verdict: Failure, found: "container's own", mend: "hostPath", noKubelet: true, change: func(s *stage) { s.container() }},
	{check: "registration", verdict: Failure, found: "connection refused", mend: "Start it", noKubelet: true, change: func(s *stage) {
		s.listens(s.kubelet.RegistrationSocket(), false)
	}},
	{check: "registration", verdict: Failure, found: "connection refused", mend: "mount its folder", noKubelet: true, change: func(s *stage) {
		s.listens(s.kubelet.RegistrationSocket(), false)
		s.container(s.DevicePluginDir, s.kubelet.RegistrationSocket())
	}},
	{check: "registration", verdict: Warning, found: "the socket itself is mounted", mend: "Mount its folder", change: func(s *stage) {
		s.container(s.DevicePluginDir, s.kubelet.RegistrationSocket())
	}},
	{check: "registration", verdict: Failure, found: "is no socket", noKubelet: true, change: func(s *stage) {
		s.must(os.WriteFile(filepath.Join(s.folder("kubelet/device-plugins"), "kubelet.sock"), nil, 0o600))
	}},

	{check: "pod resources", verdict: OK, found: "List has 1 pod; the kubelet is 1.34 or newer, and up for 3 hours", change: func(s *stage) {
		s.must(s.kubelet.RunPod(s.Context(), kubelet.Pod{Name: "train", Containers: []kubelet.Container{{Name: "main"}}}))
	}},
	{check: "pod resources", verdict: OK, found: "1.27 to 1.33", change: func(s *stage) {
		s.kubelet.Trouble(kubelet.Trouble{Get: errors.New("PodResources API Get method disabled")})
	}},
	{check: "pod resources", verdict: Warning, found: "older than 1.27", mend: "Upgrade", change: func(s *stage) {
		s.kubelet.Trouble(kubelet.Trouble{Get: status.Error(codes.Unimplemented, "unknown method Get")})
	}},
	{check: "pod resources", verdict: Failure, found: "no such file", mend: "--kubelet-dir", noKubelet: true, change: func(*stage) {}},
	{check: "pod resources", verdict: Failure, found: "is not answered within", mend: "journalctl", change: func(s *stage) {
		s.kubelet.Trouble(kubelet.Trouble{HoldList: s.hanging()})
	}},
	{check: "pod resources", verdict: Failure, found: "is not answered within", mend: "journalctl", noKubelet: true, change: func(s *stage) {
		s.Patience = 100 * time.Millisecond
		s.listens(s.kubelet.PodResourcesSocket(), true) // and nobody accepts
	}},
	{check: "pod resources", verdict: Failure, found: "rejected by rate limit", mend: "100 questions", change: func(s *stage) {
		s.kubelet.Trouble(kubelet.Trouble{List: status.Error(codes.ResourceExhausted, "rejected by rate limit")})
	}},
	{check: "pod resources", verdict: Failure, found: "out of order", mend: "journalctl", change: func(s *stage) {
		s.kubelet.Trouble(kubelet.Trouble{List: errors.New("out of order")})
	}},
	{check: "pod resources", verdict: OK, found: "List has 1 pod", change: func(s *stage) { // more than gRPC takes by default
		s.kubelet.Trouble(kubelet.Trouble{ListBytes: 5 << 20})
	}},

	{check: "pods api", verdict: OK, found: "1.37 or newer", change: func(*stage) {}},
	{check: "pods api", verdict: Skipped, found: "not there", noKubelet: true, change: func(*stage) {}},
	{check: "pods api", verdict: Warning, found: "initializing", mend: "log", change: func(s *stage) {
		s.kubelet.Trouble(kubelet.Trouble{Pods: status.Error(codes.FailedPrecondition, "Kubelet is initializing")})
	}},
	{check: "pods api", verdict: Warning, found: "refused", mend: "uid 0", noKubelet: true, change: func(s *stage) { s.listens(s.kubelet.PodsSocket(), false) }},

	{check: "other plugins", verdict: OK, found: "1 socket of others, none for", change: func(s *stage) { s.listens(filepath.Join(s.DevicePluginDir, "amd.com_gpu"), true) }},
	{check: "other plugins", verdict: Skipped, found: "cannot be read", noKubelet: true, change: func(*stage) {}},
	{check: "other plugins", verdict: Failure, found: "nvidia-gpu.sock", mend: "--device-plugin=false", change: func(s *stage) {
		s.listens(filepath.Join(s.DevicePluginDir, "nvidia-gpu.sock"), true)
	}},
	{check: "other plugins", verdict: Failure, found: "nvidiaGPU-1764.sock", change: func(s *stage) {
		s.listens(filepath.Join(s.DevicePluginDir, "nvidiaGPU-1764.sock"), true)
	}},
	{check: "other plugins", verdict: OK, found: "nobody listens on nvidia-gpu.sock", change: func(s *stage) {
		s.listens(filepath.Join(s.DevicePluginDir, "nvidia-gpu.sock"), false)
	}},
	{check: "other plugins", verdict: OK, found: "only looks on", change: func(s *stage) {
		s.Offers = false
		s.listens(filepath.Join(s.DevicePluginDir, "nvidia-gpu.sock"), true)
	}},

	{check: "allocatable", verdict: OK, found: "podgauge does not serve", change: func(*stage) {}},
	{check: "allocatable", verdict: OK, found: "3 nvidia.com/gpu", change: func(s *stage) { s.offers("podgauge-x.sock", "GPU-a::0", "GPU-a::1", "GPU-b") }},
	{check: "allocatable", verdict: Failure, found: "not podgauge's: nvidia.com/gpu nvidia0", mend: "another name", change: func(s *stage) { s.offers("gdp-x.sock", "GPU-a", "nvidia0") }},
	{check: "allocatable", verdict: Warning, found: "podgauge serves, and the kubelet has none", mend: "podgauge status", change: func(s *stage) {
		s.listens(filepath.Join(s.DevicePluginDir, "podgauge-nvidia-com_gpu-1-1.sock"), true)
	}},
	{check: "allocatable", verdict: Skipped, found: "does not answer", noKubelet: true, change: func(*stage) {}},
	{check: "allocatable", verdict: Skipped, found: "--device-plugin=false", change: func(s *stage) { s.Offers = false }},
	{check: "allocatable", verdict: Skipped, found: "not known", change: func(s *stage) { s.driver.listed, s.driver.err = nil, errors.New("no driver") }},
}

func TestRounded(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "1 second", 90 * time.Second: "90 seconds", 119 * time.Minute: "119 minutes", 2 * time.Hour: "2 hours", 49 * time.Hour: "2 days",
	} {
		if got := rounded(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}
