package incident_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

func TestIncidentFields(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.setOwner("a", owner("one"))
		since := time.Now()
		time.Sleep(time.Minute)
		at := time.Now()
		d := migDevice(0)
		d.ID = "a"
		s.Record(device.HealthEvent{
			At: at, GPU: "GPU-1", Affected: []device.Device{d}, Xid: 79, Reason: "xid_79", Class: "reboot",
			Action: "reboot", MarkedUnhealthy: true, Source: "kmsg",
		})
		got := s.incidents()
		if len(got) != 1 {
			t.Fatalf("got %d incidents, want 1", len(got))
		}
		want := incident.Incident{
			ID: uint64(at.UnixMilli()), First: at, Last: at, Count: 1,
			Device: "a", GPU: "GPU-1", Index: 3, Profile: "1g.10gb",
			Model: "H100", PCI: "0000:1a:00.0", Reason: "xid_79", Xid: 79, Class: "reboot", Action: "reboot",
			MarkedUnhealthy: true, Source: "kmsg",
			Affected: []incident.AffectedContainer{{Owner: owner("one"), Since: since}},
		}
		if fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("got incident\n%+v\nwant\n%+v", got[0], want)
		}
		known, _ := s.published.Get()
		expect.EqualSlices(t, known.Devices,
			[]incident.EventCount{{"a", "GPU-1", 3, allocation.Owner{}, "xid_79", 1, at}})
		if want := []incident.EventCount{{"a", "GPU-1", 3, owner("one"), "xid_79", 1, at}}; !slices.Equal(known.Affected, want) {
			t.Errorf("got counts of containers %v, want %v", known.Affected, want)
		}
		if known.Persisted || known.Err != nil {
			t.Errorf("without a store: got persisted %v, error %v, want false, nil", known.Persisted, known.Err)
		}
		expect.Equal(t, s.logged("level=WARN msg=incident"), 1, "log messages")
	})
}

// TestGPUFaultIsOneIncident checks that a fault of a partitioned GPU is one
// incident with all MIG devices and their containers.
func TestGPUFaultIsOneIncident(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.Record(device.HealthEvent{At: time.Now(), GPU: "GPU-1", Reason: "lost"}) // of no device
		s.script("own mig0 A; own mig0::1 C; own mig1 B; xid 79 partitioned2; xid 79 partitioned2; xid 31 mig1")
		s.want(t, "at first", "mig1 xid_31 1 B", "GPU-1 xid_79 2 A C B")
		known, _ := s.published.Get()
		if want := []string{
			"GPU-1 xid_79:2", "mig1 xid_31:1", "mig0 A xid_79:2", "mig0 C xid_79:2", "mig1 B xid_31:1", "mig1 B xid_79:2",
		}; !slices.Equal(counts(known), want) {
			t.Errorf("got counts %q, want %q", counts(known), want)
		}
		containers := `containers="[team/A/main team/C/main team/B/main]"`
		if s.logged("level=WARN") != 1 || s.logged(containers) != 1 {
			t.Errorf("want one warning with three containers:\n%s", s.log.String())
		}
		if i := known.Incidents[1]; !i.Concerns("GPU-1") || !i.Concerns("mig1") || i.Concerns("mig2") ||
			i.MIGDevices[1] != (incident.AffectedMIGDevice{Device: "mig1", Profile: "1g.10gb"}) ||
			i.Affected[2].Device != "mig1" {
			t.Errorf("got incident %+v, want GPU-1 with mig1", i)
		}

		s.script("release mig1; 1s; xid 79 partitioned2")
		s.want(t, "again, with other allocations", "GPU-1 xid_79 1 A C (B)", "mig1 xid_31 1 (B)", "GPU-1 xid_79 2 A C (B)")
		s.Record(xidEvent("79", partitionedGPU(1)...))
		if got := s.incidents(); len(got) != 4 || len(got[0].MIGDevices) != 1 {
			t.Errorf("after the removal of a MIG device: got %+v", got)
		}
		s.restart()
		s.script("healthy GPU-1")
		for _, i := range s.incidents() {
			if i.MarkedUnhealthy != (i.RecoveredAt != nil) || i.Device == "GPU-1" && len(i.MIGDevices) == 0 {
				t.Errorf("after a restart and the recovery of the GPU: got %+v", i)
			}
		}
	})
}

