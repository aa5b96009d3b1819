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
	options          = response.Options
)

// parseDevices parses devices: "1" is GPU 1, "1:0" its first MIG device, "0-" GPU 0 with fewer nodes.
func parseDevices(words string) (all []device.Device) {
	for word := range strings.FieldsSeq(words) {
		var i, j int
		if n, _ := fmt.Sscanf(word, "%d:%d", &i, &j); n == 2 {
			all = append(all, migDevice(i, j))
			continue
		}
		d := gpu(i)
		if strings.HasSuffix(word, "-") {
			d.DeviceNodes = d.DeviceNodes[:2]
		}
		all = append(all, d)
	}
	return all
}

// parseResponse parses a response:
//
//	NAME=VALUE              a variable
//	/HOST:/CONTAINER        a mount
//	rw:/PATH, rw:/ROOT@/PATH  a device node, on the host below a root
//	cdi:CLASS=DEVICE        a CDI device
//	PREFIX/:CLASS=DEVICE,…  an annotation with CDI devices
func parseResponse(words string) *allocateResponse {
	const vendor = "k8s.device-plugin.nvidia.com/"
	r := &allocateResponse{Envs: map[string]string{}}
	for word := range strings.FieldsSeq(words) {
		kind, value, _ := strings.Cut(word, ":")
		switch {
		case kind == "rw":
			root, path, found := strings.Cut(value, "@")
			if !found {
				root, path = "", value
			}
			r.Devices = append(r.Devices, &api.DeviceSpec{HostPath: root + path, ContainerPath: path, Permissions: "rw"})
		case kind == "cdi":
			r.CdiDevices = append(r.CdiDevices, &api.CDIDevice{Name: vendor + value})
		case strings.HasSuffix(kind, "/"):
			devices := vendor + strings.ReplaceAll(value, ",", ","+vendor)
			r.Annotations = map[string]string{kind + "nvidia-device-plugin_random": devices}
		case strings.HasPrefix(kind, "/"):
			r.Mounts = append(r.Mounts, &api.Mount{HostPath: kind, ContainerPath: value})
		default:
			name, value, _ := strings.Cut(word, "=")
			r.Envs[name] = value
		}
	}
	return r
}

const (
	controlNodes = " rw:/dev/nvidiactl rw:/dev/nvidia-uvm rw:/dev/nvidia-uvm-tools rw:/dev/nvidia-modeset "
	byMounts     = "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices /dev/null:/var/run/nvidia-container-devices/"
	nextMount    = " /dev/null:/var/run/nvidia-container-devices/"
	features     = " NVIDIA_GDRCOPY=enabled NVIDIA_GDS=enabled NVIDIA_MOFED=enabled "
)

