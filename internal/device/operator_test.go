package device_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

func (f *monitorFixture) retire(t *testing.T, id device.ID, note string) {
	t.Helper()
	if err := f.monitor.Retire(t.Context(), id, note); err != nil {
		t.Errorf("retire %s: %v", id, err)
	}
}

// trust trusts a device. It also returns the text of the error if a cause remains.
func (f *monitorFixture) trust(t *testing.T, id device.ID) (trusted device.Trusted, remaining string) {
	t.Helper()
	trusted, err := f.monitor.Trust(t.Context(), id)
	if err != nil {
		t.Errorf("trust %s: %v", id, err)
	}
	if trusted.Err != nil {
		remaining = trusted.Err.Error()
	}
	return trusted, remaining
}

// TestRetire checks that a retired device is unhealthy, independent of other
// evidence, until it is trusted.
func TestRetire(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(2)
		gpu, other := m.GPUs()[0], m.AllocatableIDs()[1]
		m.Partition(gpu, "1g.10gb", "1g.10gb")
		w := startMonitor(t, m, nil, s.attach)
		defer w.stop()
		id, mig := device.ID(gpu), m.AllocatableIDs()[0]
		w.statusesAfter(11 * time.Second)
		at := time.Now()
		w.retire(t, id, "fan is noisy")
		statuses, _ := w.inventory.Get() // published before Retire returns
		requireReasons(t, "retired", statuses, "retired", "retired", "retired", "")
		for _, status := range statuses[:3] {
			if status.Note != "fan is noisy" || status.Health != device.Unhealthy || status.Flaps != 0 ||
				status.Action != "" || !status.Since.Equal(at) {
				t.Errorf("got status %+v, want a retired, unhealthy device with the note, since %s", status, at)
			}
		}
		if e := s.takeEvents(); len(e) != 1 || e[0].Reason != "retired" || e[0].Note != "fan is noisy" ||
			!e[0].MarkedUnhealthy || len(e[0].Affected) != 3 {
			t.Errorf("got events %+v, want one retirement with the note and three affected devices", e)
		}
		if s.urgentSaves != 1 {
			t.Errorf("got %d urgent saves, want 1", s.urgentSaves)
		}
		w.Fail(mig, "xid 95")
		requireReasons(t, "with a fault", w.statusesAfter(time.Minute), "retired", "retired", "retired", "")
		w.ResetGPU(id)
		requireReasons(t, "after a reset", w.statusesAfter(time.Hour), "retired", "retired", "retired", "")
		if trusted, remaining := w.trust(t, id); !trusted.Retired || remaining != "" {
			t.Errorf("trust: got %+v and error %q, want a retired device and no error", trusted, remaining)
		}
		statuses, _ = w.inventory.Get()
		requireReasons(t, "trusted", statuses, "", "", "", "")

		w.retire(t, mig, "one MIG device")
		requireReasons(t, "with a retired MIG device", w.statusesAfter(time.Minute), "", "retired", "", "")
		w.retire(t, other, "another GPU")
		if trusted, _ := w.trust(t, mig); !trusted.Retired {
			t.Error("trust of a retired MIG device: want Retired true")
		}
		requireReasons(t, "with the other GPU retired", w.statusesAfter(0), "", "", "", "retired")
		w.retire(t, mig, "again")
		w.trust(t, id)
		requireReasons(t, "after a GPU and its MIG devices were trusted", w.statusesAfter(0), "", "", "", "retired")
		if trusted, remaining := w.trust(t, id); trusted.Retired || remaining != "" {
			t.Errorf("second trust: got %+v and error %q, want no retired device and no error", trusted, remaining)
		}
		if err := w.monitor.Retire(t.Context(), "GPU-none", ""); !errors.Is(err, device.ErrUnknownDevice) {
			t.Error(err)
		}
		if _, err := w.monitor.Trust(t.Context(), "GPU-none"); !errors.Is(err, device.ErrUnknownDevice) {
			t.Error(err)
		}
	})
}