// TestRetirement checks that a retirement is an incident with the operator's
// note, and not counted as a fault.
func TestRetirement(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("own mig0 A")
		for _, note := range []string{"fan", "slow"} {
			s.Record(device.HealthEvent{
				At: time.Now(), GPU: "GPU-1", Affected: partitionedGPU(2), Reason: device.ReasonRetired, Note: note,
				MarkedUnhealthy: true,
			})
		}
		s.want(t, "retired twice", "GPU-1 retired 1 A", "GPU-1 retired 1 A")
		known, _ := s.published.Get()
		if known.Incidents[0].Note != "slow" || known.Incidents[1].Note != "fan" || len(counts(known)) != 0 {
			t.Errorf("got %+v, want the notes and no counts", known)
		}
		s.script("healthy GPU-1")
		s.want(t, "trusted", "GPU-1 retired 1 A recovered", "GPU-1 retired 1 A recovered")
	})
}

// TestHistoricalEvent checks that an event from before the start has no affected
// container and is not counted.
func TestHistoricalEvent(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("own a A; past 79 a; xid 79 a; past 94 a")
		s.want(t, "two historical events", "a xid_94 1 ??", "a xid_79 1 A", "a xid_79 1 ??")
		if known, _ := s.published.Get(); len(known.Devices) != 1 || known.Devices[0].Count != 1 || !known.Incidents[2].Historical {
			t.Errorf("got %+v, want one counted event", known)
		}
	})
}

// TestRepeatedEvents checks that events that affect the same containers are one
// incident.
func TestRepeatedEvents(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("own a one; xid 31 a; 30s; xid 31 a; 30s; xid 31 a")
		s.want(t, "each within a minute", "a xid_31 3 one")
		s.script("xid 43 a")
		s.want(t, "another Xid", "a xid_43 1 one", "a xid_31 3 one")
		s.script("xid 31 b")
		s.want(t, "another device", "b xid_31 1", "a xid_43 1 one", "a xid_31 3 one")
		s.script("own a two; xid 31 a")
		others := []string{"b xid_31 1", "a xid_43 1 (one)", "a xid_31 3 (one)"}
		s.want(t, "another owner", append([]string{"a xid_31 1 two"}, others...)...)
		s.script("61s; xid 31 a")
		s.want(t, "after more than a minute", append([]string{"a xid_31 2 two"}, others...)...)
		known, _ := s.published.Get()
		if got := known.Devices; len(got) != 3 || got[0].Count != 5 {
			t.Errorf("counts: got %v", got)
		}
		if got := known.Affected; len(got) != 3 || got[0].Pod != "one" || got[0].Count != 3 || got[1].Count != 1 ||
			got[2].Count != 2 {
			t.Errorf("counts of containers: got %v", got)
		}
	})
}

// TestStorm checks that a storm is published at most ten times a second, and that
// each event is counted, before and after the kubelet names the owner.
func TestStorm(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("allocate a")
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
		for i := range 10_000 {
			if i == 50 {
				s.script("own a one")
			}
			s.Record(xidEvent("31", gpuDevice("a")))
			time.Sleep(time.Millisecond)
		}
		s.want(t, "storm", "a xid_31 10000 one")
		close(stop)
		if n := <-publications; n < 90 || n > 110 {
			t.Errorf("publications in ten seconds: got %d, want about 100", n)
		}
		if known, _ := s.published.Get(); known.Devices[0].Count != 10_000 || known.Affected[0].Count != 10_000 {
			t.Errorf("counts: got %v, %v, want 10000", known.Devices, known.Affected)
		}
	})
}

func TestBounds(t *testing.T) {
	runFixture(t, incident.Options{MaxIncidents: 10, MaxAge: time.Hour}, func(t *testing.T, s *fixture) {
		s.script("xid 79 bad; 1s")
		for i := range 30 {
			s.script(fmt.Sprintf("xid 94 a%d; xid 31 b%d", i, i))
		}
		s.script("xid 94 here")
		var devices []device.ID
		for _, i := range s.incidents() {
			devices = append(devices, i.Device)
		}
		want := []device.ID{"here", "b29", "a29", "b28", "a28", "a27", "a26", "a25", "a24", "bad"}
		if !slices.Equal(devices, want) {
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

// TestRecovery checks when an incident is over.
func TestRecovery(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("healthy a; 1s; xid 79 a; xid 31 a") // the statuses have not changed yet
		s.want(t, "before the device is unhealthy", "a xid_31 1", "a xid_79 1")
		s.script("unhealthy a")
		s.want(t, "while unhealthy", "a xid_31 1", "a xid_79 1")
		s.statuses.Set([]device.Status{})
		s.want(t, "while gone", "a xid_31 1", "a xid_79 1")
		s.script("30s")
		at := time.Now()
		s.script("healthy a")
		s.want(t, "healthy again", "a xid_31 1", "a xid_79 1 recovered")
		if got := s.incidents()[1].RecoveredAt; !got.Equal(at) {
			t.Errorf("recovered at %s, want %s", got, at)
		}
		s.script("1s; xid 79 a")
		s.want(t, "next fault", "a xid_79 1", "a xid_31 1", "a xid_79 1 recovered")
	})
}

// TestRecoveryBeforeLateReport checks that a device that recovers before a delayed
// report of the kernel log has not recovered from that event.
func TestRecoveryBeforeLateReport(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("hold 79 a; 100ms; healthy a; 400ms; record")
		s.want(t, "before the report", "a xid_79 1")
		s.script("unhealthy a; 1s; healthy a")
		s.want(t, "later", "a xid_79 1 recovered")
	})
}

