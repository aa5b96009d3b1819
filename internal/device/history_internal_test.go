package device

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"
)

// FuzzHistory runs an engine with any valid history. Published devices are
// unique, and the saved history is valid.
func FuzzHistory(f *testing.F) {
	for _, h := range []string{
		`{}`, `{"lost":true,"records":[{"gpu":"GPU-a"}]}`,
		`{"records":[{"gpu":"GPU-a","cause":{"reason":"xid_95","needs_reset":true,
			"since":"9999-12-31T00:00:00Z"},"xids":[{"code":95,"count":2}]}]}`,
		`{"records":[{"gpu":"GPU-a","device":"MIG-b","cause":{"reason":"xid_999","needs_reset":true,"reset_seen":true},
			"failed_resets":{"reason":"xid_999","count":-1}}]}`,
		`{"records":[{"gpu":"GPU-b","last_seen":"2026-01-01T00:00:00Z",
			"last_listed":{"id":"GPU-b","gpu":"GPU-b","index":-1}}]}`,
		`{"records":[{"gpu":"GPU-a","unhealthy_times":["2026-01-01T00:00:00Z","9999-12-31T00:00:00Z"],
			"xids":[{},{}]},{"gpu":"GPU-b"}]}`,
	} {
		f.Add([]byte(h))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		var h HealthHistory
		if json.Unmarshal(content, &h) != nil || h.Validate() != nil {
			return
		}
		now := time.Now()
		e := newEngine(MonitorOptions{
			Log: slog.New(slog.DiscardHandler), History: h, IsAllocated: func(ID) bool { return true },
		}, false)
		saved, statuses := h, []Status{}
		apply := func(ev event) {
			for _, f := range e.apply(ev, now) {
				switch f := f.(type) {
				case save:
					saved = f.history
				case publish:
					statuses = f
				}
			}
		}
		apply(listed{devices: []Device{
			{ID: "GPU-a", GPU: "GPU-a", MIGEnabled: true, MIGDeviceIndex: -1},
			{ID: "MIG-b", GPU: "GPU-a"},
		}})
		for seq := range uint64(60) {
			now = now.Add(time.Second)
			apply(checkBegun{"GPU-a", seq + 1, now})
			apply(checked{gpu: "GPU-a", seq: seq + 1, startedAt: now, evidence: ResetEvidence{EnergyCounter: 1}})
			apply(tick{})
		}
		apply(waited{event: Event{GPU: "GPU-a", Device: "MIG-b", Xid: 95, Recovery: RecoveryAfterReset}})
		apply(tick{})
		ids := map[ID]bool{}
		for _, d := range statuses {
			ids[d.ID] = true
		}
		if len(statuses) < 2 || len(ids) != len(statuses) {
			t.Errorf("got %d devices with %d ids, want at least two with unique ids", len(statuses), len(ids))
		}
		if _, err := json.Marshal(saved); err != nil || saved.Validate() != nil {
			t.Fatalf("saved history: JSON error %v, validation error %v, want none: %+v", err, saved.Validate(), saved)
		}
	})
}
