package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/prometheus/client_golang/prometheus"
)

// scripted is when the scripted node is looked at.
var scripted = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// ask asks the scripted node of all that it serves, at one moment that never changes.
func (s *script) ask(t *testing.T, paths ...string) (bodies map[string]string) {
	t.Helper()
	bodies = map[string]string{}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(scripted))
		e := exporter.New(s.sources(), exporter.Options{Hostname: "node-a"})
		h := e.Handler(exporter.Server{TelemetryPath: "/metrics", Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
		for _, path := range paths {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
			if w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
			bodies[path] = w.Body.String()
		}
		e.Drain()
	})
	return bodies
}

// script is what is known of a node on which much has happened.
type script struct {
	statuses []device.Status
	held     device.Holders
	driver   device.Driver
	known    incident.Known
	state    error
}

func (s *script) sources() exporter.Sources {
	never := make(chan struct{})
	return exporter.Sources{
		Look: func() ([]device.Status, <-chan struct{}) { return s.statuses, never },
		Held: func() (device.Holders, <-chan struct{}) { return s.held, never },
		Read: func(_ context.Context, gpus []device.GPU) (readings []device.Reading) {
			for _, gpu := range gpus {
				readings = append(readings, device.Reading{GPU: gpu})
			}
			return readings
		},
		Stalled: func(device.GPU) bool { return false },
		Owners:  func(context.Context) device.Holders { return s.held }, Driver: func() device.Driver { return s.driver },
		Incidents: func() incident.Known { return s.known }, State: func() error { return s.state },
	}
}

const (
	gpu0   = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d50"
	gpu1   = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d51"
	gpu2   = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d52"
	gpu3   = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d53"
	gpu5   = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d55"
	slice0 = "MIG-6f1d7f52-5b0e-5f0c-8c39-5d1c0e8f7a20"
	slice1 = "MIG-6f1d7f52-5b0e-5f0c-8c39-5d1c0e8f7a21"
)

func before(d time.Duration) time.Time { return scripted.Add(-d) }

func container(namespace, pod, name string) device.Owner {
	return device.Owner{Namespace: namespace, Pod: pod, Container: name}
}

// newScript is a node with a GPU that works, one that has failed, one with two slices, and one
// on probation.
func newScript() *script {
	return &script{
		statuses: scriptedStatuses(), held: scriptedHolders(), driver: device.Driver{State: device.DriverUp},
		known: incident.Known{Incidents: scriptedIncidents(), Devices: scriptedCounts(), Hits: scriptedHits(), Kept: true},
	}
}

func scriptedStatuses() []device.Status {
	gpu := func(index int, uuid string) device.Device {
		return device.Device{
			ID: device.ID(uuid), GPU: device.GPU(uuid), Index: index, Minor: index, Slice: -1, GI: -1, CI: -1, Model: "NVIDIA H100 80GB HBM3",
			PCI: []string{"0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0", "0000:5d:00.0"}[index], MemoryBytes: 85_520_809_984,
			Facts: []device.Label{{Name: "architecture", Value: "hopper"}, {Name: "serial", Value: "165012300000" + string(rune('0'+index))}},
		}
	}
	slice := func(n int, uuid string) device.Device {
		return device.Device{
			ID: device.ID(uuid), GPU: gpu2, Index: 2, Minor: 2, Slice: n, GI: 9 + n, Profile: "1g.10gb", Model: "NVIDIA H100 80GB HBM3",
			PCI: "0000:4c:00.0", MemoryBytes: 10_468_982_784,
		}
	}
	partitioned := gpu(2, gpu2)
	partitioned.MIG = true
	return []device.Status{
		{Device: gpu(0, gpu0), Healthy: true, Since: before(50 * time.Hour), Xids: []device.Xid{{Code: 31, Count: 12, Last: before(25 * time.Minute)}}},
		{
			Device: gpu(1, gpu1), Health: device.Unhealthy, Flaps: 1, Reason: "xid_79", Action: "reboot", Since: before(3 * time.Minute),
			Xids: []device.Xid{{Code: 79, Count: 1, Last: before(3 * time.Minute)}},
		},
		{Device: partitioned, Healthy: true, Since: before(50 * time.Hour)},
		{Device: slice(0, slice0), Healthy: true, Health: device.Suspect, Since: before(50 * time.Hour)},
		{Device: slice(1, slice1), Healthy: true, Since: before(50 * time.Hour)},
		{Device: gpu(3, gpu3), Health: device.Probation, Flaps: 2, Reason: "xid_48", Since: before(time.Hour)},
	}
}

func scriptedHolders() device.Holders {
	h := device.Holders{At: before(2 * time.Second), Settled: true}
	hold := func(of, id string, owner device.Owner) {
		h.Held = append(h.Held, device.Holding{Resource: of, Offered: device.OfferedID(id), Owner: owner})
		if owner != (device.Owner{}) {
			h.Recent = append(h.Recent, device.Seen{Device: device.OfferedID(id).Device(), Owner: owner, First: before(20 * time.Minute), Last: h.At})
		}
	}
	hold("nvidia.com/gpu", gpu0, container("research", "train-7", "main"))
	const shared = "nvidia.com/mig-1g.10gb.shared"
	for i, pod := range []string{"embed-0", "embed-1", "embed-2", "embed-3"} {
		hold(shared, string(device.ID(slice0).Replica(i)), container("serving", pod, "server"))
	}
	hold(shared, string(device.ID(slice1).Replica(0)), device.Owner{})
	h.Recent = append(h.Recent,
		device.Seen{Device: gpu1, Owner: container("serving", "llm-0", "server"), First: before(26 * time.Hour), Last: before(3 * time.Minute)},
		device.Seen{Device: gpu0, Owner: container("research", "train-6", "main"), First: before(90 * time.Minute), Last: before(24 * time.Minute)},
	)
	return h
}

