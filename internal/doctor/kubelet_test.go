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

// listOnlyPlugin is a device plugin that has a list and does nothing else.
type listOnlyPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	ids  []string
	stop chan struct{}
}

func (o *listOnlyPlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	list := &pluginapi.ListAndWatchResponse{}
	for _, id := range o.ids {
		list.Devices = append(list.Devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	if err := stream.Send(list); err != nil {
		return err
	}
	select {
	case <-o.stop:
	case <-stream.Context().Done():
	}
	return nil
}

func (*listOnlyPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// registerPlugin has a plugin offer these ids.
func (s *doctorFixture) registerPlugin(socket string, ids ...string) {
	s.Helper()
	l, err := net.Listen("unix", filepath.Join(s.DevicePluginDir, socket))
	s.must(err)
	server, stop := grpc.NewServer(), make(chan struct{})
	pluginapi.RegisterDevicePluginServer(server, &listOnlyPlugin{ids: ids, stop: stop})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	s.Cleanup(func() { close(stop); server.Stop(); <-ended })
	conn, err := grpc.NewClient("unix:"+s.kubelet.RegistrationSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.must(err)
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(s.Context(), &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: socket, ResourceName: gpu})
	s.must(err)
	s.must(s.kubelet.Wait(s.Context(), func(k kubelet.KubeletState) bool { return k.Resources[gpu].Allocatable == len(ids) }))
}

var kubeletCases = []findingCase{
	{check: "device plugins", status: StatusSkipped, message: "--device-plugin=false", change: func(s *doctorFixture) { s.DevicePlugin = false }},
	{check: "device plugins", status: StatusOK, message: "can be written to", change: func(s *doctorFixture) { s.mountInContainer(s.KubeletDir) }},
	{check: "device plugins", status: StatusFailure, message: "container's own", fix: "hostPath", change: func(s *doctorFixture) { s.mountInContainer() }},
	{check: "device plugins", status: StatusFailure, message: "no such file", fix: "--root-dir", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "device plugins", status: StatusFailure, message: "is no folder", change: func(s *doctorFixture) { s.DevicePluginDir = filepath.Join(s.Proc, "self", "mountinfo") }},
	{check: "device plugins", status: StatusFailure, message: "read-only file system (-rwx", fix: "readOnly", change: func(s *doctorFixture) { s.files.errs[s.DevicePluginDir] = errors.New("read-only file system") }},

	{check: "registration", status: StatusOK, message: "the kubelet listens", change: func(*doctorFixture) {}},
	{check: "registration", status: StatusSkipped, message: "--device-plugin=false", change: func(s *doctorFixture) { s.DevicePlugin = false }},
	{check: "registration", status: StatusFailure, message: "no such file", fix: "--device-plugin-dir", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "registration", status: StatusFailure, message: "container's own", fix: "hostPath", noKubelet: true, change: func(s *doctorFixture) { s.mountInContainer() }},
	{check: "registration", status: StatusFailure, message: "connection refused", fix: "Start it", noKubelet: true, change: func(s *doctorFixture) {
		s.listenOn(s.kubelet.RegistrationSocket(), false)
	}},
	{check: "registration", status: StatusFailure, message: "connection refused", fix: "mount its folder", noKubelet: true, change: func(s *doctorFixture) {
		s.listenOn(s.kubelet.RegistrationSocket(), false)
		s.mountInContainer(s.DevicePluginDir, s.kubelet.RegistrationSocket())
	}},
	{check: "registration", status: StatusWarning, message: "the socket itself is mounted", fix: "Mount its folder", change: func(s *doctorFixture) {
		s.mountInContainer(s.DevicePluginDir, s.kubelet.RegistrationSocket())
	}},
	{check: "registration", status: StatusFailure, message: "is no socket", noKubelet: true, change: func(s *doctorFixture) {
		s.must(os.WriteFile(filepath.Join(s.mkdir("kubelet/device-plugins"), "kubelet.sock"), nil, 0o600))
	}},

	{check: "pod resources", status: StatusOK, message: "List has 1 pod; the kubelet is 1.34 or newer, and up for 3 hours", change: func(s *doctorFixture) {
		s.must(s.kubelet.RunPod(s.Context(), kubelet.PodSpec{Name: "train", Containers: []kubelet.ContainerSpec{{Name: "main"}}}))
	}},
	{check: "pod resources", status: StatusOK, message: "1.27 to 1.33", change: func(s *doctorFixture) {
		s.kubelet.SetFaults(kubelet.Faults{GetErr: errors.New("PodResources API Get method disabled")})
	}},
	{check: "pod resources", status: StatusWarning, message: "older than 1.27", fix: "Upgrade", change: func(s *doctorFixture) {
		s.kubelet.SetFaults(kubelet.Faults{GetErr: status.Error(codes.Unimplemented, "unknown method Get")})
	}},
	{check: "pod resources", status: StatusFailure, message: "no such file", fix: "--kubelet-dir", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "pod resources", status: StatusFailure, message: "is not answered within", fix: "journalctl", change: func(s *doctorFixture) {
		s.kubelet.SetFaults(kubelet.Faults{HoldList: s.newHang()})
	}},
	{check: "pod resources", status: StatusFailure, message: "is not answered within", fix: "journalctl", noKubelet: true, change: func(s *doctorFixture) {
		s.Timeout = 100 * time.Millisecond
		s.listenOn(s.kubelet.PodResourcesSocket(), true) // and nobody accepts
	}},
	{check: "pod resources", status: StatusFailure, message: "rejected by rate limit", fix: "100 questions", change: func(s *doctorFixture) {
		s.kubelet.SetFaults(kubelet.Faults{ListErr: status.Error(codes.ResourceExhausted, "rejected by rate limit")})
	}},
	{check: "pod resources", status: StatusFailure, message: "out of order", fix: "journalctl", change: func(s *doctorFixture) {
		s.kubelet.SetFaults(kubelet.Faults{ListErr: errors.New("out of order")})
	}},
	{check: "pod resources", status: StatusOK, message: "List has 1 pod", change: func(s *doctorFixture) { // more than gRPC takes by default
		s.kubelet.SetFaults(kubelet.Faults{ListBytes: 5 << 20})
	}},

	{check: "pods api", status: StatusOK, message: "1.37 or newer", change: func(*doctorFixture) {}},
	{check: "pods api", status: StatusSkipped, message: "not there", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "pods api", status: StatusWarning, message: "initializing", fix: "log", change: func(s *doctorFixture) {
		s.kubelet.SetFaults(kubelet.Faults{PodsErr: status.Error(codes.FailedPrecondition, "Kubelet is initializing")})
	}},
	{check: "pods api", status: StatusWarning, message: "refused", fix: "uid 0", noKubelet: true, change: func(s *doctorFixture) { s.listenOn(s.kubelet.PodsSocket(), false) }},

	{check: "other plugins", status: StatusOK, message: "1 socket of others, none for", change: func(s *doctorFixture) { s.listenOn(filepath.Join(s.DevicePluginDir, "amd.com_gpu"), true) }},
	{check: "other plugins", status: StatusSkipped, message: "cannot be read", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "other plugins", status: StatusFailure, message: "nvidia-gpu.sock", fix: "--device-plugin=false", change: func(s *doctorFixture) {
		s.listenOn(filepath.Join(s.DevicePluginDir, "nvidia-gpu.sock"), true)
	}},
	{check: "other plugins", status: StatusFailure, message: "nvidiaGPU-1764.sock", change: func(s *doctorFixture) {
		s.listenOn(filepath.Join(s.DevicePluginDir, "nvidiaGPU-1764.sock"), true)
	}},
	{check: "other plugins", status: StatusOK, message: "nobody listens on nvidia-gpu.sock", change: func(s *doctorFixture) {
		s.listenOn(filepath.Join(s.DevicePluginDir, "nvidia-gpu.sock"), false)
	}},
	{check: "other plugins", status: StatusOK, message: "only looks on", change: func(s *doctorFixture) {
		s.DevicePlugin = false
		s.listenOn(filepath.Join(s.DevicePluginDir, "nvidia-gpu.sock"), true)
	}},

	{check: "allocatable", status: StatusOK, message: "podgauge does not serve", change: func(*doctorFixture) {}},
	{check: "allocatable", status: StatusOK, message: "3 nvidia.com/gpu", change: func(s *doctorFixture) { s.registerPlugin("podgauge-x.sock", "GPU-a::0", "GPU-a::1", "GPU-b") }},
	{check: "allocatable", status: StatusFailure, message: "not podgauge's: nvidia.com/gpu nvidia0", fix: "another name", change: func(s *doctorFixture) { s.registerPlugin("gdp-x.sock", "GPU-a", "nvidia0") }},
	{check: "allocatable", status: StatusWarning, message: "podgauge serves, and the kubelet has none", fix: "podgauge status", change: func(s *doctorFixture) {
		s.listenOn(filepath.Join(s.DevicePluginDir, "podgauge-nvidia-com_gpu-1-1.sock"), true)
	}},
	{check: "allocatable", status: StatusSkipped, message: "does not answer", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "allocatable", status: StatusSkipped, message: "--device-plugin=false", change: func(s *doctorFixture) { s.DevicePlugin = false }},
	{check: "allocatable", status: StatusSkipped, message: "not known", change: func(s *doctorFixture) { s.driver.devices, s.driver.err = nil, errors.New("no driver") }},
}

func TestFormatAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "1 second", 90 * time.Second: "90 seconds", 119 * time.Minute: "119 minutes", 2 * time.Hour: "2 hours", 49 * time.Hour: "2 days",
	} {
		if got := formatAge(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}
