package churn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

var testPlan = Plan{
	Transitions: 400, KubeletRestarts: 5, ListInterval: 25 * time.Millisecond, ScrapeInterval: 100 * time.Millisecond,
	GPUsPerPod: []int{1, 1, 1, 1, 2, 2}, Seed: 1,
}

// verifyDistorted runs testPlan on a simulated node with a distortion of podgauge's snapshots, and returns the result.
func verifyDistorted(t *testing.T, d distortion) (v VerifyResult) {
	bubble.Test(t, func(t *testing.T) {
		record, snapshots, err := Run(t.Context(), newModelNode(d), testPlan)
		require.NoError(t, err)
		now := time.Now()
		v = Verify(GroundTruth{Allocations: record.Allocations(now), Outages: record.Outages(now), EnergyAt: energyAt}, snapshots)
	})
	return v
}

func TestCorrectNodePasses(t *testing.T) {
	v := verifyDistorted(t, nil)
	expect.NoError(t, v.Err())
	for _, f := range v.Measurements() {
		t.Logf("%s: %s", f.Name, f.Value)
	}
	if v.Transitions < testPlan.Transitions || v.Restarts != testPlan.KubeletRestarts || v.Snapshots < 300 || v.DuringRestarts == 0 || v.LongAllocations < 100 || v.Labelled != v.LongAllocations || len(v.Unknown) != 0 {
		t.Errorf("result does not match the plan: %+v", v.Measurements())
	}
}

