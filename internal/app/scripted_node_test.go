package app_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/prometheus/client_golang/prometheus"
)

// scriptedTime is the time of the requests to the scripted node.
var scriptedTime = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// serve returns the responses of the scripted node at scriptedTime.
func (s *scriptedNode) serve(t *testing.T, paths ...string) (bodies map[string]string) {
	t.Helper()
	bodies = map[string]string{}
	bubble.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(scriptedTime))
		e := exporter.New(s.sources(), exporter.Options{Hostname: "node-a"})
		h := e.Handler(exporter.HandlerOptions{TelemetryPath: "/metrics", Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
		for _, path := range paths {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
			if w.Code != http.StatusOK {
				t.Errorf("%s: got %d %s", path, w.Code, w.Body)
			}
			bodies[path] = w.Body.String()
		}
		e.Drain()
	})
	return bodies
}

// scriptedNode is the state of a node with many incidents.
type scriptedNode struct {
	statuses    []device.Status
	allocations allocation.Snapshot
	driver      device.Driver
	incidents   incident.Snapshot
}

func (s *scriptedNode) sources() exporter.Sources {
	list := func(context.Context) allocation.Snapshot { return s.allocations }
	return exporter.Sources{State: s.state(), Readers: s, Processes: s, ListAllocations: list}
}

func (s *scriptedNode) state() *node.State {
	n := &node.State{}
	if s.statuses != nil {
		n.Devices.Set(s.statuses)
	}
	n.Driver.Set(s.driver)
	n.Allocations.Set(s.allocations)
	n.Incidents.Set(s.incidents)
	n.StateFile.Set(state.WriteStatus{Used: true, Err: s.incidents.Err})
	return n
}

func (s *scriptedNode) Stalled(device.GPU) bool { return false }
func (s *scriptedNode) ReadOne(_ context.Context, gpu device.GPU) health.Reading {
	return health.Reading{GPU: gpu}
}
func (s *scriptedNode) Visible() bool { return false }
func (s *scriptedNode) Owner(uint32, []allocation.Owner) (allocation.Owner, bool) {
	return allocation.Owner{}, false
}
func (s *scriptedNode) Sweep() {}

func (s *scriptedNode) Read(_ context.Context, gpus []device.GPU, _ bool) (readings []health.Reading) {
	for _, gpu := range gpus {
		readings = append(readings, health.Reading{GPU: gpu})
	}
	return readings
}

const (
	gpu0 = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d50"
	gpu1 = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d51"
	gpu2 = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d52"
	gpu3 = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d53"
	gpu5 = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d55"
	mig0 = "MIG-6f1d7f52-5b0e-5f0c-8c39-5d1c0e8f7a20"
	mig1 = "MIG-6f1d7f52-5b0e-5f0c-8c39-5d1c0e8f7a21"
)

func timeBefore(d time.Duration) time.Time { return scriptedTime.Add(-d) }

func newOwner(namespace, pod, name string) allocation.Owner {
	return allocation.Owner{Namespace: namespace, Pod: pod, Container: name}
}

// newScriptedNode returns a node with a healthy GPU, a failed GPU, a GPU with two MIG devices, and a recovering GPU.
func newScriptedNode() *scriptedNode {
	return &scriptedNode{
		statuses: scriptedStatuses(), allocations: scriptedAllocations(), driver: device.Driver{State: device.DriverUp},
		incidents: incident.Snapshot{Incidents: scriptedIncidents(), Devices: scriptedCounts(), Affected: scriptedAffected()},
	}
}

