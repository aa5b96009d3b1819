package state_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// fixture is a state folder, and a boot id that the test can change.
type fixture struct {
	*testing.T
	dir, boot string
	status    *pubsub.Value[state.WriteStatus] // of the newest process
	log       bytes.Buffer
}

func newFixture(t *testing.T) *fixture {
	s := &fixture{T: t, dir: filepath.Join(t.TempDir(), "state"), boot: filepath.Join(t.TempDir(), "boot_id")}
	s.write(s.boot, "one\n")
	return s
}

func (s *fixture) file() string { return filepath.Join(s.dir, state.FileName) }

func (s *fixture) write(path, content string) {
	s.Helper()
	require.NoError(s, os.WriteFile(path, []byte(content), 0o600))
}

func (s *fixture) open() (*state.Store, health.History, []incident.Incident) {
	s.status = &pubsub.Value[state.WriteStatus]{}
	return state.Open(s.dir, s.boot, s.status, slog.New(slog.NewTextHandler(&s.log, nil)))
}

// err is the error of the newest write.
func (s *fixture) err() error {
	status, _ := s.status.Get()
	return status.Err
}

// saveAndEnd is a process that saves and ends.
func (s *fixture) saveAndEnd(h health.History, all []incident.Incident) {
	s.Helper()
	store, _, _ := s.open()
	store.SaveHealth(h, false)
	store.SaveIncidents(all, false)
	store.End()
	if err := s.err(); err != nil || !store.Stored() {
		s.Fatalf("got error %v, stored %v", err, store.Stored())
	}
}

// newLogLines counts the log lines since the previous call.
func (s *fixture) newLogLines() int {
	defer s.log.Reset()
	return strings.Count(s.log.String(), "\n")
}

func at(n int64) time.Time { return time.Unix(1e9+n, 5).UTC() }

// fullHistory returns a history with many fields.
func fullHistory() health.History {
	return health.History{Records: []health.Record{
		{
			GPU: "GPU-a", Cause: health.Cause{
				Reason: "xid_95", Action: "replace", Class: "broken", Since: at(1), FaultAt: at(2),
				NeedsReset: true, ByPolicy: true, ResetSeen: true, EnergyCounter: 1<<64 - 1,
			},
			LastSeen: at(8), UnhealthyTimes: []time.Time{at(3), at(4)},
			FailedResets: health.FailedResets{Reason: "xid_95", Count: 2, LastFaultAt: at(5)},
			Xids:         []device.Xid{{Code: 13, Last: at(6)}, {Code: 95, Last: at(7), LastHistorical: at(9)}},
			GoneSince:    at(10), LastListed: device.Device{
				ID: "GPU-a", GPU: "GPU-a", Index: 3, MIGEnabled: true, MIGDeviceIndex: -1, GI: -1, CI: -1, Minor: 4,
				Model: "NVIDIA H100 80GB HBM3", PCI: "0000:1a:00.0", NUMANode: 1, MemoryBytes: 80 << 30,
			},
		},
		{GPU: "GPU-a", Device: "MIG-b", Cause: health.Cause{Reason: "xid_999", NeedsReset: true}},
	}, DriverRestarts: 3}
}

func fullIncidents() []incident.Incident {
	return []incident.Incident{
		{
			ID: 2, First: at(1), Last: at(2), Count: 3, Device: "GPU-a", GPU: "GPU-a", Reason: "xid_95",
			Affected: []incident.AffectedContainer{{
				Owner: allocation.Owner{Namespace: "team", Pod: "train", Container: "main"}, UID: "1", Since: at(0), Until: at(3),
			}},
		},
		{ID: 1, First: at(1), Last: at(1), Count: 1, Device: "GPU-b", Reason: "lost"},
	}
}

