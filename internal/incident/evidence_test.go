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
)

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
