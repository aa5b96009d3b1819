package incident

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
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

const fileName = "incidents.json"

// inFolder returns options that keep incidents in a folder.
func inFolder(dir string) Options { return Options{Folder: disk.OpenFolder(dir)} }

// restart ends a Log and starts the next one with the same folder.
func (s *fixture) restart(dir string) *fixture {
	s.stop()
	return startFixture(inFolder(dir))
}

// waitWritten waits until all events are stored and published.
func (s *fixture) waitWritten() Snapshot {
	time.Sleep(disk.WriteInterval + 3*publishInterval)
	known, _ := s.Get()
	return known
}

func readStored(t testing.TB, dir string) (d storedState) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, fileName))
	if err == nil {
		err = json.Unmarshal(content, &d)
	}
	if err != nil {
		t.Error(err)
	}
	return d
}

func TestRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	runFixture(t, inFolder(dir), func(t *testing.T, s *fixture) {
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(79, gpuDevice("a")))
		s.Record(xidEvent(31, gpuDevice("a")))
		time.Sleep(time.Second)
		s.Record(xidEvent(31, gpuDevice("a")))
		was := s.waitWritten()
		if was.Persisted == false || was.Err != nil {
			t.Errorf("got persisted %v, error %v, want true, nil", was.Persisted, was.Err)
		}
		before := fmt.Sprint(was.Incidents)
		s = s.restart(dir)
		defer s.stop()
		after, _ := s.Get() // before the kubelet reports the end of A
		for i := range after.Incidents {
			after.Incidents[i].Affected[0].Until = time.Time{}
		}
		if len(after.Incidents) != 2 || after.Incidents[0].Count != 2 || fmt.Sprint(inLocalTime(after.Incidents)) != before {
			t.Errorf("incidents after a restart: got\n%v\nwant\n%v", inLocalTime(after.Incidents), before)
		}
		if !reflect.DeepEqual(counts(after), counts(was)) || len(counts(after)) != 4 {
			t.Errorf("counts after a restart: got %v, want %v", counts(after), counts(was))
		}
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		known := s.waitWritten()
		if got := known.Incidents; len(got) != 2 || got[0].ID <= after.Incidents[0].ID || got[0].Count != 3 || !got[0].First.Equal(was.Incidents[0].First) {
			t.Errorf("repeated incident: got %+v, want a new id and three events", got)
		}
		if known.Devices[0].Count != 3 || known.Affected[0].Count != 3 {
			t.Errorf("continued counts: got %v, %v, want 3", known.Devices, known.Affected)
		}
		if n := s.log.count("msg=incident"); n != 1 {
			t.Errorf("incidents in the log of the second process: got %d, want 1", n)
		}
		s.statuses.Set([]device.Status{{Device: gpuDevice("a"), Healthy: true, Since: time.Now().Add(-time.Hour)}})
		if got := s.incidents(); got[1].RecoveredAt == nil {
			t.Errorf("incident of an earlier process: got no recovery time")
		}
	})
}

// counts returns all exported counts.
func counts(k Snapshot) map[string]uint64 {
	all := map[string]uint64{}
	for _, c := range k.Devices {
		all[fmt.Sprint(c.Device, " ", c.GPU, " ", c.Index, " ", c.Reason)] = c.Count
	}
	for _, h := range k.Affected {
		all[fmt.Sprint(h.Device, " ", h.GPU, " ", h.Index, " ", h.Owner, " ", h.Reason)] = h.Count
	}
	return all
}

// inLocalTime sets the time zone, which JSON does not keep.
func inLocalTime(all []Incident) []Incident {
	all = slices.Clone(all)
	for i := range all {
		x := &all[i]
		x.First, x.Last = x.First.In(time.Local), x.Last.In(time.Local)
		x.Affected = slices.Clone(x.Affected)
		for k := range x.Affected {
			x.Affected[k].Since = x.Affected[k].Since.In(time.Local)
		}
	}
	return all
}

