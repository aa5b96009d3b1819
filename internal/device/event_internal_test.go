package device

import (
	"log/slog"
	"testing"
	"time"
)

// TestReportAllocations where its kind is known, whether it comes from the driver or a
// second witness: not the report itself, nor the rest of the turn that takes it.
func TestReportAllocations(t *testing.T) {
	for name, e := range map[string]Event{
		"application": {GPU: "GPU-a", Device: "MIG-b", Xid: 31, Action: "restart_app", Class: "application"},
		"fatal":       {GPU: "GPU-a", Xid: 95, Recovery: RecoveryAfterReset, Action: "reset_gpu"},
		"to look at":  {GPU: "GPU-a", Xid: 154, Recovery: RecoveryChecksPass},
		"no Xid":      {GPU: "GPU-a", Kind: "gpu_unavailable", Recovery: RecoveryChecksPass},
	} {
		t.Run(name, func(t *testing.T) {
			b := idleBackend{}
			told := 0
			m := NewMonitor(b, NewReaders(b), &Inventory{}, MonitorOptions{
				Log:           slog.New(slog.DiscardHandler),
				OnHealthEvent: func(o HealthEvent) { told += len(o.Affected) },
				Policy:        func(uint64) Policy { return PolicyDefault },
			})
			now := time.Now()
			m.handleListResult(callResult[[]Device]{[]Device{{ID: "GPU-a", GPU: "GPU-a", MIGEnabled: true}, {ID: "MIG-b", GPU: "GPU-a", MIGDeviceIndex: 1}}, nil}, now)
			m.tracker.handleCheckResult(gpuCheckResult{gpu: "GPU-a", startedAt: now}, now)
			turn := func() {
				m.handleEvent(e, sourceDriver, now, now)
				m.update(now)
			}
			turn()
			if allocs := testing.AllocsPerRun(100, turn); allocs > 0 {
				t.Errorf("it costs %v allocations", allocs)
			}
			if told < 100 {
				t.Errorf("%d were told", told)
			}
			e.Source = "kmsg"
			m.Report(e, now)
			if allocs := testing.AllocsPerRun(100, func() { m.Report(e, now) }); allocs > 0 {
				t.Errorf("a second witness costs %v allocations", allocs)
			}
		})
	}
}

// TestTheSameReportTwice has the time of the later one, whichever came first.
func TestTheSameReportTwice(t *testing.T) {
	b, now := eventQueue{}, time.Now()
	for _, at := range []time.Time{now.Add(-2 * time.Second), now, now.Add(-time.Second)} {
		b.add(Event{GPU: "GPU-a", Xid: 31}, at, now)
	}
	if ripe, _ := b.takeBefore(now); len(ripe) != 1 || ripe[0].count != 3 || !ripe[0].happenedAt.Equal(now) {
		t.Errorf("the reports are %+v, want three at %v", ripe, now)
	}
}

// idleBackend is a Backend of which nothing is asked.
type idleBackend struct{ Backend }
