package cdi

import (
	"context"
	"errors"
	"fmt"
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
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"
)

const (
	gpuClass  = "gpu"
	imexClass = "imex-channel"
)

// classes are all of which there may be a spec, in the order in which they are
// told of.
var classes = [...]string{gpuClass, imexClass, "gdrcopy", "gds", "mofed"}

// newHooks are those that nvidia-container-toolkit has had since 1.20. One that is
// older than 1.18 on the host fails on a hook that it does not know, and with it
// each container of a GPU (kubernetes-sigs/dra-driver-nvidia-gpu#568).
var newHooks = [...]string{"update-application-profile", "apply-cuda-memory-limits"}

// specBuilder makes the specs of one inventory.
type specBuilder struct {
	*Options
	devices []device.Device
	log     *slog.Logger // of what nvcdi says; nil for nowhere
	devRoot string
}

// buildResult is what has become of a class: a spec, or none because there is nothing
// for it, or because of an error; or a spec and an error that says what of it is
// missing.
type buildResult struct {
	spec *specs.Spec
	err  error
}

// buildAll makes a spec of each class that is wanted.
func (b *specBuilder) buildAll() map[string]buildResult {
	if len(b.devices) == 0 {
		return nil
	}
	b.devRoot = b.DevRoot
	if b.devRoot == "" { // in each turn: the driver may be installed meanwhile
		b.devRoot = "/"
		if info, err := os.Stat(filepath.Join(b.DriverRoot, "dev")); err == nil && info.IsDir() {
			b.devRoot = b.DriverRoot
		}
	}
	results := map[string]buildResult{gpuClass: b.buildSafely(b.gpuSpec)}
	if len(b.IMEXChannels) > 0 {
		results[imexClass] = b.buildSafely(b.imexSpec)
	}
	for class, enabled := range map[string]bool{"gdrcopy": b.GDRCopy, "gds": b.GDS, "mofed": b.MOFED} {
		if enabled {
			results[class] = b.buildSafely(func() (*specs.Spec, error) { return b.modeSpec(class) })
		}
	}
	return results
}

// buildSafely makes an error of a panic in a library that reads whatever is below a
// driver root, asks what nvml_adapter.go has no method for, and was not written to be
// part of a daemon.
func (b *specBuilder) buildSafely(build func() (*specs.Spec, error)) (r buildResult) {
	defer func() {
		if p := recover(); p != nil {
			r = buildResult{err: fmt.Errorf("nvcdi panicked: %v", p)}
		}
	}()
	s, err := build()
	if s == nil {
		return buildResult{err: err}
	}
	if e := b.hostTransform().Transform(s); e != nil {
		return buildResult{err: e}
	}
	version, e := specs.MinimumRequiredVersion(s) // the runtime may be older than this program
	if e != nil {
		return buildResult{err: e}
	}
	s.Version = version
	return buildResult{s, err}
}

// hostTransform has paths mean what they mean to the runtime, as NVIDIA's plugin does it.
func (b *specBuilder) hostTransform() transform.Transformer {
	driver := root.New(root.WithRoot(b.DriverRoot), root.WithTargetRoot(b.TargetDriverRoot), root.WithRelativeTo("host"))
	if b.devRoot == b.DriverRoot {
		return driver
	}
	dev := root.New(root.WithRoot(devDir(b.devRoot)), root.WithTargetRoot(devDir(b.TargetDevRoot)), root.WithRelativeTo("host"))
	return transform.Merge(driver, dev)
}

func devDir(root string) string {
	return filepath.Join(strings.TrimSuffix(filepath.Clean(root), "/dev"), "/dev")
}

