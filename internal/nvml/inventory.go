package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

const (
	// maxGPUs is more than any machine has; a count above it is none.
	maxGPUs = 1024
	// maxMinor is the largest minor number of a device node that Linux knows.
	maxMinor = 1<<20 - 1
)

// Devices lists the GPUs in the driver's order, each before its slices. What it knows
// of a GPU it keeps until the next Init: a listing that finds nothing new costs a
// call, two more for each GPU, one for each slice that a partitioned GPU could have
// and four for each that it has.
//
// A GPU that is known and just now cannot be had stays in the list, since it is
// Check that tells what is wrong with it.
func (b *Backend) Devices(ctx context.Context) ([]device.Device, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.ensureInitialized(); err != nil {
		return nil, fmt.Errorf("%w: %w", device.ErrNoDriver, err)
	}
	count, ret := b.session.NVML.DeviceGetCount()
	switch {
	case ret == nvml.SUCCESS && count <= maxGPUs:
	case ret == nvml.SUCCESS:
		return nil, fmt.Errorf("count GPUs: the driver says %d", count)
	case ret == nvml.ERROR_UNINITIALIZED: // the driver has forgotten us: nothing that we hold is valid
		b.inventory.Store(nil)
		b.session, b.driverRestarted = nil, true
		return nil, fmt.Errorf("%w: count GPUs: %w", device.ErrNoDriver, lib.Error(ret))
	case ret == nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		b.inventory.Store(nil)
		b.session = nil
		return nil, fmt.Errorf("%w: count GPUs: %w", device.ErrNoDriver, b.versionMismatch())
	default:
		return nil, fmt.Errorf("count GPUs: %w", lib.Error(ret))
	}
	// After a new Init there is none: handles of the old one mean nothing any more.
	old := b.inventory.Load()
	if old == nil {
		old = &inventory{}
	}
	l := deviceListing{Backend: b, old: old, next: newInventory(b.session), devices: []device.Device{}, listedMIG: map[device.ID]bool{}}
	found := l.probeAll(ctx, count)
	if err := ctx.Err(); err != nil { // half a listing would have the rest gone
		return nil, fmt.Errorf("list GPUs: %w", err)
	}
	l.assemble(found, count)
	b.inventory.Store(l.next)
	b.freeDelisted(old)
	return l.devices, l.err()
}

// freeDelisted gives back what the library has made for GPUs that are no longer listed. What a
// call is under way about waits for another listing.
func (b *Backend) freeDelisted(old *inventory) {
	inv := b.inventory.Load()
	for _, g := range old.gpus {
		if inv.byID[g.ID] != g {
			b.delisted = append(b.delisted, g)
		}
	}
	b.delisted = slices.DeleteFunc(b.delisted, func(g *gpu) bool {
		if !g.TryLock() {
			return false
		}
		defer g.Unlock()
		g.FreeSamples(b.session.Session)
		return true
	})
}

// newInventory is empty. It is filled before anybody sees it.
func newInventory(sess *nvmlSession) *inventory {
	return &inventory{
		nvmlSession: sess, byID: map[device.GPU]*gpu{}, byHandle: map[nvml.Device]*gpu{}, byIndex: map[int]*gpu{},
	}
}

func (inv *inventory) add(index int, g *gpu) {
	inv.gpus = append(inv.gpus, g)
	inv.byID[g.ID] = g
	inv.byHandle[g.Handle] = g
	inv.byIndex[index] = g
}

// deviceListing is one run through the driver's indices. A GPU is looked for by its index
// and in no other way: to look for a UUID or a PCI address makes NVML touch all of
// them, and fails when one is lost (nvml.h, nvmlDeviceGetHandleByUUID).
type deviceListing struct {
	*Backend
	old, next *inventory
	devices   []device.Device
	listedMIG map[device.ID]bool // the slices found
	errs      []string           // of what is left out, one each
}

// assemble puts together what was found. Which GPU an index that fails stood for can be told
// only when the handles of all others are known: indices move up when a GPU goes.
func (l *deviceListing) assemble(found map[int]probeResult, count int) {
	placed := map[*gpu]bool{}
	for i, result := range found {
		// One that was long under way may not know what was listed meanwhile.
		if known := l.old.byHandle[result.handle]; known != nil {
			result.gpu, result.isNew = known, false
			found[i] = result
		}
		placed[result.gpu] = true
	}
	nodes := sharedNodes(l.options.DevRoot)
	for i := range count {
		result, answered := found[i]
		if !answered {
			result.err = errors.New("it does not answer")
		}
		if g := l.old.byIndex[i]; result.handle == nil && g != nil && !placed[g] {
			result = probeResult{gpu: g} // whatever ails it, Check will say
		}
		if result.err == nil && l.next.byID[result.gpu.ID] != nil {
			result.err = fmt.Errorf("%s was listed before", result.gpu.ID)
		}
		if result.err != nil {
			l.errs = append(l.errs, fmt.Sprintf("GPU at index %d: %v", i, result.err))
			continue
		}
		l.recordLayout(result)
		l.next.add(i, result.gpu)
		l.appendDevices(result.gpu, i, nodes)
	}
}

