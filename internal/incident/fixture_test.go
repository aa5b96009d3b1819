package incident_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/bubble"
)

const gpuResource = "nvidia.com/gpu"

func owner(pod string) device.Owner {
	return device.Owner{Namespace: "team", Pod: pod, Container: "main"}
}

func gpuDevice(id device.ID) device.Device {
	return device.Device{ID: id, GPU: device.GPU(id), MIGDeviceIndex: -1, Model: "H100", PCI: "0000:1a:00.0"}
}

// fakeSources are the sources of a test.
type fakeSources struct {
	allocations  *fakeAllocations
	statuses     device.Inventory
	terminations pubsub.Value[incident.TerminationLookup]
	published    pubsub.Value[incident.Snapshot]
}

// newLog returns a Log of the sources.
func (s *fakeSources) newLog(o incident.Options) *incident.Log {
	o.Devices, o.Allocations, o.Terminations, o.Incidents = &s.statuses, &s.allocations.Value, s.terminations.Get, &s.published
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return incident.New(o)
}

// fakeAllocations are allocations of a test with a history, as in podresources.
type fakeAllocations struct {
	pubsub.Value[device.Allocations]
	current []device.Allocation
	since   map[device.AdvertisedID]time.Time // of allocations
	recent  []device.AllocationRecord
}

func newFakeAllocations() *fakeAllocations {
	k := &fakeAllocations{since: map[device.AdvertisedID]time.Time{}}
	k.update()
	return k
}

// allocate simulates an Allocate of this process: the previous allocation of the id has ended.
func (f *fakeAllocations) allocate(id device.AdvertisedID) {
	f.set(id, device.Owner{})
	f.since[id] = time.Now()
	f.update()
}

// setOwner simulates a response of the kubelet with the owner of an id.
func (f *fakeAllocations) setOwner(id device.AdvertisedID, o device.Owner) {
	f.set(id, o)
	first, seen := f.since[id]
	if !seen {
		first = time.Now()
	}
	if s := f.recordOf(id.Device(), o); s == nil {
		f.recent = append(f.recent, device.AllocationRecord{Device: id.Device(), Owner: o, FirstSeen: first, LastSeen: time.Now()})
	} else if !s.EndedAt.IsZero() {
		*s = device.AllocationRecord{Device: id.Device(), Owner: o, FirstSeen: first, LastSeen: time.Now()}
	} else {
		s.LastSeen = time.Now()
	}
	f.update()
}

// release simulates a response of the kubelet without the id.
func (f *fakeAllocations) release(id device.AdvertisedID) {
	f.current = slices.DeleteFunc(slices.Clone(f.current), func(h device.Allocation) bool { return h.DeviceID == id })
	delete(f.since, id)
	f.update()
}

func (f *fakeAllocations) set(id device.AdvertisedID, o device.Owner) {
	f.current = slices.DeleteFunc(slices.Clone(f.current), func(h device.Allocation) bool { return h.DeviceID == id })
	f.current = append(f.current, device.Allocation{Resource: gpuResource, DeviceID: id, Owner: o})
	slices.SortFunc(f.current, device.CompareAllocations)
}

func (f *fakeAllocations) recordOf(id device.ID, o device.Owner) *device.AllocationRecord {
	if i := slices.IndexFunc(f.recent, func(s device.AllocationRecord) bool { return s.Device == id && s.Owner == o }); i >= 0 {
		return &f.recent[i]
	}
	return nil
}

func (f *fakeAllocations) update() {
	h := device.Allocations{At: time.Now(), All: f.current, Complete: true}
	for i := range f.recent {
		s := &f.recent[i]
		had := slices.ContainsFunc(h.ForDevice(s.Device), func(r device.Allocation) bool { return r.Owner == s.Owner })
		if !had && s.EndedAt.IsZero() {
			s.EndedAt = time.Now()
		}
	}
	h.Recent = slices.Clone(f.recent)
	slices.SortFunc(h.Recent, func(a, b device.AllocationRecord) int {
		if c := strings.Compare(string(a.Device), string(b.Device)); c != 0 {
			return c
		}
		return a.Owner.Compare(b.Owner)
	})
	f.Set(h)
}

// fixture is a running Log with its sources.
type fixture struct {
	*incident.Log
	fakeSources
	store  fakeStore
	log    logBuffer
	cancel context.CancelFunc
	ended  chan struct{}
}

// logBuffer is a buffer of log output.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// runFixture runs a test in a bubble, with a Log that ends with the test.
func runFixture(t *testing.T, o incident.Options, test func(t *testing.T, s *fixture)) {
	bubble.Test(t, func(t *testing.T) {
		s := startFixture(o, newFakeAllocations())
		defer s.stop()
		test(t, s)
	})
}

func startFixture(o incident.Options, allocations *fakeAllocations) *fixture {
	s := &fixture{fakeSources: fakeSources{allocations: allocations}, ended: make(chan struct{})}
	o.Store = &s.store
	o.Log = slog.New(slog.NewTextHandler(&s.log, nil))
	s.Log = s.newLog(o)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() {
		defer close(s.ended)
		s.Run(ctx)
	}()
	s.settle()
	return s
}

func (s *fixture) stop() {
	s.cancel()
	<-s.ended
}

// settle waits until everything is published and saved.
func (s *fixture) settle() { time.Sleep(300 * time.Millisecond) }

// incidents waits until everything is published, and returns the incidents.
func (s *fixture) incidents() []incident.Incident {
	s.settle()
	known, _ := s.published.Get()
	return known.Incidents
}

// xidEvent returns an event of the current time.
func xidEvent(xid uint64, affected ...device.Device) device.HealthEvent {
	o := device.HealthEvent{At: time.Now(), GPU: affected[0].GPU, Affected: affected, Xid: xid, Class: "application", Reason: reasonOf(xid)}
	if xid == 79 {
		o.Class, o.Action, o.MarkedUnhealthy = "reboot", "reboot", true
	}
	return o
}

func reasonOf(xid uint64) string {
	return map[uint64]string{31: "xid_31", 43: "xid_43", 79: "xid_79", 94: "xid_94"}[xid]
}

// affectedPods returns the pods of an incident; in brackets: without the device now.
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
	return strings.Join(all, " ")
}
