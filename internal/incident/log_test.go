package incident_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

func TestIncidentFields(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.setOwner("a", owner("one"))
		since := time.Now()
		time.Sleep(time.Minute)
		at := time.Now()
		migDevice := device.Device{ID: "a", GPU: "GPU-1", Index: 3, MIGDeviceIndex: 0, Profile: "1g.10gb", Model: "H100", PCI: "0000:1a:00.0"}
		s.Record(device.HealthEvent{
			At: at, GPU: "GPU-1", Affected: []device.Device{migDevice}, Xid: 79, Reason: "xid_79", Class: "reboot",
			Action: "reboot", MarkedUnhealthy: true, Source: "kmsg",
		})
		got := s.incidents()
		if len(got) != 1 {
			t.Fatalf("got %d incidents, want 1", len(got))
		}
		want := incident.Incident{
			ID: uint64(at.UnixMilli()), First: at, Last: at, Count: 1, Device: "a", GPU: "GPU-1", Index: 3, Profile: "1g.10gb",
			Model: "H100", PCI: "0000:1a:00.0", Reason: "xid_79", Xid: 79, Class: "reboot", Action: "reboot", MarkedUnhealthy: true, Source: "kmsg",
			Affected: []incident.AffectedContainer{{Owner: owner("one"), Since: since}},
		}
		if fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("got incident\n%+v\nwant\n%+v", got[0], want)
		}
		known, _ := s.published.Get()
		if want := []incident.EventCount{{"a", "GPU-1", 3, device.Owner{}, "xid_79", 1, at}}; !slices.Equal(known.Devices, want) {
			t.Errorf("got counts %v, want %v", known.Devices, want)
		}
		if want := []incident.EventCount{{"a", "GPU-1", 3, owner("one"), "xid_79", 1, at}}; !slices.Equal(known.Affected, want) {
			t.Errorf("got counts of containers %v, want %v", known.Affected, want)
		}
		if known.Persisted || known.Err != nil {
			t.Errorf("without a store: got persisted %v, error %v, want false, nil", known.Persisted, known.Err)
		}
		if n := s.log.count("level=WARN msg=incident"); n != 1 {
			t.Errorf("log messages: got %d, want 1", n)
		}
	})
}

func TestOneIncidentPerEvent(t *testing.T) {
	gpu := gpuDevice("GPU-1")
	gpu.MIGEnabled = true
	one, two := gpu, gpu
	one.ID, one.MIGEnabled, two.ID, two.MIGEnabled = "MIG-1", false, "MIG-2", false
	for name, test := range map[string]struct {
		affected []device.Device
		want     []device.ID
	}{
		"a whole GPU":                           {[]device.Device{gpuDevice("GPU-2")}, []device.ID{"GPU-2"}},
		"a partitioned GPU":                     {[]device.Device{gpu, one, two}, []device.ID{"GPU-1"}},
		"a MIG device":                          {[]device.Device{two}, []device.ID{"MIG-2"}},
		"a partitioned GPU without MIG devices": {[]device.Device{gpu}, []device.ID{"GPU-1"}},
		"no device":                             {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
				s.Record(device.HealthEvent{At: time.Now(), GPU: "GPU-1", Affected: test.affected, Reason: "lost"})
				var got []device.ID
				for _, i := range s.incidents() {
					got = append(got, i.Device)
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("recorded devices: got %v, want %v", got, test.want)
				}
			})
		})
	}
}

// TestAllocatedPartitionedGPU checks an allocation of a whole partitioned GPU, which is possible while its MIG devices are not listed.
func TestAllocatedPartitionedGPU(t *testing.T) {
	gpu := gpuDevice("GPU-1")
	gpu.MIGEnabled = true
	migDevice := gpu
	migDevice.ID, migDevice.MIGEnabled = "MIG-1", false
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.setOwner("GPU-1", owner("A"))
		s.Record(xidEvent(79, gpu, migDevice))
		i := slices.IndexFunc(s.incidents(), func(i incident.Incident) bool { return i.Device == "GPU-1" && affectedPods(i) == "A" })
		if i < 0 {
			t.Errorf("got incidents %+v, want one of the GPU", s.incidents())
		}
	})
}

