package churn

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var plan = Plan{
	Transitions: 400, Restarts: 5, AskEvery: 25 * time.Millisecond, ScrapeEvery: 100 * time.Millisecond,
	Pods: []int{1, 1, 1, 1, 2, 2}, Seed: 1,
}

// churned is the verdict on a podgauge that lies so.
func churned(t *testing.T, l lie) (v Verdict) {
	synctest.Test(t, func(t *testing.T) {
		record, snapshots, err := Run(t.Context(), newMade(l), plan)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		v = Judge(Truth{Holdings: record.Holdings(now), Outages: record.Outages(now), Burned: burned}, snapshots)
	})
	return v
}

func TestATruthfulNodePasses(t *testing.T) {
	v := churned(t, nil)
	if err := v.Err(); err != nil {
		t.Error(err)
	}
	for _, f := range v.Figures() {
		t.Logf("%s: %s", f.What, f.Value)
	}
	if v.Transitions < plan.Transitions || v.Restarts != plan.Restarts || v.Snapshots < 300 || v.InRestarts == 0 || v.Long < 100 || v.Labelled != v.Long || len(v.Unknown) != 0 {
		t.Errorf("the verdict is of another churn: %+v", v.Figures())
	}
}

func TestEachLieIsFound(t *testing.T) {
	for _, name := range sortedLies() {
		t.Run(name, func(t *testing.T) {
			err := churned(t, lies[name].lie()).Err()
			if err == nil || !strings.Contains(err.Error(), lies[name].want) {
				t.Errorf("the verdict does not say %q: %v", lies[name].want, err)
			}
		})
	}
}

// shows is a snapshot of one device.
func shows(begin float64, up bool, d Shown) Snapshot {
	return Snapshot{Span: between(begin, begin+.1), KubeletUp: up, Devices: map[string]Shown{"a": d}}
}

func named(pods ...string) Shown {
	d := Shown{Hold: Unnamed}
	for _, p := range pods {
		d.Owners = append(d.Owners, owner(p))
	}
	if len(pods) == 1 {
		d.Hold, d.Holder = Named, owner(pods[0])
	}
	return d
}

