package nvml

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// freeWithin is how long a GPU is waited for that another call is about. A reading
// takes milliseconds, and one that takes longer may take for ever.
const freeWithin = time.Second

// paths are what two GPUs have in common, as a distance.
var paths = map[nvml.GpuTopologyLevel]device.Path{
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
	t := b.table.Load()
	if t == nil {
		return nil, device.ErrNoDriver
	}
	w := wiring{
		table: t, direct: map[[2]*gpu]int{}, switched: map[*gpu]int{}, paths: map[[2]*gpu]device.Path{}, silent: map[*gpu]bool{},
	}
	for _, g := range t.gpus {
		w.follow(ctx, g)
	}
	for i, g := range t.gpus {
		for _, o := range t.gpus[i+1:] {
			w.compare(ctx, g, o)
		}
	}
	if err := ctx.Err(); err != nil { // half of them would have the rest be unknown
		return nil, fmt.Errorf("read links: %w", err)
	}
	return w.links(), w.err()
}

// wiring is what was found out about the links.
type wiring struct {
	*table
	direct   map[[2]*gpu]int // from the first to the second
	switched map[*gpu]int    // from it to NVSwitches
	paths    map[[2]*gpu]device.Path
	silent   map[*gpu]bool // it is not asked any more
	errs     []string
}

// follow asks a GPU where its links lead.
func (w *wiring) follow(ctx context.Context, g *gpu) {
	if !w.has["nvmlDeviceGetNvLinkState"] || !w.has["nvmlDeviceGetNvLinkRemotePciInfo_v2"] {
		return
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		if !w.claim(ctx, g) {
			return
		}
		end, ok := inTime(w.asking, newGPUBy, func() linkEnd {
			defer g.turn.Unlock()
			return w.endOf(g, link)
		}, nil)
		if !ok {
			w.giveUp(g)
		}
		if !ok || end.last {
			return
		}
		w.count(g, end)
		if end.ret != nvml.SUCCESS && !notHere(end.ret) {
			w.complain(g, fmt.Sprintf("NVLink %d: %v", link, answer(end.ret)))
			if isFinal(end.ret) {
				w.silent[g] = true
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

// endOf asks for the end of a link.
func (t *table) endOf(g *gpu, link int) (end linkEnd) {
	var state nvml.EnableState
	state, end.ret = g.handle.GetNvLinkState(link)
	if end.last = notHere(end.ret); end.ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
		return end
	}
	if t.has["nvmlDeviceGetNvLinkRemoteDeviceType"] {
		var kind nvml.IntNvLinkDeviceType
		kind, end.ret = g.handle.GetNvLinkRemoteDeviceType(link)
		end.switched = end.ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
		if end.ret != nvml.SUCCESS || end.switched {
			return end
		}
	}
	var far nvml.PciInfo
	if far, end.ret = g.handle.GetNvLinkRemotePciInfo(link); end.ret == nvml.SUCCESS {
		end.pci = pciAddress(far)
	}
	return end
}

// count counts a link. What leads to neither a switch nor a GPU that is listed counts
// for nobody.
func (w *wiring) count(g *gpu, end linkEnd) {
	if end.switched {
		w.switched[g]++
	}
	for _, o := range w.gpus {
		if o != g && end.pci != "" && o.device.PCI == end.pci {
			w.direct[[2]*gpu{g, o}]++
		}
	}
}

// compare asks a pair what it has in common.
func (w *wiring) compare(ctx context.Context, g, o *gpu) {
	if !w.has["nvmlDeviceGetTopologyCommonAncestor"] || !w.claim(ctx, g) {
		return
	}
	if !w.claim(ctx, o) {
		g.turn.Unlock()
		return
	}
	type common struct {
		level nvml.GpuTopologyLevel
		ret   nvml.Return
	}
	c, ok := inTime(w.asking, newGPUBy, func() (c common) {
		defer g.turn.Unlock()
		defer o.turn.Unlock()
		c.level, c.ret = g.handle.GetTopologyCommonAncestor(o.handle)
		return c
	}, nil)
	switch {
	case !ok:
		w.giveUp(g)
		w.giveUp(o)
	case notHere(c.ret):
	case c.ret != nvml.SUCCESS:
		w.complain(g, fmt.Sprintf("path to %s: %v", o.id, answer(c.ret)))
	default:
		w.paths[[2]*gpu{g, o}], w.paths[[2]*gpu{o, g}] = paths[c.level], paths[c.level]
	}
}

func (w *wiring) giveUp(g *gpu) {
	w.silent[g] = true
	w.complain(g, "it does not answer")
}

// claim waits for the GPU's turn, so that two do not hang in it. One that does not come
// back, or is known not to answer, is given up.
func (w *wiring) claim(ctx context.Context, g *gpu) bool {
	if w.silent[g] {
		return false
	}
	for end := time.Now().Add(freeWithin); ctx.Err() == nil && g.answering.Load() && time.Now().Before(end); {
		if g.turn.TryLock() {
			return true
		}
		rest(ctx, time.Now().Add(time.Millisecond))
	}
	if ctx.Err() == nil {
		w.giveUp(g)
	}
	return false
}

func (w *wiring) complain(g *gpu, what string) {
	w.errs = append(w.errs, fmt.Sprintf("%s: %s", g.id, what))
}

// links lists all pairs as those see them that could be asked. Through switches a GPU
// reaches each other that is connected to them, over all its links.
func (w *wiring) links() []device.Link {
	links := []device.Link{}
	for _, g := range w.gpus {
		for _, o := range w.gpus {
			if g == o || w.silent[g] {
				continue
			}
			pair := [2]*gpu{g, o}
			n := w.direct[pair]
			if n == 0 && w.switched[o] > 0 {
				n = w.switched[g]
			}
			links = append(links, device.Link{A: g.id, B: o.id, NVLinks: n, Path: w.paths[pair]})
		}
	}
	return links
}

func (w *wiring) err() error {
	if len(w.errs) == 0 {
		return nil
	}
	return errors.New(strings.Join(w.errs, "; "))
}
