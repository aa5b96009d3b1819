package nvml

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// linkLockTimeout is how long a GPU is waited for that another call is about. A reading
// takes milliseconds, and one that takes longer may take for ever.
const linkLockTimeout = time.Second

// topologyPaths are what two GPUs have in common, as a distance.
var topologyPaths = map[nvml.GpuTopologyLevel]device.Path{
	nvml.TOPOLOGY_INTERNAL:   device.PathSameBoard,
	nvml.TOPOLOGY_SINGLE:     device.PathSingleSwitch,
	nvml.TOPOLOGY_MULTIPLE:   device.PathMultipleSwitches,
	nvml.TOPOLOGY_HOSTBRIDGE: device.PathHostBridge,
	nvml.TOPOLOGY_NODE:       device.PathNUMANode,
	nvml.TOPOLOGY_SYSTEM:     device.PathSystem,
}

// Links asks each GPU of the newest listing where its NVLinks lead, and each pair what
// it has in common: two calls for each link and one for each pair. A GPU that cannot
// be asked, or hangs, is missing as A, and the error names it.
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
	if err := ctx.Err(); err != nil { // half of them would have the rest be unknown
		return nil, fmt.Errorf("read links: %w", err)
	}
	return topology.links(), topology.err()
}

// linkTopology is what was found out about the links.
type linkTopology struct {
	*inventory
	directLinks  map[[2]*gpu]int // from the first to the second
	switchLinks  map[*gpu]int    // from it to NVSwitches
	paths        map[[2]*gpu]device.Path
	unresponsive map[*gpu]bool // it is not asked any more
	errs         []string
}

// readLinks asks a GPU where its links lead.
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

// linkEnd is where a link leads. The zero one leads nowhere, since it is not up.
type linkEnd struct {
	ret      nvml.Return
	last     bool // there is no such link, nor one after it
	switched bool
	pci      string // of what it leads to; empty: unknown
}

// linkEndOf asks for the end of a link.
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

// countLink counts a link. What leads to neither a switch nor a GPU that is listed counts
// for nobody.
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

// readPath asks a pair what it has in common.
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

// lockGPU waits for the GPU's turn, so that two do not hang in it. One that does not come
// back, or is known not to answer, is given up.
func (lt *linkTopology) lockGPU(ctx context.Context, g *gpu) bool {
	if lt.unresponsive[g] {
		return false
	}
	for deadline := time.Now().Add(linkLockTimeout); ctx.Err() == nil && g.Responsive() && time.Now().Before(deadline); {
		if g.TryLock() {
			return true
		}
		sleepUntil(ctx, time.Now().Add(time.Millisecond))
	}
	if ctx.Err() == nil {
		lt.giveUp(g)
	}
	return false
}

func (lt *linkTopology) addError(g *gpu, text string) {
	lt.errs = append(lt.errs, fmt.Sprintf("%s: %s", g.ID, text))
}

// links lists all pairs as those see them that could be asked. Through switches a GPU
// reaches each other that is connected to them, over all its links.
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

func (lt *linkTopology) err() error {
	if len(lt.errs) == 0 {
		return nil
	}
	return errors.New(strings.Join(lt.errs, "; "))
}
