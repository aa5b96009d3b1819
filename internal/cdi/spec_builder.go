package cdi

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/spec"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/response"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"
)

// classes are the classes of specs, in the order of reports.
var classes = [...]string{
	response.GPUClass, response.IMEXClass, response.GDRCopyClass, response.GDSClass, response.MOFEDClass,
}

// newHooks are the hooks that nvidia-container-toolkit has since 1.20. A
// toolkit before 1.18 on the host fails on an unknown hook, and with it every
// GPU container (kubernetes-sigs/dra-driver-nvidia-gpu#568).
var newHooks = [...]string{"update-application-profile", "apply-cuda-memory-limits"}

// Options are the contents of specs.
type Options struct {
	// DeviceIDStrategy names devices as in the response to Allocate.
	DeviceIDStrategy response.DeviceIDStrategy
	// DriverRoot and DevRoot are the folders of the driver's files and of /dev
	// in this process's mounts. Default: /.
	DriverRoot, DevRoot string
	// TargetDriverRoot and TargetDevRoot are the same folders on the host.
	// Default: DriverRoot, and TargetDriverRoot.
	TargetDriverRoot, TargetDevRoot string
	// HookPath is nvidia-cdi-hook or nvidia-ctk on the host.
	HookPath string
	// FeatureFlags and DisabledHooks are nvcdi's.
	FeatureFlags, DisabledHooks []string
	// GDRCopy, GDS and MOFED enable specs of their own, on nodes with such
	// devices.
	GDRCopy, GDS, MOFED bool
	// IMEXChannels share one spec.
	IMEXChannels []int
}

// specBuilder builds the specs of an inventory.
type specBuilder struct {
	*Options
	devices       []device.Device
	driverVersion string       // empty: unknown
	log           *slog.Logger // for nvcdi
}

func newSpecBuilder(o *Options, devices []device.Device, log *slog.Logger) *specBuilder {
	b := &specBuilder{Options: o, devices: devices, log: log}
	for _, d := range devices {
		b.driverVersion = cmp.Or(b.driverVersion, d.InfoLabel("driver_version"))
	}
	return b
}

// build builds the spec of a class; nil if disabled or if the node has no such
// devices. An error beside a spec explains a missing device.
func (b *specBuilder) build(class string) (s spec.Interface, err error) {
	// nvcdi reads arbitrary files below a driver root, calls methods that
	// nvml_adapter.go lacks, and is not written for a daemon.
	defer func() {
		if p := recover(); p != nil {
			s, err = nil, fmt.Errorf("nvcdi panicked: %v", p)
		}
	}()
	switch {
	case len(b.devices) == 0:
	case class == response.GPUClass:
		s, err = b.gpuSpec()
	case class == response.IMEXClass && len(b.IMEXChannels) > 0:
		s, err = b.imexSpec()
	case class == response.GDRCopyClass && b.GDRCopy,
		class == response.GDSClass && b.GDS,
		class == response.MOFEDClass && b.MOFED:
		s, err = b.modeSpec(class)
	}
	if s == nil {
		return nil, err
	}
	if e := b.hostTransform().Transform(s.Raw()); e != nil {
		return nil, e
	}
	version, e := specs.MinimumRequiredVersion(s.Raw()) // the runtime may be older than podgauge
	if e != nil {
		return nil, e
	}
	s.Raw().Version = version
	return s, err
}

// hostTransform returns the translation from this process's paths to the
// host's, as in NVIDIA's plugin.
func (b *specBuilder) hostTransform() transform.Transformer {
	driver := root.New(
		root.WithRoot(b.DriverRoot),
		root.WithTargetRoot(b.TargetDriverRoot),
		root.WithRelativeTo("host"),
	)
	if b.DevRoot == b.DriverRoot {
		return driver
	}
	dev := root.New(
		root.WithRoot(devDir(b.DevRoot)),
		root.WithTargetRoot(devDir(b.TargetDevRoot)),
		root.WithRelativeTo("host"),
	)
	return transform.Merge(driver, dev)
}

func devDir(root string) string {
	return filepath.Join(strings.TrimSuffix(filepath.Clean(root), "/dev"), "/dev")
}

