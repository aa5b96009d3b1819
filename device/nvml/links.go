package nvml

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/device"
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
// be asked is missing as A, and the error names it.
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
		state, ret := g.handle.GetNvLinkState(link)
		last := notHere(ret) // it has no more
		if ret == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			ret = w.followLink(g, link)
		}
		g.turn.Unlock()
		if last {
			return
		}
		if ret != nvml.SUCCESS && !notHere(ret) {
			w.complain(g, fmt.Sprintf("NVLink %d: %v", link, answer(ret)))
			if isFinal(ret) {
				w.silent[g] = true
				return
			}
		}
	}
}

// followLink counts a link that is up. What leads to neither a switch nor a GPU that
// is listed counts for nobody.
func (w *wiring) followLink(g *gpu, link int) nvml.Return {
	if w.has["nvmlDeviceGetNvLinkRemoteDeviceType"] {
		kind, ret := g.handle.GetNvLinkRemoteDeviceType(link)
		if ret != nvml.SUCCESS {
			return ret
		}
		if kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
			w.switched[g]++
			return ret
		}
	}
	far, ret := g.handle.GetNvLinkRemotePciInfo(link)
	if ret != nvml.SUCCESS {
		return ret
	}
	for _, o := range w.gpus {
		if o != g && o.device.PCI != "" && o.device.PCI == pciAddress(far) {
			w.direct[[2]*gpu{g, o}]++
		}
	}
	return ret
}

// compare asks a pair what it has in common.
func (w *wiring) compare(ctx context.Context, g, o *gpu) {
	if !w.has["nvmlDeviceGetTopologyCommonAncestor"] || !w.claim(ctx, g) {
		return
	}
	defer g.turn.Unlock()
	if !w.claim(ctx, o) {
		return
	}
	defer o.turn.Unlock()
	level, ret := g.handle.GetTopologyCommonAncestor(o.handle)
	if ret != nvml.SUCCESS {
		if !notHere(ret) {
			w.complain(g, fmt.Sprintf("path to %s: %v", o.id, answer(ret)))
		}
		return
	}
	w.paths[[2]*gpu{g, o}], w.paths[[2]*gpu{o, g}] = paths[level], paths[level]
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
		w.silent[g] = true
		w.complain(g, "it does not answer")
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
