package state

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/state/disk"
)

const fileName = "health.json"

// fixture is a folder with a boot ID that the test can change.
type fixture struct {
	*testing.T
	dir, boot string
	log       bytes.Buffer
}

func newFixture(t *testing.T) *fixture {
	s := &fixture{T: t, dir: filepath.Join(t.TempDir(), "state")}
	s.boot = filepath.Join(t.TempDir(), "boot_id")
	s.write(s.boot, "one\n")
	return s
}

func (s *fixture) write(path, content string) {
	s.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *fixture) open() (*HealthFile, device.HealthHistory) {
	return Open(disk.OpenFolder(s.dir), s.boot, slog.New(slog.NewTextHandler(&s.log, nil)))
}

// newLogLines counts the log lines since the previous call.
func (s *fixture) newLogLines() int {
	defer s.log.Reset()
	return strings.Count(s.log.String(), "\n")
}

// saveAndEnd opens, saves and ends in order.
func (s *fixture) saveAndEnd(h device.HealthHistory) {
	s.Helper()
	f, _ := s.open()
	f.Save(h, false)
	f.End()
	if err := f.Err(); err != nil {
		s.Fatal(err)
	}
}

// fullHistory returns a history without zero fields.
func fullHistory() device.HealthHistory {
	at := func(n int64) time.Time { return time.Unix(1e9+n, 5).UTC() }
	return device.HealthHistory{Records: []device.HealthRecord{
		{
			GPU: "GPU-a", HealthCause: device.HealthCause{
				Reason: "xid_95", Action: "replace", Class: "broken", Since: at(1), FaultAt: at(2), NeedsReset: true, ByPolicy: true, ResetSeen: true,
				EnergyCounter: 1<<64 - 1,
			},
			LastSeen: at(8), Flaps: 7, UnhealthyTimes: []time.Time{at(3), at(4)}, FailedResets: device.FailedResets{Reason: "xid_95", Count: 2, LastFaultAt: at(5)},
			Xids:      []device.Xid{{Code: 13, Count: 3, Last: at(6)}, {Code: 95, Count: 1, Last: at(7), LastHistorical: at(9)}},
			GoneSince: at(10), LastListed: device.Device{
				ID: "GPU-a", GPU: "GPU-a", Index: 3, MIGEnabled: true, MIGDeviceIndex: -1, GI: -1, CI: -1, Minor: 4, Model: "NVIDIA H100 80GB HBM3",
				PCI: "0000:1a:00.0", NUMANode: 1, MemoryBytes: 80 << 30,
			},
		},
		{GPU: "GPU-a", Device: "MIG-b", HealthCause: device.HealthCause{Reason: "xid_999", NeedsReset: true}},
	}, DriverRestarts: 3}
}

func TestRestart(t *testing.T) {
	s := newFixture(t)
	if _, h := s.open(); !reflect.DeepEqual(h, device.HealthHistory{}) || s.newLogLines() != 0 {
		t.Errorf("at first: got %+v, want an empty history", h)
	}
	s.saveAndEnd(fullHistory())
	info, err := os.Stat(filepath.Join(s.dir, fileName))
	if err != nil || info.Mode() != 0o600 || !slices.Equal(fileNames(t, s.dir), []string{fileName, disk.OwnerFileName}) {
		t.Errorf("got files %q, mode %v, error %v, want two files with mode 0600", fileNames(t, s.dir), info.Mode(), err)
	}
	if _, h := s.open(); !reflect.DeepEqual(h, fullHistory()) {
		t.Errorf("got %+v, want the saved history", h)
	}
}

// TestLostIsStored checks that each process reads Lost until a history without Lost is saved.
func TestLostIsStored(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(device.HealthHistory{Lost: true})
	for range 2 {
		if _, h := s.open(); !h.Lost || s.newLogLines() != 0 {
			t.Errorf("got %+v, want Lost", h)
		}
	}
	s.saveAndEnd(device.HealthHistory{})
	if _, h := s.open(); h.Lost {
		t.Error("Lost: got true after a history without Lost, want false")
	}
}

// TestCountsContinue checks that only stored counts are exported, so that counts continue after a SIGKILL.
func TestCountsContinue(t *testing.T) {
	s := newFixture(t)
	f, _ := s.open()
	f.Save(fullHistory(), false)
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	more := fullHistory()
	more.Records[0].Flaps++
	more.Records[0].Xids[0].Count++
	f.Save(more, true) // killed before the write
	if exported, _ := f.ExportedCounts(); !reflect.DeepEqual(*exported, fullHistory()) {
		t.Errorf("exported counts: got %+v, want the stored ones", exported)
	}
	if _, h := s.open(); !reflect.DeepEqual(h, fullHistory()) {
		t.Errorf("next process: got %+v, want the stored history", h)
	}
	s.saveAndEnd(fullHistory())
	s.write(s.boot, "two")
	rebooted := fullHistory()
	rebooted.Rebooted = true
	if _, h := s.open(); !reflect.DeepEqual(h, rebooted) {
		t.Errorf("after a reboot: got %+v, want Rebooted", h)
	}
}

func TestReboot(t *testing.T) {
	for _, row := range []struct {
		name, before, after string
		want                bool
	}{
		{"the same", "one", "one\n", false},
		{"another", "one", "two", true},
		{"unknown now", "one", "", false},
		{"unknown then", "", "two", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newFixture(t)
			s.write(s.boot, row.before)
			s.saveAndEnd(fullHistory())
			s.write(s.boot, row.after)
			if _, h := s.open(); h.Rebooted != row.want {
				t.Errorf("Rebooted: got %v, want %v", h.Rebooted, row.want)
			}
		})
	}
}

const badName = fileName + ".bad"

