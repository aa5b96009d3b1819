package response_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/response"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The expected responses equal NVIDIA's k8s-device-plugin v0.19.3. Column from
// names the function, by default in internal/plugin/server.go. Rows with a
// different response have a comment.

func gpu(i int) device.Device {
	id := fmt.Sprintf("GPU-%d", i)
	return device.Device{ID: device.ID(id), GPU: device.GPU(id), Index: i, DeviceNodes: []string{
		fmt.Sprintf("/dev/nvidia%d", i), "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
		"/dev/nvidia-modeset",
	}}
}

// migDevice returns a MIG device with the GPU's nodes and two capability nodes.
func migDevice(i, j int) device.Device {
	d := gpu(i)
	d.ID = device.ID(fmt.Sprintf("MIG-%d-%d", i, j))
	d.MIGDeviceIndex = j
	caps := []string{
		fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", 30+j),
		fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", 40+j),
	}
	d.DeviceNodes = append(caps, d.DeviceNodes...)
	return d
}

// Short names for the table.
type (
	allocateResponse = api.ContainerAllocateResponse
	env              = map[string]string
	options          = response.Options
	strategies       = []response.DeviceListStrategy
)

func wantMounts(hostAndContainer ...string) (all []*api.Mount) {
	for pair := range slices.Chunk(hostAndContainer, 2) {
		all = append(all, &api.Mount{HostPath: pair[0], ContainerPath: pair[1]})
	}
	return all
}

func wantSpecs(root string, paths ...string) (all []*api.DeviceSpec) {
	for _, path := range paths {
		all = append(all, &api.DeviceSpec{HostPath: root + path, ContainerPath: path, Permissions: "rw"})
	}
	return all
}

func annotation(devices string) map[string]string {
	return map[string]string{"cdi.k8s.io/nvidia-device-plugin_random": devices}
}

func wantCDI(names ...string) (all []*api.CDIDevice) {
	for _, name := range names {
		all = append(all, &api.CDIDevice{Name: name})
	}
	return all
}

