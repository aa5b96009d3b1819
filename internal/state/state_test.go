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

// fixture is a folder, and a boot that can be changed.
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
	return Open(Options{Folder: disk.OpenFolder(s.dir), BootIDPath: s.boot, Log: slog.New(slog.NewTextHandler(&s.log, nil))})
}

// newLogLines are what the log has said since it was last asked.
func (s *fixture) newLogLines() int {
	defer s.log.Reset()
	return strings.Count(s.log.String(), "\n")
}

// saveAndEnd opens, saves and ends in order.
func (s *fixture) saveAndEnd(h device.HealthHistory) {
	s.Helper()
	f, _ := s.open()
	f.Save(h)
	f.End()
	if err := f.Err(); err != nil {
		s.Fatal(err)
	}
}

// fullHistory is a history in which every field says something.
func fullHistory() device.HealthHistory {
	at := func(n int64) time.Time { return time.Unix(1e9+n, 5).UTC() }
	return device.HealthHistory{Records: []device.HealthRecord{
		{
			GPU: "GPU-a", Reason: "xid_95", Action: "replace", Class: "broken", Since: at(1), FaultAt: at(2), LastSeen: at(8), NeedsReset: true, ByPolicy: true, ResetSeen: true,
			EnergyCounter: 1<<64 - 1, Flaps: 7, UnhealthyTimes: []time.Time{at(3), at(4)}, FailedResets: device.FailedResets{Reason: "xid_95", Count: 2, LastFaultAt: at(5)},
			Xids:      []device.Xid{{Code: 13, Count: 3, Last: at(6)}, {Code: 95, Count: 1, Last: at(7), LastHistorical: at(9)}},
			GoneSince: at(10), LastListed: device.Device{
				ID: "GPU-a", GPU: "GPU-a", Index: 3, MIGEnabled: true, MIGDeviceIndex: -1, GI: -1, CI: -1, Minor: 4, Model: "NVIDIA H100 80GB HBM3",
				PCI: "0000:1a:00.0", NUMANode: 1, MemoryBytes: 80 << 30,
			},
		},
		{GPU: "GPU-a", Device: "MIG-b", Reason: "xid_999", NeedsReset: true},
	}}
}

func TestNothingIsForgotten(t *testing.T) {
	s := newFixture(t)
	if _, h := s.open(); !reflect.DeepEqual(h, device.HealthHistory{}) || s.newLogLines() != 0 {
		t.Errorf("at first it is %+v", h)
	}
	s.saveAndEnd(fullHistory())
	info, err := os.Stat(filepath.Join(s.dir, FileName))
	if err != nil || info.Mode() != 0o600 || !slices.Equal(fileNames(t, s.dir), []string{FileName, disk.OwnerFileName}) {
		t.Errorf("there are %q, the file is %v, %v", fileNames(t, s.dir), info.Mode(), err)
	}
	if _, h := s.open(); !reflect.DeepEqual(h, fullHistory()) {
		t.Errorf("it is %+v", h)
	}
}

// TestWhatIsLostIsHandedOn as long as somebody says so.
func TestWhatIsLostIsHandedOn(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(device.HealthHistory{Lost: true})
	for range 2 {
		if _, h := s.open(); !h.Lost || s.newLogLines() != 0 {
			t.Errorf("it is %+v", h)
		}
	}
	s.saveAndEnd(device.HealthHistory{})
	if _, h := s.open(); h.Lost {
		t.Error("it is not over")
	}
}

