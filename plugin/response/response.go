// Package response says what a container gets for the devices that the kubelet has
// given it, as NVIDIA's device plugin says it.
//
// It decides nothing: which devices those are, and whether they may be had, is
// known before. It looks at nothing but what it is handed, so one table of tests
// holds every answer. The answers were read from NVIDIA's k8s-device-plugin
// v0.19.3, internal/plugin/server.go and mps.go; docs/migration.md has
// what differs and why.
package response

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// DeviceListStrategy is a way to tell the container runtime which devices a container has,
// under the name that --device-list-strategy gives it.
type DeviceListStrategy string

// The strategies. Several may be in use at once.
const (
	EnvVar         DeviceListStrategy = "envvar"
	VolumeMounts   DeviceListStrategy = "volume-mounts"
	CDIAnnotations DeviceListStrategy = "cdi-annotations"
	CDICRI         DeviceListStrategy = "cdi-cri"
)

// DeviceIDStrategy is how a device is called, under the name that --device-id-strategy
// gives it.
type DeviceIDStrategy string

// The id strategies.
const (
	UUID  DeviceIDStrategy = "uuid"
	Index DeviceIDStrategy = "index" // "0" is a GPU, "0:1" its second slice
)

const (
	// CDIVendor is the vendor of all our CDI devices. It is NVIDIA's plugin's, since
	// the kubelet keeps answers, and containers of its are started by ours.
	CDIVendor = "k8s.device-plugin.nvidia.com"
	// DefaultAnnotationPrefix is what a runtime with CDI looks for by default.
	DefaultAnnotationPrefix = "cdi.k8s.io/"

	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	imexChannels   = "NVIDIA_IMEX_CHANNELS"
	// mountsRoot is where NVIDIA's runtime looks for devices that are named by
	// mounts, which a user of the cluster cannot forge as he can the environment.
	mountsRoot            = "/var/run/nvidia-container-devices"
	mountsSource          = "/dev/null"
	imexChannelNodePrefix = "/dev/nvidia-caps-imex-channels/channel"
	// mpsContainerRoot is where the MPS control daemon's folder is in each container that
	// shares it; its clients and the daemon must agree on it.
	mpsContainerRoot = "/mps"
)

// controlNodes are the nodes that every container of a GPU wants, in NVIDIA's order.
var controlNodes = [...]string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// GrantedDevice is a device that a container was given.
type GrantedDevice struct {
	device.Device
	MIGIndex int // of a slice, on its GPU; no matter for a whole GPU
}

// Options say how the devices of one resource are passed on. The zero Options are
// NVIDIA's defaults.
type Options struct {
	Resource   string               // "nvidia.com/gpu"; MPS has a folder for each
	Strategies []DeviceListStrategy // none is EnvVar
	IDStrategy DeviceIDStrategy     // none is UUID
	// DeviceSpecs has the device nodes answered too (--pass-device-specs). They are
	// found under DevRoot on the host.
	DeviceSpecs bool
	DevRoot     string
	// DefaultAnnotationPrefix stands before the key of CDIAnnotations; none is the default.
	AnnotationPrefix string
	GDRCopy          bool
	GDS              bool
	MOFED            bool
	// HasCDISpec reports whether there is a CDI spec of a class: "gpu", "gdrcopy", "gds",
	// "mofed". A container that asks for a device without one does not start. Nil:
	// there are all that are enabled.
	HasCDISpec func(class string) bool
	// IMEXChannels that there are on this node.
	IMEXChannels []int
	// MPSRoot is the folder of NVIDIA's MPS control daemon on the host. Empty: this
	// resource is not shared by MPS.
	MPSRoot string
	// RandomSuffix makes the part of an annotation's key that tells a container's
	// resources apart. Nil makes UUIDs, as NVIDIA's plugin does.
	RandomSuffix func() string
}

// ForContainer is the answer for one container. The devices may come in any order,
// and several times.
func (o Options) ForContainer(devices []GrantedDevice) *api.ContainerAllocateResponse {
	devices = sortedUnique(devices)
	names := o.deviceNames(devices)
	r := &api.ContainerAllocateResponse{Envs: map[string]string{}}
	o.addCDI(r, names)
	o.addMPS(r)
	for _, feature := range o.features() {
		if feature.enabled {
			r.Envs[feature.env] = "enabled"
		}
	}
	// What follows would give a runtime that has the CDI names all things twice.
	if o.usesStrategy(EnvVar) {
		r.Envs[visibleDevices] = strings.Join(names, ",")
		if len(o.IMEXChannels) > 0 {
			r.Envs[imexChannels] = strings.Join(o.channelNames(), ",")
		}
	}
	if o.usesStrategy(VolumeMounts) {
		r.Envs[visibleDevices] = mountsRoot // in place of the names, also beside EnvVar
		r.Mounts = append(r.Mounts, o.mounts(names)...)
	}
	if o.DeviceSpecs && (o.usesStrategy(EnvVar) || o.usesStrategy(VolumeMounts)) {
		r.Devices = o.deviceSpecs(devices)
	}
	return r
}

// usesStrategy tells whether a strategy is in use.
func (o Options) usesStrategy(s DeviceListStrategy) bool {
	return slices.Contains(o.Strategies, s) || s == EnvVar && len(o.Strategies) == 0
}

