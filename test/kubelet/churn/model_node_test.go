package churn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
)

// modelNode is a simulated node with a correct kubelet. A distortion changes the snapshots of podgauge.
type modelNode struct {
	distortion distortion
	mu         sync.Mutex
	owners     map[string]ContainerKey // guarded by mu, like all fields below
	// kubeletDown is true without a kubelet; for 100 ms after kubeletUpAt the lists are incomplete.
	kubeletDown    bool
	kubeletUpAt    time.Time
	knownOwners    map[string]ContainerKey // by podgauge
	energyByDevice map[string]*energyAttribution
	ownerHistory   []ownerRecord
	snapshotCount  int
}

// distortion changes snapshot number n of podgauge.
type distortion func(m *modelNode, s *MetricsSnapshot, n int)

// ownerRecord has the owners of all devices at a time.
type ownerRecord struct {
	at     time.Time
	owners map[string]ContainerKey
}

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
	return &modelNode{distortion: d, owners: map[string]ContainerKey{}, knownOwners: map[string]ContainerKey{}, energyByDevice: map[string]*energyAttribution{}}
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
	m.recordOwners()
	return nil
}

func (m *modelNode) DeletePod(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.owners, func(_ string, o ContainerKey) bool { return o.Pod == m.PodName(name) })
	m.recordOwners()
	return nil
}