// TestToleranceHasEnds is about what is let pass, and what is not any more.
func TestToleranceHasEnds(t *testing.T) {
	held := func(pod string, since, until Span) Holding {
		return Holding{Device: "a", Owner: owner(pod), Since: since, Until: until, Placed: since.From}
	}
	one := held("one", between(1, 2), between(10, 11))
	outage := []Span{between(10, 20)}
	before, after := shows(9, true, named("one")), shows(21, true, Shown{Hold: Idle})
	cases := map[string]struct {
		holdings               []Holding
		outages                []Span
		snapshots              []Snapshot
		wrong, unknown         int
		stood, cut, inRestarts int
	}{
		"a label is right while the holding may have begun": {holdings: []Holding{one}, snapshots: []Snapshot{shows(1, true, named("one"))}},
		"and wrong before":                                 {holdings: []Holding{one}, snapshots: []Snapshot{shows(.5, true, named("one"))}, wrong: 1},
		"it is right while the holding may last":           {holdings: []Holding{one}, snapshots: []Snapshot{shows(11, true, named("one"))}},
		"and wrong after":                                  {holdings: []Holding{one}, snapshots: []Snapshot{shows(11.1, true, named("one"))}, wrong: 1},
		"idle is right while it may not have begun":        {holdings: []Holding{one}, snapshots: []Snapshot{shows(2, true, Shown{Hold: Idle})}},
		"and wrong when it has":                            {holdings: []Holding{one}, snapshots: []Snapshot{shows(2.1, true, Shown{Hold: Idle})}, wrong: 1},
		"without a name it is while it may not have begun": {holdings: []Holding{one}, snapshots: []Snapshot{shows(1.5, true, Shown{Hold: Unnamed})}},
		"and unknown when it has":                          {holdings: []Holding{one}, snapshots: []Snapshot{shows(2.1, true, Shown{Hold: Unnamed})}, unknown: 1},
		"unknown where nobody has it":                      {holdings: []Holding{one}, snapshots: []Snapshot{shows(12, true, Shown{Hold: Unnamed})}, unknown: 1},
		"unknown where it is not shown":                    {holdings: []Holding{one}, snapshots: []Snapshot{shows(5, true, Shown{})}, unknown: 1},
		"unknown where the kubelet is down":                {holdings: []Holding{one}, snapshots: []Snapshot{shows(5, false, named("one"))}, unknown: 1},
		"a device that nobody ever had":                    {holdings: []Holding{{Device: "b", Owner: owner("x"), Since: between(90, 91), Until: between(92, 93), Placed: at(90)}}, snapshots: []Snapshot{{Span: between(1, 2), KubeletUp: true, Devices: map[string]Shown{"a": named("one"), "b": {Hold: Idle}}}}, wrong: 1},

		"who ended in an outage stands":              {holdings: []Holding{one}, outages: outage, snapshots: []Snapshot{before, shows(21, true, named("one")), shows(80, true, named("one"))}, stood: 2},
		"for a minute":                               {holdings: []Holding{one}, outages: outage, snapshots: []Snapshot{before, shows(21, true, named("one")), shows(81.2, true, named("one"))}, stood: 1, wrong: 1},
		"not who was gone when podgauge looked last": {holdings: []Holding{held("one", between(1, 2), between(7, 8)), held("two", between(8, 8.2), between(30, 31))}, outages: outage, snapshots: []Snapshot{shows(9, true, named("two")), shows(21, true, named("one"))}, wrong: 1},
		"nor who was there when it looked first":     {holdings: []Holding{held("one", between(1, 2), between(22, 23))}, outages: outage, snapshots: []Snapshot{before, shows(21, true, named("one")), shows(24, true, named("one"))}, wrong: 1},
		"nor when another was named":                 {holdings: []Holding{one, held("two", between(20, 21), between(30, 31))}, outages: outage, snapshots: []Snapshot{before, after, shows(25, true, named("one"))}, wrong: 1},
		"in an outage it need not be known":          {holdings: []Holding{one}, outages: outage, snapshots: []Snapshot{shows(15, false, named("one"))}, stood: 1, inRestarts: 1},
		"after one a device may have no name":        {holdings: []Holding{one}, outages: outage, snapshots: []Snapshot{before, shows(25, true, Shown{Hold: Unnamed})}, cut: 1},
		"for some seconds":                           {holdings: []Holding{one}, outages: outage, snapshots: []Snapshot{before, shows(32, true, Shown{Hold: Unnamed})}, unknown: 1},
		"and not where somebody has it":              {holdings: []Holding{held("one", between(1, 2), between(40, 41))}, outages: outage, snapshots: []Snapshot{before, shows(25, true, Shown{Hold: Unnamed})}, unknown: 1},

		"a device of two is both's":    {holdings: []Holding{one, held("two", between(2, 3), between(8, 9))}, snapshots: []Snapshot{shows(5, true, named("one", "two"))}},
		"and not a third one's":        {holdings: []Holding{one, held("two", between(2, 3), between(8, 9))}, snapshots: []Snapshot{shows(5, true, named("one", "three"))}, wrong: 1},
		"two names and one holder":     {holdings: []Holding{one, held("two", between(2, 3), between(8, 9))}, snapshots: []Snapshot{shows(5, true, Shown{Hold: Named, Holder: owner("one"), Owners: []Owner{owner("one"), owner("two")}})}, wrong: 1},
		"a name that only one row has": {holdings: []Holding{one}, snapshots: []Snapshot{shows(5, true, Shown{Hold: Unnamed, Owners: []Owner{owner("one")}})}, wrong: 1, unknown: 1},
	}
	for what, c := range cases {
		v := Judge(Truth{c.holdings, c.outages, burned}, c.snapshots)
		if len(v.Wrong) != c.wrong || len(v.Unknown) != c.unknown || v.Stood != c.stood || v.Cut != c.cut || v.InRestarts != c.inRestarts {
			t.Errorf("%s: %d wrong, %d unknown, %d stood, %d cut, %d in restarts; want %d, %d, %d, %d, %d\n%q %q", what,
				len(v.Wrong), len(v.Unknown), v.Stood, v.Cut, v.InRestarts, c.wrong, c.unknown, c.stood, c.cut, c.inRestarts, v.Wrong, v.Unknown)
		}
	}
}
