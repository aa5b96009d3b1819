package incident_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

const gpuResource = "nvidia.com/gpu"

func owner(pod string) allocation.Owner {
	return allocation.Owner{Namespace: "team", Pod: pod, Container: "main"}
}

func gpuDevice(id device.ID) device.Device {
	return device.Device{ID: id, GPU: device.GPU(id), MIGDeviceIndex: -1, Model: "H100", PCI: "0000:1a:00.0"}
}

// mig0, mig1 and so on are the MIG devices of GPU-1.
func migDevice(n int) device.Device {
	d := gpuDevice(device.ID(fmt.Sprint("mig", n)))
	d.GPU, d.Index, d.MIGDeviceIndex, d.Profile = "GPU-1", 3, n, "1g.10gb"
	return d
}

// partitionedGPU returns a GPU and its MIG devices, which an event of the GPU affects.
func partitionedGPU(migDevices int) []device.Device {
	gpu := gpuDevice("GPU-1")
	gpu.MIGEnabled, gpu.Index = true, 3
	all := []device.Device{gpu}
	for n := range migDevices {
		all = append(all, migDevice(n))
	}
	return all
}

// fakeAllocations are allocations of a test with a history, as in podresources.
type fakeAllocations struct {
	pubsub.Value[allocation.Snapshot]
	current []allocation.Allocation
	since   map[device.AdvertisedID]time.Time // of allocations
	recent  []allocation.Record
}

func newFakeAllocations() *fakeAllocations {
	k := &fakeAllocations{since: map[device.AdvertisedID]time.Time{}}
	k.update()
	return k
}

// allocate simulates an Allocate of this process: the previous allocation of the id has ended.
func (f *fakeAllocations) allocate(id device.AdvertisedID) {
	f.set(id, allocation.Owner{})
	f.since[id] = time.Now()
	f.update()
}

// setOwner simulates a response of the kubelet with the owner of an id.
func (f *fakeAllocations) setOwner(id device.AdvertisedID, o allocation.Owner) {
	f.set(id, o)
	first, seen := f.since[id]
	if !seen {
		first = time.Now()
	}
	isOwn := func(s allocation.Record) bool { return s.Device == id.Device() && s.Owner == o }
	f.recent = slices.DeleteFunc(f.recent, func(s allocation.Record) bool { return isOwn(s) && !s.EndedAt.IsZero() })
	i := slices.IndexFunc(f.recent, isOwn)
	if i < 0 {
		i = len(f.recent)
		f.recent = append(f.recent, allocation.Record{Device: id.Device(), Owner: o, FirstSeen: first})
	}
	f.recent[i].LastSeen = time.Now()
	f.update()
}

// release simulates a response of the kubelet without the id.
func (f *fakeAllocations) release(id device.AdvertisedID) {
	f.current = slices.DeleteFunc(slices.Clone(f.current), func(h allocation.Allocation) bool { return h.DeviceID == id })
	delete(f.since, id)
	f.update()
}

func (f *fakeAllocations) set(id device.AdvertisedID, o allocation.Owner) {
	f.current = slices.DeleteFunc(slices.Clone(f.current), func(h allocation.Allocation) bool { return h.DeviceID == id })
	f.current = append(f.current, allocation.Allocation{Resource: gpuResource, DeviceID: id, Owner: o})
	slices.SortFunc(f.current, allocation.Compare)
}

func (f *fakeAllocations) update() {
	h := allocation.Snapshot{At: time.Now(), All: f.current, Complete: true}
	for i := range f.recent {
		s := &f.recent[i]
		had := slices.ContainsFunc(h.ForDevice(s.Device), func(r allocation.Allocation) bool { return r.Owner == s.Owner })
		if !had && s.EndedAt.IsZero() {
			s.EndedAt = time.Now()
		}
	}
	h.Recent = slices.Clone(f.recent)
	slices.SortFunc(h.Recent, func(a, b allocation.Record) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), a.Owner.Compare(b.Owner))
	})
	f.Set(h)
}

// fixture is a running Log with its sources.
type fixture struct {
	*incident.Log
	allocations  *fakeAllocations
	statuses     device.Inventory
	terminations pubsub.Value[incident.TerminationLookup]
	published    pubsub.Value[incident.Snapshot]
	options      incident.Options
	held         device.HealthEvent
	saved        []incident.Incident
	urgent       int // saves
	log          bytes.Buffer
	cancel       context.CancelFunc
	ended        chan struct{}
}

// SaveIncidents keeps the incidents.
func (s *fixture) SaveIncidents(all []incident.Incident, urgent bool) {
	s.saved = all
	if urgent {
		s.urgent++
	}
}

// read returns the saved incidents as the next process reads them.
func (s *fixture) read() (all []incident.Incident) {
	content, err := json.Marshal(s.saved)
	if err == nil {
		err = json.Unmarshal(content, &all)
	}
	if err != nil {
		panic(err)
	}
	return all
}

// logged returns how often the log has a text.
func (s *fixture) logged(text string) int { return strings.Count(s.log.String(), text) }

// runFixture runs a test in a bubble, with a Log that ends with the test.
func runFixture(t *testing.T, o incident.Options, test func(t *testing.T, s *fixture)) {
	bubble.Test(t, func(t *testing.T) {
		s := &fixture{allocations: newFakeAllocations(), options: o}
		s.start()
		test(t, s)
		s.stop()
	})
}