// newNVCDI returns an nvcdi library for one query, because the library caches
// results.
func (b *specBuilder) newNVCDI(mode nvcdi.Mode, lib deviceLibAdapter) (nvcdi.Interface, error) {
	return nvcdi.New(
		nvcdi.WithMode(mode),
		nvcdi.WithLogger(nvcdiLogger{b.log}),
		nvcdi.WithVendor(response.CDIVendor),
		nvcdi.WithDriverRoot(b.DriverRoot),
		nvcdi.WithDevRoot(b.DevRoot),
		nvcdi.WithNVIDIACDIHookPath(b.HookPath),
		nvcdi.WithDisabledHooks(append(slices.Clone(b.DisabledHooks), newHooks[:]...)...),
		// libnvidia-sandboxutils is a driver library that can hang and lack
		// functions, and only repeats the inventory.
		nvcdi.WithFeatureFlags(append(slices.Clone(b.FeatureFlags), string(nvcdi.FeatureDisableNvsandboxUtils))...),
		nvcdi.WithNvmlLib(nvmlAdapter{driverVersion: b.driverVersion}),
		nvcdi.WithDeviceLib(lib),
	)
}

// gpuSpec builds the spec of GPUs and MIG devices. An invalid device is skipped
// for the sake of the others.
func (b *specBuilder) gpuSpec() (spec.Interface, error) {
	if b.driverVersion == "" {
		return nil, errors.New("driver version unknown, cannot find the driver's libraries")
	}
	lib, err := b.newNVCDI(nvcdi.ModeNvml, deviceLibAdapter{})
	if err != nil {
		return nil, err
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("find files of driver %s in %s: %w", b.driverVersion, b.DriverRoot, err)
	}
	var devices []specs.Device
	var errs []error
	gpuEdits := map[device.GPU]*specs.ContainerEdits{} // shared by the MIG devices of a GPU
	for _, d := range b.devices {
		deviceSpec, err := b.deviceSpec(d, gpuEdits)
		if err == nil && slices.ContainsFunc(devices, func(o specs.Device) bool { return o.Name == deviceSpec.Name }) {
			err = fmt.Errorf("name %s is in use", deviceSpec.Name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("skip %s: %w", d.ID, err))
			continue
		}
		devices = append(devices, deviceSpec)
	}
	if len(devices) == 0 {
		return nil, errors.Join(errs...)
	}
	s, err := newSpec(response.GPUClass, devices, *common.ContainerEdits)
	return s, errors.Join(append(errs, err)...)
}

func newSpec(class string, devices []specs.Device, edits specs.ContainerEdits) (spec.Interface, error) {
	return spec.New(
		spec.WithVendor(response.CDIVendor),
		spec.WithClass(class),
		spec.WithDeviceSpecs(devices),
		spec.WithEdits(edits),
	)
}

func (b *specBuilder) deviceSpec(d device.Device, gpuEdits map[device.GPU]*specs.ContainerEdits) (specs.Device, error) {
	name := b.DeviceIDStrategy.Name(d)
	if err := parser.ValidateDeviceName(name); err != nil {
		return specs.Device{}, err
	}
	edits, err := gpuEdits[d.GPU], error(nil)
	if edits == nil {
		if edits, err = b.gpuEdits(d); err != nil {
			return specs.Device{}, err
		}
		gpuEdits[d.GPU] = edits
	}
	if !d.WholeGPU() {
		if edits, err = b.migEdits(d, edits); err != nil {
			return specs.Device{}, err
		}
	}
	return specs.Device{Name: name, ContainerEdits: *edits}, nil
}

// gpuEdits returns the edits for a whole GPU, the device itself or the GPU of a
// MIG device.
func (b *specBuilder) gpuEdits(d device.Device) (*specs.ContainerEdits, error) {
	if d.Minor < 0 {
		return nil, errors.New("minor number unknown")
	}
	lib, err := b.newNVCDI(nvcdi.ModeNvml, deviceLibAdapter{gpu: deviceAdapter{device: d}})
	if err != nil {
		return nil, err
	}
	devices, err := lib.GetDeviceSpecsByID("all")
	if err != nil {
		return nil, err
	}
	if len(devices) != 1 {
		return nil, fmt.Errorf("nvcdi returned %d devices, expected 1", len(devices))
	}
	edits := devices[0].ContainerEdits
	// nvcdi skips a missing device node, and the container would start without
	// a GPU.
	node := gpuNode(d)
	if !slices.ContainsFunc(edits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == node }) {
		return nil, fmt.Errorf("no device node %s in %s", node, b.DevRoot)
	}
	return &edits, nil
}

func gpuNode(d device.Device) string { return fmt.Sprintf("/dev/nvidia%d", d.Minor) }