// TestStormIsWrittenOnceASecond checks that a storm is written once a second, and an event that marks a device unhealthy at once.
func TestStormIsWrittenOnceASecond(t *testing.T) {
	dir := t.TempDir()
	runFixture(t, inFolder(dir), func(t *testing.T, s *fixture) {
		s.Record(xidEvent(31, gpuDevice("a")))
		s.waitWritten()
		writes, before := 0, fileInfo(t, dir)
		countWrite := func() {
			if after := fileInfo(t, dir); !os.SameFile(after, before) {
				writes, before = writes+1, after
			}
		}
		for range 10_000 {
			s.Record(xidEvent(31, gpuDevice("a")))
			time.Sleep(time.Millisecond)
			countWrite()
		}
		if writes < 8 || writes > 11 {
			t.Errorf("got %d writes in ten seconds, want 8 to 11", writes)
		}
		writes = 0
		s.Record(xidEvent(79, gpuDevice("a")))
		time.Sleep(2 * publishInterval)
		if countWrite(); writes != 1 || !slices.ContainsFunc(readStored(t, dir).Incidents, func(i Incident) bool { return i.MarkedUnhealthy }) {
			t.Errorf("an event that marks a device unhealthy was not written at once")
		}
	})
}

func fileInfo(t *testing.T, dir string) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// TestCountsArePublishedWhenStored checks that scraped counts survive a SIGKILL. Incidents are published at once.
func TestCountsArePublishedWhenStored(t *testing.T) {
	dir := t.TempDir()
	runFixture(t, inFolder(dir), func(t *testing.T, s *fixture) {
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		s.waitWritten()
		for n := range uint64(200) {
			s.Record(xidEvent(31, gpuDevice("a")))
			time.Sleep(time.Duration(n%7) * 20 * time.Millisecond)
			known, _ := s.Get()
			d := readStored(t, dir)
			if exported, after := known.Devices[0].Count, d.Counts[0].Count; exported > after {
				t.Fatalf("count of the device: got %d exported, %d stored", exported, after)
			}
			if exported, after := known.Affected[0].Count, d.Counts[1].Count; exported > after {
				t.Fatalf("count of the container: got %d exported, %d stored", exported, after)
			}
		}
		if known := s.waitWritten(); known.Devices[0].Count != 201 || known.Affected[0].Count != 201 || known.Incidents[0].Count != 201 {
			t.Errorf("counts at the end: got %v, %v, want 201", known.Devices, known.Affected)
		}
	})
}

func TestFileIsBounded(t *testing.T) {
	dir := t.TempDir()
	o := inFolder(dir)
	o.MaxIncidents, o.MaxAge = 20, 5*time.Minute
	runFixture(t, o, func(t *testing.T, s *fixture) {
		for i := range 600 {
			s.Record(xidEvent(31, gpuDevice(device.ID(fmt.Sprint("GPU-", i)))))
			time.Sleep(time.Second)
		}
		s.statuses.Set([]device.Status{{Device: gpuDevice("GPU-599"), Healthy: true}})
		time.Sleep(2 * pruneInterval)
		if got := readStored(t, dir); len(got.Incidents) != 5 || len(got.Counts) > 360 {
			t.Errorf("file: got %d incidents and %d counts, want a quarter of 20 and at most 360", len(got.Incidents), len(got.Counts))
		}
		time.Sleep(2 * time.Hour)
		if got := readStored(t, dir); len(got.Incidents) != 0 || len(got.Counts) != 1 || got.Counts[0].Device != "GPU-599" {
			t.Errorf("file after two hours: got %v, want one count", got)
		}
	})
}

// TestContainersAreBounded checks that devices with many replicas keep at most maxAffectedTotal containers: a quarter for errors of software.
func TestContainersAreBounded(t *testing.T) {
	b := newTracker(Options{MaxIncidents: 1000, MaxAge: time.Hour}, time.Now())
	h := device.Allocations{Complete: true}
	for n := range maxAffected {
		h.All = append(h.All, device.Allocation{Resource: gpuResource, DeviceID: device.ID("a").Replica(n), Owner: owner(fmt.Sprint("pod-", n))})
		h.Recent = append(h.Recent, device.AllocationRecord{Device: "a", Owner: owner(fmt.Sprint("pod-", n))})
	}
	slices.SortFunc(h.All, device.CompareAllocations)
	at := time.Now()
	for n := range 100 {
		for _, xid := range []uint64{94, 31} {
			o := xidEvent(xid, gpuDevice("a"))
			o.At = at.Add(time.Duration(n) * time.Hour)
			b.record(&o, &h, o.At)
		}
	}
	named := map[string]int{}
	for _, e := range b.entries {
		named[e.Reason] += len(e.Affected)
	}
	if want := map[string]int{"xid_31": maxAffectedTotal / 4, "xid_94": maxAffectedTotal * 3 / 4}; !maps.Equal(named, want) {
		t.Errorf("got containers by reason %v, want %v", named, want)
	}
}