// TestTrustEndsWrongReason checks that a trusted device that passes its check
// is healthy at once, without a reset or a recovery period.
func TestTrustEndsWrongReason(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		m.Partition(m.GPUs()[1], "1g.10gb", "1g.10gb")
		w := startMonitor(t, m, nil)
		defer w.stop()
		gpu, mig := m.AllocatableIDs()[0], m.AllocatableIDs()[1]
		w.statusesAfter(11 * time.Second)
		for range 3 { // until the action is to replace the GPU
			w.Fail(gpu, "xid 95")
			w.statusesAfter(time.Second)
			w.ResetGPU(gpu)
			w.statusesAfter(20 * time.Minute)
		}
		w.Fail(gpu, "xid 95")
		w.SetRepairPending(gpu)
		w.Fail(mig, "xid 999")
		statuses := w.statusesAfter(time.Hour)
		requireReasons(t, "failed", statuses, "xid_95", "", "xid_999", "")
		if statuses[0].Action != device.ActionReplace {
			t.Errorf("got %+v, want action replace", statuses[0])
		}
		before := statuses[0].Flaps
		if trusted, remaining := w.trust(t, gpu); trusted.Retired || !trusted.RepairPending || remaining != "" {
			t.Errorf("trust: got %+v and error %q, want a pending repair and no error", trusted, remaining)
		}
		statuses, _ = w.inventory.Get()
		requireReasons(t, "after the GPU was trusted", statuses, "", "", "xid_999", "")
		w.trust(t, mig)
		requireReasons(t, "after the MIG device was trusted", w.statusesAfter(time.Hour), "", "", "", "")
		w.Fail(gpu, "xid 95")
		statuses = w.statusesAfter(time.Second)
		if statuses[0].Reason != "xid_95" || statuses[0].Action == device.ActionReplace ||
			statuses[0].Flaps != before+1 {
			t.Errorf("after the next fault: got %+v, want reason xid_95, another action than replace, and %d flaps",
				statuses[0], before+1)
		}
	})
}

// TestTrustAgainstEvidence checks that trust ends no cause that a check finds,
// and recovers no GPU that is gone or hangs.
func TestTrustAgainstEvidence(t *testing.T) {
	for _, row := range []struct {
		name         string
		fail         func(*monitorFixture, device.ID)
		reason, want string
		elapsed      time.Duration
	}{
		{"fallen off the bus", failWith("lost"), "lost", "lost", 0},
		{"a fault", func(w *monitorFixture, id device.ID) {
			w.SetCheckError(id, &device.Fault{Reason: "row_remap_failure", Action: "replace"})
		}, "row_remap_failure", "row_remap_failure", 0},
		{"an Xid, and a check without a reason", func(w *monitorFixture, id device.ID) {
			w.Fail(id, "xid 95")
			w.SetCheckError(id, errUnknown)
		}, "xid_95", "UNKNOWN", 0},
		{"gone", func(w *monitorFixture, id device.ID) { w.RemoveGPU(id) }, "lost", "does not list", 0},
		{
			"a call that hangs", func(w *monitorFixture, id device.ID) { w.HangGPU(id) }, "not_responding",
			"no check of the GPU ended within 5s", 5 * time.Second,
		},
		{"a driver that was released", func(w *monitorFixture, _ device.ID) {
			if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
				panic(err)
			}
		}, "released", "no check of the GPU ended", 5 * time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := startMonitor(t, newMachine(2), nil)
				defer w.stop()
				w.statusesAfter(time.Second)
				id := w.AllocatableIDs()[0]
				w.retire(t, id, "to inspect it")
				row.fail(w, id)
				w.statusesAfter(time.Minute)
				begin := time.Now()
				trusted, remaining := w.trust(t, id)
				if !trusted.Retired || !strings.Contains(remaining, row.want) ||
					time.Since(begin) < row.elapsed || time.Since(begin) > row.elapsed+2*time.Second {
					t.Errorf("after %s: got %+v and error %q, want a retired device and error %q", time.Since(begin),
						trusted, remaining, row.want)
				}
				statuses, _ := w.inventory.Get()
				if statuses[0].Reason != row.reason || statuses[0].Note != "" {
					t.Errorf("got status %+v, want reason %q and no note", statuses[0], row.reason)
				}
			})
		})
	}
}

