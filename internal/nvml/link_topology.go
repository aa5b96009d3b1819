package nvml

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// linkLockTimeout is the time for locking a GPU. A reading takes milliseconds;
// a longer call may take for ever.
const linkLockTimeout = time.Second

// topologyPaths are the common ancestors of two GPUs as distances.
var topologyPaths = map[nvml.GpuTopologyLevel]device.Path{
	nvml.TOPOLOGY_INTERNAL:   device.PathSameBoard,
	nvml.TOPOLOGY_SINGLE:     device.PathSingleSwitch,
	nvml.TOPOLOGY_MULTIPLE:   device.PathMultipleSwitches,
	nvml.TOPOLOGY_HOSTBRIDGE: device.PathHostBridge,
	nvml.TOPOLOGY_NODE:       device.PathNUMANode,
	nvml.TOPOLOGY_SYSTEM:     device.PathSystem,
}

// Links returns the connections of all GPUs in the newest listing, with two
// calls for each link and one for each pair. GPUs without an answer are missing
// as A, and the error names them.
func (b *Backend) Links(ctx context.Context) ([]device.Link, error) {
	inv := b.inventory.Load()
	if inv == nil {
		return nil, device.ErrNoDriver
	}
	found := map[*gpu]*gpuLinks{}
	var answered []*gpu
	var errs []string
	for _, g := range inv.gpus {
		links, ok := inv.readLinksWithTimeout(ctx, g, answered)
		if !ok {
			links = &gpuLinks{lost: true, errs: []string{"it does not respond"}}
		}
		for _, text := range links.errs {
			errs = append(errs, fmt.Sprintf("%s: %s", g.ID, text))
		}
		if !links.lost {
			found[g], answered = links, append(answered, g)
		}
	}
	if err := ctx.Err(); err != nil { // the rest of a partial result would look unknown
		return nil, fmt.Errorf("read links: %w", err)
	}
	return inv.joinLinks(found), joinErrors(errs)
}

// gpuLinks are a GPU's active NVLinks by their other ends, and the paths to
// some GPUs.
type gpuLinks struct {
	switches int            // to NVSwitches
	gpus     map[string]int // by PCI address
	paths    map[*gpu]device.Path
	lost     bool
	errs     []string
}

// readLinksWithTimeout waits for other calls about the GPU, so that at most one
// call hangs.
func (inv *inventory) readLinksWithTimeout(ctx context.Context, g *gpu, others []*gpu) (links *gpuLinks, ok bool) {
	if !g.lockUntil(ctx, time.Now().Add(linkLockTimeout)) {
		return nil, false
	}
	return lib.CallWithTimeout(inv.pendingCalls, newGPUTimeout, func() *gpuLinks {
		defer g.Mu.Unlock()
		links := &gpuLinks{gpus: map[string]int{}, paths: map[*gpu]device.Path{}}
		if inv.Symbols["nvmlDeviceGetNvLinkState"] && inv.Symbols["nvmlDeviceGetNvLinkRemotePciInfo_v2"] {
			links.readNVLinks(g, inv.Symbols["nvmlDeviceGetNvLinkRemoteDeviceType"])
		}
		if inv.Symbols["nvmlDeviceGetTopologyCommonAncestor"] && !links.lost {
			links.readPaths(ctx, g, others)
		}
		return links
	}, nil)
}

// readNVLinks counts active links. An older library does not distinguish
// switches.
func (l *gpuLinks) readNVLinks(g *gpu, hasTypes bool) {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := g.Handle.GetNvLinkState(link)
		if lib.IsNotSupported(ret) { // neither this link nor a later one exists
			return
		}
		if ret == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			ret = l.count(g, link, hasTypes)
		}
		if ret != nvml.SUCCESS && !lib.IsNotSupported(ret) {
			l.errs = append(l.errs, fmt.Sprintf("NVLink %d: %v", link, lib.Error(ret)))
		}
		if l.lost = lib.IsFinal(ret); l.lost {
			return
		}
	}
}

func (l *gpuLinks) count(g *gpu, link int, hasTypes bool) nvml.Return {
	if hasTypes {
		kind, ret := g.Handle.GetNvLinkRemoteDeviceType(link)
		if ret != nvml.SUCCESS {
			return ret
		}
		if kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
			l.switches++
			return ret
		}
	}
	far, ret := g.Handle.GetNvLinkRemotePciInfo(link)
	if ret == nvml.SUCCESS {
		l.gpus[pciAddress(far)]++
	}
	return ret
}

// readPaths reads the common ancestors of the GPU and others. A call locks both
// GPUs, since either may hang: no later GPU is asked about them.
func (l *gpuLinks) readPaths(ctx context.Context, g *gpu, others []*gpu) {
	for _, o := range others {
		if !o.lockUntil(ctx, time.Now().Add(linkLockTimeout)) {
			o.Responsive.Store(false)
			l.errs = append(l.errs, fmt.Sprintf("path to %s: it does not respond", o.ID))
			continue
		}
		level, ret := g.Handle.GetTopologyCommonAncestor(o.Handle)
		o.Mu.Unlock()
		switch {
		case ret == nvml.SUCCESS:
			l.paths[o] = topologyPaths[level]
		case !lib.IsNotSupported(ret):
			l.errs = append(l.errs, fmt.Sprintf("path to %s: %v", o.ID, lib.Error(ret)))
		}
	}
}

// joinLinks returns all pairs from the view of the found GPUs. Through switches
// a GPU reaches each other connected GPU over all its links.
func (inv *inventory) joinLinks(found map[*gpu]*gpuLinks) []device.Link {
	links := []device.Link{}
	for _, g := range inv.gpus {
		from := found[g]
		for _, o := range inv.gpus {
			if g == o || from == nil {
				continue
			}
			link := device.Link{A: g.ID, B: o.ID, NVLinks: from.gpus[o.device.PCI], Path: from.paths[o]}
			if to := found[o]; to != nil {
				link.Path = cmp.Or(link.Path, to.paths[g])
				if link.NVLinks == 0 && to.switches > 0 {
					link.NVLinks = from.switches
				}
			}
			links = append(links, link)
		}
	}
	return links
}
