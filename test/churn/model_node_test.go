package churn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// modelNode is a made-up node: its kubelet is honest, and its podgauge as honest as lie has it.
type modelNode struct {
	distortion distortion
	mu         sync.Mutex
	owners     map[string]ContainerKey // guarded by mu, as all below
	// kubeletDown is while there is no kubelet, and back when there was one again: it names nobody
	// for 100 ms.
	kubeletDown    bool
	kubeletUpAt    time.Time
	knownOwners    map[string]ContainerKey // what podgauge knows
	energyByDevice map[string]*energyAttribution
	ownerHistory   []ownerRecord
	snapshotCount  int
}

// distortion distorts a snapshot of the made-up podgauge; n counts its snapshots.
type distortion func(m *modelNode, s *MetricsSnapshot, n int)

// ownerRecord is who held what at a time.
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
	joulesPerSecond = 100 // joules a second of GPU 0; GPU 1 burns twice as much, and so on
)

// unnamedOwner is who has been allocated a device and was not named yet.
var unnamedOwner = ContainerKey{Pod: "unnamed"}

func newModelNode(l distortion) *modelNode {
	return &modelNode{distortion: l, owners: map[string]ContainerKey{}, knownOwners: map[string]ContainerKey{}, energyByDevice: map[string]*energyAttribution{}}
}

func gpuID(i int) string { return fmt.Sprintf("GPU-%d", i) }

func energyAt(device string, at time.Time) float64 {
	var i int
	fmt.Sscanf(device, "GPU-%d", &i)
	return float64(i+1) * joulesPerSecond * at.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Seconds()
}

func (m *modelNode) PodName(name string) string { return name + "-node" }