// migEdits returns the edits for a MIG device: the GPU's node, the nodes of the
// capabilities, and with a profile for graphics ("+gfx") the nodes and links
// for graphics.
func (b *specBuilder) migEdits(d device.Device, gpuEdits *specs.ContainerEdits) (*specs.ContainerEdits, error) {
	edits := &specs.ContainerEdits{}
	graphics := strings.Contains(d.Profile, "+gfx")
	for _, n := range gpuEdits.DeviceNodes {
		if graphics || n.Path == gpuNode(d) {
			edits.DeviceNodes = append(edits.DeviceNodes, new(*n)) // hostTransform changes paths in place
		}
	}
	for _, h := range gpuEdits.Hooks {
		// A GPU's other hook limits memory by the GPU's UUID.
		if graphics && slices.Contains(h.Args, string(nvcdi.CreateSymlinksHook)) {
			edits.Hooks = append(edits.Hooks, new(*h))
		}
	}
	gpuNodes := len(edits.DeviceNodes)
	for _, path := range d.DeviceNodes {
		if !strings.HasPrefix(path, "/dev/nvidia-caps/") {
			continue
		}
		n := &specs.DeviceNode{Path: path, HostPath: filepath.Join(b.DevRoot, path)}
		if !isCharDevice(n.HostPath) {
			return nil, fmt.Errorf("no device node %s", n.HostPath)
		}
		if n.HostPath == path {
			n.HostPath = "" // unknown to older runtimes
		}
		edits.DeviceNodes = append(edits.DeviceNodes, n)
	}
	if len(edits.DeviceNodes) == gpuNodes {
		return nil, errors.New("device nodes of the capabilities unknown")
	}
	return edits, nil
}

// imexSpec builds the spec of the IMEX channels. Names are the channels' ids.
func (b *specBuilder) imexSpec() (spec.Interface, error) {
	var devices []specs.Device
	for _, id := range b.IMEXChannels {
		node := imexChannelNode(id)
		devices = append(devices, specs.Device{Name: fmt.Sprint(id), ContainerEdits: specs.ContainerEdits{
			DeviceNodes: []*specs.DeviceNode{{Path: node, HostPath: filepath.Join(b.DevRoot, node)}},
		}})
	}
	return newSpec(response.IMEXClass, devices, specs.ContainerEdits{})
}

// FindIMEXChannels splits channels by whether the node has the device node.
// Like NVIDIA's plugin, it also looks in this process's /dev: a runtime puts
// the nodes there.
func FindIMEXChannels(devRoot string, ids []int) (present, missing []int) {
	for _, id := range ids {
		node := imexChannelNode(id)
		if isCharDevice(filepath.Join("/", devRoot, node)) || isCharDevice(node) {
			present = append(present, id)
		} else {
			missing = append(missing, id)
		}
	}
	return present, missing
}

func imexChannelNode(id int) string {
	return fmt.Sprintf("/dev/nvidia-caps-imex-channels/channel%d", id)
}

func isCharDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeCharDevice != 0
}

// modeSpec builds the spec of a class with the single device "all"; nil if the
// node has no such devices, as in NVIDIA's plugin.
func (b *specBuilder) modeSpec(class string) (spec.Interface, error) {
	lib, err := b.newNVCDI(nvcdi.Mode(class), deviceLibAdapter{})
	if err != nil {
		return nil, err
	}
	s, err := lib.GetSpec()
	if err != nil {
		return nil, err
	}
	for _, d := range s.Raw().Devices {
		if len(d.ContainerEdits.DeviceNodes)+len(d.ContainerEdits.Mounts) > 0 {
			return s, nil
		}
	}
	return nil, nil
}

// nvcdiLogger logs nvcdi's messages at level debug: nvcdi warns of files that
// most nodes lack.
type nvcdiLogger struct{ log *slog.Logger }

func (l nvcdiLogger) debugf(format string, args ...any) {
	l.log.Debug("nvcdi", "message", fmt.Sprintf(format, args...))
}

func (l nvcdiLogger) Debugf(string, ...any)               {}
func (l nvcdiLogger) Tracef(string, ...any)               {}
func (l nvcdiLogger) Infof(format string, args ...any)    { l.debugf(format, args...) }
func (l nvcdiLogger) Warningf(format string, args ...any) { l.debugf(format, args...) }
func (l nvcdiLogger) Errorf(format string, args ...any)   { l.debugf(format, args...) }