// TestCountersAreBounded checks that the oldest counters of containers are dropped, and counters of devices are kept.
func TestCountersAreBounded(t *testing.T) {
	b := newTracker(Options{MaxIncidents: 10, MaxAge: time.Hour}, time.Now())
	s := storedState{Counts: []EventCount{{Device: "a", Reason: "xid_79", Count: 1}}}
	for n := range maxCounters + 10 {
		s.Counts = append(s.Counts, EventCount{Device: "a", Reason: "xid_31", Owner: owner(fmt.Sprintf("pod-%05d", n)), Last: time.Unix(int64(n+1), 0)})
	}
	if err := s.validate(); err != nil {
		t.Fatal(err)
	}
	b.load(s)
	b.prune(func(device.ID) bool { return true }, time.Now())
	devices, affected := splitCounts(b.counters.values())
	if len(devices) != 1 || len(affected) != maxCounters-1 || !slices.IsSortedFunc(b.counters, (*EventCount).compare) ||
		slices.ContainsFunc(affected, func(c EventCount) bool { return c.Last.Unix() <= 11 }) {
		t.Errorf("got %d counters of devices and %d of containers", len(devices), len(affected))
	}
}

// TestClockAhead checks that a clock that is a month ahead at boot or later deletes nothing. Old incidents expire after a day.
func TestClockAhead(t *testing.T) {
	dir := t.TempDir()
	runFixture(t, inFolder(dir), func(t *testing.T, s *fixture) {
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		s.waitWritten()
		s.stop()
		time.Sleep(31 * 24 * time.Hour)
		s = s.restart(dir)
		defer s.stop()
		time.Sleep(23 * time.Hour)
		if known, _ := s.Get(); len(known.Incidents) != 1 || len(known.Devices) != 1 || len(known.Affected) != 1 {
			t.Errorf("after %s of wall-clock time: got %+v, want one incident", 31*24*time.Hour, known)
		}
		time.Sleep(2 * time.Hour)
		if known, _ := s.Get(); len(known.Incidents) != 0 || len(known.Affected) != 0 {
			t.Errorf("after a day of runtime: got %+v, want no incidents", known)
		}
	})
	b := newTracker(Options{MaxAge: time.Hour}, time.Now())
	running := b.startedAt.Add(2 * time.Hour)
	ahead := running.Round(0).Add(24 * time.Hour) // without a monotonic reading, it counts as a wall clock
	if b.startedAt = b.startedAt.Round(0); b.expired(b.startedAt.Add(90*time.Minute), ahead.Add(-24*time.Hour)) {
		t.Error("expired: got true for an incident of half an hour ago")
	}
}

// TestUnwritableDisk checks that incidents are kept in memory, with one log line.
func TestUnwritableDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // not even root can create a folder here
		t.Fatal(err)
	}
	runFixture(t, inFolder(dir), func(t *testing.T, s *fixture) {
		s.Record(xidEvent(31, gpuDevice("a")))
		time.Sleep(5 * disk.RetryInterval)
		known, _ := s.Get()
		if known.Persisted || known.Err == nil || len(known.Incidents) != 1 || len(known.Devices) != 1 {
			t.Errorf("got %+v, want one incident and an error", known)
		}
		if n := s.log.count("cannot store state"); n != 1 {
			t.Errorf("log messages: got %d, want 1", n)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * disk.RetryInterval)
		if known, _ := s.Get(); !known.Persisted || known.Err != nil || len(known.Devices) != 1 {
			t.Errorf("after the disk works again: got %+v, want one persisted incident", known)
		}
		if got := readStored(t, dir); len(got.Incidents) != 1 {
			t.Errorf("file: got %v, want one incident", got.Incidents)
		}
	})
}

// invalidFiles are files that this program never writes.
var invalidFiles = map[string]string{
	"empty":        "",
	"a database":   "\xed\xda\x0c\xed\x02\x00\x00\x00",
	"cut short":    `{"version":1,"incidents":[{"id":1,"device":"a"`,
	"no version":   `{}`,
	"no device":    `{"version":1,"incidents":[{"id":1,"reason":"xid_31"}]}`,
	"no id":        `{"version":1,"incidents":[{"device":"a","reason":"xid_31"}]}`,
	"out of order": `{"version":1,"incidents":[{"id":1,"device":"a","reason":"xid_31"},{"id":1,"device":"a","reason":"xid_31"}]}`,
	"twice":        `{"version":1,"counts":[{"device":"a","reason":"xid_31"},{"device":"a","reason":"xid_31"}]}`,
	"no time":      `{"version":1,"incidents":[{"id":1,"device":"a","reason":"xid_31","first":"yesterday"}]}`,
}

