package churn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
)

// modelNode is a simulated node with a correct kubelet. A distortion changes the snapshots of podgauge.
type modelNode struct {
	distort distortion
	mu      sync.Mutex
	owners  map[string]ContainerKey // guarded by mu, like all fields below
	// kubeletDown is true without a kubelet; for 100 ms after kubeletUpAt the lists are incomplete.
	kubeletDown    bool
	kubeletUpAt    time.Time
	knownOwners    map[string]ContainerKey // by podgauge
	energyByDevice map[string]*energyAttribution
	snapshotCount  int
}

// distortion changes distortedGPU in snapshot number n. The GPU has used joules so far.
type distortion func(n int, joules float64, d *ShownDevice)

var distortedGPU = gpuID(3)

type energyAttribution struct {
	counter float64
	owner   ContainerKey
	sums    map[ContainerKey]float64
}

const (
	gpus            = 8
	joulesPerSecond = 100 // of GPU 0; GPU n uses n+1 times as much
)

// unnamedOwner is the owner of a device between Allocate and the next list.
var unnamedOwner = ContainerKey{Pod: "unnamed"}

func newModelNode(d distortion) *modelNode {
	return &modelNode{distort: d, owners: map[string]ContainerKey{}, knownOwners: map[string]ContainerKey{}, energyByDevice: map[string]*energyAttribution{}}
}

func gpuID(i int) string { return fmt.Sprintf("GPU-%d", i) }

func energyAt(device string, at time.Time) float64 {
	var i int
	fmt.Sscanf(device, "GPU-%d", &i)
	return float64(i+1) * joulesPerSecond * at.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Seconds()
}

func (m *modelNode) PodName(name string) string { return name + "-node" }

func (m *modelNode) CreatePod(_ context.Context, name string, count int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var unallocated []string
	for i := range gpus {
		if _, ok := m.owners[gpuID(i)]; !ok {
			unallocated = append(unallocated, gpuID(i))
		}
	}
	if m.kubeletDown || len(unallocated) < count {
		return errors.New("rejected")
	}
	for _, id := range unallocated[:count] {
		m.owners[id] = ContainerKey{PodNamespace, m.PodName(name), ContainerName}
		m.knownOwners[id] = unnamedOwner // from Allocate
	}
	return nil
}

func (m *modelNode) DeletePod(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.owners, func(_ string, o ContainerKey) bool { return o.Pod == m.PodName(name) })
	return nil
}

func (m *modelNode) RestartKubelet(ctx context.Context, _ int, wait time.Duration) error {
	m.mu.Lock()
	m.kubeletDown = true
	m.mu.Unlock()
	err := retry.Sleep(ctx, wait)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kubeletDown, m.kubeletUpAt = false, time.Now()
	return err
}

func (m *modelNode) ListAllocations(context.Context) (KubeletListing, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	a := KubeletListing{Span: Span{now, now}}
	if !m.kubeletDown && now.Sub(m.kubeletUpAt) >= 100*time.Millisecond {
		a.Complete = true
		for id, o := range m.owners {
			a.Allocated = append(a.Allocated, DeviceOwner{id, o})
		}
	}
	return a, nil
}

func (m *modelNode) Scrape(ctx context.Context) (MetricsSnapshot, error) {
	a, err := m.ListAllocations(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.Complete { // otherwise keep the last owners
		m.knownOwners = maps.Clone(m.owners)
	}
	m.snapshotCount++
	s := MetricsSnapshot{Span: a.Span, KubeletUp: !m.kubeletDown, Devices: map[string]ShownDevice{}}
	for i := range gpus {
		id := gpuID(i)
		d := ShownDevice{State: StateIdle, Owner: m.knownOwners[id], HasEnergy: true}
		switch d.Owner {
		case ContainerKey{}:
		case unnamedOwner:
			d.State, d.Owner = StateUnnamed, ContainerKey{}
		default:
			d.State, d.Owners = StateNamed, []ContainerKey{d.Owner}
		}
		d.EnergyOwner, d.AttributedJoules = d.Owner, m.attribute(id, d.Owner, a.From)
		if m.distort != nil && id == distortedGPU {
			m.distort(m.snapshotCount, energyAt(id, a.From), &d)
		}
		s.Devices[id] = d
	}
	return s, err
}

func (m *modelNode) attribute(id string, owner ContainerKey, at time.Time) float64 {
	raw := energyAt(id, at)
	a := m.energyByDevice[id]
	if a == nil {
		a = &energyAttribution{raw, owner, map[ContainerKey]float64{}}
		m.energyByDevice[id] = a
	}
	a.sums[a.owner] += raw - a.counter
	a.counter, a.owner = raw, owner
	return a.sums[owner]
}