// recordLayout notes what was found of a GPU.
func (l *deviceListing) recordLayout(result probeResult) {
	g := result.gpu
	for _, err := range result.migErrs {
		l.addError(g, err)
	}
	if result.layout == nil {
		return
	}
	result.layout.devices = slices.DeleteFunc(result.layout.devices, func(s *listedMIGDevice) bool {
		if l.listedMIG[s.id] {
			l.addError(g, fmt.Sprintf("slice %d: %s was listed before", s.index, s.id))
			return true
		}
		l.listedMIG[s.id] = true
		return false
	})
	g.layout.Store(result.layout)
	g.SetMIGState(result.layout.state())
}

// appendDevices puts a GPU and its slices on the list.
func (l *deviceListing) appendDevices(g *gpu, index int, sharedNodes []string) {
	d := g.asDevice(index)
	ownNodes := len(d.DeviceNodes)
	d.DeviceNodes = append(d.DeviceNodes, sharedNodes...)
	l.devices = append(l.devices, d)
	for _, s := range g.layout.Load().devices {
		l.findCapNodes(s, d.Minor)
		l.devices = append(l.devices, s.asDevice(d, ownNodes))
	}
}

// err is one line, since it ends in one line of the log.
func (l *deviceListing) err() error {
	if len(l.errs) == 0 {
		return nil
	}
	return errors.New(strings.Join(l.errs, "; "))
}

// readMIGMode finds out whether a GPU's MIG mode is on. A driver that cannot say has none.
func (sess *nvmlSession) readMIGMode(handle nvml.Device) (*migLayout, error) {
	if !sess.Symbols["nvmlDeviceGetMigMode"] {
		return &migLayout{}, nil
	}
	mode, pending, ret := handle.GetMigMode()
	switch {
	case lib.IsNotSupported(ret):
		layout := &migLayout{}
		layout.denials.Record(true, time.Now())
		return layout, nil
	case ret != nvml.SUCCESS:
		return nil, fmt.Errorf("get its MIG mode: %w", lib.Error(ret))
	}
	return &migLayout{capable: true, enabled: mode == nvml.DEVICE_MIG_ENABLE, pendingEnabled: pending == nvml.DEVICE_MIG_ENABLE}, nil
}

// describeGPU asks for all that does not change. Only the UUID must be had: without
// it there is no telling which GPU this is, and the rest is for people to read.
func (b *Backend) describeGPU(sess *nvmlSession, handle nvml.Device) (*gpu, error) {
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("get its UUID: %w", lib.Error(ret))
	}
	id := device.GPU(lib.ToValidUTF8(uuid))
	if id == "" {
		return nil, errors.New("its UUID is empty")
	}
	has := sess.Symbols
	g := &gpu{GPUReader: collect.NewGPUReader(id, handle, sess.Session, b.plan, b.histories.Of(id))}
	g.layout.Store(&migLayout{})
	dev := device.Device{ID: device.ID(id), GPU: id, Minor: -1, NUMANode: -1, MIGDeviceIndex: -1, GI: -1, CI: -1}
	if has["nvmlDeviceGetMinorNumber"] {
		if minor, ret := handle.GetMinorNumber(); ret == nvml.SUCCESS && minor <= maxMinor {
			dev.Minor = minor
		}
	}
	if has["nvmlDeviceGetName"] {
		if name, ret := handle.GetName(); ret == nvml.SUCCESS {
			dev.Model = lib.ToValidUTF8(name)
		}
	}
	if has["nvmlDeviceGetPciInfo_v3"] {
		if pci, ret := handle.GetPciInfo(); ret == nvml.SUCCESS {
			dev.PCI = pciAddress(pci)
			dev.NUMANode = numaNode(b.options.SysRoot, dev.PCI)
		}
	}
	// The rest is best effort too, and what fails now stays unknown until the next
	// Init: a device that changed under its holder would be offered anew.
	dev.MemoryBytes = metric.TotalMemory(handle, has)
	dev.InfoLabels = append(gpuLabels(handle, has), sess.commonLabels...)
	g.device = dev
	return g, nil
}

// pciAddress is written as sysfs writes it.
func pciAddress(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}

// asDevice is the device as it is listed now, its index may change while it is known, with
// the nodes that are its own.
func (g *gpu) asDevice(index int) device.Device {
	d := g.device
	d.Index, d.MIGEnabled = index, g.layout.Load().enabled
	if d.Minor >= 0 {
		d.DeviceNodes = []string{"/dev/nvidia" + strconv.Itoa(d.Minor)}
	}
	return d
}

// numaNode is the node that sysfs says, which has -1 itself where there is none.
// NVML's nvmlDeviceGetNumaNodeId is another thing: the node that the GPU's own
// memory is, on machines where the CPU reaches it.
func numaNode(sysRoot, pci string) int {
	text, err := os.ReadFile(filepath.Join(sysRoot, "bus/pci/devices", pci, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return max(node, -1)
}

// sharedNodes are the device nodes beside those of each GPU that there are. They
// are looked for in each listing, since they are made when they are first needed.
func sharedNodes(devRoot string) []string {
	var nodes []string
	for _, name := range [...]string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"} {
		if _, err := os.Stat(filepath.Join(devRoot, "dev", name)); err == nil {
			nodes = append(nodes, "/dev/"+name)
		}
	}
	return nodes
}
