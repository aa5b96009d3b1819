package health_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// TestHistory runs several processes, each with the history of the one before.
func TestHistory(t *testing.T) { runScenarioFile(t, "history") }

// TestGPULostBeforeStart checks that a GPU of the previous process that the
// listing lacks is published as gone.
func TestGPULostBeforeStart(t *testing.T) {
	for _, row := range []struct{ name, fault, booted, reason, events string }{
		{"after Xid 79", "fail d1 xid 79", "", "xid_79", "xid_79!:g1"},
		{"without an event", "", "", "gone", "gone!:g1"},
		{"with a reboot", "fail d1 xid 79", "booted", "gone", "xid_79!:g1 gone!:g1"},
	} {
		runScenarios(t, []scenario{{row.name, 3, fmt.Sprintf(`start; 1s; %s; 1s; stop; remove d1; %s; start
			5s: - %[3]s -; gone - gone -; events %s; 5m; restart; 1m: - %[3]s -; 5m: - -
			restart; 1m: - -; allocate d1; 11s: - %[3]s -; 20m: - %[3]s -; reset d1; 15s: - - -`,
			row.fault, row.booted, row.reason, row.events)}})
	}
}

// TestMissing checks which GPUs are missing while they are gone, and in later processes.
func TestMissing(t *testing.T) { runScenarioFile(t, "missing") }

// findRecord returns the record of a GPU, or of a MIG device of the GPU.
func findRecord(h health.History, gpu device.GPU, id device.ID) health.Record {
	i := slices.IndexFunc(h.Records, func(r health.Record) bool { return r.GPU == gpu && r.Device == id })
	if i < 0 {
		return health.Record{}
	}
	return h.Records[i]
}

// TestEnergyCounterIsSaved checks that the record of a pending reset has a
// recent energy counter.
func TestEnergyCounterIsSaved(t *testing.T) {
	inScenario(t, 1, func(t *testing.T, s *scenarioRun) {
		s.script("start; 1s; fail d0 xid 95; 500ms")
		before := findRecord(s.recorder.savedHistory(), s.GPUs()[0], "").EnergyCounter
		s.script("61s")
		if r := findRecord(s.recorder.savedHistory(), s.GPUs()[0], ""); before == 0 || r.EnergyCounter <= before {
			t.Errorf("energy counter a minute later: got %d, want more than %d", r.EnergyCounter, before)
		}
	})
}

// TestHistoryOfOtherClock checks that a clock that is ahead at the start deletes
// no record, and that times of the future neither delay the recovery nor are
// published.
func TestHistoryOfOtherClock(t *testing.T) {
	for _, row := range []struct {
		name    string
		ahead   time.Duration // of the clock that wrote the history
		records string
	}{
		{"a month behind", -31 * 24 * time.Hour, "0s: lost -; since 744h0m0s; 5s: - -; records - - xid_95"},
		{"ahead", 1000 * time.Hour, "0s: lost -; since 0s; 5s: - -; records - - xid_95"},
	} {
		bubble.Run(t, row.name, func(t *testing.T) {
			s := newScenarioRun(t, 2)
			defer func() { s.end() }()
			at := time.Now().Add(row.ahead)
			s.previous.Records = []health.Record{
				{GPU: s.GPUs()[0], Cause: health.Cause{Reason: "lost", Since: at, FaultAt: at}},
				{GPU: s.GPUs()[1], UnhealthyTimes: slices.Repeat([]time.Time{at}, 9)},
				{GPU: "GPU-absent", Cause: health.Cause{Reason: "xid_95", NeedsReset: true, Since: at, FaultAt: at}},
			}
			s.script("start; 1ms; " + row.records)
		})
	}
}

// TestLostHistoryWithOldRecords checks that a healthy record, which may be out
// of date, is checked, and that a recorded fault is kept.
func TestLostHistoryWithOldRecords(t *testing.T) {
	inScenario(t, 2, func(t *testing.T, s *scenarioRun) {
		cause := health.Cause{Reason: "xid_95", NeedsReset: true, Since: time.Now(), FaultAt: time.Now()}
		s.previous = health.History{
			Lost: true, Records: []health.Record{{GPU: s.GPUs()[0]}, {GPU: s.GPUs()[1], Cause: cause}},
		}
		s.script("start; 1900ms: none; 1500ms: - xid_95")
	})
}

// TestManyRecords checks that absent retired devices are deleted last.
func TestManyRecords(t *testing.T) {
	inScenario(t, 2, func(t *testing.T, s *scenarioRun) {
		for i := range 300 {
			s.previous.Records = append(s.previous.Records, health.Record{
				GPU: device.GPU(fmt.Sprintf("GPU-absent-%03d", i)), LastSeen: time.Now().Add(time.Hour),
				UnhealthyTimes: []time.Time{time.Now()},
			})
		}
		s.script("start; 1s; retire d0 fan; remove d0; 20m")
		h := s.recorder.savedHistory()
		if r := findRecord(h, s.GPUs()[0], ""); r.Retired == nil || r.Retired.Note != "fan" || len(h.Records) != 257 {
			t.Errorf("got %d records and %+v, want 257, and the retirement with its note", len(h.Records), r)
		}
	})
}

// FuzzHistory runs a Monitor with any valid history. Published devices are
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
		var h health.History
		if json.Unmarshal(content, &h) != nil || h.Validate() != nil {
			return
		}
		bubble.Test(t, func(t *testing.T) {
			b := newTwoGPUBackend()
			p := b.newRun(t.Context(), h)
			time.Sleep(time.Minute)
			b.events <- device.Event{GPU: "GPU-b", Xid: 95, Recovery: device.RecoveryAfterReset}
			time.Sleep(time.Second)
			statuses, _ := p.inventory.Get()
			ids := map[device.ID]bool{}
			for _, d := range statuses {
				ids[d.ID] = true
			}
			if len(statuses) < 2 || len(ids) != len(statuses) {
				t.Errorf("got %d devices with %d ids, want at least two with unique ids", len(statuses), len(ids))
			}
			expect.NoError(t, p.stop())
			if err := p.saved.Validate(); err != nil {
				t.Errorf("saved history: %v: %+v", err, p.saved)
			}
		})
	})
}