func TestInvalidFile(t *testing.T) {
	for name, content := range invalidFiles {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, fileName)
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			runFixture(t, inFolder(dir), func(t *testing.T, s *fixture) {
				if n := s.log.count("\n"); n != 1 {
					t.Errorf("log lines: got %d, want 1: %s", n, s.log.text.String())
				}
				s.Record(xidEvent(31, gpuDevice("a")))
				if known := s.waitWritten(); len(known.Incidents) != 1 || known.Devices[0].Count != 1 || !known.Persisted {
					t.Errorf("got %+v, want one persisted incident", known)
				}
			})
			if got, err := os.ReadFile(path + ".bad"); err != nil || string(got) != content {
				t.Errorf("the renamed file has another content: %v", err)
			}
			if got := readStored(t, dir); len(got.Incidents) != 1 {
				t.Errorf("new file: got %v, want one incident", got)
			}
		})
	}
}

func TestFileOfNewerVersion(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, fileName)
	const newer = `{"version":2,"incidents":"of another type"}`
	if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	runFixture(t, inFolder(dir), func(t *testing.T, s *fixture) {
		s.Record(xidEvent(31, gpuDevice("a")))
		s.waitWritten()
		s = s.restart(dir)
		defer s.stop()
		if known, _ := s.Get(); !known.Persisted || len(known.Incidents) != 1 || known.Devices[0].Count != 1 {
			t.Errorf("next process: got %+v, want one incident", known)
		}
	})
	if got, err := os.ReadFile(path); err != nil || string(got) != newer {
		t.Errorf("file of the newer version: got %s, %v, want it unchanged", got, err)
	}
}

// FuzzDecode loads decoded files, and stores and loads them again.
func FuzzDecode(f *testing.F) {
	for _, content := range invalidFiles {
		f.Add([]byte(content))
	}
	content, err := json.Marshal(fullState(3))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Fuzz(func(t *testing.T, content []byte) {
		var stored [2]string
		for i := range stored {
			var s storedState
			if err := json.Unmarshal(content, &s); err != nil || s.validate() != nil {
				if i > 0 {
					t.Fatalf("the stored file is invalid: %s, %v", content, err)
				}
				return
			}
			b := newTracker(Options{MaxIncidents: 10, MaxAge: time.Hour}, time.Now())
			b.load(s)
			if content, err = json.Marshal(b.storedState()); err != nil {
				t.Fatal(err)
			}
			stored[i] = string(content)
			b.prune(func(device.ID) bool { return false }, time.Now())
			b.updateAffected(&device.Allocations{Complete: true}, time.Now())
		}
		if stored[0] != stored[1] {
			t.Errorf("second stored file: got\n%s\nwant\n%s", stored[1], stored[0])
		}
	})
}

// fullState returns a state with n incidents, each with three affected containers.
func fullState(n int) (s storedState) {
	var affected []EventCount
	for i := n; i > 0; i-- {
		at := time.Unix(int64(i)*1000, 5).UTC()
		incident := Incident{
			ID: uint64(i), First: at, Last: at.Add(time.Minute), Count: 7, Device: "GPU-11111111-2222-3333-4444-555555555555",
			GPU: "GPU-11111111-2222-3333-4444-555555555555", Index: 3, Model: "NVIDIA H100 80GB HBM3", PCI: "0000:1a:00.0", Reason: "xid_95",
			Xid: 95, Class: "uncontained", Action: "reset", MarkedUnhealthy: true, RecoveredAt: &at,
		}
		for k := range 3 {
			code := int32(139)
			h := AffectedContainer{Owner: owner(fmt.Sprintf("training-%d-%d", i, k)), UID: strings.Repeat("1", 36), Since: at, Until: at}
			h.Termination = &PodTermination{At: at, Phase: "Failed", Reason: "Error", ExitCode: &code, Restarts: 1}
			incident.Affected = append(incident.Affected, h)
			affected = append(affected, EventCount{incident.Device, incident.GPU, 3, h.Owner, incident.Reason, 7, at})
		}
		s.Incidents = append(s.Incidents, incident)
	}
	slices.SortFunc(affected, func(a, b EventCount) int { return a.Compare(b.Owner) })
	first := s.Incidents[0]
	s.Version, s.Counts = version, append([]EventCount{{first.Device, first.GPU, 3, device.Owner{}, "xid_95", 7000, first.Last}}, affected...)
	return s
}

func BenchmarkEncode(b *testing.B) {
	s := fullState(1000)
	b.ReportAllocs()
	for b.Loop() {
		content, err := json.Marshal(s)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(content)))
	}
}