// TestCountsGoOn also if the process was killed: a scrape has shown none that is not stored.
func TestCountsGoOn(t *testing.T) {
	s := newFixture(t)
	f, _ := s.open()
	f.Save(fullHistory())
	if err := f.file.Flush(); err != nil {
		t.Fatal(err)
	}
	more := fullHistory()
	more.Records[0].Flaps++
	more.Records[0].Xids[0].Count++
	f.Save(more) // and it is killed
	if shown := f.ExportedCounts(); !reflect.DeepEqual(*shown, fullHistory()) {
		t.Errorf("a scrape shows %+v", shown)
	}
	if _, h := s.open(); !reflect.DeepEqual(h, fullHistory()) {
		t.Errorf("the next process counts on from %+v", h)
	}
	s.saveAndEnd(fullHistory())
	s.write(s.boot, "two")
	rebooted := fullHistory()
	rebooted.Rebooted = true
	if _, h := s.open(); !reflect.DeepEqual(h, rebooted) {
		t.Errorf("after a boot it is %+v", h)
	}
}

// TestCountsStartFromZero if a scrape may have shown more than the file has, because the disk
// was full. What is known of the health stays.
func TestCountsStartFromZero(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(fullHistory())
	if err := os.Rename(filepath.Join(s.dir, FileName), filepath.Join(s.dir, FileName+".behind")); err != nil {
		t.Fatal(err)
	}
	want := fullHistory()
	want.Records[0].Flaps, want.Records[0].Xids[0].Count, want.Records[0].Xids[1].Count = 0, 0, 0
	want.Lost = true
	if f, h := s.open(); !reflect.DeepEqual(h, want) || f.ExportedCounts() != nil {
		t.Errorf("it is %+v", h)
	}
}

// TestWhatMakesADeviceUnhealthyIsUrgent, and no count is.
func TestWhatMakesADeviceUnhealthyIsUrgent(t *testing.T) {
	before := fullHistory()
	for _, row := range []struct {
		name string
		turn func(*device.HealthRecord)
		want bool
	}{
		{"nothing", func(*device.HealthRecord) {}, false},
		{"a count", func(r *device.HealthRecord) { r.Xids[0].Count++ }, false},
		{"the same fault once more", func(r *device.HealthRecord) { r.FaultAt, r.EnergyCounter = r.FaultAt.Add(1), 7 }, false},
		{"recovery", func(r *device.HealthRecord) { r.Reason = "" }, false},
		{"the same fault while recovering", func(r *device.HealthRecord) { r.ResetSeen = false }, true},
		{"another fault", func(r *device.HealthRecord) { r.Reason = "lost" }, true},
		{"another device", func(r *device.HealthRecord) { r.Device = "MIG-c" }, true},
	} {
		after := fullHistory()
		row.turn(&after.Records[0])
		if got := turnedUnhealthy(before, after); got != row.want {
			t.Errorf("%s: urgent is %v", row.name, got)
		}
	}
}

func TestABootIsSeen(t *testing.T) {
	for _, row := range []struct {
		name, before, after string
		want                bool
	}{
		{"the same", "one", "one\n", false},
		{"another", "one", "two", true},
		{"it cannot be told now", "one", "", false},
		{"it could not be told then", "", "two", false},
		{"it is no name", "one", "two three", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newFixture(t)
			s.write(s.boot, row.before)
			s.saveAndEnd(fullHistory())
			s.write(s.boot, row.after)
			if _, h := s.open(); h.Rebooted != row.want {
				t.Errorf("rebooted: %v", h.Rebooted)
			}
		})
	}
}

const badName = FileName + ".bad"