// TestRepeatedEvents checks that events that affect the same containers are one incident.
func TestRepeatedEvents(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.setOwner("a", owner("one"))
		var ids []uint64
		want := func(when string, counts ...uint64) {
			t.Helper()
			got := s.incidents()
			var after []uint64
			ids = nil
			for _, i := range got {
				after, ids = append(after, i.Count), append(ids, i.ID)
			}
			if !slices.Equal(after, counts) {
				t.Errorf("%s: got events per incident %v, want %v", when, after, counts)
			}
		}
		s.Record(xidEvent(31, gpuDevice("a")))
		time.Sleep(30 * time.Second)
		s.Record(xidEvent(31, gpuDevice("a")))
		time.Sleep(30 * time.Second)
		s.Record(xidEvent(31, gpuDevice("a")))
		want("each within a minute", 3)
		s.Record(xidEvent(43, gpuDevice("a")))
		want("another Xid", 1, 3)
		s.Record(xidEvent(31, gpuDevice("b")))
		want("another device", 1, 1, 3)
		s.allocations.setOwner("a", owner("two"))
		s.Record(xidEvent(31, gpuDevice("a")))
		want("another owner", 1, 1, 1, 3)
		time.Sleep(61 * time.Second)
		s.Record(xidEvent(31, gpuDevice("a")))
		want("after more than a minute", 2, 1, 1, 3)
		if !slices.IsSortedFunc(ids, func(a, b uint64) int { return int(int64(b) - int64(a)) }) {
			t.Errorf("ids: got %v, want them descending", ids)
		}
		known, _ := s.published.Get()
		if got := known.Devices; len(got) != 3 || got[0].Count != 5 {
			t.Errorf("counts: got %v", got)
		}
		if got := known.Affected; len(got) != 3 || got[0].Pod != "one" || got[0].Count != 3 || got[1].Count != 1 || got[2].Count != 2 {
			t.Errorf("counts of containers: got %v", got)
		}
	})
}

// TestStorm checks that a storm is published at most ten times a second, and that each event is counted.
func TestStorm(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.setOwner("a", owner("one"))
		s.settle()
		publications := make(chan int)
		stop := make(chan struct{})
		go func() {
			for n := 0; ; n++ {
				_, changed := s.published.Get()
				select {
				case <-changed:
				case <-stop:
					publications <- n
					return
				}
			}
		}()
		for range 10_000 {
			s.Record(xidEvent(31, gpuDevice("a")))
			time.Sleep(time.Millisecond)
		}
		got := s.incidents()
		close(stop)
		if n := <-publications; n < 90 || n > 110 {
			t.Errorf("publications in ten seconds: got %d, want about 100", n)
		}
		if len(got) != 1 || got[0].Count != 10_000 {
			t.Errorf("got incidents %v, want one with 10000 events", got)
		}
		if known, _ := s.published.Get(); known.Devices[0].Count != 10_000 || known.Affected[0].Count != 10_000 {
			t.Errorf("counts: got %v, %v, want 10000", known.Devices, known.Affected)
		}
	})
}

func TestBounds(t *testing.T) {
	runFixture(t, incident.Options{MaxIncidents: 10, MaxAge: time.Hour}, func(t *testing.T, s *fixture) {
		s.Record(xidEvent(79, gpuDevice("bad")))
		time.Sleep(time.Second)
		for i := range 30 {
			s.Record(xidEvent(94, gpuDevice(device.ID(fmt.Sprint("a", i)))))
			s.Record(xidEvent(31, gpuDevice(device.ID(fmt.Sprint("b", i)))))
		}
		s.Record(xidEvent(94, gpuDevice("here")))
		var devices []device.ID
		for _, i := range s.incidents() {
			devices = append(devices, i.Device)
		}
		if want := []device.ID{"here", "b29", "a29", "b28", "a28", "a27", "a26", "a25", "a24", "bad"}; !slices.Equal(devices, want) {
			t.Errorf("got incidents of %v, want %v: two of software and eight others", devices, want)
		}
		time.Sleep(58 * time.Minute)
		if got := s.incidents(); len(got) != 10 {
			t.Errorf("after less than an hour: got %d incidents, want 10", len(got))
		}
		time.Sleep(3 * time.Minute)
		if got := s.incidents(); len(got) != 0 {
			t.Errorf("after an hour: got %d incidents, want 0", len(got))
		}
		if known, _ := s.published.Get(); len(known.Devices) != 0 || len(known.Affected) != 0 {
			t.Errorf("counts after an hour: got %v, %v", known.Devices, known.Affected)
		}
	})
}

// TestRecoveryBeforeLateReport checks that a device that recovers before a delayed report of the kernel log has not recovered from that event.
func TestRecoveryBeforeLateReport(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		o := xidEvent(79, gpuDevice("a"))
		time.Sleep(100 * time.Millisecond)
		s.statuses.Set([]device.Status{{Device: gpuDevice("a"), Healthy: true, Since: time.Now()}})
		time.Sleep(400 * time.Millisecond)
		s.Record(o)
		if got := s.incidents(); got[0].RecoveredAt != nil {
			t.Errorf("RecoveredAt: got %s, before the report", got[0].RecoveredAt)
		}
		s.statuses.Set([]device.Status{{Device: gpuDevice("a"), Reason: "xid_79", Since: time.Now()}})
		time.Sleep(time.Second)
		s.statuses.Set([]device.Status{{Device: gpuDevice("a"), Healthy: true, Since: time.Now()}})
		if got := s.incidents(); got[0].RecoveredAt == nil {
			t.Error("RecoveredAt: got nil, want a time")
		}
	})
}