var responseCases = []struct {
	name    string
	from    string // NVIDIA's function
	options options
	devices []device.Device
	want    *allocateResponse
}{
	{
		name: "envvar", from: "updateResponseForDeviceListEnvVar",
		options: options{Strategies: strategies{response.EnvVar}}, devices: []device.Device{gpu(0), gpu(1)},
		want: &allocateResponse{Envs: env{"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1"}},
	},
	{
		name: "no strategy is envvar", from: "cmd/nvidia-device-plugin/main.go, --device-list-strategy's default",
		devices: []device.Device{gpu(0)},
		want:    &allocateResponse{Envs: env{"NVIDIA_VISIBLE_DEVICES": "GPU-0"}},
	},
	{
		// NVIDIA keeps the kubelet's random order.
		name: "in the order of the node, each once", from: "uniqueDeviceIDsFromAnnotatedDeviceIDs",
		options: options{Strategies: strategies{response.EnvVar}},
		devices: []device.Device{gpu(10), migDevice(2, 3), gpu(9), gpu(10), migDevice(2, 1), migDevice(1, 7), gpu(9)},
		want:    &allocateResponse{Envs: env{"NVIDIA_VISIBLE_DEVICES": "MIG-1-7,MIG-2-1,MIG-2-3,GPU-9,GPU-10"}},
	},
	{
		name: "index", from: "uniqueDeviceIDsFromAnnotatedDeviceIDs; rm.newNvmlGPUDevice, rm.newMigDevice",
		options: options{Strategies: strategies{response.EnvVar}, IDStrategy: response.Index},
		devices: []device.Device{migDevice(0, 1), gpu(2), migDevice(0, 0), gpu(10)},
		want:    &allocateResponse{Envs: env{"NVIDIA_VISIBLE_DEVICES": "0:0,0:1,2,10"}},
	},
	{
		name: "volume-mounts", from: "updateResponseForDeviceMounts",
		options: options{Strategies: strategies{response.VolumeMounts}},
		devices: []device.Device{gpu(0), migDevice(1, 0)},
		want: &allocateResponse{
			Envs: env{"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
			Mounts: wantMounts("/dev/null", "/var/run/nvidia-container-devices/GPU-0",
				"/dev/null", "/var/run/nvidia-container-devices/MIG-1-0"),
		},
	},
	{
		name: "volume-mounts, index", from: "updateResponseForDeviceMounts",
		options: options{Strategies: strategies{response.VolumeMounts}, IDStrategy: response.Index},
		devices: []device.Device{gpu(0), migDevice(1, 0)},
		want: &allocateResponse{
			Envs: env{"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
			Mounts: wantMounts("/dev/null", "/var/run/nvidia-container-devices/0",
				"/dev/null", "/var/run/nvidia-container-devices/1:0"),
		},
	},
	{
		name: "envvar and volume-mounts", from: "getAllocateResponse: the later call overwrites the variable",
		options: options{Strategies: strategies{response.VolumeMounts, response.EnvVar}, IMEXChannels: []int{0}},
		devices: []device.Device{gpu(0)},
		want: &allocateResponse{
			Envs: env{"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices", "NVIDIA_IMEX_CHANNELS": "0"},
			Mounts: wantMounts("/dev/null", "/var/run/nvidia-container-devices/GPU-0",
				"/dev/null", "/var/run/nvidia-container-devices/imex/0"),
		},
	},
	{
		name: "cdi-annotations", from: "updateResponseForCDI, getCDIDeviceAnnotations; cdi.UpdateAnnotations",
		options: options{Strategies: strategies{response.CDIAnnotations}},
		devices: []device.Device{gpu(0), migDevice(1, 0)},
		want: &allocateResponse{Annotations: map[string]string{
			"cdi.k8s.io/nvidia-device-plugin_random": "k8s.device-plugin.nvidia.com/gpu=GPU-0," +
				"k8s.device-plugin.nvidia.com/gpu=MIG-1-0",
		}},
	},
	{
		name: "cdi-annotations with a prefix", from: "getCDIDeviceAnnotations",
		options: options{Strategies: strategies{response.CDIAnnotations}, AnnotationPrefix: "nvidia.cdi.k8s.io/"},
		devices: []device.Device{gpu(0)},
		want: &allocateResponse{Annotations: map[string]string{
			"nvidia.cdi.k8s.io/nvidia-device-plugin_random": "k8s.device-plugin.nvidia.com/gpu=GPU-0",
		}},
	},
	{
		name: "cdi-cri", from: "updateResponseForCDI",
		options: options{Strategies: strategies{response.CDICRI}}, devices: []device.Device{gpu(1), gpu(0)},
		want: &allocateResponse{CdiDevices: wantCDI("k8s.device-plugin.nvidia.com/gpu=GPU-0",
			"k8s.device-plugin.nvidia.com/gpu=GPU-1")},
	},
	{
		name: "cdi-cri, index", from: "updateResponseForCDI; nvcdi.NewDeviceNamer",
		options: options{Strategies: strategies{response.CDICRI}, IDStrategy: response.Index},
		devices: []device.Device{gpu(1), migDevice(0, 1)},
		want: &allocateResponse{CdiDevices: wantCDI("k8s.device-plugin.nvidia.com/gpu=0:1",
			"k8s.device-plugin.nvidia.com/gpu=1")},
	},
	{
		name: "both of CDI", from: "updateResponseForCDI",
		options: options{Strategies: strategies{response.CDIAnnotations, response.CDICRI}},
		devices: []device.Device{gpu(0)},
		want: &allocateResponse{
			Annotations: annotation("k8s.device-plugin.nvidia.com/gpu=GPU-0"),
			CdiDevices:  wantCDI("k8s.device-plugin.nvidia.com/gpu=GPU-0"),
		},
	},
	{
		name: "CDI alone omits nodes and the channels' variable", from: "getAllocateResponse: AllCDIEnabled",
		options: options{
			Strategies: strategies{response.CDICRI, response.CDIAnnotations}, DeviceSpecs: true,
			IMEXChannels: []int{0},
			GDRCopy:      true, MPSRoot: "/run/nvidia/mps", Resource: "nvidia.com/gpu",
		},
		devices: []device.Device{gpu(0)},
		want: &allocateResponse{
			Envs: env{"NVIDIA_GDRCOPY": "enabled", "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"},
			Mounts: wantMounts("/run/nvidia/mps/nvidia.com/gpu/pipe", "/mps/nvidia.com/gpu/pipe",
				"/run/nvidia/mps/shm", "/dev/shm"),
			Annotations: map[string]string{
				"cdi.k8s.io/nvidia-device-plugin_random": "k8s.device-plugin.nvidia.com/gpu=GPU-0," +
					"k8s.device-plugin.nvidia.com/imex-channel=0,k8s.device-plugin.nvidia.com/gdrcopy=all",
			},
			CdiDevices: wantCDI("k8s.device-plugin.nvidia.com/gpu=GPU-0", "k8s.device-plugin.nvidia.com/imex-channel=0",
				"k8s.device-plugin.nvidia.com/gdrcopy=all"),
		},
	},
	{
		name: "CDI and envvar", from: "getAllocateResponse",
		options: options{Strategies: strategies{response.EnvVar, response.CDICRI}, DeviceSpecs: true},
		devices: []device.Device{gpu(3)},
		want: &allocateResponse{
			Envs:       env{"NVIDIA_VISIBLE_DEVICES": "GPU-3"},
			CdiDevices: wantCDI("k8s.device-plugin.nvidia.com/gpu=GPU-3"),
			Devices: wantSpecs("", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
				"/dev/nvidia3"),
		},
	},
	{
		name: "all strategies", from: "getAllocateResponse",
		options: options{Strategies: strategies{
			response.CDICRI, response.EnvVar,
			response.VolumeMounts, response.CDIAnnotations,
		}},
		devices: []device.Device{gpu(0)},
		want: &allocateResponse{
			Envs:        env{"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
			Mounts:      wantMounts("/dev/null", "/var/run/nvidia-container-devices/GPU-0"),
			Annotations: annotation("k8s.device-plugin.nvidia.com/gpu=GPU-0"),
			CdiDevices:  wantCDI("k8s.device-plugin.nvidia.com/gpu=GPU-0"),
		},
	},
	{
		name: "device specs", from: "apiDeviceSpecs; rm.GetDevicePaths",
		options: options{DeviceSpecs: true, DevRoot: "/"}, devices: []device.Device{gpu(1), gpu(0)},
		want: &allocateResponse{
			Envs: env{"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1"},
			Devices: wantSpecs("", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
				"/dev/nvidia0", "/dev/nvidia1"),
		},
	},
	{
		// NVIDIA repeats the GPU's node for each MIG device.
		name: "device specs of MIG devices", from: "rm.nvmlMigDevice.GetPaths",
		options: options{Strategies: strategies{response.VolumeMounts}, DeviceSpecs: true},
		devices: []device.Device{migDevice(0, 2), migDevice(0, 1)},
		want: &allocateResponse{
			Envs: env{"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
			Mounts: wantMounts("/dev/null", "/var/run/nvidia-container-devices/MIG-0-1",
				"/dev/null", "/var/run/nvidia-container-devices/MIG-0-2"),
			Devices: wantSpecs("", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
				"/dev/nvidia-caps/nvidia-cap31", "/dev/nvidia-caps/nvidia-cap41", "/dev/nvidia0",
				"/dev/nvidia-caps/nvidia-cap32", "/dev/nvidia-caps/nvidia-cap42"),
		},
	},
	{
		name: "device specs below a root, with a channel, without modeset", from: "apiDeviceSpecs: optional nodes",
		options: options{DeviceSpecs: true, DevRoot: "/run/nvidia/driver", IMEXChannels: []int{0}},
		devices: []device.Device{{ID: "GPU-0", GPU: "GPU-0", DeviceNodes: []string{"/dev/nvidia0", "/dev/nvidiactl"}}},
		want: &allocateResponse{
			Envs: env{"NVIDIA_VISIBLE_DEVICES": "GPU-0", "NVIDIA_IMEX_CHANNELS": "0"},
			Devices: wantSpecs("/run/nvidia/driver", "/dev/nvidiactl", "/dev/nvidia0",
				"/dev/nvidia-caps-imex-channels/channel0"),
		},
	},
	{
		name: "GDRCopy, GDS and MOFED", from: "getAllocateResponse",
		options: options{GDRCopy: true, GDS: true, MOFED: true}, devices: []device.Device{gpu(0)},
		want: &allocateResponse{Envs: env{
			"NVIDIA_VISIBLE_DEVICES": "GPU-0", "NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled",
			"NVIDIA_MOFED": "enabled",
		}},
	},
	{
		name: "GDRCopy, GDS and MOFED by CDI", from: "cdi.AdditionalDevices",
		options: options{Strategies: strategies{response.CDICRI}, GDRCopy: true, GDS: true, MOFED: true},
		devices: []device.Device{gpu(0)},
		want: &allocateResponse{
			Envs: env{"NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"},
			CdiDevices: wantCDI("k8s.device-plugin.nvidia.com/gpu=GPU-0", "k8s.device-plugin.nvidia.com/gdrcopy=all",
				"k8s.device-plugin.nvidia.com/gds=all", "k8s.device-plugin.nvidia.com/mofed=all"),
		},
	},
	{
		name: "a class without a spec", from: "cdi.AdditionalDevices, cdi.CreateSpecFile",
		options: options{
			Strategies: strategies{response.CDICRI}, GDS: true, MOFED: true,
			HasCDISpec: func(class string) bool { return class == "mofed" },
		},
		devices: []device.Device{gpu(0)},
		want: &allocateResponse{
			Envs:       env{"NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"},
			CdiDevices: wantCDI("k8s.device-plugin.nvidia.com/gpu=GPU-0", "k8s.device-plugin.nvidia.com/mofed=all"),
		},
	},
	{
		name: "no spec of GPUs, two strategies", from: "",
		options: options{
			Strategies: strategies{response.EnvVar, response.CDIAnnotations}, IMEXChannels: []int{0},
			HasCDISpec: func(string) bool { return false },
		},
		devices: []device.Device{gpu(0)},
		want:    &allocateResponse{Envs: env{"NVIDIA_VISIBLE_DEVICES": "GPU-0", "NVIDIA_IMEX_CHANNELS": "0"}},
	},
	{
		name: "IMEX channels", from: "updateResponseForImexChannelsEnvVar",
		options: options{IMEXChannels: []int{0, 17}}, devices: []device.Device{gpu(0)},
		want: &allocateResponse{Envs: env{"NVIDIA_VISIBLE_DEVICES": "GPU-0", "NVIDIA_IMEX_CHANNELS": "0,17"}},
	},
	{
		name: "IMEX channels by mounts", from: "updateResponseForDeviceMounts",
		options: options{Strategies: strategies{response.VolumeMounts}, IMEXChannels: []int{0}},
		devices: []device.Device{gpu(0)},
		want: &allocateResponse{
			Envs: env{"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
			Mounts: wantMounts("/dev/null", "/var/run/nvidia-container-devices/GPU-0",
				"/dev/null", "/var/run/nvidia-container-devices/imex/0"),
		},
	},
	{
		name: "MPS", from: "mps.go, updateReponse; cmd/mps-control-daemon/mps/root.go",
		options: options{MPSRoot: "/run/nvidia/mps", Resource: "nvidia.com/gpu.shared"},
		devices: []device.Device{gpu(0)},
		want: &allocateResponse{
			Envs: env{"NVIDIA_VISIBLE_DEVICES": "GPU-0", "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu.shared/pipe"},
			Mounts: wantMounts("/run/nvidia/mps/nvidia.com/gpu.shared/pipe", "/mps/nvidia.com/gpu.shared/pipe",
				"/run/nvidia/mps/shm", "/dev/shm"),
		},
	},
	{
		name: "MPS and volume-mounts", from: "getAllocateResponse: MPS comes first",
		options: options{
			MPSRoot: "/srv/mps/", Resource: "nvidia.com/gpu",
			Strategies: strategies{response.VolumeMounts},
		},
		devices: []device.Device{gpu(0)},
		want: &allocateResponse{
			Envs: env{
				"NVIDIA_VISIBLE_DEVICES":  "/var/run/nvidia-container-devices",
				"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe",
			},
			Mounts: wantMounts("/srv/mps/nvidia.com/gpu/pipe", "/mps/nvidia.com/gpu/pipe", "/srv/mps/shm", "/dev/shm",
				"/dev/null", "/var/run/nvidia-container-devices/GPU-0"),
		},
	},
}

// withoutRandomSuffix replaces the random part of an annotation's key.
func withoutRandomSuffix(r *allocateResponse) *allocateResponse {
	for key, value := range r.Annotations {
		prefix, _, _ := strings.Cut(key, "_")
		r.Annotations = map[string]string{prefix + "_random": value}
	}
	return r
}

func TestContainer(t *testing.T) {
	for _, row := range responseCases {
		t.Run(row.name, func(t *testing.T) {
			before := slices.Clone(row.devices)
			got := withoutRandomSuffix(row.options.ForContainer(row.devices))
			if !proto.Equal(got, row.want) {
				t.Errorf("response of %s: got\n%s\nwant\n%s", row.from, prototext.Format(got),
					prototext.Format(row.want))
			}
			if !slices.EqualFunc(before, row.devices, func(a, b device.Device) bool { return a.ID == b.ID }) {
				t.Error("the argument was reordered")
			}
			slices.Reverse(row.devices)
			if reversed := withoutRandomSuffix(row.options.ForContainer(row.devices)); !proto.Equal(reversed, got) {
				t.Errorf("response to reversed devices: got\n%s", prototext.Format(reversed))
			}
		})
	}
}

// TestAnnotationKeysDiffer checks that keys are unique: with devices of several
// resources, equal keys would lose an annotation.
func TestAnnotationKeysDiffer(t *testing.T) {
	form := regexp.MustCompile(`^cdi\.k8s\.io/nvidia-device-plugin_[A-Z2-7]{26,}$`)
	seen := map[string]bool{}
	for range 100 {
		o := options{Strategies: strategies{response.CDIAnnotations}}
		for key := range o.ForContainer([]device.Device{gpu(0)}).Annotations {
			if !form.MatchString(key) || seen[key] {
				t.Errorf("got key %q, malformed or repeated", key)
			}
			seen[key] = true
		}
	}
}
