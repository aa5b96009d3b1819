package doctor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin/response"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
	"github.com/podgauge/podgauge/test/helpers/require"
)

var kubeletCases = []findingCase{
	{check: "registration", status: doctor.StatusSkipped, message: "--device-plugin=false", change: func(s *doctorFixture) { s.DevicePlugin = false }},
	{check: "registration", status: doctor.StatusOK, message: "the kubelet listens", change: func(s *doctorFixture) { s.mountInContainer(s.KubeletDir) }},
	{check: "registration", status: doctor.StatusFailure, message: "not a directory", change: func(s *doctorFixture) { s.DevicePluginDir = filepath.Join(s.Proc, "self", "mountinfo") }},
	{check: "registration", status: doctor.StatusFailure, message: "read-only file system", fix: "readOnly", change: func(s *doctorFixture) { s.files.errs[s.DevicePluginDir] = errors.New("read-only file system") }},
	{check: "registration", status: doctor.StatusFailure, message: "no such file", fix: "--device-plugin-dir", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "registration", status: doctor.StatusFailure, message: "belongs to the container", fix: "hostPath", noKubelet: true, change: func(s *doctorFixture) { s.mountInContainer() }},
	{check: "registration", status: doctor.StatusFailure, message: "connection refused", fix: "Start the kubelet", noKubelet: true, change: func(s *doctorFixture) {
		s.listenOn(s.kubelet.RegistrationSocket(), false)
	}},
	{check: "registration", status: doctor.StatusFailure, message: "connection refused", fix: "Mount the folder", noKubelet: true, change: func(s *doctorFixture) {
		s.listenOn(s.kubelet.RegistrationSocket(), false)
		s.mountInContainer(s.DevicePluginDir, s.kubelet.RegistrationSocket())
	}},
	{check: "registration", status: doctor.StatusWarning, message: "the socket itself is mounted", fix: "Mount its folder", change: func(s *doctorFixture) {
		s.mountInContainer(s.DevicePluginDir, s.kubelet.RegistrationSocket())
	}},
	{check: "registration", status: doctor.StatusFailure, message: "is not a socket", noKubelet: true, change: func(s *doctorFixture) {
		require.NoError(s, os.WriteFile(filepath.Join(s.mkdir("kubelet/device-plugins"), "kubelet.sock"), nil, 0o600))
	}},

	{check: "pod resources", status: doctor.StatusOK, message: "the kubelet lists 1 pod", change: func(s *doctorFixture) {
		require.NoError(s, s.kubelet.RunPod(s.Context(), kubelet.PodSpec{Name: "train", Containers: []kubelet.ContainerSpec{{Name: "main"}}}))
	}},
	{check: "pod resources", status: doctor.StatusFailure, message: "no such file", fix: "--kubelet-dir", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "pod resources", status: doctor.StatusFailure, message: "no response within", fix: "journalctl", change: func(s *doctorFixture) {
		s.kubelet.SetFaults(kubelet.Faults{HoldList: s.newHang()})
	}},
	{check: "pod resources", status: doctor.StatusFailure, message: "no response within", fix: "journalctl", noKubelet: true, change: func(s *doctorFixture) {
		s.Timeout = 100 * time.Millisecond
		s.listenOn(s.kubelet.PodResourcesSocket(), true) // without an Accept
	}},
	{check: "pod resources", status: doctor.StatusFailure, message: "rejected by rate limit", fix: "100 requests", change: func(s *doctorFixture) {
		s.kubelet.SetFaults(kubelet.Faults{ListErr: status.Error(codes.ResourceExhausted, "rejected by rate limit")})
	}},
	{check: "pod resources", status: doctor.StatusFailure, message: "out of order", fix: "journalctl", change: func(s *doctorFixture) {
		s.kubelet.SetFaults(kubelet.Faults{ListErr: errors.New("out of order")})
	}},
	{check: "pod resources", status: doctor.StatusOK, message: "the kubelet lists 1 pod", change: func(s *doctorFixture) { // more than the default limit of gRPC
		s.kubelet.SetFaults(kubelet.Faults{ListBytes: 5 << 20})
	}},

	{check: "allocators", status: doctor.StatusOK, message: "no device plugin and no DRA driver has registered GPUs", change: func(*doctorFixture) {}},
	{check: "allocators", status: doctor.StatusSkipped, message: "the kubelet does not list pods", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "allocators", status: doctor.StatusOK, message: "podgauge's device plugin (example.com/card)", change: func(s *doctorFixture) { s.register("podgauge-", "example.com/card", "GPU-a::0", "GPU-b::0") }},
	{check: "allocators", status: doctor.StatusOK, message: "another device plugin (nvidia.com/gpu)", change: func(s *doctorFixture) { s.register("nvidia-", "nvidia.com/gpu", "0") }},
	{check: "allocators", status: doctor.StatusOK, message: "no device plugin", change: func(s *doctorFixture) { s.register("nic-", "nvidia.com/hostdev", "0") }},
	{check: "allocators", status: doctor.StatusOK, message: "NVIDIA's DRA driver (claims of 0 pods)", change: func(s *doctorFixture) { s.startDRADriver("gpu.nvidia.com-reg.sock", true) }},
	{check: "allocators", status: doctor.StatusOK, message: "no device plugin", change: func(s *doctorFixture) { s.startDRADriver("gpu.nvidia.com-0c7e2c9e-reg.sock", false) }},
	{check: "allocators", status: doctor.StatusOK, message: "no device plugin", change: func(s *doctorFixture) { s.startDRADriver("compute-domain.nvidia.com-reg.sock", true) }},
	{check: "allocators", status: doctor.StatusOK, message: "NVIDIA's DRA driver (claims of 2 pods, 1 for an extended resource)", change: func(s *doctorFixture) {
		s.runClaimingPod("a", "gpu.nvidia.com", "gpu")
		s.runClaimingPod("b", "gpu.nvidia.com", "b-extended-resources-x7k2p")
		s.runClaimingPod("c", "nic.example.com", "nic")
	}},
	{check: "allocators", status: doctor.StatusWarning, message: "podgauge's device plugin (nvidia.com/gpu) and NVIDIA's DRA driver (claims of 1 pod)", fix: "--device-plugin=false", change: func(s *doctorFixture) {
		s.register("podgauge-", "nvidia.com/gpu", "GPU-a")
		s.runClaimingPod("a", "gpu.nvidia.com", "gpu")
	}},

	{check: "pods api", status: doctor.StatusOK, message: "the kubelet listens", change: func(*doctorFixture) {}},
	{check: "pods api", status: doctor.StatusSkipped, message: "older than 1.37", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "pods api", status: doctor.StatusWarning, message: "refused", fix: "uid 0", noKubelet: true, change: func(s *doctorFixture) { s.listenOn(s.kubelet.PodsSocket(), false) }},

	{check: "other plugins", status: doctor.StatusOK, message: "1 other socket, none of", change: func(s *doctorFixture) { s.listenOn(filepath.Join(s.DevicePluginDir, "amd.com_gpu"), true) }},
	{check: "other plugins", status: doctor.StatusSkipped, message: "is unreadable", noKubelet: true, change: func(*doctorFixture) {}},
	{check: "other plugins", status: doctor.StatusFailure, message: "nvidia-gpu.sock, nvidiaGPU-1764.sock", fix: "--device-plugin=false", change: func(s *doctorFixture) {
		s.listenOn(filepath.Join(s.DevicePluginDir, "nvidia-gpu.sock"), true)
		s.listenOn(filepath.Join(s.DevicePluginDir, "nvidiaGPU-1764.sock"), true)
	}},
	{check: "other plugins", status: doctor.StatusOK, message: "1 other socket, none of", change: func(s *doctorFixture) {
		s.listenOn(filepath.Join(s.DevicePluginDir, "nvidia-gpu.sock"), false)
	}},
	{check: "other plugins", status: doctor.StatusOK, message: "registers none", change: func(s *doctorFixture) {
		s.DevicePlugin = false
		s.listenOn(filepath.Join(s.DevicePluginDir, "nvidia-gpu.sock"), true)
	}},
}

