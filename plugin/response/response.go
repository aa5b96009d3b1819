// Package response builds the response of Allocate for a container's devices,
// as NVIDIA's device plugin does.
//
// The package only formats: the arguments decide the response, so a table of
// tests covers all of them. The responses follow NVIDIA's k8s-device-plugin
// v0.19.3, internal/plugin/server.go and mps.go; docs/reference/peers.md lists
// the differences.
package response

import (
	"cmp"
	"crypto/rand"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// DeviceListStrategy passes a container's devices to the container runtime.
// Several may be in use. The values are the flag's, --device-list-strategy.
type DeviceListStrategy string

// The strategies.
const (
	EnvVar         DeviceListStrategy = "envvar"
	VolumeMounts   DeviceListStrategy = "volume-mounts"
	CDIAnnotations DeviceListStrategy = "cdi-annotations"
	CDICRI         DeviceListStrategy = "cdi-cri"
)

// DeviceIDStrategy names devices. The values are the flag's,
// --device-id-strategy.
type DeviceIDStrategy string

// The id strategies.
const (
	UUID  DeviceIDStrategy = "uuid"
	Index DeviceIDStrategy = "index" // "0": GPU; "0:1": second MIG device of GPU 0
)

// Name returns the device's name for the runtime and in the CDI spec.
func (s DeviceIDStrategy) Name(d device.Device) string {
	if s == Index {
		return d.Number()
	}
	return string(d.ID)
}

const (
	// CDIVendor is the vendor of all CDI devices, the same as of NVIDIA's
	// plugin: each plugin replaces the files of the other, and the kubelet
	// keeps responses, so podgauge's CDI specs start containers of NVIDIA's
	// plugin.
	CDIVendor = "k8s.device-plugin.nvidia.com"
	// DefaultAnnotationPrefix is the default prefix of runtimes with CDI.
	DefaultAnnotationPrefix = "cdi.k8s.io/"

	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	// mountsRoot is where NVIDIA's runtime reads device names from mounts.
	// Users can forge the environment, but not mounts.
	mountsRoot       = "/var/run/nvidia-container-devices"
	mountsSource     = "/dev/null"
	mpsContainerRoot = "/mps" // the MPS control daemon's folder in containers, the same for daemon and clients
)

// Classes of CDI devices. GPUClass has GPUs and MIG devices.
const (
	GPUClass     = "gpu"
	IMEXClass    = "imex-channel"
	GDRCopyClass = "gdrcopy"
	GDSClass     = "gds"
	MOFEDClass   = "mofed"
)

// controlNodes are the device nodes for every container with a GPU, in NVIDIA's
// order.
var controlNodes = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// Options select how the devices of a resource are passed to a container. The
// zero Options are NVIDIA's defaults.
type Options struct {
	Resource         string               // in the paths of MPS
	Strategies       []DeviceListStrategy // empty: EnvVar
	IDStrategy       DeviceIDStrategy     // empty: UUID
	DeviceSpecs      bool                 // with device nodes, below DevRoot on the host (--pass-device-specs)
	DevRoot          string
	AnnotationPrefix string // of the key of CDIAnnotations; empty: DefaultAnnotationPrefix
	GDRCopy          bool
	GDS              bool
	MOFED            bool
	// HasCDISpec reports whether a CDI spec of a class exists. A container with
	// a CDI device without a spec does not start. Nil: all exist.
	HasCDISpec   func(class string) bool
	IMEXChannels []int
	MPSRoot      string // the MPS control daemon's folder on the host; empty: not shared through MPS
}

// ForContainer returns the response for a container. The devices may repeat and
// have any order.
func (o Options) ForContainer(devices []device.Device) *api.ContainerAllocateResponse {
	// The kubelet sends ids in random order, and replicas of a device are the
	// same device.
	devices = slices.SortedFunc(slices.Values(devices), device.Device.Compare)
	devices = slices.CompactFunc(devices, func(a, b device.Device) bool { return a.ID == b.ID })
	names, channels := text.Each(devices, o.IDStrategy.Name), text.Each(o.IMEXChannels, strconv.Itoa)
	r := &api.ContainerAllocateResponse{Envs: map[string]string{}}
	o.addCDI(r, names, channels)
	o.addMPS(r)
	for _, class := range o.features() {
		r.Envs["NVIDIA_"+strings.ToUpper(class)] = "enabled"
	}
	// With CDI names alone, leave out the rest: the runtime would pass all
	// devices twice.
	if o.uses(EnvVar) {
		r.Envs[visibleDevices] = strings.Join(names, ",")
		if len(channels) > 0 {
			r.Envs["NVIDIA_IMEX_CHANNELS"] = strings.Join(channels, ",")
		}
	}
	if o.uses(VolumeMounts) {
		r.Envs[visibleDevices] = mountsRoot // replaces the names of EnvVar
		for _, name := range names {
			r.Mounts = append(r.Mounts, deviceMount(name))
		}
		for _, channel := range channels {
			r.Mounts = append(r.Mounts, deviceMount(filepath.Join("imex", channel)))
		}
	}
	if o.DeviceSpecs && (o.uses(EnvVar) || o.uses(VolumeMounts)) {
		r.Devices = o.deviceSpecs(devices, channels)
	}
	return r
}

func (o Options) uses(s DeviceListStrategy) bool {
	return slices.Contains(o.Strategies, s) || s == EnvVar && len(o.Strategies) == 0
}

// deviceMount returns the mount that names a device for NVIDIA's runtime.
func deviceMount(name string) *api.Mount {
	return &api.Mount{ContainerPath: filepath.Join(mountsRoot, name), HostPath: mountsSource}
}

func (o Options) hasCDISpec(class string) bool { return o.HasCDISpec == nil || o.HasCDISpec(class) }

// features returns the CDI classes of the enabled features. The environment has
// a variable for NVIDIA's runtime, CDI the device "all".
func (o Options) features() []string {
	var classes []string
	if o.GDRCopy {
		classes = append(classes, GDRCopyClass)
	}
	if o.GDS {
		classes = append(classes, GDSClass)
	}
	if o.MOFED {
		classes = append(classes, MOFEDClass)
	}
	return classes
}

func (o Options) addCDI(r *api.ContainerAllocateResponse, names, channels []string) {
	if !o.uses(CDIAnnotations) && !o.uses(CDICRI) {
		return
	}
	var devices []string
	add := func(class, name string) { devices = append(devices, CDIVendor+"/"+class+"="+name) }
	// Without a spec, leave the GPUs to the strategies without CDI. With CDI
	// alone, keep the names: a container must fail rather than start without a
	// GPU.
	if o.hasCDISpec(GPUClass) || !o.uses(EnvVar) && !o.uses(VolumeMounts) {
		for _, name := range names {
			add(GPUClass, name)
		}
		for _, channel := range channels {
			add(IMEXClass, channel)
		}
	}
	for _, class := range o.features() {
		if o.hasCDISpec(class) {
			add(class, "all")
		}
	}
	if o.uses(CDIAnnotations) && len(devices) > 0 {
		// Several resources of a container need different keys.
		key := cmp.Or(o.AnnotationPrefix, DefaultAnnotationPrefix) + "nvidia-device-plugin_" + rand.Text()
		r.Annotations = map[string]string{key: strings.Join(devices, ",")}
	}
	if o.uses(CDICRI) {
		for _, name := range devices {
			r.CdiDevices = append(r.CdiDevices, &api.CDIDevice{Name: name})
		}
	}
}

// addMPS adds the resource's MPS control daemon and the memory shared with
// clients.
func (o Options) addMPS(r *api.ContainerAllocateResponse) {
	if o.MPSRoot == "" {
		return
	}
	pipe := filepath.Join(mpsContainerRoot, o.Resource, "pipe")
	r.Envs["CUDA_MPS_PIPE_DIRECTORY"] = pipe
	r.Mounts = append(r.Mounts,
		&api.Mount{ContainerPath: pipe, HostPath: filepath.Join(o.MPSRoot, o.Resource, "pipe")},
		&api.Mount{ContainerPath: "/dev/shm", HostPath: filepath.Join(o.MPSRoot, "shm")},
	)
}

// deviceSpecs returns the device nodes, each once: control nodes of the
// devices, other nodes of the devices, then channels.
func (o Options) deviceSpecs(devices []device.Device, channels []string) (specs []*api.DeviceSpec) {
	var ofDevices, nodes []string
	for _, d := range devices {
		ofDevices = append(ofDevices, d.DeviceNodes...)
	}
	for _, node := range controlNodes {
		if slices.Contains(ofDevices, node) {
			nodes = append(nodes, node)
		}
	}
	nodes = append(nodes, ofDevices...)
	for _, channel := range channels {
		nodes = append(nodes, "/dev/nvidia-caps-imex-channels/channel"+channel)
	}
	for n, node := range nodes {
		if !slices.Contains(nodes[:n], node) {
			hostPath := filepath.Join("/", o.DevRoot, node)
			specs = append(specs, &api.DeviceSpec{ContainerPath: node, HostPath: hostPath, Permissions: "rw"})
		}
	}
	return specs
}
