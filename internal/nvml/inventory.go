package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

const maxGPUs = 1024 // above any machine

// Devices lists the GPUs in the driver's order, each before its MIG devices.
// Facts of a GPU are kept until the next Init: a listing without news makes one
// call, another with confidential computing, two for each GPU, one for each
// possible MIG device and four for each present one. A known GPU stays listed
// while its calls fail: Check finds the reason.
func (b *Backend) Devices(ctx context.Context) ([]device.Device, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.ensureInitialized(); err != nil {
		return nil, err
	}
	b.updateReadiness()
	count, ret := b.session.NVML.DeviceGetCount()
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_UNINITIALIZED: // the driver has forgotten this process: all handles are invalid
		b.driverRestarted = true
		return nil, b.endSession(lib.Error(ret))
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return nil, b.endSession(b.versionMismatch())
	default:
		return nil, fmt.Errorf("count GPUs: %w", lib.Error(ret))
	}
	old := b.inventory.Load() // nil after an Init: older handles are invalid
	if old == nil {
		old = &inventory{}
	}
	next := &inventory{
		nvmlSession: b.session, byID: map[device.GPU]*gpu{}, byHandle: map[nvml.Device]*gpu{},
		byIndex: map[int]*gpu{},
	}
	l := deviceListing{Backend: b, old: old, next: next, devices: []device.Device{}}
	count = min(count, maxGPUs)
	found := l.probeAll(ctx, count)
	if err := ctx.Err(); err != nil { // a partial listing would drop the rest
		return nil, fmt.Errorf("list GPUs: %w", err)
	}
	l.assemble(found, count)
	b.inventory.Store(l.next)
	b.freeDelisted(old)
	b.histories.KeepLinks(func(id device.GPU) bool { return next.byID[id] != nil })
	if len(l.devices) == 0 && count > 0 && !l.explained { // a fault of the driver, rather than of each GPU
		l.devices = nil
	}
	return l.devices, joinErrors(l.errs)
}

// updateReadiness asks whether the GPUs accept work. With confidential
// computing they do not before their attestation.
func (b *Backend) updateReadiness() {
	library := b.Library()
	library.NotReady = false
	if sess := b.session; sess.confidential {
		state, ok := lib.Ask(sess.Symbols, "nvmlSystemGetConfComputeGpusReadyState",
			sess.NVML.SystemGetConfComputeGpusReadyState)
		library.NotReady = ok && state == nvml.CC_ACCEPTING_CLIENT_REQUESTS_FALSE
	}
	b.library.Store(&library)
}

func (b *Backend) endSession(reason error) error {
	b.inventory.Store(nil)
	b.session = nil
	return fmt.Errorf("%w: count GPUs: %w", device.ErrNoDriver, reason)
}

// freeDelisted frees the samples of GPUs beyond the newest listing, after the
// calls under way.
func (b *Backend) freeDelisted(old *inventory) {
	session := b.session.Session
	for _, g := range old.gpus {
		if b.inventory.Load().byID[g.ID] != g {
			b.pendingCalls.Start(func() {
				g.Mu.Lock()
				defer g.Mu.Unlock()
				g.FreeSamples(session)
			})
		}
	}
}

// assemble builds the listing. An index without a handle can be assigned only
// with the handles of all others: indices move up after the loss of a GPU.
func (l *deviceListing) assemble(found map[int]probeResult, count int) {
	placed := map[*gpu]bool{}
	for i, result := range found {
		if known := l.old.byHandle[result.handle]; known != nil { // a long probe may have missed a listing
			result.gpu, result.isNew = known, false
			found[i] = result
		}
		placed[result.gpu] = true
	}
	nodes := sharedNodes(l.options.DevRoot)
	// absent without MIG
	migMinors, _ := os.ReadFile(filepath.Join(l.options.ProcRoot, "driver/nvidia-caps/mig-minors"))
	for i := range count {
		result, answered := found[i]
		if !answered {
			result.err = errors.New("it does not respond")
		}
		if g := l.old.byIndex[i]; result.handle == nil && g != nil && !placed[g] {
			result = probeResult{gpu: g} // Check will find the reason
		}
		if result.err == nil && l.next.byID[result.gpu.ID] != nil {
			result.err = fmt.Errorf("%s was listed before", result.gpu.ID)
		}
		if result.err != nil {
			l.explained = l.explained || !answered || errors.Is(result.err, device.ErrLost) ||
				errors.As(result.err, new(*device.Fault))
			l.errs = append(l.errs, fmt.Sprintf("GPU at index %d: %v", i, result.err))
			continue
		}
		g := result.gpu
		if result.mig != nil {
			g.MIG.Store(result.mig)
			g.probedAt.Store(new(time.Now()))
		}
		for _, err := range result.migErrs {
			l.errs = append(l.errs, fmt.Sprintf("%s: %s", g.ID, err))
		}
		l.next.gpus = append(l.next.gpus, g)
		l.next.byID[g.ID], l.next.byHandle[g.Handle], l.next.byIndex[i] = g, g, g
		l.appendDevices(g, i, nodes, string(migMinors))
	}
}

// appendDevices lists a GPU before the MIG devices. A GPU joins its NVLink domain
// after Init, so the domain is not among the constant facts.
func (l *deviceListing) appendDevices(g *gpu, index int, sharedNodes []string, migMinors string) {
	var node []string
	if g.device.Minor >= 0 {
		node = []string{"/dev/nvidia" + strconv.Itoa(g.device.Minor)}
	}
	d, mig := g.device, g.MIG.Load()
	d.Index, d.MIGEnabled = index, mig.Enabled
	d.DeviceNodes = slices.Concat(node, sharedNodes)
	domain := [2]string{}
	if known := g.FabricDomain.Load(); known != nil {
		domain = *known
	}
	d.InfoLabels = append(slices.Clip(d.InfoLabels),
		device.Label{Name: "cluster_uuid", Value: domain[0]}, device.Label{Name: "clique_id", Value: domain[1]})
	l.devices = append(l.devices, d)
	for _, m := range mig.Devices {
		d := asDevice(m, d, mig.MaxDevices)
		d.DeviceNodes = slices.Concat(node, capNodes(migMinors, d), sharedNodes)
		l.devices = append(l.devices, d)
	}
}

// sharedNodes returns the present device nodes of all GPUs. The driver creates
// them on first use, so each listing looks again.
func sharedNodes(devRoot string) []string {
	var nodes []string
	for _, name := range [...]string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"} {
		if _, err := os.Stat(filepath.Join(devRoot, "dev", name)); err == nil {
			nodes = append(nodes, "/dev/"+name)
		}
	}
	return nodes
}