// sortedUnique is each device once, in the order of the node: a GPU by its index, its
// slices by theirs. The kubelet sends ids in random order, and replicas of one
// device are one device.
func sortedUnique(devices []GrantedDevice) []GrantedDevice {
	devices = slices.SortedFunc(slices.Values(devices), func(a, b GrantedDevice) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.migOrder(), b.migOrder()), cmp.Compare(a.ID, b.ID))
	})
	return slices.CompactFunc(devices, func(a, b GrantedDevice) bool { return a.ID == b.ID })
}

// migOrder is the index of a slice, and -1 for a whole GPU.
func (d GrantedDevice) migOrder() int {
	if d.WholeGPU() {
		return -1
	}
	return d.MIGIndex
}

// Name is what the device is called by this strategy, to the runtime and in the
// CDI spec alike.
func (s DeviceIDStrategy) Name(d GrantedDevice) string {
	switch {
	case s != Index:
		return string(d.ID)
	case d.WholeGPU():
		return strconv.Itoa(d.Index)
	default:
		return strconv.Itoa(d.Index) + ":" + strconv.Itoa(d.MIGIndex)
	}
}

func (o Options) deviceNames(devices []GrantedDevice) []string {
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = o.IDStrategy.Name(d)
	}
	return names
}

func (o Options) channelNames() []string {
	names := make([]string, len(o.IMEXChannels))
	for i, c := range o.IMEXChannels {
		names[i] = strconv.Itoa(c)
	}
	return names
}

// optionalFeature is what comes with GPUs where it is enabled: by an environment variable
// for NVIDIA's runtime, and as the device "all" of a CDI class.
type optionalFeature struct {
	enabled    bool
	env, class string
}

func (o Options) features() [3]optionalFeature {
	return [...]optionalFeature{
		{o.GDRCopy, "NVIDIA_GDRCOPY", "gdrcopy"},
		{o.GDS, "NVIDIA_GDS", "gds"},
		{o.MOFED, "NVIDIA_MOFED", "mofed"},
	}
}

func (o Options) addCDI(r *api.ContainerAllocateResponse, names []string) {
	if !o.usesStrategy(CDIAnnotations) && !o.usesStrategy(CDICRI) {
		return
	}
	var devices []string
	if o.namesGPUs() {
		for _, name := range names {
			devices = append(devices, cdiName("gpu", name))
		}
		for _, channel := range o.channelNames() {
			devices = append(devices, cdiName("imex-channel", channel))
		}
	}
	for _, feature := range o.features() {
		if feature.enabled && (o.HasCDISpec == nil || o.HasCDISpec(feature.class)) {
			devices = append(devices, cdiName(feature.class, "all"))
		}
	}
	if len(devices) == 0 {
		return
	}
	if o.usesStrategy(CDIAnnotations) {
		r.Annotations = map[string]string{o.annotationKey(): strings.Join(devices, ",")}
	}
	if o.usesStrategy(CDICRI) {
		for _, name := range devices {
			r.CdiDevices = append(r.CdiDevices, &api.CDIDevice{Name: name})
		}
	}
}

// namesGPUs reports whether GPUs get CDI names. Without a spec, another strategy serves the container; if there
// is none, the container fails rather than start without its GPU.
func (o Options) namesGPUs() bool {
	return o.HasCDISpec == nil || o.HasCDISpec("gpu") || !o.usesStrategy(EnvVar) && !o.usesStrategy(VolumeMounts)
}

// cdiName is a CDI device's full name.
func cdiName(class, name string) string { return CDIVendor + "/" + class + "=" + name }

func (o Options) annotationKey() string {
	random := o.RandomSuffix
	if random == nil {
		random = uuid
	}
	return cmp.Or(o.AnnotationPrefix, DefaultAnnotationPrefix) + "nvidia-device-plugin_" + random()
}

// uuid is a random one, of version 4.
func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// addMPS lets the container's CUDA find the resource's MPS control daemon, and the
// memory that the daemon shares with its clients.
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

// mounts name devices and channels by paths at which nothing is.
func (o Options) mounts(names []string) []*api.Mount {
	var mounts []*api.Mount
	for _, name := range names {
		mounts = append(mounts, &api.Mount{ContainerPath: filepath.Join(mountsRoot, name), HostPath: mountsSource})
	}
	for _, channel := range o.channelNames() {
		mounts = append(mounts, &api.Mount{ContainerPath: filepath.Join(mountsRoot, "imex", channel), HostPath: mountsSource})
	}
	return mounts
}

// deviceSpecs are the nodes of the devices, each once: first those that all share, then
// those of each device, then channels. A device names only such control nodes as
// there are.
func (o Options) deviceSpecs(devices []GrantedDevice) []*api.DeviceSpec {
	var deviceNodes []string
	present := map[string]bool{}
	for _, d := range devices {
		for _, node := range d.DeviceNodes {
			if !present[node] && !slices.Contains(controlNodes[:], node) {
				deviceNodes = append(deviceNodes, node)
			}
			present[node] = true
		}
	}
	var specs []*api.DeviceSpec
	add := func(node string) {
		specs = append(specs, &api.DeviceSpec{ContainerPath: node, HostPath: filepath.Join("/", o.DevRoot, node), Permissions: "rw"})
	}
	for _, node := range controlNodes {
		if present[node] {
			add(node)
		}
	}
	for _, node := range deviceNodes {
		add(node)
	}
	for _, channel := range o.channelNames() {
		add(imexChannelNodePrefix + channel)
	}
	return specs
}