func (m *modelNode) CreatePod(_ context.Context, name string, wanted int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var free []string
	for i := range gpus {
		if _, held := m.owners[gpuID(i)]; !held {
			free = append(free, gpuID(i))
		}
	}
	if m.kubeletDown || len(free) < wanted {
		return errors.New("turned away")
	}
	for _, id := range free[:wanted] {
		m.owners[id] = ContainerKey{PodNamespace, m.PodName(name), ContainerName}
		m.knownOwners[id] = unnamedOwner // by Allocate
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
	err := sleep(ctx, wait)
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
	if a.Complete { // else the last holders stand
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
	b := m.energyByDevice[id]
	if b == nil {
		b = &energyAttribution{raw, owner, map[ContainerKey]float64{}}
		m.energyByDevice[id] = b
	}
	b.sums[b.owner] += raw - b.counter
	b.counter, b.owner = raw, owner
	return b.sums[owner]
}

// setOwner has a snapshot name another holder of a device, or none.
func (s *MetricsSnapshot) setOwner(id string, o ContainerKey) {
	d := s.Devices[id]
	d.State, d.Owner, d.EnergyOwner, d.Owners = StateNamed, o, o, []ContainerKey{o}
	if o == (ContainerKey{}) {
		d.State, d.Owners = StateIdle, nil
	}
	s.Devices[id] = d
}

// The lies.

// staleOwners shows who held what a second and a half ago.
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

// swappedOwners names the holder of another device once.
func swappedOwners(_ *modelNode, s *MetricsSnapshot, _ int) {
	if a, b := s.Devices[gpuID(0)], s.Devices[gpuID(1)]; a.State == StateNamed && b.State == StateNamed && a.Owner != b.Owner {
		s.setOwner(gpuID(0), b.Owner)
	}
}

// inventedOwner names a container that never was.
func inventedOwner(_ *modelNode, s *MetricsSnapshot, n int) {
	if n == 50 {
		s.setOwner(gpuID(gpus-1), ContainerKey{"default", "nobody", "main"})
	}
}

// stickyOwner goes on naming whoever has gone for two seconds, until somebody else comes.
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

// falselyIdle calls a device idle now and then.
func falselyIdle(_ *modelNode, s *MetricsSnapshot, n int) {
	if n%100 == 0 {
		for id := range s.Devices {
			s.setOwner(id, ContainerKey{})
		}
	}
}

// sometimesUnknown has every 30th snapshot not know who holds a device.
func sometimesUnknown(_ *modelNode, s *MetricsSnapshot, n int) {
	if n%30 == 0 {
		d := s.Devices[gpuID(2)]
		d.State, d.Owner, d.Owners, d.HasEnergy = StateUnknown, ContainerKey{}, nil, false
		s.Devices[gpuID(2)] = d
	}
}

// falselyKubeletDown has the kubelet be down every 30th time.
func falselyKubeletDown(_ *modelNode, s *MetricsSnapshot, n int) {
	s.KubeletUp = s.KubeletUp && n%30 != 0
}

// neverNamed does not say who holds one of the GPUs.
func neverNamed(_ *modelNode, s *MetricsSnapshot, _ int) {
	if d := s.Devices[gpuID(0)]; d.State == StateNamed {
		d.State, d.Owner, d.EnergyOwner, d.Owners = StateUnnamed, ContainerKey{}, ContainerKey{}, nil
		s.Devices[gpuID(0)] = d
	}
}

// inconsistentSeries has one series name the holder, and another nobody.
func inconsistentSeries(_ *modelNode, s *MetricsSnapshot, n int) {
	if d := s.Devices[gpuID(0)]; n > 50 && d.State == StateNamed {
		d.EnergyOwner = ContainerKey{}
		s.Devices[gpuID(0)] = d
	}
}

// lostIdleEnergy forgets what is burned while nobody holds a device.
func lostIdleEnergy(_ *modelNode, s *MetricsSnapshot, _ int) {
	if d := s.Devices[gpuID(3)]; d.EnergyOwner == (ContainerKey{}) {
		d.AttributedJoules = 0
		s.Devices[gpuID(3)] = d
	}
}

// doubleCountedEnergy books on idle time, too, what a pod burned.
func doubleCountedEnergy(_ *modelNode, s *MetricsSnapshot, _ int) {
	d := s.Devices[gpuID(0)]
	if d.State == StateIdle {
		d.AttributedJoules = energyAt(gpuID(0), s.From)
		s.Devices[gpuID(0)] = d
	}
}

// inheritedEnergy has pods pay for what was burned before them: the device's own counter is shown.
func inheritedEnergy(_ *modelNode, s *MetricsSnapshot, _ int) {
	for id, d := range s.Devices {
		d.AttributedJoules = energyAt(id, s.From)
		s.Devices[id] = d
	}
}

// undercountedEnergy lets each pod off a part of what it burned, and books that on idle time.
func undercountedEnergy() distortion {
	spared := map[DeviceOwner]float64{}
	return func(_ *modelNode, s *MetricsSnapshot, _ int) {
		for id, d := range s.Devices {
			if d.State == StateNamed {
				spared[DeviceOwner{id, d.Owner}] = d.AttributedJoules / 2
				d.AttributedJoules /= 2
			} else {
				for l, j := range spared {
					if l.Device == id {
						d.AttributedJoules += j
					}
				}
			}
			s.Devices[id] = d
		}
	}
}

// distortions are all of them, and what has to be said of each.
var distortions = map[string]struct {
	lie  func() distortion
	want string
}{
	"late":      {constantDistortion(staleOwners), "was wrong about a holder"},
	"swapped":   {constantDistortion(swappedOwners), "was wrong about a holder"},
	"stranger":  {constantDistortion(inventedOwner), "1 times a snapshot was wrong about a holder"},
	"sticky":    {stickyOwner, "was wrong about a holder"},
	"idle":      {constantDistortion(falselyIdle), "is said to be idle"},
	"halting":   {constantDistortion(sometimesUnknown), "snapshots outside restarts did not know a holder"},
	"deaf":      {constantDistortion(falselyKubeletDown), "snapshots outside restarts did not know a holder"},
	"shy":       {constantDistortion(neverNamed), "holdings of a second or more were labelled"},
	"torn":      {constantDistortion(inconsistentSeries), "its energy is booked on"},
	"lossy":     {constantDistortion(lostIdleEnergy), "GPU-3 burned"},
	"twofold":   {constantDistortion(doubleCountedEnergy), "GPU-0 burned"},
	"inherited": {constantDistortion(inheritedEnergy), "J are booked on"},
	"generous":  {undercountedEnergy, "J are booked on"},
}

func constantDistortion(l distortion) func() distortion { return func() distortion { return l } }

func sortedDistortions() []string { return slices.Sorted(maps.Keys(distortions)) }