func TestRestart(t *testing.T) {
	s := newFixture(t)
	if _, h, all := s.open(); !reflect.DeepEqual(h, health.History{}) || all != nil || s.newLogLines() != 0 {
		t.Errorf("at first: got %+v, %v, want no state", h, all)
	}
	s.saveAndEnd(fullHistory(), fullIncidents())
	if info, err := os.Stat(s.file()); err != nil || info.Mode() != 0o600 {
		t.Errorf("got mode %v, error %v, want 0600", info.Mode(), err)
	}
	expect.EqualSlices(s, testfile.Names(s, s.dir), []string{state.FileName}, "files")
	store, h, all := s.open()
	if !reflect.DeepEqual(h, fullHistory()) || !reflect.DeepEqual(all, fullIncidents()) {
		t.Errorf("got %+v, %+v, want the saved state", h, all)
	}
	store.SaveIncidents(fullIncidents()[:1], false)
	store.End()
	if _, h, all := s.open(); len(h.Records) != 2 || len(all) != 1 {
		t.Errorf("with other incidents: got %d records and %d incidents, want 2 and 1", len(h.Records), len(all))
	}
}

// TestLostIsStored checks that each process reads Lost until a history without
// Lost is saved.
func TestLostIsStored(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(health.History{Lost: true}, nil)
	for range 2 {
		store, h, _ := s.open()
		store.End() // before the first save of health
		if !h.Lost || s.newLogLines() != 0 {
			t.Errorf("got %+v, want Lost", h)
		}
	}
	s.saveAndEnd(health.History{}, nil)
	if _, h, _ := s.open(); h.Lost {
		t.Error("Lost: got true after a history without Lost, want false")
	}
}

func TestReboot(t *testing.T) {
	for _, row := range []struct {
		before, after string // the ids of the boots
		want          bool
	}{
		{"one", "one\n", false},
		{"one", "two", true},
		{"one", "", false},
		{"", "two", false},
	} {
		s := newFixture(t)
		s.write(s.boot, row.before)
		s.saveAndEnd(fullHistory(), nil)
		s.write(s.boot, row.after)
		for range 2 { // a process that saves no health does not hide the reboot
			store, h, _ := s.open()
			store.SaveIncidents(nil, false)
			store.End()
			if h.Rebooted != row.want {
				t.Errorf("boot %q after %q: got Rebooted %v, want %v", row.after, row.before, h.Rebooted, row.want)
			}
		}
	}
}

// invalidFiles are files that this program never writes.
var invalidFiles = map[string]string{
	"empty":              "",
	"no JSON":            "hello",
	"cut short":          `{"version":1,"health":{"records":[{"gpu":"GPU-a"`,
	"no object":          `[]`,
	"no version":         `{}`,
	"version 0":          `{"version":0}`,
	"something more":     `{"version":1}{}`,
	"another type":       `{"version":1,"health":{"records":[{"gpu":7}]}}`,
	"no GPU":             `{"version":1,"health":{"records":[{"device":"MIG-a"}]}}`,
	"a MIG device":       `{"version":1,"health":{"records":[{"gpu":"GPU-a","last_listed":{"id":"MIG-b","gpu":"GPU-a"}}]}}`,
	"another GPU":        `{"version":1,"health":{"records":[{"gpu":"GPU-a","last_listed":{"id":"GPU-b","gpu":"GPU-b"}}]}}`,
	"out of order":       `{"version":1,"health":{"records":[{"gpu":"GPU-b"},{"gpu":"GPU-a"}]}}`,
	"no time":            `{"version":1,"health":{"records":[{"gpu":"GPU-a","unhealthy_times":["yesterday"]}]}}`,
	"no device":          `{"version":1,"incidents":[{"id":1,"reason":"xid_31"}]}`,
	"no id":              `{"version":1,"incidents":[{"device":"a","reason":"xid_31"}]}`,
	"incidents of an id": `{"version":1,"incidents":[{"id":1,"device":"a"},{"id":1,"device":"a"}]}`,
}