// TestRetirementAcrossRestart checks that a retirement survives restarts,
// reboots, and the removal and return of the GPU.
func TestRetirementAcrossRestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(3)
		m.Partition(m.GPUs()[2], "1g.10gb", "1g.10gb")
		ids := m.AllocatableIDs()
		restart := func(rebooted bool) *monitorFixture {
			return startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
				w.options.History = s.savedHistory()
				w.options.History.Rebooted = rebooted
			})
		}
		w := restart(false)
		w.statusesAfter(time.Second)
		w.retire(t, ids[0], "fan")
		w.retire(t, ids[2], "slow")
		w.Fail(ids[0], "xid 95")
		w.statusesAfter(time.Second)
		w.stop()
		for name, rebooted := range map[string]bool{"a restart": false, "a reboot": true} {
			w = restart(rebooted)
			statuses := w.statusesAfter(time.Minute)
			requireReasons(t, name, statuses, "retired", "", "", "retired", "")
			if statuses[0].Note != "fan" || statuses[3].Note != "slow" {
				t.Errorf("%s: got %+v, want the notes fan and slow", name, statuses)
			}
			w.stop()
		}

		w = restart(false)
		w.statusesAfter(time.Second)
		w.Fail(ids[2], "lost")
		w.statusesAfter(time.Minute)
		w.trust(t, ids[2])
		requireReasons(t, "after trust of a lost GPU", w.statusesAfter(0), "retired", "", "lost", "lost", "lost")
		w.retire(t, ids[2], "slow")
		w.ResetGPU(ids[2])
		w.statusesAfter(time.Minute)
		w.RemoveGPU(ids[0])
		statuses := w.statusesAfter(time.Minute)
		if statuses[0].Reason != "retired" || !statuses[0].Gone {
			t.Errorf("after a retired GPU was removed: got %+v, want a retired GPU that is gone", statuses[0])
		}
		requireReasons(t, "20 minutes after the removal", w.statusesAfter(20*time.Minute), "", "", "retired", "")
		w.stop()
		w = restart(true)
		requireReasons(t, "after a reboot", w.statusesAfter(time.Minute), "", "", "retired", "")
		w.ResetGPU(ids[0]) // is listed again
		requireReasons(t, "after the GPU returned", w.statusesAfter(time.Minute), "retired", "", "", "retired", "")
		w.RemoveGPU(ids[0])
		w.statusesAfter(20 * time.Minute)
		if trusted, remaining := w.trust(t, ids[0]); !trusted.Retired || !strings.Contains(remaining, "does not list") {
			t.Errorf("trust of an absent GPU: got %+v and error %q, want a retired device and an error", trusted,
				remaining)
		}
		w.ResetGPU(ids[0])
		w.statusesAfter(time.Minute)
		w.trust(t, ids[2])
		w.stop()
		w = restart(false)
		defer w.stop()
		requireReasons(t, "after all devices were trusted, and a restart", w.statusesAfter(time.Minute), "", "", "",
			"", "")
	})
}

// TestRetirementInOtherVersions simulates an older version, which ignores
// retirements. It keeps the device unhealthy until a reset and drops the note.
func TestRetirementInOtherVersions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(3)
		w := startMonitor(t, m, nil, s.attach)
		ids := m.AllocatableIDs()
		w.statusesAfter(time.Second)
		w.retire(t, ids[0], "fan")
		w.Fail(ids[1], "xid 95")
		w.statusesAfter(time.Second)
		w.retire(t, ids[1], "fan")
		w.statusesAfter(time.Second)
		w.stop()
		content, err := json.Marshal(s.savedHistory())
		if err != nil {
			t.Fatal(err)
		}
		var older device.HealthHistory
		if err := json.Unmarshal([]byte(strings.ReplaceAll(string(content), `"retired":{`, `"unknown":{`)),
			&older); err != nil {
			t.Fatal(err)
		}
		if r := findRecord(older, device.GPU(ids[0]), ""); r.Retired != nil || r.Reason != "retired" ||
			!r.NeedsReset || r.ResetSeen {
			t.Errorf("record in the older version: got %+v, want reason retired and a pending reset", r)
		}
		w = startMonitor(t, m, nil, func(w *monitorFixture) { w.options.History = older })
		defer w.stop()
		statuses := w.statusesAfter(time.Minute)
		requireReasons(t, "after the older version", statuses, "retired", "xid_95", "")
		if statuses[0].Note != "" || statuses[0].Since.IsZero() {
			t.Errorf("got %+v, want a time and no note", statuses[0])
		}
		w.Fail(ids[0], "lost")
		w.statusesAfter(time.Minute)
		w.trust(t, ids[0])
		requireReasons(t, "after trust of a lost GPU", w.statusesAfter(0), "lost", "xid_95", "")
		w.ResetGPU(ids[0])
		requireReasons(t, "trusted", w.statusesAfter(time.Minute), "", "xid_95", "")
	})
}

