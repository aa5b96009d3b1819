// Package answer says what a container gets for the devices that the kubelet has
// given it, as NVIDIA's device plugin says it.
//
// It decides nothing: which devices those are, and whether they may be had, is
// known before. It looks at nothing but what it is handed, so one table of tests
// holds every answer. The answers were read from NVIDIA's k8s-device-plugin
// v0.19.3, internal/plugin/server.go and mps.go; docs/migration.md has
// what differs and why.
package answer

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

// Strategy is a way to tell the container runtime which devices a container has,
// under the name that --device-list-strategy gives it.
type Strategy string

// The strategies. Several may be in use at once.
const (
	EnvVar         Strategy = "envvar"
	VolumeMounts   Strategy = "volume-mounts"
	CDIAnnotations Strategy = "cdi-annotations"
	CDICRI         Strategy = "cdi-cri"
)

// IDStrategy is how a device is called, under the name that --device-id-strategy
// gives it.
type IDStrategy string

// The id strategies.
const (
	UUID  IDStrategy = "uuid"
	Index IDStrategy = "index" // "0" is a GPU, "0:1" its second slice
)

const (
	// Vendor is the vendor of all our CDI devices. It is NVIDIA's plugin's, since
	// the kubelet keeps answers, and containers of its are started by ours.
	Vendor = "k8s.device-plugin.nvidia.com"
	// AnnotationPrefix is what a runtime with CDI looks for by default.
	AnnotationPrefix = "cdi.k8s.io/"

	visibleDevices  = "NVIDIA_VISIBLE_DEVICES"
	visibleChannels = "NVIDIA_IMEX_CHANNELS"
	// mountsRoot is where NVIDIA's runtime looks for devices that are named by
	// mounts, which a user of the cluster cannot forge as he can the environment.
	mountsRoot   = "/var/run/nvidia-container-devices"
	mountsSource = "/dev/null"
	channelNodes = "/dev/nvidia-caps-imex-channels/channel"
	// mpsRoot is where the MPS control daemon's folder is in each container that
	// shares it; its clients and the daemon must agree on it.
	mpsRoot = "/mps"
)

// control are the nodes that every container of a GPU wants, in NVIDIA's order.
var control = [...]string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// Device is a device that a container was given.
type Device struct {
	device.Device
	MIGIndex int // of a slice, on its GPU; no matter for a whole GPU
}

// Options say how the devices of one resource are passed on. The zero Options are
// NVIDIA's defaults.
type Options struct {
	Resource   string     // "nvidia.com/gpu"; MPS has a folder for each
	Strategies []Strategy // none is EnvVar
	IDs        IDStrategy // none is UUID
	// DeviceSpecs has the device nodes answered too (--pass-device-specs). They are
	// found under DevRoot on the host.
	DeviceSpecs bool
	DevRoot     string
	// AnnotationPrefix stands before the key of CDIAnnotations; none is the default.
	AnnotationPrefix string
	GDRCopy          bool
	GDS              bool
	MOFED            bool
	// HasSpec reports whether there is a CDI spec of a class: "gpu", "gdrcopy", "gds",
	// "mofed". A container that asks for a device without one does not start. Nil:
	// there are all that are enabled.
	HasSpec func(class string) bool
	// IMEXChannels that there are on this node.
	IMEXChannels []int
	// MPSRoot is the folder of NVIDIA's MPS control daemon on the host. Empty: this
	// resource is not shared by MPS.
	MPSRoot string
	// Random makes the part of an annotation's key that tells a container's
	// resources apart. Nil makes UUIDs, as NVIDIA's plugin does.
	Random func() string
}

// Container is the answer for one container. The devices may come in any order,
// and several times.
func (o Options) Container(devices []Device) *api.ContainerAllocateResponse {
	devices = inOrder(devices)
	names := o.names(devices)
	a := &api.ContainerAllocateResponse{Envs: map[string]string{}}
	o.addCDI(a, names)
	o.addMPS(a)
	for _, extra := range o.extras() {
		if extra.enabled {
			a.Envs[extra.env] = "enabled"
		}
	}
	// What follows would give a runtime that has the CDI names all things twice.
	if o.has(EnvVar) {
		a.Envs[visibleDevices] = strings.Join(names, ",")
		if len(o.IMEXChannels) > 0 {
			a.Envs[visibleChannels] = strings.Join(o.channels(), ",")
		}
	}
	if o.has(VolumeMounts) {
		a.Envs[visibleDevices] = mountsRoot // in place of the names, also beside EnvVar
		a.Mounts = append(a.Mounts, o.mounts(names)...)
	}
	if o.DeviceSpecs && (o.has(EnvVar) || o.has(VolumeMounts)) {
		a.Devices = o.specs(devices)
	}
	return a
}

// has tells whether a strategy is in use.
func (o Options) has(s Strategy) bool {
	return slices.Contains(o.Strategies, s) || s == EnvVar && len(o.Strategies) == 0
}