// register registers healthy devices of a plugin with a socket of this name.
func (s *doctorFixture) register(socketPrefix, resource string, ids ...string) {
	s.Helper()
	socket := socketPrefix + strings.ReplaceAll(resource, "/", "_") + ".sock"
	plugin := deviceplugin.Start(s, s.DevicePluginDir, socket, deviceplugin.Behavior{}, deviceplugin.Healthy(ids...)...)
	require.NoError(s, plugin.Register(s.Context(), resource))
	require.NoError(s, s.kubelet.Wait(s.Context(), func(k kubelet.KubeletState) bool { return k.Resources[resource].Allocatable == len(ids) }))
}

// startDRADriver listens on a socket of a DRA driver, or leaves the socket of one that ended.
func (s *doctorFixture) startDRADriver(socket string, listening bool) {
	s.listenOn(filepath.Join(s.KubeletDir, "plugins_registry", socket), listening)
}

// runClaimingPod runs a pod with a claim.
func (s *doctorFixture) runClaimingPod(name, driver, claim string) {
	s.Helper()
	devices := []kubelet.ClaimedDevice{{Driver: driver, Pool: "node-a", Device: "gpu-0"}}
	require.NoError(s, s.kubelet.RunPod(s.Context(), kubelet.PodSpec{Name: name, Containers: []kubelet.ContainerSpec{
		{Name: "main", Claims: []kubelet.ClaimSpec{{Name: claim, Devices: devices}}},
	}}))
}