var responseCases = []struct {
	name, from, strategies, devices, want string // from is NVIDIA's function

	options *options // nil: the zero options
}{
	{"no strategy is envvar", "cmd/nvidia-device-plugin/main.go, --device-list-strategy's default", "", "0", "NVIDIA_VISIBLE_DEVICES=GPU-0", nil},
	// NVIDIA keeps the kubelet's random order.
	{
		"in the order of the node, each once", "updateResponseForDeviceListEnvVar; uniqueDeviceIDsFromAnnotatedDeviceIDs", "envvar", "10 2:3 9 10 2:1 1:7 9",
		"NVIDIA_VISIBLE_DEVICES=MIG-1-7,MIG-2-1,MIG-2-3,GPU-9,GPU-10", nil,
	},
	{
		"index", "uniqueDeviceIDsFromAnnotatedDeviceIDs; rm.newNvmlGPUDevice, rm.newMigDevice", "envvar", "0:1 2 0:0 10",
		"NVIDIA_VISIBLE_DEVICES=0:0,0:1,2,10",
		&options{IDStrategy: response.Index},
	},
	{"volume-mounts", "updateResponseForDeviceMounts", "volume-mounts", "0 1:0", byMounts + "GPU-0" + nextMount + "MIG-1-0", nil},
	{
		"volume-mounts, index", "updateResponseForDeviceMounts", "volume-mounts", "0 1:0",
		byMounts + "0" + nextMount + "1:0",
		&options{IDStrategy: response.Index},
	},
	{
		"envvar and volume-mounts", "getAllocateResponse: the later call overwrites the variable", "volume-mounts envvar", "0",
		"NVIDIA_IMEX_CHANNELS=0 " + byMounts + "GPU-0" + nextMount + "imex/0",
		&options{IMEXChannels: []int{0}},
	},
	{
		"cdi-annotations", "updateResponseForCDI, getCDIDeviceAnnotations; cdi.UpdateAnnotations", "cdi-annotations", "0 1:0",
		"cdi.k8s.io/:gpu=GPU-0,gpu=MIG-1-0", nil,
	},
	{
		"cdi-annotations with a prefix", "getCDIDeviceAnnotations", "cdi-annotations", "0",
		"nvidia.cdi.k8s.io/:gpu=GPU-0",
		&options{AnnotationPrefix: "nvidia.cdi.k8s.io/"},
	},
	{"cdi-cri", "updateResponseForCDI", "cdi-cri", "1 0", "cdi:gpu=GPU-0 cdi:gpu=GPU-1", nil},
	{
		"cdi-cri, index", "updateResponseForCDI; nvcdi.NewDeviceNamer", "cdi-cri", "1 0:1",
		"cdi:gpu=0:1 cdi:gpu=1",
		&options{IDStrategy: response.Index},
	},
	{
		"CDI alone omits nodes and the channels' variable", "getAllocateResponse: AllCDIEnabled", "cdi-cri cdi-annotations", "0",
		`NVIDIA_GDRCOPY=enabled CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu/pipe
			/run/nvidia/mps/nvidia.com/gpu/pipe:/mps/nvidia.com/gpu/pipe /run/nvidia/mps/shm:/dev/shm
			cdi.k8s.io/:gpu=GPU-0,imex-channel=0,gdrcopy=all cdi:gpu=GPU-0 cdi:imex-channel=0 cdi:gdrcopy=all`,
		&options{DeviceSpecs: true, IMEXChannels: []int{0}, GDRCopy: true, MPSRoot: "/run/nvidia/mps", Resource: "nvidia.com/gpu"},
	},
	{
		"CDI and envvar", "getAllocateResponse", "envvar cdi-cri", "3",
		"NVIDIA_VISIBLE_DEVICES=GPU-3 cdi:gpu=GPU-3" + controlNodes + "rw:/dev/nvidia3",
		&options{DeviceSpecs: true},
	},
	{
		"all strategies", "getAllocateResponse", "cdi-cri envvar volume-mounts cdi-annotations", "0",
		byMounts + "GPU-0 cdi.k8s.io/:gpu=GPU-0 cdi:gpu=GPU-0", nil,
	},
	{
		"device specs", "apiDeviceSpecs; rm.GetDevicePaths", "", "1 0",
		"NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1" + controlNodes + "rw:/dev/nvidia0 rw:/dev/nvidia1",
		&options{DeviceSpecs: true, DevRoot: "/"},
	},
	// NVIDIA repeats the GPU's node for each MIG device.
	{
		"device specs of MIG devices", "rm.nvmlMigDevice.GetPaths", "volume-mounts", "0:2 0:1",
		byMounts + "MIG-0-1" + nextMount + "MIG-0-2" + controlNodes + `
			rw:/dev/nvidia-caps/nvidia-cap31 rw:/dev/nvidia-caps/nvidia-cap41 rw:/dev/nvidia0
			rw:/dev/nvidia-caps/nvidia-cap32 rw:/dev/nvidia-caps/nvidia-cap42`,
		&options{DeviceSpecs: true},
	},
	{
		"device specs below a root, with a channel, without modeset", "apiDeviceSpecs: optional nodes", "", "0-",
		`NVIDIA_VISIBLE_DEVICES=GPU-0 NVIDIA_IMEX_CHANNELS=0 rw:/run/nvidia/driver@/dev/nvidiactl
			rw:/run/nvidia/driver@/dev/nvidia0 rw:/run/nvidia/driver@/dev/nvidia-caps-imex-channels/channel0`,
		&options{DeviceSpecs: true, DevRoot: "/run/nvidia/driver", IMEXChannels: []int{0}},
	},
	{
		"GDRCopy, GDS and MOFED", "getAllocateResponse", "", "0",
		"NVIDIA_VISIBLE_DEVICES=GPU-0" + features,
		&options{GDRCopy: true, GDS: true, MOFED: true},
	},
	{
		"GDRCopy, GDS and MOFED by CDI", "cdi.AdditionalDevices", "cdi-cri", "0",
		features + "cdi:gpu=GPU-0 cdi:gdrcopy=all cdi:gds=all cdi:mofed=all",
		&options{GDRCopy: true, GDS: true, MOFED: true},
	},
	{
		"a class without a spec", "cdi.AdditionalDevices, cdi.CreateSpecFile", "cdi-cri", "0",
		"NVIDIA_GDS=enabled NVIDIA_MOFED=enabled cdi:gpu=GPU-0 cdi:mofed=all",
		&options{GDS: true, MOFED: true, HasCDISpec: func(class string) bool { return class == "mofed" }},
	},
	{
		"no spec of GPUs, two strategies", "", "envvar cdi-annotations", "0",
		"NVIDIA_VISIBLE_DEVICES=GPU-0 NVIDIA_IMEX_CHANNELS=0",
		&options{IMEXChannels: []int{0}, HasCDISpec: func(string) bool { return false }},
	},
	{
		"IMEX channels", "updateResponseForImexChannelsEnvVar", "", "0",
		"NVIDIA_VISIBLE_DEVICES=GPU-0 NVIDIA_IMEX_CHANNELS=0,17",
		&options{IMEXChannels: []int{0, 17}},
	},
	{
		"IMEX channels by mounts", "updateResponseForDeviceMounts", "volume-mounts", "0",
		byMounts + "GPU-0" + nextMount + "imex/0",
		&options{IMEXChannels: []int{0}},
	},
	{
		"MPS", "mps.go, updateReponse; cmd/mps-control-daemon/mps/root.go", "", "0",
		`NVIDIA_VISIBLE_DEVICES=GPU-0 CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu.shared/pipe
			/run/nvidia/mps/nvidia.com/gpu.shared/pipe:/mps/nvidia.com/gpu.shared/pipe /run/nvidia/mps/shm:/dev/shm`,
		&options{MPSRoot: "/run/nvidia/mps", Resource: "nvidia.com/gpu.shared"},
	},
	{
		"MPS and volume-mounts", "getAllocateResponse: MPS comes first", "volume-mounts", "0",
		`CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu/pipe
			/srv/mps/nvidia.com/gpu/pipe:/mps/nvidia.com/gpu/pipe /srv/mps/shm:/dev/shm ` + byMounts + "GPU-0",
		&options{MPSRoot: "/srv/mps/", Resource: "nvidia.com/gpu"},
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
			o := options{}
			if row.options != nil {
				o = *row.options
			}
			for strategy := range strings.FieldsSeq(row.strategies) {
				o.Strategies = append(o.Strategies, response.DeviceListStrategy(strategy))
			}
			devices, want := parseDevices(row.devices), parseResponse(row.want)
			before := slices.Clone(devices)
			got := withoutRandomSuffix(o.ForContainer(devices))
			if !proto.Equal(got, want) {
				t.Errorf("response of %s: got\n%s\nwant\n%s", row.from, prototext.Format(got), prototext.Format(want))
			}
			if !slices.EqualFunc(before, devices, func(a, b device.Device) bool { return a.ID == b.ID }) {
				t.Error("the argument was reordered")
			}
			slices.Reverse(devices)
			if reversed := withoutRandomSuffix(o.ForContainer(devices)); !proto.Equal(reversed, got) {
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
		o := options{Strategies: []response.DeviceListStrategy{response.CDIAnnotations}}
		for key := range o.ForContainer([]device.Device{gpu(0)}).Annotations {
			if !form.MatchString(key) || seen[key] {
				t.Errorf("got key %q, malformed or repeated", key)
			}
			seen[key] = true
		}
	}
}
