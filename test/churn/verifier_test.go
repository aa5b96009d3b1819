package churn

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var testPlan = Plan{
	Transitions: 400, KubeletRestarts: 5, ListInterval: 25 * time.Millisecond, ScrapeInterval: 100 * time.Millisecond,
	GPUsPerPod: []int{1, 1, 1, 1, 2, 2}, Seed: 1,
}

// verifyDistorted is the verdict on a podgauge that lies so.
func verifyDistorted(t *testing.T, l distortion) (v VerifyResult) {
	synctest.Test(t, func(t *testing.T) {
		record, snapshots, err := Run(t.Context(), newModelNode(l), testPlan)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		v = Verify(GroundTruth{Allocations: record.Allocations(now), Outages: record.Outages(now), EnergyAt: energyAt}, snapshots)
	})
	return v
}

func TestATruthfulNodePasses(t *testing.T) {
	v := verifyDistorted(t, nil)
	if err := v.Err(); err != nil {
		t.Error(err)
	}
	for _, f := range v.Measurements() {
		t.Logf("%s: %s", f.Name, f.Value)
	}
	if v.Transitions < testPlan.Transitions || v.Restarts != testPlan.KubeletRestarts || v.Snapshots < 300 || v.DuringRestarts == 0 || v.LongAllocations < 100 || v.Labelled != v.LongAllocations || len(v.Unknown) != 0 {
		t.Errorf("the verdict is of another churn: %+v", v.Measurements())
	}
}

func TestEachLieIsFound(t *testing.T) {
	for _, name := range sortedDistortions() {
		t.Run(name, func(t *testing.T) {
			err := verifyDistorted(t, distortions[name].lie()).Err()
			if err == nil || !strings.Contains(err.Error(), distortions[name].want) {
				t.Errorf("the verdict does not say %q: %v", distortions[name].want, err)
			}
		})
	}
}