func TestInvalidFile(t *testing.T) {
	for name, content := range invalidFiles {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			s.saveAndEnd(fullHistory(), fullIncidents())
			for range 2 { // the second file replaces the first
				s.write(s.file(), content)
				if _, h, all := s.open(); !h.Lost || len(h.Records) > 0 || len(all) > 0 || s.newLogLines() != 1 {
					t.Errorf("got %+v, %v and log %q, want Lost and one line", h, all, s.log.String())
				}
			}
			expect.EqualSlices(s, testfile.Names(s, s.dir), []string{state.FileName + ".bad"}, "files")
			if got, err := os.ReadFile(s.file() + ".bad"); err != nil || string(got) != content {
				t.Errorf("got %q, %v, want the renamed file", got, err)
			}
			s.saveAndEnd(fullHistory(), fullIncidents())
			if _, h, all := s.open(); !reflect.DeepEqual(h, fullHistory()) || len(all) != 2 {
				t.Errorf("after a new save: got %+v, %v, want the saved state", h, all)
			}
		})
	}
	t.Run("not a file", func(t *testing.T) {
		s := newFixture(t)
		require.NoError(t, os.MkdirAll(s.file(), 0o700))
		if _, h, _ := s.open(); !h.Lost {
			t.Errorf("got %+v, want Lost", h)
		}
		expect.EqualSlices(s, testfile.Names(s, s.dir), []string{state.FileName + ".bad"}, "files")
	})
}

// TestUnknownField checks that fields of a newer podgauge are ignored after a
// rollback.
func TestUnknownField(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(health.History{}, nil)
	s.write(s.file(), `{"version":1,"mood":"good","health":{"records":[{"gpu":"GPU-a","mood":"bad"}]}}`)
	if _, h, _ := s.open(); h.Lost || len(h.Records) != 1 {
		t.Errorf("got %+v, want one record", h)
	}
}

// TestFileOfNewerVersion checks that the file is unchanged, with one log line
// and an error. Until the upgrade, all devices are checked.
func TestFileOfNewerVersion(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(health.History{}, nil)
	const newer = `{"version":2,"health":"of another type"}`
	s.write(s.file(), newer)
	store, h, _ := s.open()
	store.SaveHealth(fullHistory(), true)
	store.End()
	if !h.Lost || s.err() == nil || store.Stored() || s.newLogLines() != 1 {
		t.Errorf("got %+v, error %v and log %q, want Lost, an error and one line", h, s.err(), s.log.String())
	}
	if got, err := os.ReadFile(s.file()); err != nil || string(got) != newer {
		t.Errorf("got %q, %v, want an unchanged file", got, err)
	}
	expect.EqualSlices(s, testfile.Names(s, s.dir), []string{state.FileName}, "files")
}

// run runs a Store in a bubble.
func (s *fixture) run(test func(*testing.T, *state.Store)) {
	bubble.Test(s.T, func(t *testing.T) {
		store, _, _ := s.open()
		defer background.Run(t, store.Run)()
		test(t, store)
	})
}

