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
