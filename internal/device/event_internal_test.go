package device

import (
	"log/slog"
	"testing"
	"time"
)

// TestReportAllocations checks that a report of a known kind from either source, and the update after it, allocate no memory.
func TestReportAllocations(t *testing.T) {
	for name, e := range map[string]Event{
		"application": {GPU: "GPU-a", Device: "MIG-b", Xid: 31, Action: "restart_app", Class: "application"},
		"fatal":       {GPU: "GPU-a", Xid: 95, Recovery: RecoveryAfterReset, Action: "reset_gpu"},
		"to verify":   {GPU: "GPU-a", Xid: 154, Recovery: RecoveryChecksPass},
		"no Xid":      {GPU: "GPU-a", Kind: "gpu_unavailable", Recovery: RecoveryChecksPass},
	} {
		t.Run(name, func(t *testing.T) {
			b := idleBackend{}
			affected := 0
			m := NewMonitor(b, NewReaders(b), &Inventory{}, MonitorOptions{
				Log:           slog.New(slog.DiscardHandler),
				OnHealthEvent: func(o HealthEvent) { affected += len(o.Affected) },
				Policy:        func(uint64) Policy { return PolicyDefault },
			})
			now := time.Now()
			m.handleListing([]Device{{ID: "GPU-a", GPU: "GPU-a", MIGEnabled: true}, {ID: "MIG-b", GPU: "GPU-a", MIGDeviceIndex: 1}}, nil, now)
			m.tracker.handleCheckResult(gpuCheckResult{gpu: "GPU-a", startedAt: now}, now)
			handle := func() {
				m.handleEvent(e, sourceDriver, now, now)
				m.update(now)
			}
			handle()
			if allocs := testing.AllocsPerRun(100, handle); allocs > 0 {
				t.Errorf("got %v allocations, want 0", allocs)
			}
			if affected < 100 {
				t.Errorf("got %d affected devices, want at least 100", affected)
			}
			e.Source = "kmsg"
			m.Report(e, now)
			if allocs := testing.AllocsPerRun(100, func() { m.Report(e, now) }); allocs > 0 {
				t.Errorf("Report: got %v allocations, want 0", allocs)
			}
		})
	}
}

// TestQueuedEventHasNewestTime adds equal events in any order and checks that the queue keeps the newest time.
func TestQueuedEventHasNewestTime(t *testing.T) {
	b, now := eventQueue{added: make(chan struct{}, 1)}, time.Now()
	for _, at := range []time.Time{now.Add(-2 * time.Second), now, now.Add(-time.Second)} {
		b.add(Event{GPU: "GPU-a", Xid: 31}, at, now)
	}
	if taken, _, _ := b.takeBefore(now); len(taken) != 1 || taken[0].count != 3 || !taken[0].happenedAt.Equal(now) {
		t.Errorf("got events %+v, want three at %v", taken, now)
	}
}

// idleBackend is a Backend without calls.
type idleBackend struct{ Backend }