// run replaces the container of a GPU, without a record of the earlier one.
func (s *fixture) run(gpu device.ID, o allocation.Owner) {
	s.allocations.recent = slices.DeleteFunc(s.allocations.recent, func(r allocation.Record) bool {
		return r.Device == gpu
	})
	s.allocations.release(gpu.Advertised())
	if o != (allocation.Owner{}) {
		s.allocations.setOwner(gpu.Advertised(), o)
	}
}

// report reports an Xid of a GPU as the Monitor does.
func (s *fixture) report(gpu device.ID, xid uint64, class string, markedUnhealthy bool) {
	d := gpuDevice(gpu)
	s.Record(device.HealthEvent{
		At: time.Now(), GPU: d.GPU, Affected: []device.Device{d}, Xid: xid, Reason: fmt.Sprint("xid_", xid), Class: class,
		MarkedUnhealthy: markedUnhealthy,
	})
}

// maxAge and the number of incidents are less than the defaults, for the duration of the test.
const maxAge = 6 * time.Hour

// softwareXids are Xids that a container can cause at will, and their classes.
var softwareXids = map[uint64]string{
	13: "application", 31: "application", 43: "information", 45: "information", 69: "application", 109: "undecided",
}

// TestHardwareIncidentsStay checks that no sequence of errors of applications, in
// any number of pods and namespaces, removes an incident of the hardware before
// its age.
func TestHardwareIncidentsStay(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			runFixture(t, incident.Options{MaxAge: maxAge, MaxIncidents: 100}, func(t *testing.T, s *fixture) {
				r := rand.New(rand.NewPCG(seed, 24))
				hardware := map[string][]time.Time{} // times of events by GPU and reason
				namespaces, pods, faults := 1+r.IntN(40), 1+r.IntN(3000), 300+r.IntN(1500)
				pause := r.Int64N(int64(4*maxAge) / int64(faults)) // the longest
				for i := range faults {
					gpu := device.ID(fmt.Sprint("GPU-", r.IntN(8)))
					if r.IntN(3) > 0 {
						pod := fmt.Sprint("pod-", suffix(r.IntN(pods)), r.IntN(2))
						s.run(gpu, allocation.Owner{Namespace: fmt.Sprint("n", r.IntN(namespaces)), Pod: pod, Container: "main"})
						time.Sleep(time.Millisecond)
					}
					if i%40 == 0 {
						xid, class, unhealthy := uint64(79), "fallen", true
						if r.IntN(2) > 0 {
							xid, class, unhealthy = 94, "contained", false
						}
						s.report(gpu, xid, class, unhealthy)
						key := fmt.Sprint(gpu, " xid_", xid)
						hardware[key] = append(hardware[key], time.Now())
					}
					xids := []uint64{13, 31, 43, 45, 69, 109}
					xid := xids[r.IntN(len(xids))]
					s.report(gpu, xid, softwareXids[xid], r.IntN(4) == 0) // --health.enable can name the Xid
					time.Sleep(time.Duration(r.Int64N(pause + 1)))
				}
				got := s.incidents()
				for key, events := range hardware {
					for _, at := range events {
						kept := slices.ContainsFunc(got, func(i incident.Incident) bool {
							return fmt.Sprint(i.Device, " ", i.Reason) == key && !at.Before(i.First) && !at.After(i.Last)
						})
						if !kept && time.Since(at) < maxAge {
							t.Errorf("%s: got no incident with the event of %s ago", key, time.Since(at))
						}
					}
				}
				if len(got) > 100 {
					t.Errorf("got %d incidents, want at most 100", len(got))
				}
			})
		})
	}
}

