package incident_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/test/bubble"
)

// fakeStore is a Store in memory, with the JSON form of the incidents.
type fakeStore struct {
	mu     sync.Mutex
	stored []byte // guarded by mu
	urgent int    // guarded by mu
}

func (f *fakeStore) SaveIncidents(all []incident.Incident, urgent bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	if f.stored, err = json.Marshal(all); err != nil {
		panic(err)
	}
	if urgent {
		f.urgent++
	}
}

// read returns the incidents as the next process reads them.
func (f *fakeStore) read() (all []incident.Incident) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := json.Unmarshal(f.stored, &all); err != nil {
		panic(err)
	}
	return all
}

// restart ends a Log and starts the next one with the stored incidents.
func (s *fixture) restart(o incident.Options) *fixture {
	s.stop()
	o.Stored = s.store.read()
	return startFixture(o, newFakeAllocations())
}

// TestRestart checks that incidents and times continue, and that counts start
// at 0.
func TestRestart(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(79, gpuDevice("a")))
		s.Record(xidEvent(31, gpuDevice("a")))
		time.Sleep(time.Second)
		s.Record(xidEvent(31, gpuDevice("a")))
		before := s.incidents()
		was, _ := s.published.Get()
		if s.store.urgent != 1 {
			t.Errorf("urgent saves: got %d, want 1 for xid_79", s.store.urgent)
		}
		s = s.restart(incident.Options{})
		defer s.stop()
		after, _ := s.published.Get() // before the kubelet reports the end of A
		if n := len(after.Incidents); n != 2 || after.Incidents[0].Count != 2 || after.Incidents[0].ID != before[0].ID {
			t.Errorf("incidents after a restart: got\n%v\nwant\n%v", after.Incidents, before)
		}
		if got := counts(after); len(got) != 4 || slices.ContainsFunc(slices.Collect(maps.Values(got)), func(n uint64) bool { return n > 0 }) {
			t.Errorf("counts after a restart: got %v, want four zeros", got)
		}
		if got := times(after); !reflect.DeepEqual(got, times(was)) {
			t.Errorf("times after a restart: got %v, want %v", got, times(was))
		}
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		if got := s.incidents(); len(got) != 2 || got[0].ID <= before[0].ID || got[0].Count != 3 || !got[0].First.Equal(before[0].First) {
			t.Errorf("repeated incident: got %+v, want a new id and three events", got)
		}
		if known, _ := s.published.Get(); known.Devices[0].Count != 1 || known.Affected[0].Count != 1 {
			t.Errorf("counts: got %v, %v, want 1", known.Devices, known.Affected)
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
func counts(k incident.Snapshot) map[string]uint64 {
	all := map[string]uint64{}
	for _, c := range slices.Concat(k.Devices, k.Affected) {
		all[countName(c)] = c.Count
	}
	return all
}

// times returns the times of all exported counts, in nanoseconds.
func times(k incident.Snapshot) map[string]int64 {
	all := map[string]int64{}
	for _, c := range slices.Concat(k.Devices, k.Affected) {
		all[countName(c)] = c.Last.UnixNano()
	}
	return all
}

func countName(c incident.EventCount) string {
	name := fmt.Sprint(c.Device, " ", c.GPU, " ", c.Index, " ")
	if c.Pod != "" {
		name += fmt.Sprint(c.Owner, " ")
	}
	return name + c.Reason
}

// TestUnnamedOwnerKeepsDevice checks that an owner without a name keeps the
// device. A starting kubelet names the pods one by one.
func TestUnnamedOwnerKeepsDevice(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		now := time.Now()
		stored := []incident.Incident{{ID: 1, Device: "a", Reason: "xid_31", First: now, Last: now, Affected: []incident.AffectedContainer{
			{Owner: owner("A")}, {Owner: owner("B")},
		}}}
		h := device.Allocations{At: now, All: []device.Allocation{{Resource: gpuResource, DeviceID: "a::1", Owner: owner("B")}}}
		k := newFakeAllocations()
		k.Set(h)
		s := startFixture(incident.Options{Stored: stored}, k)
		defer s.stop()
		if got := affectedPods(s.incidents()[0]); got != "A B" {
			t.Errorf("during the kubelet's start: got %q, want A B", got)
		}
		h.Complete = true
		k.Set(h)
		if got := affectedPods(s.incidents()[0]); got != "(A) B" {
			t.Errorf("after the kubelet's start: got %q, want (A) B", got)
		}
	})
}

// TestBoundedContainers checks that devices with many replicas keep at most
// 8,192 containers: a quarter for errors of software.
func TestBoundedContainers(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		for n := range 256 {
			s.allocations.setOwner(device.ID("a").Replica(n), owner(fmt.Sprint("pod-", n)))
		}
		for range 30 {
			for _, xid := range []uint64{94, 31} {
				event := xidEvent(xid, gpuDevice("a"))
				event.MarkedUnhealthy = true // each is an incident
				s.Record(event)
			}
			time.Sleep(61 * time.Second)
		}
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
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		s.settle()
		s.stop()
		time.Sleep(31 * 24 * time.Hour)
		s = s.restart(incident.Options{})
		defer s.stop()
		time.Sleep(23 * time.Hour)
		if known, _ := s.published.Get(); len(known.Incidents) != 1 || len(known.Devices) != 1 || len(known.Affected) != 1 {
			t.Errorf("after a month of wall-clock time: got %+v, want one incident", known)
		}
		time.Sleep(2 * time.Hour)
		if known, _ := s.published.Get(); len(known.Incidents) != 0 || len(known.Devices) != 0 || len(known.Affected) != 0 {
			t.Errorf("after a day of runtime: got %+v, want no incidents", known)
		}
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
			var store fakeStore
			sources := &fakeSources{allocations: newFakeAllocations()}
			sources.newLog(incident.Options{Stored: stored, Store: &store, MaxIncidents: 10})
			stored = store.read()
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
