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

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

const (
	// mostGPUs is more than any machine has; a count above it is none.
	mostGPUs = 1024
	// mostMinor is the largest minor number of a device node that Linux knows.
	mostMinor = 1<<20 - 1
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
	if err := b.start(); err != nil {
		return nil, fmt.Errorf("%w: %w", device.ErrNoDriver, err)
	}
	count, ret := b.driver.lib.DeviceGetCount()
	switch {
	case ret == nvml.SUCCESS && count <= mostGPUs:
	case ret == nvml.SUCCESS:
		return nil, fmt.Errorf("count GPUs: the driver says %d", count)
	case ret == nvml.ERROR_UNINITIALIZED: // the driver has forgotten us: nothing that we hold is valid
		b.table.Store(nil)
		b.driver, b.restarted = nil, true
		return nil, fmt.Errorf("%w: count GPUs: %w", device.ErrNoDriver, answer(ret))
	case ret == nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		b.table.Store(nil)
		b.driver = nil
		return nil, fmt.Errorf("%w: count GPUs: %w", device.ErrNoDriver, b.mismatch())
	default:
		return nil, fmt.Errorf("count GPUs: %w", answer(ret))
	}
	// After a new Init there is none: handles of the old one mean nothing any more.
	old := b.table.Load()
	if old == nil {
		old = &table{}
	}
	l := listing{Backend: b, old: old, fresh: newTable(b.driver), devices: []device.Device{}, listed: map[device.ID]bool{}}
	found := l.ask(ctx, count)
	if err := ctx.Err(); err != nil { // half a listing would have the rest gone
		return nil, fmt.Errorf("list GPUs: %w", err)
	}
	l.put(found, count)
	b.table.Store(l.fresh)
	b.letGo(old)
	return l.devices, l.err()
}

// letGo gives back what the library has made for GPUs that are no longer listed. What a
// call is under way about waits for another listing.
func (b *Backend) letGo(old *table) {
	t := b.table.Load()
	for _, g := range old.gpus {
		if t.byID[g.id] != g {
			b.gone = append(b.gone, g)
		}
	}
	b.gone = slices.DeleteFunc(b.gone, func(g *gpu) bool {
		if !g.turn.TryLock() {
			return false
		}
		defer g.turn.Unlock()
		g.free(b.driver)
		return true
	})
}

// newTable is empty. It is filled before anybody sees it.
func newTable(d *driver) *table {
	return &table{
		driver: d, byID: map[device.GPU]*gpu{}, byHandle: map[nvml.Device]*gpu{}, byIndex: map[int]*gpu{},
		slices: map[*gpu][]*slice{},
	}
}

func (t *table) add(index int, g *gpu) {
	t.gpus = append(t.gpus, g)
	t.byID[g.id] = g
	t.byHandle[g.handle] = g
	t.byIndex[index] = g
	t.slices[g] = g.parts.Load().slices
}

// listing is one run through the driver's indices. A GPU is looked for by its index
// and in no other way: to look for a UUID or a PCI address makes NVML touch all of
// them, and fails when one is lost (nvml.h, nvmlDeviceGetHandleByUUID).
type listing struct {
	*Backend
	old, fresh *table
	devices    []device.Device
	listed     map[device.ID]bool // the slices found
	errs       []string           // of what is left out, one each
}

// put puts together what was found. Which GPU an index that fails stood for can be told
// only when the handles of all others are known: indices move up when a GPU goes.
func (l *listing) put(found map[int]finding, count int) {
	elsewhere := map[*gpu]bool{}
	for i, f := range found {
		// One that was long under way may not know what was listed meanwhile.
		if known := l.old.byHandle[f.handle]; known != nil {
			f.gpu, f.fresh = known, false
			found[i] = f
		}
		elsewhere[f.gpu] = true
	}
	nodes := sharedNodes(l.options.DevRoot)
	for i := range count {
		f, answered := found[i]
		if !answered {
			f.err = errors.New("it does not answer")
		}
		if g := l.old.byIndex[i]; f.handle == nil && g != nil && !elsewhere[g] {
			f = finding{gpu: g} // whatever ails it, Check will say
		}
		if f.err == nil && l.fresh.byID[f.gpu.id] != nil {
			f.err = fmt.Errorf("%s was listed before", f.gpu.id)
		}
		if f.err != nil {
			l.errs = append(l.errs, fmt.Sprintf("GPU at index %d: %v", i, f.err))
			continue
		}
		l.take(f)
		l.fresh.add(i, f.gpu)
		l.list(f.gpu, i, nodes)
	}
}