// defaultRuntimeConfig is the file that nvidia-ctk writes: values in comments are defaults.
const defaultRuntimeConfig = `#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
environment = []

[nvidia-container-runtime]
mode = "auto"
accept-nvidia-visible-devices-envvar-when-unprivileged = false
`

var runtimeCases = []findingCase{
	{check: "runtime", status: doctor.StatusOK, message: "host/etc/nvidia-container-runtime/config.toml: containers cannot choose", change: func(*doctorFixture) {}},
	{check: "runtime", status: doctor.StatusSkipped, message: "simulated", change: func(s *doctorFixture) { s.Driver = nil }},
	{check: "runtime", status: doctor.StatusSkipped, message: "unknown: etc/nvidia-container-runtime/config.toml of the node is not visible", change: func(s *doctorFixture) {
		require.NoError(s, os.RemoveAll(s.dir+"/host"))
	}},
	{check: "runtime", status: doctor.StatusSkipped, message: "unknown", change: func(s *doctorFixture) { s.mountInContainer() }},
	{check: "runtime", status: doctor.StatusOK, message: "cannot choose", change: func(s *doctorFixture) { s.mountInContainer(s.dir + "/host") }},
	{check: "runtime", status: doctor.StatusWarning, message: "accepts NVIDIA_VISIBLE_DEVICES", fix: "CDI", change: func(s *doctorFixture) {
		s.writeRuntimeConfig("etc/nvidia-container-runtime", defaultRuntimeConfig)
	}},
	{check: "runtime", status: doctor.StatusWarning, message: "accepts NVIDIA_VISIBLE_DEVICES", fix: "when-unprivileged = false", change: func(s *doctorFixture) {
		s.writeRuntimeConfig("etc/nvidia-container-runtime", "")
		s.DeviceListStrategies = []response.DeviceListStrategy{"envvar"}
	}},
	{check: "runtime", status: doctor.StatusWarning, message: "toolkit/.config/nvidia-container-runtime/config.toml accepts", change: func(s *doctorFixture) {
		s.writeRuntimeConfig("usr/local/nvidia/toolkit/.config/nvidia-container-runtime", "accept-nvidia-visible-devices-envvar-when-unprivileged = true")
	}},
	{check: "runtime", status: doctor.StatusFailure, message: "rejects the device list strategy envvar", fix: "--device-list-strategy", change: func(s *doctorFixture) {
		s.DeviceListStrategies = []response.DeviceListStrategy{"envvar"}
	}},
	{check: "runtime", status: doctor.StatusOK, message: "cannot choose", change: func(s *doctorFixture) {
		s.DeviceListStrategies, s.DevicePlugin = []response.DeviceListStrategy{"envvar"}, false
	}},
	{check: "runtime", status: doctor.StatusFailure, message: "rejects the device list strategy volume-mounts", change: func(s *doctorFixture) {
		s.writeRuntimeConfig("etc/nvidia-container-runtime", defaultRuntimeConfig)
		s.DeviceListStrategies = []response.DeviceListStrategy{"volume-mounts"}
	}},
	{check: "runtime", status: doctor.StatusOK, message: "cannot choose", change: func(s *doctorFixture) {
		s.DeviceListStrategies = []response.DeviceListStrategy{"volume-mounts"}
		s.writeRuntimeConfig("etc/nvidia-container-runtime", "accept-nvidia-visible-devices-envvar-when-unprivileged=false # no\n"+
			"  accept-nvidia-visible-devices-as-volume-mounts  =  true\n[x]\naccept-nvidia-visible-devices-as-volume-mounts = false\n")
	}},
}
