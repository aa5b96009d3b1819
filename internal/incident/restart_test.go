package incident_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// TestRestart checks that incidents and times continue, and that counts start
// at 0.
func TestRestart(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("own a A; xid 79 a; xid 31 a; 1s; xid 31 a")
		before := s.incidents()
		was, _ := s.published.Get()
		if s.urgent != 1 {
			t.Errorf("urgent saves: got %d, want 1 for xid_79", s.urgent)
		}
		logged := s.logged("msg=incident")
		s.restart()
		after, _ := s.published.Get()
		if n := len(after.Incidents); n != 2 || after.Incidents[0].Count != 2 || after.Incidents[0].ID != before[0].ID {
			t.Errorf("incidents after a restart: got\n%v\nwant\n%v", after.Incidents, before)
		}
		expect.EqualSlices(t, counts(after), []string{"a xid_31:0", "a xid_79:0", "a A xid_31:0", "a A xid_79:0"},
			"counts after a restart")
		if got := times(after); !slices.EqualFunc(got, times(was), time.Time.Equal) {
			t.Errorf("times after a restart: got %v, want %v", got, times(was))
		}
		s.script("own a A; xid 31 a")
		got := s.incidents()
		if len(got) != 2 || got[0].ID <= before[0].ID || got[0].Count != 3 || !got[0].First.Equal(before[0].First) {
			t.Errorf("repeated incident: got %+v, want a new id and three events", got)
		}
		if known, _ := s.published.Get(); known.Devices[0].Count != 1 || known.Affected[0].Count != 1 {
			t.Errorf("counts: got %v, %v, want 1", known.Devices, known.Affected)
		}
		expect.Equal(t, s.logged("msg=incident")-logged, 1, "incidents in the log of the second process")
		s.statuses.Set([]device.Status{{Device: gpuDevice("a"), Healthy: true, Since: time.Now().Add(-time.Hour)}})
		if got := s.incidents(); got[1].RecoveredAt == nil {
			t.Errorf("incident of an earlier process: got no recovery time")
		}
	})
}

// counts returns the exported counts: device, owner, reason and count.
func counts(k incident.Snapshot) (all []string) {
	for _, c := range slices.Concat(k.Devices, k.Affected) {
		text := fmt.Sprintf("%s %s %s:%d", c.Device, c.Pod, c.Reason, c.Count)
		all = append(all, strings.Join(strings.Fields(text), " "))
	}
	return all
}

// times returns the times of the exported counts.
func times(k incident.Snapshot) (all []time.Time) {
	for _, c := range slices.Concat(k.Devices, k.Affected) {
		all = append(all, c.Last.Round(0))
	}
	return all
}

// TestUnnamedOwnerKeepsDevice checks that an owner without a name keeps the
// device. A starting kubelet names the pods one by one.
func TestUnnamedOwnerKeepsDevice(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("own a::0 A; own a::1 B; xid 31 a; 1s")
		s.stop()
		s.options.Stored = s.read()
		s.allocations = newFakeAllocations()
		h := allocation.Snapshot{
			At: time.Now(), All: []allocation.Allocation{{Resource: gpuResource, DeviceID: "a::1", Owner: owner("B")}},
		}
		s.allocations.Set(h)
		s.start()
		s.want(t, "during the kubelet's start", "a xid_31 1 A B")
		h.Complete = true
		s.allocations.Set(h)
		s.want(t, "after the kubelet's start", "a xid_31 1 (A) B")
	})
}

// TestBoundedContainers checks that devices with many replicas keep at most
// 8,192 containers, a quarter for errors of software, also if the kubelet names
// them after the errors.
func TestBoundedContainers(t *testing.T) {
	runFixture(t, incident.Options{MaxIncidents: 10_000}, func(t *testing.T, s *fixture) {
		allocations := allocation.Snapshot{At: time.Now(), Complete: true}
		for n := range 60 * 128 {
			id := device.ID(fmt.Sprintf("GPU-%02d", n/128)).Replica(n % 128)
			allocations.All = append(allocations.All, allocation.Allocation{Resource: gpuResource, DeviceID: id})
		}
		s.allocations.Set(allocations)
		for n := range 60 {
			d := gpuDevice(device.ID(fmt.Sprintf("GPU-%02d", n)))
			s.Record(xidEvent("94", d))
			s.Record(xidEvent("31", d))
		}
		allocations.All = slices.Clone(allocations.All)
		for n := range allocations.All {
			a := &allocations.All[n]
			a.Owner = owner(fmt.Sprint("pod-", n))
			allocations.Recent = append(allocations.Recent, allocation.Record{
				Device: a.DeviceID.Device(), Owner: a.Owner, FirstSeen: allocations.At, LastSeen: time.Now(),
			})
		}
		s.allocations.Set(allocations)
		named := map[string]int{}
		for _, i := range s.incidents() {
			named[i.Reason] += len(i.Affected)
		}
		if want := map[string]int{"xid_31": 2048, "xid_94": 6144}; !maps.Equal(named, want) {
			t.Errorf("got containers by reason %v, want %v", named, want)
		}
	})
}

// TestClockAhead checks that a clock that is a month ahead at boot deletes
// nothing. Old incidents expire after a day.
func TestClockAhead(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("own a A; xid 31 a; 1s")
		s.stop()
		s.options.Stored = s.read()
		s.script("744h")
		s.allocations = newFakeAllocations()
		s.start()
		size := func() [3]int {
			known, _ := s.published.Get()
			return [3]int{len(known.Incidents), len(known.Devices), len(known.Affected)}
		}
		s.script("23h")
		if got := size(); got != [3]int{1, 1, 1} {
			t.Errorf("after a month of wall-clock time: got %v, want one of each", got)
		}
		s.script("2h")
		expect.Equal(t, size(), [3]int{}, "after a day of runtime")
	})
}

// FuzzStored starts a Log with any valid incidents. The saved incidents are
// valid, and the next Log saves the same.
func FuzzStored(f *testing.F) {
	f.Add([]byte(`[{"id":2,"device":"a","reason":"xid_31"},{"id":1,"device":"a","reason":"xid_31","affected":[{"pod":"A"},{"pod":"A"}]}]`))
	f.Add([]byte(`[{"id":3,"device":"a","gpu":"a","reason":"gone","affected_unknown":true,"count":1,"mig_devices":[{"device":"b"}]}]`))
	f.Add([]byte(`[{"id":3,"device":"a","reason":"xid_79","marked_unhealthy":true,"first":"9999-12-31T00:00:00Z","historical":true}]`))
	f.Fuzz(func(t *testing.T, content []byte) {
		var saved [2][]incident.Incident
		var stored []incident.Incident
		if json.Unmarshal(content, &stored) != nil || incident.Validate(stored) != nil {
			return
		}
		for i := range saved {
			runFixture(t, incident.Options{Stored: stored, MaxIncidents: 10}, func(_ *testing.T, s *fixture) {
				s.script("unknown")
				stored = s.read()
			})
			if err := incident.Validate(stored); err != nil {
				t.Fatalf("saved incidents: %v", err)
			}
			saved[i] = stored
		}
		if !reflect.DeepEqual(saved[0], saved[1]) {
			t.Errorf("second save: got\n%+v\nwant\n%+v", saved[1], saved[0])
		}
	})
}