func scriptedStatuses() []device.Status {
	gpu := func(index int, uuid string) device.Device {
		return device.Device{
			ID: device.ID(uuid), GPU: device.GPU(uuid), Index: index, Minor: index, MIGDeviceIndex: -1, GI: -1, CI: -1, Model: "NVIDIA H100 80GB HBM3",
			PCI: []string{"0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0", "0000:5d:00.0"}[index], MemoryBytes: 85_520_809_984,
			InfoLabels: []device.Label{{Name: "architecture", Value: "hopper"}, {Name: "serial", Value: "165012300000" + string(rune('0'+index))}},
		}
	}
	migDevice := func(n int, uuid string) device.Device {
		return device.Device{
			ID: device.ID(uuid), GPU: gpu2, Index: 2, Minor: 2, MIGDeviceIndex: n, GI: 9 + n, Profile: "1g.10gb", Model: "NVIDIA H100 80GB HBM3",
			PCI: "0000:4c:00.0", MemoryBytes: 10_468_982_784,
		}
	}
	partitioned := gpu(2, gpu2)
	partitioned.MIGEnabled = true
	return []device.Status{
		{Device: gpu(0, gpu0), Healthy: true, Since: timeBefore(50 * time.Hour), Xids: []device.Xid{{Code: 31, Count: 12, Last: timeBefore(25 * time.Minute)}}},
		{
			Device: gpu(1, gpu1), Health: device.Unhealthy, Flaps: 1, Reason: "xid_79", Action: "reboot", Since: timeBefore(3 * time.Minute),
			Xids: []device.Xid{{Code: 79, Count: 1, Last: timeBefore(3 * time.Minute)}},
		},
		{Device: partitioned, Healthy: true, Since: timeBefore(50 * time.Hour)},
		{Device: migDevice(0, mig0), Healthy: true, Health: device.Suspect, Since: timeBefore(50 * time.Hour)},
		{Device: migDevice(1, mig1), Healthy: true, Since: timeBefore(50 * time.Hour)},
		{Device: gpu(3, gpu3), Health: device.Recovering, Flaps: 2, Reason: "xid_48", Since: timeBefore(time.Hour)},
	}
}

func scriptedAllocations() allocation.Snapshot {
	h := allocation.Snapshot{At: timeBefore(2 * time.Second), Complete: true}
	add := func(res, id string, owner allocation.Owner) {
		h.All = append(h.All, allocation.Allocation{Resource: res, DeviceID: device.AdvertisedID(id), Owner: owner})
		if owner != (allocation.Owner{}) {
			h.Recent = append(h.Recent, allocation.Record{Device: device.AdvertisedID(id).Device(), Owner: owner, FirstSeen: timeBefore(20 * time.Minute), LastSeen: h.At})
		}
	}
	add("nvidia.com/gpu", gpu0, newOwner("research", "train-7", "main"))
	const shared = "nvidia.com/mig-1g.10gb.shared"
	for i, pod := range []string{"embed-0", "embed-1", "embed-2", "embed-3"} {
		add(shared, string(device.ID(mig0).Replica(i)), newOwner("serving", pod, "server"))
	}
	add(shared, string(device.ID(mig1).Replica(0)), allocation.Owner{})
	h.Recent = append(h.Recent,
		allocation.Record{Device: gpu1, Owner: newOwner("serving", "llm-0", "server"), FirstSeen: timeBefore(26 * time.Hour), LastSeen: timeBefore(3 * time.Minute)},
		allocation.Record{Device: gpu0, Owner: newOwner("research", "train-6", "main"), FirstSeen: timeBefore(90 * time.Minute), LastSeen: timeBefore(24 * time.Minute)},
	)
	return h
}