// invalidFiles are files that this program has not written.
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
	"a long GPU":     `{"version":1,"records":[{"gpu":"` + strings.Repeat("G", maxTextBytes+1) + `"}]}`,
	"a line break":   `{"version":1,"records":[{"gpu":"GPU-a\nb"}]}`,
	"a label's end":  `{"version":1,"records":[{"gpu":"GPU-a","verdict":{"reason":"a b"}}]}`,
	"no reason":      `{"version":1,"records":[{"gpu":"GPU-a","verdict":{}}]}`,
	"twice":          `{"version":1,"records":[{"gpu":"GPU-a"},{"gpu":"GPU-a"}]}`,
	"a count":        `{"version":1,"records":[{"gpu":"GPU-a","xids":[{"code":1,"count":18446744073709551615}]}]}`,
	"Xid 0":          `{"version":1,"records":[{"gpu":"GPU-a","xids":[{"code":0}]}]}`,
	"an Xid twice":   `{"version":1,"records":[{"gpu":"GPU-a","xids":[{"code":1},{"code":1}]}]}`,
	"flaps":          `{"version":1,"records":[{"gpu":"GPU-a","flaps":18446744073709551615}]}`,
	"less than 0":    `{"version":1,"records":[{"gpu":"GPU-a","again":{"reason":"x","resets":-1}}]}`,
	"turns":          `{"version":1,"records":[{"gpu":"GPU-a","turns":[` + strings.Repeat(`"2026-01-01T00:00:00Z",`, maxUnhealthyTimes) + `"2026-01-01T00:00:00Z"]}]}`,
	"no time":        `{"version":1,"records":[{"gpu":"GPU-a","turns":["yesterday"]}]}`,
	"a boot":         `{"version":1,"boot":" ","records":[]}`,
	"too large":      `{"version":1,"records":[]}` + strings.Repeat(" ", maxFileBytes),
	"records":        `{"version":1,"records":[` + strings.Repeat(`{"gpu":"GPU-a"},`, maxRecords) + `{"gpu":"GPU-b"}]}`,
}

func TestWhatIsForeignIsSetAside(t *testing.T) {
	for name, content := range invalidFiles {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			s.saveAndEnd(fullHistory())
			for range 2 { // the second takes the place of the first
				s.write(filepath.Join(s.dir, FileName), content)
				if _, h := s.open(); !h.Lost || len(h.Records) > 0 || s.newLogLines() != 1 {
					t.Errorf("it is %+v, and the log says %q", h, s.log.String())
				}
			}
			if got, err := os.ReadFile(filepath.Join(s.dir, badName)); err != nil || string(got) != content || !slices.Equal(fileNames(t, s.dir), []string{badName, disk.OwnerFileName}) {
				t.Errorf("there are %q, %v", fileNames(t, s.dir), err)
			}
			if _, h := s.open(); h.Lost || s.newLogLines() != 0 {
				t.Errorf("after that it is %+v", h)
			}
			s.saveAndEnd(fullHistory())
			if _, h := s.open(); !reflect.DeepEqual(h, fullHistory()) {
				t.Errorf("when it was written anew it is %+v", h)
			}
		})
	}
	t.Run("what is no file", func(t *testing.T) {
		s := newFixture(t)
		if err := os.MkdirAll(filepath.Join(s.dir, FileName), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, h := s.open(); !h.Lost || !slices.Equal(fileNames(t, s.dir), []string{badName, disk.OwnerFileName}) {
			t.Errorf("it is %+v, and there are %q", h, fileNames(t, s.dir))
		}
		s.write(filepath.Join(s.dir, "elsewhere"), `{"version":1}`)
		if err := os.Symlink("elsewhere", filepath.Join(s.dir, FileName)); err != nil {
			t.Fatal(err)
		}
		if f, h := s.open(); !h.Lost || f.Err() == nil { // what has the other name is a folder
			t.Errorf("of a link it is %+v, %v", h, f.Err())
		}
	})
}

// TestAFieldThatIsNewerIsNoStranger, since a newer podgauge may have been rolled back.
func TestAFieldThatIsNewerIsNoStranger(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(fullHistory())
	s.write(filepath.Join(s.dir, FileName), `{"version":1,"mood":"good","records":[{"gpu":"GPU-a","flaps":3,"mood":"bad"}]}`)
	if _, h := s.open(); h.Lost || len(h.Records) != 1 || h.Records[0].Flaps != 3 {
		t.Errorf("it is %+v", h)
	}
}