func (s *fixture) start() {
	o := s.options
	o.Devices, o.Allocations, o.Incidents = &s.statuses, &s.allocations.Value, &s.published
	o.Terminations, o.Store = s.terminations.Get, s
	o.Log = slog.New(slog.NewTextHandler(&s.log, nil))
	s.Log = incident.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.ended = cancel, make(chan struct{})
	go func() {
		defer close(s.ended)
		s.Run(ctx)
	}()
	s.settle()
}

func (s *fixture) stop() {
	s.cancel()
	<-s.ended
}

// restart ends a Log and starts the next one with the stored incidents, before
// the kubelet answers.
func (s *fixture) restart() {
	s.stop()
	s.options.Stored = s.read()
	s.allocations = newFakeAllocations()
	s.start()
}

// script runs the parts between semicolons: pauses ("5s"), and
//
//	own ID POD       the kubelet names the container of an id
//	allocate ID      an Allocate of an id, not named yet
//	release ID       the kubelet lists the id no longer
//	unknown          allocations are unknown; incomplete: except those listed
//	xid N DEVICE     an Xid of a GPU; of a MIG device: mig0; of GPU-1 with N MIG devices: partitionedN
//	lost, gone DEVICE  failed checks of a GPU
//	hold, record     an event that is recorded later
//	healthy, unhealthy DEVICE
func (s *fixture) script(script string) {
	for part := range strings.SplitSeq(script, ";") {
		words := strings.Fields(part)
		if pause, err := time.ParseDuration(words[0]); err == nil {
			time.Sleep(pause)
			continue
		}
		arg := slices.Concat(words[1:], []string{"", ""})
		switch words[0] {
		case "own":
			s.allocations.setOwner(device.AdvertisedID(arg[0]), owner(arg[1]))
		case "allocate":
			s.allocations.allocate(device.AdvertisedID(arg[0]))
		case "release":
			s.allocations.release(device.AdvertisedID(arg[0]))
		case "incomplete":
			a, _ := s.allocations.Get()
			a.Complete = false
			s.allocations.Set(a)
		case "unknown":
			s.allocations.Set(allocation.Snapshot{})
		case "xid":
			s.Record(xidEvent(arg[0], affectedBy(arg[1])...))
		case "past":
			e := xidEvent(arg[0], affectedBy(arg[1])...)
			e.Historical = true
			s.Record(e)
		case "hold":
			s.held = xidEvent(arg[0], affectedBy(arg[1])...)
		case "record":
			s.Record(s.held)
		case "lost", "gone":
			affected := affectedBy(arg[0])
			s.Record(device.HealthEvent{
				At: time.Now(), GPU: affected[0].GPU, Affected: affected, Reason: words[0], MarkedUnhealthy: true,
			})
		case "healthy", "unhealthy":
			d := affectedBy(arg[0])[0]
			s.statuses.Set([]device.Status{
				{Device: gpuDevice("other"), Healthy: true},
				{Device: d, Healthy: words[0] == "healthy", Since: time.Now()},
			})
		default:
			panic("unknown command: " + part)
		}
	}
}

// affectedBy returns the devices of a name in a script.
func affectedBy(name string) []device.Device {
	var n int
	if _, err := fmt.Sscanf(name, "mig%d", &n); err == nil {
		return []device.Device{migDevice(n)}
	}
	if _, err := fmt.Sscanf(name, "partitioned%d", &n); err == nil {
		return partitionedGPU(n)
	}
	return []device.Device{gpuDevice(device.ID(name))}
}

// want requires incidents, the newest first: device, reason, number of events,
// pods, and "recovered".
func (s *fixture) want(t *testing.T, when string, want ...string) {
	t.Helper()
	var got []string
	for _, i := range s.incidents() {
		text := fmt.Sprintf("%s %s %d", i.Device, i.Reason, i.Count)
		if len(affectedPods(i)) > 0 {
			text += " " + affectedPods(i)
		}
		if i.RecoveredAt != nil {
			text += " recovered"
		}
		got = append(got, text)
	}
	expect.EqualSlices(t, got, want, when)
}

// settle waits until everything is published and saved.
func (s *fixture) settle() {
	time.Sleep(300 * time.Millisecond)
	synctest.Wait()
}

// incidents waits until everything is published, and returns the incidents.
func (s *fixture) incidents() []incident.Incident {
	s.settle()
	known, _ := s.published.Get()
	return known.Incidents
}

// xidEvent returns an event of the current time. Only Xid 79 marks a GPU unhealthy.
func xidEvent(xid string, affected ...device.Device) device.HealthEvent {
	number, _ := strconv.ParseUint(xid, 10, 64)
	o := device.HealthEvent{
		At: time.Now(), GPU: affected[0].GPU, Affected: affected, Xid: number, Reason: "xid_" + xid, Class: "application",
	}
	if xid == "79" {
		o.Class, o.Action, o.MarkedUnhealthy = "fallen", "reboot", true
	}
	return o
}

// affectedPods returns the pods of an incident, in brackets if they are without
// the device now; "?": owners are missing, "??": allocations were unknown.
func affectedPods(i incident.Incident) string {
	var all []string
	for _, h := range i.Affected {
		name := h.Pod
		if !h.Until.IsZero() {
			name = "(" + name + ")"
		}
		all = append(all, name)
	}
	if i.OwnersIncomplete {
		all = append(all, "?")
	}
	if i.AffectedUnknown {
		all = append(all, "??")
	}
	return strings.Join(all, " ")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