func scriptedIncidents() []incident.Incident {
	segfault, recoveredAt := int32(139), timeBefore(28*time.Hour)
	affected := func(o allocation.Owner, uid string, since time.Duration) incident.AffectedContainer {
		return incident.AffectedContainer{Owner: o, UID: uid, Since: timeBefore(since)}
	}
	llm := affected(newOwner("serving", "llm-0", "server"), "0c7e2c9e-64d5-4c1b-8d7f-2f6f0d1f9a10", 26*time.Hour)
	llm.Until = timeBefore(3 * time.Minute)
	llm.Termination = &incident.PodTermination{At: timeBefore(3*time.Minute - 4*time.Second), Phase: "Failed", Reason: "Error", ExitCode: &segfault}
	newIncident := func(at time.Duration, reason, d, gpu string, index int) incident.Incident {
		return incident.Incident{
			ID: uint64(timeBefore(at).UnixMilli()), First: timeBefore(at), Last: timeBefore(at), Count: 1, Device: device.ID(d), GPU: device.GPU(gpu), Index: index,
			Model: "NVIDIA H100 80GB HBM3", PCI: "0000:5d:00.0", Reason: reason,
		}
	}
	fallen := newIncident(3*time.Minute, "xid_79", gpu1, gpu1, 1)
	fallen.PCI, fallen.Xid, fallen.Class, fallen.Action, fallen.MarkedUnhealthy, fallen.Affected = "0000:3b:00.0", 79, "fallen", "reboot", true, []incident.AffectedContainer{llm}
	faulted := newIncident(25*time.Minute, "xid_31", gpu0, gpu0, 0)
	faulted.First, faulted.Count, faulted.PCI, faulted.Xid, faulted.Class, faulted.Action = timeBefore(31*time.Minute), 12, "0000:19:00.0", 31, "application", "restart_app"
	faulted.Affected = []incident.AffectedContainer{affected(newOwner("research", "train-6", "main"), "", 90*time.Minute)}
	uncorrectable := newIncident(time.Hour, "xid_48", gpu3, gpu3, 3)
	uncorrectable.Xid, uncorrectable.Class, uncorrectable.Action, uncorrectable.MarkedUnhealthy = 48, "memory", "reset_gpu", true
	uncorrectable.Affected = []incident.AffectedContainer{affected(newOwner("research", "train-5", "main"), "", 3*time.Hour)}
	contained := newIncident(20*time.Hour, "xid_94", mig1, gpu2, 2)
	contained.Profile, contained.PCI, contained.Xid, contained.Class, contained.Action, contained.OwnersIncomplete = "1g.10gb", "0000:4c:00.0", 94, "contained", "restart_app", true
	earlier := uncorrectable
	earlier.ID, earlier.First, earlier.Last, earlier.RecoveredAt, earlier.Affected, earlier.AffectedUnknown = uncorrectable.ID-1e8, uncorrectable.First.Add(-1e8*time.Millisecond), uncorrectable.Last.Add(-1e8*time.Millisecond), &recoveredAt, nil, true
	removed := newIncident(80*time.Hour, "lost", gpu5, gpu5, 5)
	removed.PCI, removed.Action, removed.MarkedUnhealthy = "0000:9b:00.0", "reboot", true
	return []incident.Incident{fallen, faulted, uncorrectable, contained, earlier, removed}
}

func scriptedCounts() []incident.EventCount {
	return []incident.EventCount{
		{Device: gpu0, GPU: gpu0, Index: 0, Reason: "xid_31", Count: 12, Last: timeBefore(25 * time.Minute)},
		{Device: gpu1, GPU: gpu1, Index: 1, Reason: "xid_79", Count: 1, Last: timeBefore(3 * time.Minute)},
		{Device: gpu5, GPU: gpu5, Index: 5, Reason: "lost", Count: 1, Last: timeBefore(80 * time.Hour)},
		{Device: mig1, GPU: gpu2, Index: 2, Reason: "xid_94", Count: 1, Last: timeBefore(20 * time.Hour)},
		{Device: gpu3, GPU: gpu3, Index: 3, Reason: "xid_48", Count: 2, Last: timeBefore(time.Hour)},
	}
}

func scriptedAffected() []incident.EventCount {
	return []incident.EventCount{
		{Device: gpu1, GPU: gpu1, Index: 1, Owner: newOwner("serving", "llm-0", "server"), Reason: "xid_79", Count: 1, Last: timeBefore(3 * time.Minute)},
		{Device: gpu0, GPU: gpu0, Owner: newOwner("research", "train-6", "main"), Reason: "xid_31", Count: 12, Last: timeBefore(25 * time.Minute)},
		{Device: gpu3, GPU: gpu3, Index: 3, Owner: newOwner("research", "train-5", "main"), Reason: "xid_48", Count: 1, Last: timeBefore(time.Hour)},
	}
}

// hostileNode returns a node with hostile names, without a working driver and kubelet.
func hostileNode() *scriptedNode {
	s := newScriptedNode()
	const hostile = "a\x1b[31m\n\tb\u202ec\x9b1m\xff"
	s.statuses[0].Model = hostile
	s.statuses[1].Reason, s.statuses[1].Action = hostile, hostile
	s.allocations.All[0].Owner = newOwner(hostile, hostile, hostile)
	s.allocations.At, s.allocations.Err = time.Time{}, errors.New("dial "+hostile)
	s.driver = device.Driver{State: device.DriverNotResponding, Err: errors.New(hostile)}
	s.incidents.Err, s.incidents.Incidents[0].Reason = errors.New(hostile), hostile
	s.incidents.Incidents[0].Affected[0].Termination.Reason = hostile
	return s
}