// TestCrashLoopIsOneIncident checks that a container, or the pods of a workload,
// that fail again and again have one incident per GPU, with the count and the
// times of the first and the last error.
func TestCrashLoopIsOneIncident(t *testing.T) {
	for _, c := range []struct {
		name string
		pod  func(i int) string
		rows int
	}{
		{"a container that restarts", func(int) string { return "train-0" }, 1},
		{"pods of a Job", func(i int) string { return fmt.Sprintf("train-%s", suffix(i)) }, 17},
		{"pods of a Deployment", func(i int) string { return fmt.Sprintf("train-6d4cf56db6-%s", suffix(i)) }, 17},
	} {
		t.Run(c.name, func(t *testing.T) {
			runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
				s.run("GPU-1", allocation.Owner{Namespace: "serving", Pod: "llm-0", Container: "main"})
				s.report("GPU-1", 79, "fallen", true)
				begin := time.Now()
				var last time.Time
				for i := range 100 {
					s.run("GPU-0", allocation.Owner{Namespace: "team", Pod: c.pod(i), Container: "main"})
					time.Sleep(time.Second)
					last = time.Now()
					s.report("GPU-0", 31, "application", false)
					time.Sleep(5 * time.Minute)
				}
				got := s.incidents()
				if len(got) != 2 || got[1].Reason != "xid_79" || got[0].Count != 100 ||
					got[0].First.Sub(begin) > time.Second || !got[0].Last.Equal(last) {
					t.Fatalf("got %d incidents, the newest %+v, want one with 100 errors, and xid_79", len(got), got[0])
				}
				if rows := got[0].Affected; len(rows) != c.rows || rows[0].Pod != c.pod(99) || !got[0].LastOf(rows[0]).Equal(last) {
					t.Errorf("affected containers: got %+v, want %d, the newest first", rows, c.rows)
				}
				for _, row := range got[0].Affected[1:] {
					if at := got[0].LastOf(row); at.Before(row.Since) || at.After(row.Since.Add(2*time.Second)) {
						t.Errorf("%s: got an error at %s, want one right after %s", row.Pod, at, row.Since)
					}
				}
			})
		})
	}
}

// suffix returns a suffix as Kubernetes generates it.
func suffix(i int) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	text := []byte("bbbbb")
	for k := range text {
		text[k] = letters[i%len(letters)]
		i /= len(letters)
	}
	return string(text)
}

// TestOtherWorkloadsStayApart checks that only repeats on one device and workload are one incident.
func TestOtherWorkloadsStayApart(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		for _, o := range []allocation.Owner{
			{Namespace: "a", Pod: "train-x2x4z", Container: "main"},
			{Namespace: "b", Pod: "train-x2x4z", Container: "main"},
			{Namespace: "a", Pod: "train-x2x4z", Container: "side"},
			{Namespace: "a", Pod: "infer-x2x4z", Container: "main"},
			{},
		} {
			s.run("GPU-0", o)
			time.Sleep(10 * time.Minute)
			s.report("GPU-0", 31, "application", false)
		}
		if got := s.incidents(); len(got) != 5 {
			t.Errorf("got %d incidents, want 5", len(got))
		}
		s.report("GPU-0", 79, "fallen", true)
		time.Sleep(10 * time.Minute)
		s.statuses.Set([]device.Status{{Device: device.Device{ID: "GPU-0", GPU: "GPU-0"}, Healthy: true, Since: time.Now()}})
		s.report("GPU-0", 79, "fallen", true)
		if got := s.incidents(); len(got) != 7 {
			t.Errorf("after two faults that marked the GPU unhealthy: got %d incidents, want 7", len(got))
		}
		time.Sleep(25 * time.Hour)
		s.report("GPU-0", 31, "application", false)
		if got := s.incidents(); len(got) != 8 || got[0].Count != 1 {
			t.Errorf("a day later: got %d incidents, want 8", len(got))
		}
	})
}

// TestNamespacesShareTheQuota checks that a namespace with many failing pods
// leaves the incidents of the others.
func TestNamespacesShareTheQuota(t *testing.T) {
	runFixture(t, incident.Options{MaxIncidents: 100}, func(t *testing.T, s *fixture) {
		fail := func(namespace string, i int) {
			s.run("GPU-0", allocation.Owner{Namespace: namespace, Pod: fmt.Sprint("pod-", i), Container: "main"})
			time.Sleep(2 * time.Second)
			s.report("GPU-0", 31, "application", false)
		}
		for i := range 10 {
			fail("quiet", i)
		}
		for i := range 300 {
			fail("loud", i)
		}
		byNamespace := map[string]int{}
		for _, i := range s.incidents() {
			byNamespace[i.Affected[0].Namespace]++
		}
		if want := map[string]int{"quiet": 10, "loud": 15}; !maps.Equal(byNamespace, want) {
			t.Errorf("got incidents by namespace %v, want %v", byNamespace, want)
		}
	})
}