func (m *modelNode) recordOwners() {
	m.ownerHistory = append(m.ownerHistory, ownerRecord{time.Now(), maps.Clone(m.owners)})
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
		s.Devices[id] = d
	}
	if m.snapshotCount++; m.distortion != nil {
		m.distortion(m, &s, m.snapshotCount)
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

// setOwner changes the owner of a device; the zero key makes the device idle.
func (s *MetricsSnapshot) setOwner(id string, o ContainerKey) {
	d := s.Devices[id]
	d.State, d.Owner, d.EnergyOwner, d.Owners = StateNamed, o, o, []ContainerKey{o}
	if o == (ContainerKey{}) {
		d.State, d.Owners = StateIdle, nil
	}
	s.Devices[id] = d
}

// staleOwners reports the owners of 1.5 s ago.
func staleOwners(m *modelNode, s *MetricsSnapshot, _ int) {
	then := map[string]ContainerKey{}
	for _, p := range m.ownerHistory {
		if p.at.Before(s.From.Add(-1500 * time.Millisecond)) {
			then = p.owners
		}
	}
	for id := range s.Devices {
		s.setOwner(id, then[id])
	}
}

// swappedOwners reports the owner of GPU 1 for GPU 0.
func swappedOwners(_ *modelNode, s *MetricsSnapshot, _ int) {
	if a, b := s.Devices[gpuID(0)], s.Devices[gpuID(1)]; a.State == StateNamed && b.State == StateNamed && a.Owner != b.Owner {
		s.setOwner(gpuID(0), b.Owner)
	}
}

// inventedOwner reports a container that never existed, once.
func inventedOwner(_ *modelNode, s *MetricsSnapshot, n int) {
	if n == 50 {
		s.setOwner(gpuID(gpus-1), ContainerKey{"default", "invented", "main"})
	}
}

// stickyOwner reports an ended owner for two seconds, until a new owner replaces it.
func stickyOwner() distortion {
	last, when := map[string]ContainerKey{}, map[string]time.Time{}
	return func(_ *modelNode, s *MetricsSnapshot, _ int) {
		for id, d := range s.Devices {
			if d.State == StateNamed {
				last[id], when[id] = d.Owner, s.From
			} else if d.State == StateIdle && s.From.Sub(when[id]) < 2*time.Second {
				s.setOwner(id, last[id])
			}
		}
	}
}

// falselyIdle reports all devices idle in every 100th snapshot.
func falselyIdle(_ *modelNode, s *MetricsSnapshot, n int) {
	if n%100 == 0 {
		for id := range s.Devices {
			s.setOwner(id, ContainerKey{})
		}
	}
}

// sometimesUnknown reports the owner of GPU 2 as unknown in every 30th snapshot.
func sometimesUnknown(_ *modelNode, s *MetricsSnapshot, n int) {
	if n%30 == 0 {
		d := s.Devices[gpuID(2)]
		d.State, d.Owner, d.Owners, d.HasEnergy = StateUnknown, ContainerKey{}, nil, false
		s.Devices[gpuID(2)] = d
	}
}

// falselyKubeletDown reports the kubelet down in every 30th snapshot.
func falselyKubeletDown(_ *modelNode, s *MetricsSnapshot, n int) {
	s.KubeletUp = s.KubeletUp && n%30 != 0
}

// neverNamed omits the owner of GPU 0.
func neverNamed(_ *modelNode, s *MetricsSnapshot, _ int) {
	if d := s.Devices[gpuID(0)]; d.State == StateNamed {
		d.State, d.Owner, d.EnergyOwner, d.Owners = StateUnnamed, ContainerKey{}, ContainerKey{}, nil
		s.Devices[gpuID(0)] = d
	}
}

// inconsistentSeries omits the owner of GPU 0 in the energy counter only.
func inconsistentSeries(_ *modelNode, s *MetricsSnapshot, n int) {
	if d := s.Devices[gpuID(0)]; n > 50 && d.State == StateNamed {
		d.EnergyOwner = ContainerKey{}
		s.Devices[gpuID(0)] = d
	}
}

// lostIdleEnergy omits the energy of GPU 3 while idle.
func lostIdleEnergy(_ *modelNode, s *MetricsSnapshot, _ int) {
	if d := s.Devices[gpuID(3)]; d.EnergyOwner == (ContainerKey{}) {
		d.AttributedJoules = 0
		s.Devices[gpuID(3)] = d
	}
}

// doubleCountedEnergy attributes the energy of pods to the idle time as well.
func doubleCountedEnergy(_ *modelNode, s *MetricsSnapshot, _ int) {
	d := s.Devices[gpuID(0)]
	if d.State == StateIdle {
		d.AttributedJoules = energyAt(gpuID(0), s.From)
		s.Devices[gpuID(0)] = d
	}
}

// inheritedEnergy attributes all earlier energy of a device to the current pod.
func inheritedEnergy(_ *modelNode, s *MetricsSnapshot, _ int) {
	for id, d := range s.Devices {
		d.AttributedJoules = energyAt(id, s.From)
		s.Devices[id] = d
	}
}

// undercountedEnergy attributes half of each pod's energy to the idle time.
func undercountedEnergy() distortion {
	moved := map[DeviceOwner]float64{}
	return func(_ *modelNode, s *MetricsSnapshot, _ int) {
		for id, d := range s.Devices {
			if d.State == StateNamed {
				moved[DeviceOwner{id, d.Owner}] = d.AttributedJoules / 2
				d.AttributedJoules /= 2
			} else {
				for key, joules := range moved {
					if key.Device == id {
						d.AttributedJoules += joules
					}
				}
			}
			s.Devices[id] = d
		}
	}
}

// distortions has each distortion and a part of the expected error.
var distortions = map[string]struct {
	make func() distortion
	want string
}{
	"stale":               {constantDistortion(staleOwners), "wrong owners in snapshots"},
	"swapped":             {constantDistortion(swappedOwners), "wrong owners in snapshots"},
	"invented":            {constantDistortion(inventedOwner), "1 wrong owners in snapshots"},
	"sticky":              {stickyOwner, "wrong owners in snapshots"},
	"idle":                {constantDistortion(falselyIdle), "is reported idle"},
	"unknown":             {constantDistortion(sometimesUnknown), "snapshots outside restarts have an unknown owner"},
	"down":                {constantDistortion(falselyKubeletDown), "snapshots outside restarts have an unknown owner"},
	"unnamed":             {constantDistortion(neverNamed), "allocations of a second or more are labeled"},
	"inconsistent":        {constantDistortion(inconsistentSeries), "but energy of"},
	"lost idle energy":    {constantDistortion(lostIdleEnergy), "GPU-3 used"},
	"double energy":       {constantDistortion(doubleCountedEnergy), "GPU-0 used"},
	"inherited energy":    {constantDistortion(inheritedEnergy), "J are attributed to"},
	"undercounted energy": {undercountedEnergy, "J are attributed to"},
}

func constantDistortion(d distortion) func() distortion { return func() distortion { return d } }

func sortedDistortions() []string { return slices.Sorted(maps.Keys(distortions)) }
