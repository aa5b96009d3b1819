package nvml

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/retry"
)

// linkLockTimeout is the time for locking a GPU. A reading takes milliseconds; a longer call may take for ever.
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

// Links returns the connections of all GPUs in the newest listing, with two calls for each link and one for each pair. GPUs without an
// answer are missing as A, and the error names them.
func (b *Backend) Links(ctx context.Context) ([]device.Link, error) {
	inv := b.inventory.Load()
	if inv == nil {
		return nil, device.ErrNoDriver
	}
	topology := linkTopology{
		inventory: inv, directLinks: map[[2]*gpu]int{}, switchLinks: map[*gpu]int{}, paths: map[[2]*gpu]device.Path{}, unresponsive: map[*gpu]bool{},
	}
	for _, g := range inv.gpus {
		topology.readLinks(ctx, g)
	}
	for i, g := range inv.gpus {
		for _, o := range inv.gpus[i+1:] {
			topology.readPath(ctx, g, o)
		}
	}
	if err := ctx.Err(); err != nil { // the rest of a partial result would look unknown
		return nil, fmt.Errorf("read links: %w", err)
	}
	return topology.links(), joinErrors(topology.errs)
}

// linkTopology collects the connections.
type linkTopology struct {
	*inventory
	directLinks  map[[2]*gpu]int // from the first GPU to the second
	switchLinks  map[*gpu]int    // to NVSwitches
	paths        map[[2]*gpu]device.Path
	unresponsive map[*gpu]bool // not asked again
	errs         []string
}

// readLinks reads the ends of a GPU's NVLinks.
func (lt *linkTopology) readLinks(ctx context.Context, g *gpu) {
	if !lt.Symbols["nvmlDeviceGetNvLinkState"] || !lt.Symbols["nvmlDeviceGetNvLinkRemotePciInfo_v2"] {
		return
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		if !lt.lockGPU(ctx, g) {
			return
		}
		end, ok := lib.CallWithTimeout(lt.pendingCalls, newGPUTimeout, func() linkEnd {
			defer g.Unlock()
			return lt.linkEndOf(g, link)
		}, nil)
		if !ok {
			lt.giveUp(g)
		}
		if !ok || end.last {
			return
		}
		lt.countLink(g, end)
		if end.ret != nvml.SUCCESS && !lib.IsNotSupported(end.ret) {
			lt.addError(g, fmt.Sprintf("NVLink %d: %v", link, lib.Error(end.ret)))
			if lib.IsFinal(end.ret) {
				lt.unresponsive[g] = true
				return
			}
		}
	}
}

// linkEnd is the end of a link. The zero value is a link without an end, since the link is down.
type linkEnd struct {
	ret      nvml.Return
	last     bool // neither this link nor a later one exists
	switched bool
	pci      string // empty: unknown
}

func (inv *inventory) linkEndOf(g *gpu, link int) (end linkEnd) {
	var state nvml.EnableState
	state, end.ret = g.Handle.GetNvLinkState(link)
	if end.last = lib.IsNotSupported(end.ret); end.ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
		return end
	}
	if inv.Symbols["nvmlDeviceGetNvLinkRemoteDeviceType"] {
		var kind nvml.IntNvLinkDeviceType
		kind, end.ret = g.Handle.GetNvLinkRemoteDeviceType(link)
		end.switched = end.ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
		if end.ret != nvml.SUCCESS || end.switched {
			return end
		}
	}
	var far nvml.PciInfo
	if far, end.ret = g.Handle.GetNvLinkRemotePciInfo(link); end.ret == nvml.SUCCESS {
		end.pci = pciAddress(far)
	}
	return end
}

// countLink counts a link to a switch or to a listed GPU.
func (lt *linkTopology) countLink(g *gpu, end linkEnd) {
	if end.switched {
		lt.switchLinks[g]++
	}
	for _, o := range lt.gpus {
		if o != g && end.pci != "" && o.device.PCI == end.pci {
			lt.directLinks[[2]*gpu{g, o}]++
		}
	}
}

// readPath reads the common ancestor of a pair.
func (lt *linkTopology) readPath(ctx context.Context, g, o *gpu) {
	if !lt.Symbols["nvmlDeviceGetTopologyCommonAncestor"] || !lt.lockGPU(ctx, g) {
		return
	}
	if !lt.lockGPU(ctx, o) {
		g.Unlock()
		return
	}
	type common struct {
		level nvml.GpuTopologyLevel
		ret   nvml.Return
	}
	c, ok := lib.CallWithTimeout(lt.pendingCalls, newGPUTimeout, func() (c common) {
		defer g.Unlock()
		defer o.Unlock()
		c.level, c.ret = g.Handle.GetTopologyCommonAncestor(o.Handle)
		return c
	}, nil)
	switch {
	case !ok:
		lt.giveUp(g)
		lt.giveUp(o)
	case lib.IsNotSupported(c.ret):
	case c.ret != nvml.SUCCESS:
		lt.addError(g, fmt.Sprintf("path to %s: %v", o.ID, lib.Error(c.ret)))
	default:
		lt.paths[[2]*gpu{g, o}], lt.paths[[2]*gpu{o, g}] = topologyPaths[c.level], topologyPaths[c.level]
	}
}

func (lt *linkTopology) giveUp(g *gpu) {
	lt.unresponsive[g] = true
	lt.addError(g, "it does not answer")
}

// lockGPU waits for other calls about the GPU, so that at most one hangs. An unresponsive GPU is given up.
func (lt *linkTopology) lockGPU(ctx context.Context, g *gpu) bool {
	if lt.unresponsive[g] {
		return false
	}
	for deadline := time.Now().Add(linkLockTimeout); ctx.Err() == nil && g.Responsive() && time.Now().Before(deadline); {
		if g.TryLock() {
			return true
		}
		_ = retry.Sleep(ctx, time.Millisecond)
	}
	if ctx.Err() == nil {
		lt.giveUp(g)
	}
	return false
}

func (lt *linkTopology) addError(g *gpu, text string) {
	lt.errs = append(lt.errs, fmt.Sprintf("%s: %s", g.ID, text))
}

// links returns all pairs from the view of the responsive GPUs. Through switches a GPU reaches each other connected GPU over all its links.
func (lt *linkTopology) links() []device.Link {
	links := []device.Link{}
	for _, g := range lt.gpus {
		for _, o := range lt.gpus {
			if g == o || lt.unresponsive[g] {
				continue
			}
			pair := [2]*gpu{g, o}
			n := lt.directLinks[pair]
			if n == 0 && lt.switchLinks[o] > 0 {
				n = lt.switchLinks[g]
			}
			links = append(links, device.Link{A: g.ID, B: o.ID, NVLinks: n, Path: lt.paths[pair]})
		}
	}
	return links
}