// TestDistortions checks the limits of a whole run. TestTolerances has the wrong owners.
func TestDistortions(t *testing.T) {
	for want, distort := range map[string]distortion{
		"snapshots outside restarts have an unknown owner": func(n int, _ float64, d *ShownDevice) {
			if n%30 == 0 {
				*d = ShownDevice{State: StateUnknown}
			}
		},
		"allocations of a second or more are labeled": func(_ int, _ float64, d *ShownDevice) {
			if d.State == StateNamed {
				*d = ShownDevice{State: StateUnnamed, HasEnergy: true, AttributedJoules: d.AttributedJoules}
			}
		},
		"but energy of": func(_ int, _ float64, d *ShownDevice) {
			if d.State == StateNamed {
				d.EnergyOwner = ContainerKey{}
			}
		},
		"GPU-3 used": func(_ int, _ float64, d *ShownDevice) { // the energy of the idle time is lost
			if d.State == StateIdle {
				d.AttributedJoules = 0
			}
		},
		"J are attributed to": func(_ int, joules float64, d *ShownDevice) { d.AttributedJoules = joules },
	} {
		if err := verifyDistorted(t, distort).Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

func snapshotOf(start float64, up bool, d ShownDevice) MetricsSnapshot {
	return MetricsSnapshot{Span: testSpan(start, start+.1), KubeletUp: up, Devices: map[string]ShownDevice{"a": d}}
}

func ownedBy(pods ...string) ShownDevice {
	d := ShownDevice{State: StateUnnamed}
	for _, p := range pods {
		d.Owners = append(d.Owners, containerKey(p))
	}
	if len(pods) == 1 {
		d.State, d.Owner = StateNamed, containerKey(pods[0])
	}
	return d
}

// TestTolerances checks values inside and outside the limit of each tolerance.
func TestTolerances(t *testing.T) {
	period := func(pod string, start, end Span) AllocationPeriod {
		return AllocationPeriod{Device: "a", Container: containerKey(pod), Start: start, End: end, Created: start.From}
	}
	one := period("one", testSpan(1, 2), testSpan(10, 11))
	outage := []Span{testSpan(10, 20)}
	before, after := snapshotOf(9, true, ownedBy("one")), snapshotOf(21, true, ShownDevice{State: StateIdle})
	cases := map[string]struct {
		allocations                []AllocationPeriod
		outages                    []Span
		snapshots                  []MetricsSnapshot
		wrong, unknown             int
		stale, unnamed, inRestarts int
	}{
		"a label is right from the earliest start":     {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(1, true, ownedBy("one"))}},
		"a label is wrong before":                      {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(.5, true, ownedBy("one"))}, wrong: 1},
		"a label is right until the latest end":        {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(11, true, ownedBy("one"))}},
		"a label is wrong after":                       {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(11.1, true, ownedBy("one"))}, wrong: 1},
		"idle is right until the latest start":         {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(2, true, ShownDevice{State: StateIdle})}},
		"idle is wrong after the start":                {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(2.1, true, ShownDevice{State: StateIdle})}, wrong: 1},
		"unnamed is right until the latest start":      {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(1.5, true, ShownDevice{State: StateUnnamed})}},
		"unnamed is unknown after the start":           {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(2.1, true, ShownDevice{State: StateUnnamed})}, unknown: 1},
		"unnamed is unknown for an unallocated device": {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(12, true, ShownDevice{State: StateUnnamed})}, unknown: 1},
		"unknown for a device without series":          {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(5, true, ShownDevice{})}, unknown: 1},
		"unknown if the kubelet is down":               {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(5, false, ownedBy("one"))}, unknown: 1},
		"label of a device that was never allocated":   {allocations: []AllocationPeriod{{Device: "b", Container: containerKey("x"), Start: testSpan(90, 91), End: testSpan(92, 93), Created: testTime(90)}}, snapshots: []MetricsSnapshot{{Span: testSpan(1, 2), KubeletUp: true, Devices: map[string]ShownDevice{"a": ownedBy("one"), "b": {State: StateIdle}}}}, wrong: 1},

		"an owner that ended in an outage may be stale":   {allocations: []AllocationPeriod{one}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(21, true, ownedBy("one")), snapshotOf(80, true, ownedBy("one"))}, stale: 2},
		"stale for a minute at most":                      {allocations: []AllocationPeriod{one}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(21, true, ownedBy("one")), snapshotOf(81.2, true, ownedBy("one"))}, stale: 1, wrong: 1},
		"not stale if ended before the last collection":   {allocations: []AllocationPeriod{period("one", testSpan(1, 2), testSpan(7, 8)), period("two", testSpan(8, 8.2), testSpan(30, 31))}, outages: outage, snapshots: []MetricsSnapshot{snapshotOf(9, true, ownedBy("two")), snapshotOf(21, true, ownedBy("one"))}, wrong: 1},
		"not stale if listed after the outage":            {allocations: []AllocationPeriod{period("one", testSpan(1, 2), testSpan(22, 23))}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(21, true, ownedBy("one")), snapshotOf(24, true, ownedBy("one"))}, wrong: 1},
		"not stale after a new owner":                     {allocations: []AllocationPeriod{one, period("two", testSpan(20, 21), testSpan(30, 31))}, outages: outage, snapshots: []MetricsSnapshot{before, after, snapshotOf(25, true, ownedBy("one"))}, wrong: 1},
		"unknown is right in an outage":                   {allocations: []AllocationPeriod{one}, outages: outage, snapshots: []MetricsSnapshot{snapshotOf(15, false, ownedBy("one"))}, stale: 1, inRestarts: 1},
		"unnamed is right after an outage":                {allocations: []AllocationPeriod{one}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(25, true, ShownDevice{State: StateUnnamed})}, unnamed: 1},
		"unnamed for seconds after an outage at most":     {allocations: []AllocationPeriod{one}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(32, true, ShownDevice{State: StateUnnamed})}, unknown: 1},
		"unnamed is unknown if allocated after an outage": {allocations: []AllocationPeriod{period("one", testSpan(1, 2), testSpan(40, 41))}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(25, true, ShownDevice{State: StateUnnamed})}, unknown: 1},

		"two owners of a device":                 {allocations: []AllocationPeriod{one, period("two", testSpan(2, 3), testSpan(8, 9))}, snapshots: []MetricsSnapshot{snapshotOf(5, true, ownedBy("one", "two"))}},
		"a wrong second owner":                   {allocations: []AllocationPeriod{one, period("two", testSpan(2, 3), testSpan(8, 9))}, snapshots: []MetricsSnapshot{snapshotOf(5, true, ownedBy("one", "three"))}, wrong: 1},
		"two labels for a device with one owner": {allocations: []AllocationPeriod{one, period("two", testSpan(2, 3), testSpan(8, 9))}, snapshots: []MetricsSnapshot{snapshotOf(5, true, ShownDevice{State: StateNamed, Owner: containerKey("one"), Owners: []ContainerKey{containerKey("one"), containerKey("two")}})}, wrong: 1},
		"a label in some series only":            {allocations: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(5, true, ShownDevice{State: StateUnnamed, Owners: []ContainerKey{containerKey("one")}})}, wrong: 1, unknown: 1},
	}
	for name, c := range cases {
		v := Verify(GroundTruth{c.allocations, c.outages, energyAt}, c.snapshots)
		if len(v.Wrong) != c.wrong || len(v.Unknown) != c.unknown || v.StaleAllowed != c.stale || v.UnnamedAllowed != c.unnamed || v.DuringRestarts != c.inRestarts {
			t.Errorf("%s: got %d wrong, %d unknown, %d stale, %d unnamed, %d in restarts; want %d, %d, %d, %d, %d\n%q %q", name,
				len(v.Wrong), len(v.Unknown), v.StaleAllowed, v.UnnamedAllowed, v.DuringRestarts, c.wrong, c.unknown, c.stale, c.unnamed, c.inRestarts, v.Wrong, v.Unknown)
		}
	}
}

// TestMinimumEnergy checks that a pod has all energy between the first and the last collection during the allocation.
func TestMinimumEnergy(t *testing.T) {
	pod := AllocationPeriod{Device: "a", Container: containerKey("one"), Start: testSpan(1, 2), End: testSpan(10, 11), Created: testTime(1)}
	for joules, wrong := range map[float64]int{190: 0, 189.9: 1} { // 100 W from 3.1 to 5 s
		var snapshots []MetricsSnapshot
		for _, start := range []float64{1.5, 3, 4, 5, 10.5} {
			d := ownedBy("one")
			d.HasEnergy, d.EnergyOwner, d.AttributedJoules = true, d.Owner, joules
			snapshots = append(snapshots, snapshotOf(start, true, d))
		}
		if v := Verify(GroundTruth{Allocations: []AllocationPeriod{pod}, EnergyAt: energyAt}, snapshots); len(v.Misattributed) != wrong {
			t.Errorf("wrong counters with %v J: got %q, want %d", joules, v.Misattributed, wrong)
		}
	}
}

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