// invalidFiles are files that this program never writes.
var invalidFiles = map[string]string{
	"empty":          "",
	"no JSON":        "hello",
	"cut short":      `{"version":1,"records":[{"gpu":"GPU-a"`,
	"no object":      `[]`,
	"no version":     `{}`,
	"version 0":      `{"version":0,"records":[]}`,
	"something more": `{"version":1,"records":[]}{}`,
	"another type":   `{"version":1,"records":[{"gpu":7}]}`,
	"no GPU":         `{"version":1,"records":[{"flaps":1}]}`,
	"a MIG device":   `{"version":1,"records":[{"gpu":"GPU-a","last_listed":{"id":"MIG-b","gpu":"GPU-a"}}]}`,
	"another GPU":    `{"version":1,"records":[{"gpu":"GPU-a","last_listed":{"id":"GPU-b","gpu":"GPU-b"}}]}`,
	"out of order":   `{"version":1,"records":[{"gpu":"GPU-b"},{"gpu":"GPU-a"}]}`,
	"no time":        `{"version":1,"records":[{"gpu":"GPU-a","unhealthy_times":["yesterday"]}]}`,
}

func TestInvalidFile(t *testing.T) {
	for name, content := range invalidFiles {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			s.saveAndEnd(fullHistory())
			for range 2 { // the second file replaces the first
				s.write(filepath.Join(s.dir, fileName), content)
				if _, h := s.open(); !h.Lost || len(h.Records) > 0 || s.newLogLines() != 1 {
					t.Errorf("got %+v and log %q, want Lost and one line", h, s.log.String())
				}
			}
			if got, err := os.ReadFile(filepath.Join(s.dir, badName)); err != nil || string(got) != content || !slices.Equal(fileNames(t, s.dir), []string{badName, disk.OwnerFileName}) {
				t.Errorf("got files %q, error %v, want the renamed file", fileNames(t, s.dir), err)
			}
			if _, h := s.open(); h.Lost || s.newLogLines() != 0 {
				t.Errorf("in the next process: got %+v, want Lost false", h)
			}
			s.saveAndEnd(fullHistory())
			if _, h := s.open(); !reflect.DeepEqual(h, fullHistory()) {
				t.Errorf("after a new save: got %+v, want the saved history", h)
			}
		})
	}
	t.Run("not a file", func(t *testing.T) {
		s := newFixture(t)
		if err := os.MkdirAll(filepath.Join(s.dir, fileName), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, h := s.open(); !h.Lost || !slices.Equal(fileNames(t, s.dir), []string{badName, disk.OwnerFileName}) {
			t.Errorf("got %+v and files %q, want Lost and a renamed file", h, fileNames(t, s.dir))
		}
	})
}

// TestUnknownField checks that fields of a newer podgauge are ignored after a rollback.
func TestUnknownField(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(fullHistory())
	s.write(filepath.Join(s.dir, fileName), `{"version":1,"mood":"good","records":[{"gpu":"GPU-a","flaps":3,"mood":"bad"}]}`)
	if _, h := s.open(); h.Lost || len(h.Records) != 1 || h.Records[0].Flaps != 3 {
		t.Errorf("got %+v, want one record with 3 flaps", h)
	}
}

func TestUnwritableFolder(t *testing.T) {
	s := newFixture(t)
	s.write(s.dir, "a file instead of the folder")
	f, h := s.open()
	if f.Err() == nil || h.Lost {
		t.Errorf("got %+v, error %v, want an error and Lost false", h, f.Err())
	}
	f.Save(fullHistory(), false)
	for range 3 {
		if f.Flush() == nil || f.Err() == nil {
			t.Error("Flush in an unwritable folder: got no error")
		}
	}
	if s.newLogLines() != 1 {
		t.Errorf("got log %q, want one line", s.log.String())
	}
	os.Remove(s.dir)
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Flush(); err != nil || f.Err() != nil || s.newLogLines() != 1 {
		t.Errorf("in a writable folder: got errors %v, %v", err, f.Err())
	}
}

func TestStaleTempsAreRemoved(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(fullHistory())
	for _, name := range []string{".health.json.1.tmp", ".health.json.2.tmp", "other.tmp"} {
		s.write(filepath.Join(s.dir, name), "")
		if name == ".health.json.2.tmp" { // used by another process
			continue
		}
		if err := os.Chtimes(filepath.Join(s.dir, name), time.Time{}, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	s.open()
	if got := fileNames(t, s.dir); !slices.Equal(got, []string{".health.json.2.tmp", fileName, "other.tmp", disk.OwnerFileName}) {
		t.Errorf("got files %q", got)
	}
}

// TestFileOfNewerVersion checks that the file is unchanged. Until the upgrade, all devices that this version does not know as unhealthy are
// checked.
func TestFileOfNewerVersion(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(device.HealthHistory{})
	newer := filepath.Join(s.dir, fileName)
	s.write(newer, `{"version":2,"records":"of another type"}`)
	if _, h := s.open(); !h.Lost || len(h.Records) > 0 || s.newLogLines() != 1 {
		t.Errorf("got %+v, want Lost and no records", h)
	}
	s.saveAndEnd(fullHistory())
	_, h := s.open()
	if len(h.Records) != 2 || h.Records[0].Reason != "xid_95" || h.Records[0].Flaps != 7 || !h.Lost {
		t.Errorf("next process: got %+v, want Lost and xid_95 with 7 flaps", h)
	}
	if got, err := os.ReadFile(newer); err != nil || !strings.Contains(string(got), "another type") {
		t.Errorf("file of the newer version: got %q, %v, want it unchanged", got, err)
	}
	if got := fileNames(t, s.dir); !slices.Equal(got, []string{fileName, "health.v1.json", disk.OwnerFileName}) {
		t.Errorf("got files %q", got)
	}
}
