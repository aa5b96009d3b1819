package device

import (
	"log/slog"
	"testing"
	"time"
)

// TestAReportCostsNoMemory where its kind is known, whether it comes from the driver or a
// second witness: not the report itself, nor the rest of the turn that takes it.
func TestAReportCostsNoMemory(t *testing.T) {
	for name, e := range map[string]Event{
		"application": {GPU: "GPU-a", Device: "MIG-b", Xid: 31, Action: "restart_app", Class: "application"},
		"fatal":       {GPU: "GPU-a", Xid: 95, Heals: ByReset, Action: "reset_gpu"},
		"to look at":  {GPU: "GPU-a", Xid: 154, Heals: ByCheck},
		"no Xid":      {GPU: "GPU-a", Kind: "gpu_unavailable", Heals: ByCheck},
	} {
		t.Run(name, func(t *testing.T) {
			b := idle{}
			m := NewMonitor(b, NewReaders(b), &Board{}, slog.New(slog.DiscardHandler))
			told := 0
			m.Happened = func(o Occurrence) { told += len(o.Hit) }
			m.Policy = func(uint64) Policy { return ByTable }
			now := time.Now()
			m.listed(listing{[]Device{{ID: "GPU-a", GPU: "GPU-a", MIG: true}, {ID: "MIG-b", GPU: "GPU-a", Slice: 1}}, nil}, now)
			m.checked(checkup{gpu: "GPU-a", began: now}, now)
			turn := func() {
				m.report(e, first, now, now)
				m.readReports(now)
				m.judgeSilence(now)
				m.forget(now)
				m.post(now)
				m.remember(now)
			}
			turn()
			if allocs := testing.AllocsPerRun(100, turn); allocs > 0 {
				t.Errorf("it costs %v allocations", allocs)
			}
			if told < 100 {
				t.Errorf("%d were told", told)
			}
			e.Witness = "kmsg"
			m.Report(e, now)
			if allocs := testing.AllocsPerRun(100, func() { m.Report(e, now) }); allocs > 0 {
				t.Errorf("a second witness costs %v allocations", allocs)
			}
		})
	}
}

// TestTheSameReportTwice has the time of the later one, whichever came first.
func TestTheSameReportTwice(t *testing.T) {
	b, now := inbox{}, time.Now()
	for _, at := range []time.Time{now.Add(-2 * time.Second), now, now.Add(-time.Second)} {
		b.put(Event{GPU: "GPU-a", Xid: 31}, at, now)
	}
	if ripe, _ := b.take(now); len(ripe) != 1 || ripe[0].times != 3 || !ripe[0].at.Equal(now) {
		t.Errorf("the reports are %+v, want three at %v", ripe, now)
	}
}

// idle is a Backend of which nothing is asked.
type idle struct{ Backend }