// inOrder is each device once, in the order of the node: a GPU by its index, its
// slices by theirs. The kubelet sends ids in random order, and replicas of one
// device are one device.
func inOrder(devices []Device) []Device {
	devices = slices.SortedFunc(slices.Values(devices), func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.slice(), b.slice()), cmp.Compare(a.ID, b.ID))
	})
	return slices.CompactFunc(devices, func(a, b Device) bool { return a.ID == b.ID })
}

// slice is the index of a slice, and -1 for a whole GPU.
func (d Device) slice() int {
	if d.WholeGPU() {
		return -1
	}
	return d.MIGIndex
}

// Name is what the device is called by this strategy, to the runtime and in the
// CDI spec alike.
func (s IDStrategy) Name(d Device) string {
	switch {
	case s != Index:
		return string(d.ID)
	case d.WholeGPU():
		return strconv.Itoa(d.Index)
	default:
		return strconv.Itoa(d.Index) + ":" + strconv.Itoa(d.MIGIndex)
	}
}

func (o Options) names(devices []Device) []string {
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = o.IDs.Name(d)
	}
	return names
}

func (o Options) channels() []string {
	names := make([]string, len(o.IMEXChannels))
	for i, c := range o.IMEXChannels {
		names[i] = strconv.Itoa(c)
	}
	return names
}

// extra is what comes with GPUs where it is enabled: by an environment variable
// for NVIDIA's runtime, and as the device "all" of a CDI class.
type extra struct {
	enabled    bool
	env, class string
}

func (o Options) extras() [3]extra {
	return [...]extra{
		{o.GDRCopy, "NVIDIA_GDRCOPY", "gdrcopy"},
		{o.GDS, "NVIDIA_GDS", "gds"},
		{o.MOFED, "NVIDIA_MOFED", "mofed"},
	}
}

func (o Options) addCDI(a *api.ContainerAllocateResponse, names []string) {
	if !o.has(CDIAnnotations) && !o.has(CDICRI) {
		return
	}
	var devices []string
	if o.named() {
		for _, name := range names {
			devices = append(devices, qualified("gpu", name))
		}
		for _, channel := range o.channels() {
			devices = append(devices, qualified("imex-channel", channel))
		}
	}
	for _, extra := range o.extras() {
		if extra.enabled && (o.HasSpec == nil || o.HasSpec(extra.class)) {
			devices = append(devices, qualified(extra.class, "all"))
		}
	}
	if len(devices) == 0 {
		return
	}
	if o.has(CDIAnnotations) {
		a.Annotations = map[string]string{o.annotation(): strings.Join(devices, ",")}
	}
	if o.has(CDICRI) {
		for _, name := range devices {
			a.CdiDevices = append(a.CdiDevices, &api.CDIDevice{Name: name})
		}
	}
}

// named reports whether GPUs get CDI names. Without a spec, another strategy serves the container; if there
// is none, the container fails rather than start without its GPU.
func (o Options) named() bool {
	return o.HasSpec == nil || o.HasSpec("gpu") || !o.has(EnvVar) && !o.has(VolumeMounts)
}

// qualified is a CDI device's full name.
func qualified(class, name string) string { return Vendor + "/" + class + "=" + name }

func (o Options) annotation() string {
	random := o.Random
	if random == nil {
		random = uuid
	}
	return cmp.Or(o.AnnotationPrefix, AnnotationPrefix) + "nvidia-device-plugin_" + random()
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
func (o Options) addMPS(a *api.ContainerAllocateResponse) {
	if o.MPSRoot == "" {
		return
	}
	pipe := filepath.Join(mpsRoot, o.Resource, "pipe")
	a.Envs["CUDA_MPS_PIPE_DIRECTORY"] = pipe
	a.Mounts = append(a.Mounts,
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
	for _, channel := range o.channels() {
		mounts = append(mounts, &api.Mount{ContainerPath: filepath.Join(mountsRoot, "imex", channel), HostPath: mountsSource})
	}
	return mounts
}

// specs are the nodes of the devices, each once: first those that all share, then
// those of each device, then channels. A device names only such control nodes as
// there are.
func (o Options) specs(devices []Device) []*api.DeviceSpec {
	var own []string
	has := map[string]bool{}
	for _, d := range devices {
		for _, node := range d.Nodes {
			if !has[node] && !slices.Contains(control[:], node) {
				own = append(own, node)
			}
			has[node] = true
		}
	}
	var specs []*api.DeviceSpec
	add := func(node string) {
		specs = append(specs, &api.DeviceSpec{ContainerPath: node, HostPath: filepath.Join("/", o.DevRoot, node), Permissions: "rw"})
	}
	for _, node := range control {
		if has[node] {
			add(node)
		}
	}
	for _, node := range own {
		add(node)
	}
	for _, channel := range o.channels() {
		add(channelNodes + channel)
	}
	return specs
}