func TestWhereNothingCanBeKept(t *testing.T) {
	s := newFixture(t)
	s.write(s.dir, "a file in the folder's place")
	f, h := s.open()
	if f.Err() == nil || h.Lost {
		t.Errorf("it is %+v, %v", h, f.Err())
	}
	f.Save(fullHistory())
	for range 3 {
		if f.file.Flush() == nil || f.Err() == nil {
			t.Error("it is written")
		}
	}
	if s.newLogLines() != 1 {
		t.Errorf("the log says %q", s.log.String())
	}
	os.Remove(s.dir)
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.file.Flush(); err != nil || f.Err() != nil || s.newLogLines() != 1 {
		t.Errorf("when it can be, %v, %v", err, f.Err())
	}
}

// TestAnOddDeviceIsLeftOut: what cannot be written of one costs the others nothing.
func TestAnOddDeviceIsLeftOut(t *testing.T) {
	s := newFixture(t)
	f, _ := s.open()
	h := fullHistory()
	h.Records = append(h.Records, device.HealthRecord{GPU: "GPU with a blank", Reason: "lost"})
	f.Save(h)
	for _, lines := range []int{1, 0} {
		if err := f.file.Flush(); err != nil || f.Err() == nil || s.newLogLines() != lines {
			t.Errorf("written with %v; %v is not said in %d lines", err, f.Err(), lines)
		}
	}
	if _, h := s.open(); !reflect.DeepEqual(h, fullHistory()) {
		t.Errorf("it is %+v", h)
	}
}

func TestLeftoversAreTidiedUp(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(fullHistory())
	for _, name := range []string{".health.json.1.tmp", ".health.json.2.tmp", "other.tmp"} {
		s.write(filepath.Join(s.dir, name), "")
		if name == ".health.json.2.tmp" { // another process is just at it
			continue
		}
		if err := os.Chtimes(filepath.Join(s.dir, name), time.Time{}, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	s.open()
	if got := fileNames(t, s.dir); !slices.Equal(got, []string{".health.json.2.tmp", FileName, "other.tmp", disk.OwnerFileName}) {
		t.Errorf("there are %q", got)
	}
}

// TestAFileOfANewerVersionIsLeftAlone. Until the upgrade each device is checked before it is
// trusted, but for what this version knows itself.
func TestAFileOfANewerVersionIsLeftAlone(t *testing.T) {
	s := newFixture(t)
	s.saveAndEnd(device.HealthHistory{})
	newer := filepath.Join(s.dir, FileName)
	s.write(newer, `{"version":2,"records":"of another type"}`)
	if _, h := s.open(); !h.Lost || len(h.Records) > 0 || s.newLogLines() != 1 {
		t.Errorf("it is %+v", h)
	}
	s.saveAndEnd(fullHistory())
	_, h := s.open()
	if len(h.Records) != 2 || h.Records[0].Reason != "xid_95" || h.Records[0].Flaps != 0 || !h.Lost {
		t.Errorf("the next process finds %+v", h)
	}
	if got, err := os.ReadFile(newer); err != nil || !strings.Contains(string(got), "another type") {
		t.Errorf("the newer version finds %q, %v", got, err)
	}
	if got := fileNames(t, s.dir); !slices.Equal(got, []string{FileName, "health.v1.json", disk.OwnerFileName}) {
		t.Errorf("there are %q", got)
	}
}

// FuzzDecode: what is understood can be written, and is then understood alike; and it is
// bounded.
func FuzzDecode(f *testing.F) {
	for _, content := range invalidFiles {
		if len(content) < 4096 {
			f.Add([]byte(content))
		}
	}
	content, err := encode(fullHistory(), "boot")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Fuzz(func(t *testing.T, content []byte) {
		d, err := decode(content)
		if err != nil {
			return
		}
		h := d.history()
		again, err := encode(h, d.BootID)
		if err != nil {
			t.Fatalf("it cannot be written: %v", err)
		}
		e, err := decode(again)
		if err != nil || !reflect.DeepEqual(e.history(), h) || e.BootID != d.BootID {
			t.Fatalf("it reads otherwise: %+v, %+v, %v", d, e, err)
		}
	})
}