// gpuSpec is the spec of GPUs and slices. A device that cannot be had is left out,
// for the sake of the others.
func (b *specBuilder) gpuSpec() (*specs.Spec, error) {
	version := driverVersionOf(b.devices)
	if version == "" {
		return nil, errors.New("the driver's version is not known, which its libraries are known by")
	}
	common, err := b.commonEdits(version)
	if err != nil {
		return nil, err
	}
	var devices []specs.Device
	var errs []error
	gpuEdits := map[device.GPU]*specs.ContainerEdits{} // slices of a GPU share what is asked for it
	for _, d := range b.devices {
		deviceSpec, err := b.deviceSpec(d, gpuEdits)
		if err == nil && slices.ContainsFunc(devices, func(o specs.Device) bool { return o.Name == deviceSpec.Name }) {
			err = fmt.Errorf("another device is called %s, too", deviceSpec.Name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("leave %s out: %w", d.ID, err))
			continue
		}
		devices = append(devices, deviceSpec)
	}
	if len(devices) == 0 {
		return nil, errors.Join(errs...)
	}
	s, err := spec.New(spec.WithVendor(Vendor), spec.WithClass(gpuClass), spec.WithDeviceSpecs(devices), spec.WithEdits(*common))
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	return s.Raw(), errors.Join(errs...)
}

// driverVersionOf is what the listing says of it.
func driverVersionOf(devices []device.Device) string {
	for _, d := range devices {
		for _, fact := range d.InfoLabels {
			if fact.Name == "driver_version" && fact.Value != "" {
				return fact.Value
			}
		}
	}
	return ""
}

// newNVCDI is a new one for each question: it remembers what it has found.
func (b *specBuilder) newNVCDI(options ...nvcdi.Option) (nvcdi.Interface, error) {
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, err
	}
	return nvcdi.New(append([]nvcdi.Option{
		nvcdi.WithLogger(nvcdiLogger{b.log}),
		nvcdi.WithVendor(Vendor),
		nvcdi.WithDriverRoot(b.DriverRoot),
		nvcdi.WithDevRoot(b.devRoot),
		nvcdi.WithNVIDIACDIHookPath(b.HookPath),
		nvcdi.WithDisabledHooks(append(slices.Clone(b.DisabledHooks), newHooks[:]...)...),
		nvcdi.WithEnabledHooks(b.EnabledHooks...),
		nvcdi.WithDeviceNamers(namer),
		// libnvidia-sandboxutils would be another library of the driver in this process,
		// to hang in, and to miss functions of. It knows no more than the inventory.
		nvcdi.WithFeatureFlags(append(slices.Clone(b.FeatureFlags), string(nvcdi.FeatureDisableNvsandboxUtils))...),
		nvcdi.WithNvmlLib(nvmlAdapter{driverVersion: driverVersionOf(b.devices)}),
	}, options...)...)
}

// commonEdits are for a container of any GPU: the driver's libraries and programs.
func (b *specBuilder) commonEdits(version string) (*specs.ContainerEdits, error) {
	lib, err := b.newNVCDI(nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithDeviceLib(deviceLibAdapter{}))
	if err != nil {
		return nil, err
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("find the files of driver %s in %s: %w", version, b.DriverRoot, err)
	}
	return common.ContainerEdits, nil
}

// deviceSpec is one device of the spec.
func (b *specBuilder) deviceSpec(d device.Device, gpuEdits map[device.GPU]*specs.ContainerEdits) (specs.Device, error) {
	name := b.DeviceName(d)
	if err := parser.ValidateDeviceName(name); err != nil {
		return specs.Device{}, err
	}
	edits := gpuEdits[d.GPU]
	if edits == nil {
		var err error
		if edits, err = b.gpuEdits(d); err != nil {
			return specs.Device{}, err
		}
		gpuEdits[d.GPU] = edits
	}
	if d.WholeGPU() {
		return specs.Device{Name: name, ContainerEdits: *edits}, nil
	}
	edits, err := b.migEdits(d, edits)
	if err != nil {
		return specs.Device{}, err
	}
	return specs.Device{Name: name, ContainerEdits: *edits}, nil
}

// gpuEdits is what a container gets for a whole GPU, the one that d is or is part of.
func (b *specBuilder) gpuEdits(d device.Device) (*specs.ContainerEdits, error) {
	if d.Minor < 0 {
		return nil, errors.New("its minor number is not known")
	}
	lib, err := b.newNVCDI(nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithDeviceLib(deviceLibAdapter{gpu: deviceAdapter{device: d}}))
	if err != nil {
		return nil, err
	}
	devices, err := lib.GetDeviceSpecsByID("all")
	if err != nil {
		return nil, err
	}
	if len(devices) != 1 {
		return nil, fmt.Errorf("nvcdi makes %d devices of it", len(devices))
	}
	edits := devices[0].ContainerEdits
	// nvcdi passes over a node that is not there, and a container would start
	// without its GPU.
	node := gpuNode(d)
	if !slices.ContainsFunc(edits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == node }) {
		return nil, fmt.Errorf("there is no device node %s in %s", node, b.devRoot)
	}
	return &edits, nil
}