// TestManyRecords checks that absent retired devices are deleted last.
func TestManyRecords(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(2)
		retired := m.AllocatableIDs()[0]
		w := startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
			for i := range 300 {
				gone := device.GPU(fmt.Sprintf("GPU-absent-%03d", i))
				w.options.History.Records = append(w.options.History.Records,
					device.HealthRecord{
						GPU: gone, LastSeen: time.Now().Add(time.Hour),
						UnhealthyTimes: []time.Time{time.Now()},
					})
			}
		})
		defer w.stop()
		w.statusesAfter(time.Second)
		w.retire(t, retired, "fan")
		w.RemoveGPU(retired)
		w.statusesAfter(20 * time.Minute)
		h := s.savedHistory()
		if r := findRecord(h, device.GPU(retired), ""); r.Retired == nil || r.Retired.Note != "fan" ||
			len(h.Records) != 257 {
			t.Errorf("got %d records and %+v, want 257, and the retirement with its note", len(h.Records), r)
		}
	})
}

// TestOperatorWithoutMonitor checks that a request ends with its context.
func TestOperatorWithoutMonitor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), nil)
		w.stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.monitor.Retire(ctx, "GPU", ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestExpectedGPUs checks that a gone GPU is kept while an expected GPU is
// missing, also across restarts and reboots.
func TestExpectedGPUs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(3)
		ids := m.AllocatableIDs()
		var expected atomic.Int64
		expected.Store(3)
		restart := func(rebooted bool) *monitorFixture {
			return startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
				w.options.History = s.savedHistory()
				w.options.History.Rebooted = rebooted
				w.options.ExpectedGPUs = func() int { return int(expected.Load()) }
			})
		}
		w := restart(false)
		w.statusesAfter(time.Second)
		w.RemoveGPU(ids[1])
		requireReasons(t, "an hour later", w.statusesAfter(time.Hour), "", "lost", "")
		w.stop()
		for range 2 {
			w = restart(true)
			statuses := w.statusesAfter(time.Hour)
			requireReasons(t, "after a reboot", statuses, "", "gone", "")
			if n := device.MissingGPUs(statuses, 3); n != 1 {
				t.Errorf("got %d missing GPUs, want 1", n)
			}
			w.stop()
		}
		w = restart(false)
		w.statusesAfter(time.Minute)
		m.AddGPU() // replaced
		requireReasons(t, "after the GPU was replaced", w.statusesAfter(time.Hour), "", "", "")
		w.RemoveGPU(ids[0])
		statuses := w.statusesAfter(time.Hour)
		requireReasons(t, "after another GPU was removed", statuses, "lost", "", "")
		w.stop()
		w = restart(false)
		requireReasons(t, "with the newest of two absent GPUs kept", w.statusesAfter(time.Minute), "lost", "", "")
		expected.Store(2)
		requireReasons(t, "with fewer expected GPUs", w.statusesAfter(time.Hour), "", "")
		w.stop()
	})
}

// TestXidsOver checks that a recovery, a Trust and a release of the driver end
// the Xids before.
func TestXidsOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(1)
		w := startMonitor(t, m, nil)
		defer func() { w.stop() }()
		id, begin := m.AllocatableIDs()[0], time.Now()
		wantOver := func(when string, over bool) {
			t.Helper()
			s := w.statusesAfter(time.Second)[0]
			if at := s.Xids[0].Last; !at.After(begin) || at.After(s.XidsOverAt) == over {
				t.Errorf("%s: got Xid at %s and XidsOverAt %s, want over: %v", when, at, s.XidsOverAt, over)
			}
		}
		w.statusesAfter(time.Second)
		for name, end := range map[string]func(){
			"recovered": func() {
				w.Fail(id, "xid 95")
				w.statusesAfter(time.Minute)
				w.ResetGPU(id)
				w.statusesAfter(time.Hour)
			},
			"trusted": func() { w.trust(t, id) },
			"released": func() {
				if err := errors.Join(w.monitor.Release(t.Context()), w.monitor.Resume(t.Context())); err != nil {
					t.Error(err)
				}
			},
		} {
			w.Fail(id, "xid 31")
			wantOver("before: "+name, false)
			end()
			wantOver(name, true)
		}
	})
}