// snapshotOf is a snapshot of one device.
func snapshotOf(begin float64, up bool, d ShownDevice) MetricsSnapshot {
	return MetricsSnapshot{Span: testSpan(begin, begin+.1), KubeletUp: up, Devices: map[string]ShownDevice{"a": d}}
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

// TestToleranceHasEnds is about what is let pass, and what is not any more.
func TestToleranceHasEnds(t *testing.T) {
	held := func(pod string, since, until Span) AllocationPeriod {
		return AllocationPeriod{Device: "a", Container: containerKey(pod), Start: since, End: until, Created: since.From}
	}
	one := held("one", testSpan(1, 2), testSpan(10, 11))
	outage := []Span{testSpan(10, 20)}
	before, after := snapshotOf(9, true, ownedBy("one")), snapshotOf(21, true, ShownDevice{State: StateIdle})
	cases := map[string]struct {
		holdings               []AllocationPeriod
		outages                []Span
		snapshots              []MetricsSnapshot
		wrong, unknown         int
		stood, cut, inRestarts int
	}{
		"a label is right while the holding may have begun": {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(1, true, ownedBy("one"))}},
		"and wrong before":                                 {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(.5, true, ownedBy("one"))}, wrong: 1},
		"it is right while the holding may last":           {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(11, true, ownedBy("one"))}},
		"and wrong after":                                  {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(11.1, true, ownedBy("one"))}, wrong: 1},
		"idle is right while it may not have begun":        {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(2, true, ShownDevice{State: StateIdle})}},
		"and wrong when it has":                            {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(2.1, true, ShownDevice{State: StateIdle})}, wrong: 1},
		"without a name it is while it may not have begun": {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(1.5, true, ShownDevice{State: StateUnnamed})}},
		"and unknown when it has":                          {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(2.1, true, ShownDevice{State: StateUnnamed})}, unknown: 1},
		"unknown where nobody has it":                      {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(12, true, ShownDevice{State: StateUnnamed})}, unknown: 1},
		"unknown where it is not shown":                    {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(5, true, ShownDevice{})}, unknown: 1},
		"unknown where the kubelet is down":                {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(5, false, ownedBy("one"))}, unknown: 1},
		"a device that nobody ever had":                    {holdings: []AllocationPeriod{{Device: "b", Container: containerKey("x"), Start: testSpan(90, 91), End: testSpan(92, 93), Created: testTime(90)}}, snapshots: []MetricsSnapshot{{Span: testSpan(1, 2), KubeletUp: true, Devices: map[string]ShownDevice{"a": ownedBy("one"), "b": {State: StateIdle}}}}, wrong: 1},

		"who ended in an outage stands":              {holdings: []AllocationPeriod{one}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(21, true, ownedBy("one")), snapshotOf(80, true, ownedBy("one"))}, stood: 2},
		"for a minute":                               {holdings: []AllocationPeriod{one}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(21, true, ownedBy("one")), snapshotOf(81.2, true, ownedBy("one"))}, stood: 1, wrong: 1},
		"not who was gone when podgauge looked last": {holdings: []AllocationPeriod{held("one", testSpan(1, 2), testSpan(7, 8)), held("two", testSpan(8, 8.2), testSpan(30, 31))}, outages: outage, snapshots: []MetricsSnapshot{snapshotOf(9, true, ownedBy("two")), snapshotOf(21, true, ownedBy("one"))}, wrong: 1},
		"nor who was there when it looked first":     {holdings: []AllocationPeriod{held("one", testSpan(1, 2), testSpan(22, 23))}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(21, true, ownedBy("one")), snapshotOf(24, true, ownedBy("one"))}, wrong: 1},
		"nor when another was named":                 {holdings: []AllocationPeriod{one, held("two", testSpan(20, 21), testSpan(30, 31))}, outages: outage, snapshots: []MetricsSnapshot{before, after, snapshotOf(25, true, ownedBy("one"))}, wrong: 1},
		"in an outage it need not be known":          {holdings: []AllocationPeriod{one}, outages: outage, snapshots: []MetricsSnapshot{snapshotOf(15, false, ownedBy("one"))}, stood: 1, inRestarts: 1},
		"after one a device may have no name":        {holdings: []AllocationPeriod{one}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(25, true, ShownDevice{State: StateUnnamed})}, cut: 1},
		"for some seconds":                           {holdings: []AllocationPeriod{one}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(32, true, ShownDevice{State: StateUnnamed})}, unknown: 1},
		"and not where somebody has it":              {holdings: []AllocationPeriod{held("one", testSpan(1, 2), testSpan(40, 41))}, outages: outage, snapshots: []MetricsSnapshot{before, snapshotOf(25, true, ShownDevice{State: StateUnnamed})}, unknown: 1},

		"a device of two is both's":    {holdings: []AllocationPeriod{one, held("two", testSpan(2, 3), testSpan(8, 9))}, snapshots: []MetricsSnapshot{snapshotOf(5, true, ownedBy("one", "two"))}},
		"and not a third one's":        {holdings: []AllocationPeriod{one, held("two", testSpan(2, 3), testSpan(8, 9))}, snapshots: []MetricsSnapshot{snapshotOf(5, true, ownedBy("one", "three"))}, wrong: 1},
		"two names and one holder":     {holdings: []AllocationPeriod{one, held("two", testSpan(2, 3), testSpan(8, 9))}, snapshots: []MetricsSnapshot{snapshotOf(5, true, ShownDevice{State: StateNamed, Owner: containerKey("one"), Owners: []ContainerKey{containerKey("one"), containerKey("two")}})}, wrong: 1},
		"a name that only one row has": {holdings: []AllocationPeriod{one}, snapshots: []MetricsSnapshot{snapshotOf(5, true, ShownDevice{State: StateUnnamed, Owners: []ContainerKey{containerKey("one")}})}, wrong: 1, unknown: 1},
	}
	for what, c := range cases {
		v := Verify(GroundTruth{c.holdings, c.outages, energyAt}, c.snapshots)
		if len(v.Wrong) != c.wrong || len(v.Unknown) != c.unknown || v.StaleAllowed != c.stood || v.UnnamedAllowed != c.cut || v.DuringRestarts != c.inRestarts {
			t.Errorf("%s: %d wrong, %d unknown, %d stood, %d cut, %d in restarts; want %d, %d, %d, %d, %d\n%q %q", what,
				len(v.Wrong), len(v.Unknown), v.StaleAllowed, v.UnnamedAllowed, v.DuringRestarts, c.wrong, c.unknown, c.stood, c.cut, c.inRestarts, v.Wrong, v.Unknown)
		}
	}
}