// take notes what was found of a GPU.
func (l *listing) take(f finding) {
	g := f.gpu
	if g.history == nil {
		if g.history = l.histories[g.id]; g.history == nil {
			g.history = &history{meters: map[int]*meter{}, found: map[string]*device.Fault{}}
			l.histories[g.id] = g.history
		}
	}
	for _, err := range f.errs {
		l.complain(g, err)
	}
	if f.parts == nil {
		return
	}
	f.parts.slices = slices.DeleteFunc(f.parts.slices, func(s *slice) bool {
		if l.listed[s.id] {
			l.complain(g, fmt.Sprintf("slice %d: %s was listed before", s.index, s.id))
			return true
		}
		l.listed[s.id] = true
		return false
	})
	g.parts.Store(f.parts)
}

// list puts a GPU and its slices on the list.
func (l *listing) list(g *gpu, index int, sharedNodes []string) {
	d := g.at(index)
	own := len(d.Nodes)
	d.Nodes = append(d.Nodes, sharedNodes...)
	l.devices = append(l.devices, d)
	for _, s := range g.parts.Load().slices {
		l.capabilities(s, d.Minor)
		l.devices = append(l.devices, s.at(d, own))
	}
}

// err is one line, since it ends in one line of the log.
func (l *listing) err() error {
	if len(l.errs) == 0 {
		return nil
	}
	return errors.New(strings.Join(l.errs, "; "))
}

// mig finds out whether a GPU's MIG mode is on. A driver that cannot say has none.
func (d *driver) mig(handle nvml.Device) (*parts, error) {
	if !d.has["nvmlDeviceGetMigMode"] {
		return &parts{}, nil
	}
	mode, pending, ret := handle.GetMigMode()
	switch {
	case notHere(ret):
		return &parts{absent: absence{times: 1}}, nil
	case ret != nvml.SUCCESS:
		return nil, fmt.Errorf("get its MIG mode: %w", answer(ret))
	}
	return &parts{capable: true, mig: mode == nvml.DEVICE_MIG_ENABLE, pending: pending == nvml.DEVICE_MIG_ENABLE}, nil
}

// describe asks for all that does not change. Only the UUID must be had: without
// it there is no telling which GPU this is, and the rest is for people to read.
func (d *driver) describe(handle nvml.Device, sysRoot string) (*gpu, error) {
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("get its UUID: %w", answer(ret))
	}
	id := device.GPU(clean(uuid))
	if id == "" {
		return nil, errors.New("its UUID is empty")
	}
	has := d.has
	g := newGPU(id, handle, d)
	of := device.Device{ID: device.ID(id), GPU: id, Minor: -1, NUMANode: -1, Slice: -1, GI: -1, CI: -1}
	if has["nvmlDeviceGetMinorNumber"] {
		if minor, ret := handle.GetMinorNumber(); ret == nvml.SUCCESS && minor <= mostMinor {
			of.Minor = minor
		}
	}
	if has["nvmlDeviceGetName"] {
		if name, ret := handle.GetName(); ret == nvml.SUCCESS {
			of.Model = clean(name)
		}
	}
	if has["nvmlDeviceGetPciInfo_v3"] {
		if pci, ret := handle.GetPciInfo(); ret == nvml.SUCCESS {
			of.PCI = pciAddress(pci)
			of.NUMANode = numaNode(sysRoot, of.PCI)
		}
	}
	// The rest is best effort too, and what fails now stays unknown until the next
	// Init: a device that changed under its holder would be offered anew.
	of.MemoryBytes = totalMemory(handle, has)
	of.Facts = append(ownFacts(handle, has), d.facts...)
	g.device = of
	return g, nil
}

// pciAddress is written as sysfs writes it.
func pciAddress(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}

// at is the device as it is listed now, its index may change while it is known, with
// the nodes that are its own.
func (g *gpu) at(index int) device.Device {
	d := g.device
	d.Index, d.MIG = index, g.parts.Load().mig
	if d.Minor >= 0 {
		d.Nodes = []string{"/dev/nvidia" + strconv.Itoa(d.Minor)}
	}
	return d
}

// clean makes valid UTF-8 of what the driver says: kubelet and Prometheus refuse
// anything else.
func clean(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

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