// TestUnusableFolder checks that a folder that cannot be written costs one log
// line and an error, until it is usable.
func TestUnusableFolder(t *testing.T) {
	s := newFixture(t)
	s.write(s.dir, "a file in place of the folder")
	s.run(func(t *testing.T, store *state.Store) {
		time.Sleep(time.Minute)
		store.SaveHealth(fullHistory(), true)
		time.Sleep(time.Minute)
		if s.err() == nil || store.Stored() || s.newLogLines() != 1 {
			t.Errorf("got error %v, stored %v and log %q, want an error and one line", s.err(), store.Stored(), s.log.String())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		expect.Error(t, store.Wait(ctx), "", "Wait")
		require.NoError(t, os.Remove(s.dir))
		if err := store.Wait(t.Context()); err != nil || s.err() != nil || s.newLogLines() != 1 {
			t.Errorf("after the repair: got %v, %v and log %q, want no error and one line", err, s.err(), s.log.String())
		}
	})
	if _, h, _ := s.open(); len(h.Records) != 2 {
		t.Errorf("got %+v, want the saved history", h)
	}
}

// TestHandOver checks that nothing is written or logged while a newer process
// has the file, and that the file is written again after its end.
func TestHandOver(t *testing.T) {
	s := newFixture(t)
	s.run(func(t *testing.T, store *state.Store) {
		store.SaveHealth(fullHistory(), true)
		require.NoError(t, store.Wait(t.Context()))
		store.SetHandedOver(true)
		const newer = "content of the newer process"
		s.write(s.file(), newer)
		store.SaveIncidents(fullIncidents(), true)
		time.Sleep(time.Minute)
		store.End()
		if got, err := os.ReadFile(s.file()); err != nil || string(got) != newer || s.err() != nil || s.newLogLines() != 0 {
			t.Errorf("handed over: got %q, %v, error %v, want the newer file", got, err, s.err())
		}
		store.SetHandedOver(false)
		require.NoError(t, store.Wait(t.Context()))
		if _, h, all := s.open(); len(h.Records) != 2 || len(all) != 2 {
			t.Errorf("after the newer process: got %+v, %v, want the saved state", h, all)
		}
	})
}

// TestStormIsWrittenOnceASecond checks that a storm is written once a second,
// and a fault at once.
func TestStormIsWrittenOnceASecond(t *testing.T) {
	s := newFixture(t)
	s.run(func(t *testing.T, store *state.Store) {
		synctest.Wait()
		before, err := os.Stat(s.file())
		require.NoError(t, err)
		hasNewFile := func() bool {
			after, err := os.Stat(s.file())
			isNew := err == nil && !os.SameFile(after, before)
			before = after
			return isNew
		}
		writes := 0
		for range 9_500 { // ends between two writes
			store.SaveIncidents(fullIncidents(), false)
			time.Sleep(time.Millisecond)
			if hasNewFile() {
				writes++
			}
		}
		if writes < 9 || writes > 11 {
			t.Errorf("got %d writes in ten seconds, want about 10", writes)
		}
		store.SaveHealth(fullHistory(), true)
		if err := store.Wait(t.Context()); err != nil || !hasNewFile() {
			t.Errorf("a fault: got error %v, want a write at once", err)
		}
		time.Sleep(time.Minute)
		if hasNewFile() {
			t.Error("an unchanged state was written")
		}
	})
}

// TestHungDisk checks that a file that hangs neither keeps the process from
// starting nor from ending, and is not replaced.
func TestHungDisk(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	// The file hangs until a process writes.
	require.NoError(t, errors.Join(os.Mkdir(s.dir, 0o700), syscall.Mkfifo(s.file(), 0o600)))
	store, h, _ := s.open()
	store.SaveHealth(fullHistory(), true)
	store.End()
	if !h.Lost || s.err() == nil || store.Stored() || s.newLogLines() != 1 {
		t.Errorf("got %+v, error %v and log %q, want Lost, an error and one line", h, s.err(), s.log.String())
	}
	if info, err := os.Stat(s.file()); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("got %v, %v, want an unchanged file", info, err)
	}
	s.write(s.file(), "") // ends the hang
	program.WaitUntil(t, "the read file is set aside", func() bool {
		_, err := os.Stat(s.file() + ".bad")
		return err == nil
	})
}

// FuzzOpen opens any file. What is stored then is read without loss.
func FuzzOpen(f *testing.F) {
	for _, content := range invalidFiles {
		f.Add([]byte(content))
	}
	full, err := json.Marshal(map[string]any{"version": 1, "health": fullHistory(), "incidents": fullIncidents()})
	require.NoError(f, err)
	f.Add(full)
	f.Fuzz(func(t *testing.T, content []byte) {
		s := newFixture(t)
		require.NoError(t, os.Mkdir(s.dir, 0o700))
		s.write(s.file(), string(content))
		store, h, all := s.open()
		store.End()
		if s.err() != nil {
			return // of a newer version
		}
		if _, again, allAgain := s.open(); again.Lost != h.Lost || len(again.Records) != len(h.Records) || len(allAgain) != len(all) {
			t.Errorf("got %+v and %+v again, want %+v and %+v", again, allAgain, h, all)
		}
	})
}