func scriptedIncidents() []incident.Incident {
	segfault, healed := int32(139), before(28*time.Hour)
	hit := func(o device.Owner, uid string, since time.Duration) incident.Holder {
		return incident.Holder{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container, UID: uid, Since: before(since)}
	}
	llm := hit(container("serving", "llm-0", "server"), "0c7e2c9e-64d5-4c1b-8d7f-2f6f0d1f9a10", 26*time.Hour)
	llm.Until = before(3 * time.Minute)
	llm.Ended = &incident.Ending{At: before(3*time.Minute - 4*time.Second), Phase: "Failed", Reason: "Error", ExitCode: &segfault}
	of := func(at time.Duration, reason, d, gpu string, index int) incident.Incident {
		return incident.Incident{
			ID: uint64(before(at).UnixMilli()), First: before(at), Last: before(at), Count: 1, Device: device.ID(d), GPU: device.GPU(gpu), Index: index,
			Model: "NVIDIA H100 80GB HBM3", PCI: "0000:5d:00.0", Reason: reason,
		}
	}
	fell := of(3*time.Minute, "xid_79", gpu1, gpu1, 1)
	fell.PCI, fell.Xid, fell.Class, fell.Action, fell.Condemned, fell.Holders = "0000:3b:00.0", 79, "fallen", "reboot", true, []incident.Holder{llm}
	faulted := of(25*time.Minute, "xid_31", gpu0, gpu0, 0)
	faulted.First, faulted.Count, faulted.PCI, faulted.Xid, faulted.Class, faulted.Action = before(31*time.Minute), 12, "0000:19:00.0", 31, "application", "restart_app"
	faulted.Holders = []incident.Holder{hit(container("research", "train-6", "main"), "", 90*time.Minute)}
	broke := of(time.Hour, "xid_48", gpu3, gpu3, 3)
	broke.Xid, broke.Class, broke.Action, broke.Condemned = 48, "memory", "reset_gpu", true
	broke.Holders = []incident.Holder{hit(container("research", "train-5", "main"), "", 3*time.Hour)}
	contained := of(20*time.Hour, "xid_94", slice1, gpu2, 2)
	contained.Profile, contained.PCI, contained.Xid, contained.Class, contained.Action, contained.Nameless = "1g.10gb", "0000:4c:00.0", 94, "contained", "restart_app", true
	earlier := broke
	earlier.ID, earlier.First, earlier.Last, earlier.Healed, earlier.Holders, earlier.HoldersUnknown = broke.ID-1e8, broke.First.Add(-1e8*time.Millisecond), broke.Last.Add(-1e8*time.Millisecond), &healed, nil, true
	gone := of(80*time.Hour, "lost", gpu5, gpu5, 5)
	gone.PCI, gone.Action, gone.Condemned = "0000:9b:00.0", "reboot", true
	return []incident.Incident{fell, faulted, broke, contained, earlier, gone}
}

func scriptedCounts() []incident.Count {
	return []incident.Count{
		{Device: gpu0, GPU: gpu0, Index: 0, Reason: "xid_31", Count: 12, Last: before(25 * time.Minute)},
		{Device: gpu1, GPU: gpu1, Index: 1, Reason: "xid_79", Count: 1, Last: before(3 * time.Minute)},
		{Device: gpu5, GPU: gpu5, Index: 5, Reason: "lost", Count: 1, Last: before(80 * time.Hour)},
		{Device: slice1, GPU: gpu2, Index: 2, Reason: "xid_94", Count: 1, Last: before(20 * time.Hour)},
		{Device: gpu3, GPU: gpu3, Index: 3, Reason: "xid_48", Count: 2, Last: before(time.Hour)},
	}
}

func scriptedHits() []incident.Hit {
	return []incident.Hit{
		{Device: gpu1, GPU: gpu1, Index: 1, Owner: container("serving", "llm-0", "server"), Reason: "xid_79", Count: 1, Last: before(3 * time.Minute)},
		{Device: gpu0, GPU: gpu0, Owner: container("research", "train-6", "main"), Reason: "xid_31", Count: 12, Last: before(25 * time.Minute)},
		{Device: gpu3, GPU: gpu3, Index: 3, Owner: container("research", "train-5", "main"), Reason: "xid_48", Count: 1, Last: before(time.Hour)},
	}
}

// hostileScript is a node whose names are not what they should be, and that nobody tells
// anything.
func hostileScript() *script {
	s := newScript()
	const hostile = "a\x1b[31m\n\tb\u202ec\x9b1m\xff"
	s.statuses[0].Model = hostile
	s.statuses[1].Reason, s.statuses[1].Action = hostile, hostile
	s.held.Held[0].Owner = container(hostile, hostile, hostile)
	s.held.At, s.held.Err = time.Time{}, errors.New("dial "+hostile)
	s.driver = device.Driver{State: device.DriverNotAnswering, Err: errors.New(hostile)}
	s.known.Err, s.known.Incidents[0].Reason = errors.New(hostile), hostile
	s.known.Incidents[0].Holders[0].Ended.Reason = hostile
	return s
}
