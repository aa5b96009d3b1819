package health

import (
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// healthTable returns the rows of the table in healthState's doc comment: the
// evidence and the four states after it.
func healthTable(t *testing.T) (rows [][5]string) {
	t.Helper()
	source := testfile.Read(t, "health.go")
	_, table, _ := strings.Cut(source, "//\tevidence ")
	table, _, _ = strings.Cut(table, "//\n")
	for line := range strings.SplitSeq(table, "\n") {
		line, isRow := strings.CutPrefix(line, "//\t")
		words := strings.Fields(line)
		if !isRow || len(words) < 5 {
			continue
		}
		states := words[len(words)-4:]
		rows = append(rows, [5]string{
			strings.Join(words[:len(words)-4], " "), states[0], states[1], states[2],
			states[3],
		})
	}
	return rows
}

// TestHealthTable applies each evidence of the table to a health in each state.
func TestHealthTable(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	second := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Second) }
	passed := func(n int) evidence { return evidence{kind: evidenceCheckPassed, startedAt: second(n)} }
	fault := evidence{cause: Cause{
		Reason: "xid_95", NeedsReset: true, notedAt: begin,
		resetBaseline: new(uint64(0)),
	}}
	reset, repair := evidence{kind: evidenceResetCount, resets: 1}, passed(10)
	repair.repairPending = true
	events := map[string][]evidence{
		"fault":                                {fault},
		"driver released, or driver fails":     {{cause: Cause{Reason: "released", noFault: true}}},
		"report or failed check to verify":     {{kind: evidenceReport}},
		"check of the GPU failed (MIG device)": {{kind: evidenceGPUCheckFailed}},
		"reset":                                {reset},
		"check passed, reset due":              {passed(10)},
		"check passed, repair due":             {reset, repair},
		"check passed":                         {reset, passed(10)},
		"third check passed in a row":          {reset, passed(10), passed(11), passed(12)},
		"third within the recovery period":     {reset, passed(10), passed(11), passed(12)},
		"trusted by the operator":              {{kind: evidenceTrusted}},
	}
	apply := func(s healthState, list ...evidence) healthState {
		for _, e := range list {
			var tr transition
			from := s.state
			if s, tr = s.apply(e, begin); tr.from != from || tr.to != s.state {
				t.Errorf("transition: got %s to %s, want %s to %s", tr.from, tr.to, from, s.state)
			}
		}
		return s
	}
	rows := healthTable(t)
	expect.Equal(t, len(rows), len(events), "rows of the table")
	for _, row := range rows {
		var start healthState
		if row[0] == "third within the recovery period" {
			start.unhealthyTimes = []time.Time{begin, begin, begin}
		}
		unhealthy := apply(start, fault)
		for i, s := range []healthState{
			start, apply(start, evidence{kind: evidenceReport}), unhealthy,
			apply(unhealthy, reset, passed(9)),
		} {
			if s.state != device.AllHealth[i] {
				t.Fatalf("start state: got %s, want %s", s.state, device.AllHealth[i])
			}
			want, list := row[i+1], events[row[0]]
			if list == nil {
				t.Errorf("evidence %q of the table has no events in this test", row[0])
			}
			if got := apply(s, list...).state; want != "-" && got.String() != want {
				t.Errorf("%s in state %s: got %s, want %s", row[0], s.state, got, want)
			}
		}
	}
}