func gpuNode(d device.Device) string { return fmt.Sprintf("/dev/nvidia%d", d.Minor) }

// migEdits is what a container gets for a slice: its GPU's node and its capabilities',
// and the nodes and links for graphics if it can do that.
func (b *specBuilder) migEdits(d device.Device, gpuEdits *specs.ContainerEdits) (*specs.ContainerEdits, error) {
	edits := &specs.ContainerEdits{}
	graphics := b.HasGraphics(d)
	for _, n := range gpuEdits.DeviceNodes {
		if graphics || n.Path == gpuNode(d) {
			own := *n // paths are changed in place later
			edits.DeviceNodes = append(edits.DeviceNodes, &own)
		}
	}
	for _, h := range gpuEdits.Hooks {
		// A GPU's other hook limits memory by the GPU's UUID, and not a slice's.
		if graphics && slices.Contains(h.Args, string(nvcdi.CreateSymlinksHook)) {
			own := *h
			edits.Hooks = append(edits.Hooks, &own)
		}
	}
	found := false
	for _, path := range d.DeviceNodes {
		if !strings.HasPrefix(path, "/dev/nvidia-caps/") {
			continue
		}
		found = true
		host := filepath.Join(b.devRoot, path)
		if !isCharDevice(host) {
			return nil, fmt.Errorf("there is no device node %s", host)
		}
		n := &specs.DeviceNode{Path: path, HostPath: host}
		if host == path {
			n.HostPath = "" // the same, and older runtimes know no such field
		}
		edits.DeviceNodes = append(edits.DeviceNodes, n)
	}
	if !found {
		return nil, errors.New("the nodes of its capabilities are not known")
	}
	return edits, nil
}

// imexSpec is the spec of IMEX channels, each under its number.
func (b *specBuilder) imexSpec() (*specs.Spec, error) {
	var devices []specs.Device
	for _, id := range b.IMEXChannels {
		node := imexChannelNode(id)
		devices = append(devices, specs.Device{
			Name: fmt.Sprint(id),
			ContainerEdits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{
				{Path: node, HostPath: filepath.Join(b.devRoot, node)},
			}},
		})
	}
	s, err := spec.New(spec.WithVendor(Vendor), spec.WithClass(imexClass), spec.WithDeviceSpecs(devices))
	if err != nil {
		return nil, err
	}
	return s.Raw(), nil
}

// modeSpec is the spec of something that goes with GPUs, whose one device is "all".
// There is none where the node has nothing of it, which is no error: NVIDIA's
// plugin, too, leaves it out.
func (b *specBuilder) modeSpec(class string) (*specs.Spec, error) {
	lib, err := b.newNVCDI(nvcdi.WithMode(class), nvcdi.WithDeviceLib(deviceLibAdapter{}))
	if err != nil {
		return nil, err
	}
	s, err := lib.GetSpec()
	if err != nil {
		return nil, err
	}
	for _, d := range s.Raw().Devices {
		if len(d.ContainerEdits.DeviceNodes)+len(d.ContainerEdits.Mounts) > 0 {
			return s.Raw(), nil
		}
	}
	return nil, nil
}

// nvcdiLogger is nvcdi's logger. What it warns of is normal on most nodes: files that are
// not there.
type nvcdiLogger struct{ log *slog.Logger }

func (l nvcdiLogger) logDebug(format string, args ...any) {
	if l.log != nil && l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("nvcdi: " + fmt.Sprintf(format, args...))
	}
}

func (l nvcdiLogger) Debugf(string, ...any)               {}
func (l nvcdiLogger) Tracef(string, ...any)               {}
func (l nvcdiLogger) Infof(format string, args ...any)    { l.logDebug(format, args...) }
func (l nvcdiLogger) Warningf(format string, args ...any) { l.logDebug(format, args...) }
func (l nvcdiLogger) Errorf(format string, args ...any)   { l.logDebug(format, args...) }
