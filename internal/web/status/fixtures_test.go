package status_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/podgauge/podgauge/plugin"
)

const gib = 1 << 30

// now is the time of the golden pages.
var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func beforeNow(d time.Duration) time.Time { return now.Add(-d) }

// pageFixture is a node with values of a test.
type pageFixture struct {
	status.PageState
	stalled map[device.GPU]bool
	reads   int
}

// newest is the state of the node for a page.
func (f *pageFixture) newest(ctx context.Context) status.PageState {
	n := f.PageState
	n.Allocations.All = slices.SortedFunc(slices.Values(n.Allocations.All), device.CompareAllocations)
	n.Stalled = func(gpu device.GPU) bool { return f.stalled[gpu] }
	if ctx.Err() != nil {
		n.Readings = status.Readings{}
	} else {
		f.reads++
	}
	return n
}

var pageOptions = status.PageOptions{
	Node: "node-a", Version: "1.2.3",
	Links: []string{"metrics", "api/v1/devices", "api/v1/allocations", "api/v1/incidents", "healthz", "readyz"},
}

// addHistory adds readings of the last half hour up to the current ones, with a gap.
func (f *pageFixture) addHistory() {
	f.Readings.History = &status.ReadingHistory{}
	for slot := range 60 { // of half a minute
		if slot >= 20 && slot < 27 {
			continue
		}
		past := map[device.ID]status.DeviceReading{}
		for id, reading := range f.Readings.Devices {
			wave := []float64{1, 0.98, 0.9, 0.95, 0.97, 0.7, 0.2, 0.25}[(slot+int(id[len(id)-1]))%8]
			if slot == 59 {
				wave = 1
			}
			past[id] = maps.Clone(reading)
			for _, q := range []status.Quantity{status.Utilization, status.EngineActive, status.Power} {
				if _, ok := reading[q]; ok {
					past[id][q] = wave * reading[q]
				}
			}
		}
		f.Readings.History.Record(beforeNow(time.Duration(59-slot)*30*time.Second), past)
	}
}

// newEmptyFixture returns a healthy node without a GPU.
func newEmptyFixture() *pageFixture {
	f := &pageFixture{}
	f.Name, f.Driver, f.PodsSynced, f.IsPlugin = "node-a", device.Driver{State: device.DriverUp}, true, true
	f.Allocations = device.Allocations{At: beforeNow(2 * time.Second), Complete: true}
	f.Readings = status.Readings{At: beforeNow(300 * time.Millisecond), Devices: map[device.ID]status.DeviceReading{}}
	return f
}

// addGPU adds a GPU.
func (f *pageFixture) addGPU(model string, memory float64, capability string) *device.Status {
	i := len(f.Statuses)
	for _, s := range f.Statuses {
		if !s.WholeGPU() {
			i--
		}
	}
	id := fmt.Sprintf("GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d%02x", 0x50+i)
	f.Statuses = append(f.Statuses, device.Status{Healthy: true, Since: beforeNow(50 * time.Hour), Device: device.Device{
		ID: device.ID(id), GPU: device.GPU(id), Index: i, MIGDeviceIndex: -1, GI: -1, CI: -1, Minor: i, Model: model,
		PCI: fmt.Sprintf("0000:%02x:00.0", 0x1b+0x10*i), NUMANode: i / 4, MemoryBytes: uint64(memory * gib),
		InfoLabels: []device.Label{
			{Name: "serial", Value: fmt.Sprintf("16501230000%02d", i)},
			{Name: "vbios_version", Value: "96.00.89.00.01"},
			{Name: "driver_version", Value: "580.95.05"},
			{Name: "cuda_version", Value: "13.0"},
			{Name: "compute_capability", Value: capability},
		},
	}})
	return &f.Statuses[len(f.Statuses)-1]
}

// addReading adds a reading in ratios, GiB, watts and °C; negative values are unknown.
func (f *pageFixture) addReading(id device.ID, utilization, used, total, power, limit, temperature float64) {
	r := status.DeviceReading{}
	for q, v := range map[status.Quantity]float64{
		status.Utilization: utilization, status.MemoryUsed: used * gib, status.MemoryTotal: total * gib,
		status.Power: power, status.PowerLimit: limit, status.Temperature: temperature,
	} {
		if v >= 0 {
			r[q] = v
		}
	}
	f.Readings.Devices[id] = r
}

// allocate allocates an id to containers ("namespace/pod/container").
func (f *pageFixture) allocate(resource string, id device.AdvertisedID, since time.Duration, owners ...string) {
	for _, o := range owners {
		parts := strings.SplitN(o, "/", 3)
		owner := device.Owner{Namespace: parts[0], Pod: parts[1], Container: parts[2]}
		f.Allocations.All = append(f.Allocations.All, device.Allocation{Resource: resource, DeviceID: id, Owner: owner})
		record := device.AllocationRecord{Device: id.Device(), Owner: owner, FirstSeen: beforeNow(since), LastSeen: now}
		f.Allocations.Recent = append(f.Allocations.Recent, record)
	}
}

const (
	gpuResource = "nvidia.com/gpu"
	migResource = "nvidia.com/mig-1g.10gb"
)

// newH100Fixture returns a node of H100s in use.
func newH100Fixture() *pageFixture {
	n := newEmptyFixture()
	var ids []device.AdvertisedID
	for i := range 8 {
		s := n.addGPU("NVIDIA H100 80GB HBM3", 80, "9.0")
		use := []float64{0.98, 0.97, 0.99, 0.98, 0.41, 0.07, 0, 0}[i]
		n.addReading(s.ID, use, []float64{74.2, 74.2, 73.9, 74.1, 31.5, 12.8, 0.6, 0.6}[i], 80, 72+610*use, 700, 33+38*use)
		ids = append(ids, s.ID.Advertised())
	}
	for i, id := range ids {
		switch {
		case i < 4:
			n.allocate(gpuResource, id, 31*time.Hour, "research/llama-pretrain-0/trainer")
		case i == 4:
			n.allocate(gpuResource, id, 5*time.Hour, "serving/embeddings-6f7c9d5b8-x2x9q/server")
		case i == 5:
			n.allocate(gpuResource, id, 12*time.Minute, "research/notebook-ada/jupyter")
		}
	}
	n.Resources = []plugin.Resource{{Name: gpuResource, IDs: ids, Registered: true, Healthy: 8}}
	n.addHistory()
	return n
}

// fail makes a device unhealthy.
func fail(s *device.Status, reason, action string, since time.Duration) {
	s.Healthy, s.Health, s.Reason, s.Action, s.Since = false, device.Unhealthy, reason, action, beforeNow(since)
}

// newFailedFixture returns the H100 node with GPUs in all health states.
func newFailedFixture() *pageFixture {
	n := newH100Fixture()
	fail(&n.Statuses[2], "xid_79", "reboot", 3*time.Minute)
	n.Statuses[5].Health, n.Statuses[5].Since = device.Suspect, beforeNow(12*time.Hour)
	fail(&n.Statuses[6], "xid_48", "", time.Hour)
	n.Statuses[6].Health, n.Statuses[6].Flaps = device.Recovering, 3
	fail(&n.Statuses[7], "not_responding", "", 40*time.Second)
	delete(n.Readings.Devices, n.Statuses[2].ID)
	delete(n.Readings.Devices, n.Statuses[7].ID)
	n.stalled = map[device.GPU]bool{n.Statuses[7].GPU: true}
	n.Resources[0].Healthy = 5
	exit, recovered := int32(139), beforeNow(58*time.Minute)
	newIncident := func(
		id uint64, i int, reason, action string, ago time.Duration, count uint64, to ...incident.AffectedContainer,
	) incident.Incident {
		s := &n.Statuses[i]
		return incident.Incident{
			ID: id, First: beforeNow(ago), Last: beforeNow(ago), Count: count, Device: s.ID, GPU: s.GPU, Index: s.Index,
			Reason: reason, Action: action, Affected: to,
		}
	}
	newAffected := func(owner string, ended *incident.PodTermination) incident.AffectedContainer {
		parts := strings.SplitN(owner, "/", 3)
		of := device.Owner{Namespace: parts[0], Pod: parts[1], Container: parts[2]}
		return incident.AffectedContainer{Owner: of, Since: beforeNow(31 * time.Hour), Termination: ended}
	}
	failed := &incident.PodTermination{At: now, Phase: "Failed", Reason: "Error", ExitCode: &exit}
	restarted := &incident.PodTermination{At: now, Phase: "Failed", ExitCode: &exit, Restarts: 2}
	n.Incidents = incident.Snapshot{Persisted: true, Incidents: []incident.Incident{
		newIncident(6, 7, "not_responding", "", 40*time.Second, 1),
		newIncident(5, 2, "xid_79", "reboot", 3*time.Minute, 1,
			newAffected("research/llama-pretrain-0/trainer", failed)),
		newIncident(4, 5, "xid_31", "restart_app", 25*time.Minute, 12, newAffected("research/notebook-ada/jupyter", nil)),
		newIncident(3, 6, "xid_48", "reset_gpu", time.Hour, 1,
			newAffected("research/finetune-17/main", restarted)),
		newIncident(2, 4, "xid_94", "restart_app", 20*time.Hour, 1),
		newIncident(1, 0, "xid_13", "restart_app", 75*time.Hour, 2),
	}}
	n.Incidents.Incidents[0].MarkedUnhealthy, n.Incidents.Incidents[1].MarkedUnhealthy = true, true
	n.Incidents.Incidents[3].MarkedUnhealthy, n.Incidents.Incidents[3].RecoveredAt = true, &recovered
	n.Incidents.Incidents[4].OwnersIncomplete, n.Incidents.Incidents[5].AffectedUnknown = true, true
	return n
}

// addMIGDevice adds a MIG device to the last GPU.
func (f *pageFixture) addMIGDevice(profile string, gi, ci int, memory float64, at device.Placement) *device.Status {
	gpu := 0
	for i := range f.Statuses {
		if f.Statuses[i].WholeGPU() {
			gpu = i
		}
	}
	s := f.Statuses[gpu]
	s.MIGDeviceIndex = len(f.Statuses) - gpu - 1
	s.ID = device.ID(fmt.Sprintf("MIG-6f1d7f52-5b0e-5f0c-8c39-5d1c0e8f%02x%02x", s.Index, s.MIGDeviceIndex))
	s.MIGEnabled, s.GI, s.CI, s.Profile, s.Placement = false, gi, ci, profile, at
	s.MemoryBytes, s.InfoLabels = uint64(memory*gib), nil
	f.Statuses = append(f.Statuses, s)
	return &f.Statuses[len(f.Statuses)-1]
}

// addEngineReading adds a reading of a MIG device.
func (f *pageFixture) addEngineReading(id device.ID, active, used, total float64) {
	f.addReading(id, -1, used, total, -1, -1, -1)
	if active >= 0 {
		f.Readings.Devices[id][status.EngineActive] = active
	}
}

// newMIGFixture returns a node with a whole GPU, and GPUs with equal, different and no MIG devices.
func newMIGFixture() *pageFixture {
	n := newEmptyFixture()
	ids := map[string][]device.AdvertisedID{}
	whole := n.addGPU("NVIDIA H100 80GB HBM3", 80, "9.0")
	n.addReading(whole.ID, 0.86, 61.2, 80, 598, 700, 64)
	ids[gpuResource] = append(ids[gpuResource], whole.ID.Advertised())
	n.allocate(gpuResource, whole.ID.Advertised(), 3*time.Hour, "research/finetune-18/main")

	g := n.addGPU("NVIDIA H100 80GB HBM3", 80, "9.0")
	g.MIGEnabled = true
	n.addReading(g.ID, -1, 34.1, 80, 301, 700, 51)
	for i := range 7 {
		s := n.addMIGDevice("1g.10gb", 7+i, 0, 9.75, device.Placement{Profile: 19, Start: i, Size: 1})
		id, active := s.ID, []float64{0.92, 0.35, 0, 0.66, 0, 0.12, 0}[i]
		ids[migResource] = append(ids[migResource], id.Advertised())
		n.addEngineReading(id, active, 0.1+9*active, 9.75)
		if active > 0 {
			owner := fmt.Sprintf("serving/reranker-7d5f9c6b4-%d/server", i)
			n.allocate(migResource, id.Advertised(), time.Duration(i+1)*19*time.Minute, owner)
		}
	}
	fail(&n.Statuses[len(n.Statuses)-2], "xid_95", "reset_gpu", 8*time.Minute)

	g = n.addGPU("NVIDIA H100 80GB HBM3", 80, "9.0")
	g.MIGEnabled = true
	n.addReading(g.ID, -1, 52.4, 80, 512, 700, 60)
	for i, c := range []struct {
		profile string
		gi, ci  int
		memory  float64
		at      device.Placement
		busy    float64
		owner   string
	}{
		{"1c.3g.40gb", 1, 0, 39.5, device.Placement{Profile: 9, Start: 0, Size: 4}, 0.44, "lab/small/main"},
		{"2c.3g.40gb", 1, 1, 39.5, device.Placement{Profile: 9, Start: 0, Size: 4}, -1, "lab/large/main"},
		{"3g.40gb", 2, 0, 39.5, device.Placement{Profile: 9, Start: 4, Size: 4}, 0.81, "research/eval-4/main"},
	} {
		s := n.addMIGDevice(c.profile, c.gi, c.ci, c.memory, c.at)
		resource := "nvidia.com/mig-" + c.profile
		ids[resource] = append(ids[resource], s.ID.Advertised())
		if c.busy >= 0 {
			n.addEngineReading(s.ID, c.busy, 8+20*c.busy, c.memory)
		}
		n.allocate(resource, s.ID.Advertised(), time.Duration(i+2)*time.Hour, c.owner)
	}
	g = n.addGPU("NVIDIA H100 80GB HBM3", 80, "9.0")
	g.MIGEnabled = true
	n.addReading(g.ID, -1, 0.6, 80, 71, 700, 34)
	for _, resource := range slices.Sorted(maps.Keys(ids)) {
		healthy := len(ids[resource])
		if resource == migResource {
			healthy--
		}
		n.Resources = append(n.Resources, plugin.Resource{
			Name: resource, IDs: ids[resource], Registered: true, Healthy: healthy,
		})
	}
	return n
}

// newFullMIGFixture returns a node of 56 MIG devices.
func newFullMIGFixture() *pageFixture {
	n := newEmptyFixture()
	var ids []device.AdvertisedID
	for gpu := range 8 {
		g := n.addGPU("NVIDIA A100-SXM4-80GB", 80, "8.0")
		g.MIGEnabled = true
		n.addReading(g.ID, -1, 40, 80, 210, 400, 48)
		for i := range 7 {
			s := n.addMIGDevice("1g.10gb", 7+i, 0, 9.75, device.Placement{Profile: 19, Start: i, Size: 1})
			ids = append(ids, s.ID.Advertised())
			n.addEngineReading(s.ID, -1, float64(i), 9.75)
			if (gpu+i)%3 > 0 {
				n.allocate(migResource, s.ID.Advertised(), time.Hour, fmt.Sprintf("batch/job-%d-%d/main", gpu, i))
			}
		}
	}
	n.Resources = []plugin.Resource{{Name: migResource, IDs: ids, Registered: true, Healthy: 56}}
	n.addHistory()
	return n
}

// newFailedMIGFixture returns the MIG node with a failed GPU and a separately failed MIG device.
func newFailedMIGFixture() *pageFixture {
	n := newFullMIGFixture()
	for i := range n.Statuses {
		s := &n.Statuses[i]
		if own := s.Index == 5 && s.MIGDeviceIndex == 4; s.Index == 3 || own {
			fail(s, "xid_79", "reboot", 3*time.Minute)
			if own {
				s.Reason, s.Action = "xid_95", "reset_gpu"
			}
			delete(n.Readings.Devices, s.ID)
			n.Incidents.Incidents = append(n.Incidents.Incidents, incident.Incident{
				ID: uint64(100 - i), First: s.Since, Last: s.Since, Count: 1, Device: s.ID, GPU: s.GPU, Index: s.Index,
				Profile: s.Profile, Reason: s.Reason, Action: s.Action, MarkedUnhealthy: true,
			})
			for _, a := range n.Allocations.ForDevice(s.ID) {
				last := &n.Incidents.Incidents[len(n.Incidents.Incidents)-1]
				last.Affected = append(last.Affected, incident.AffectedContainer{Owner: a.Owner, Since: beforeNow(time.Hour)})
			}
		}
	}
	n.Resources[0].Healthy = 48
	return n
}

// newReplicasFixture returns a node of 128 replicas, 64 of them of one GPU, and a failed GPU.
func newReplicasFixture() *pageFixture {
	n := newEmptyFixture()
	o := plugin.Resource{Name: "nvidia.com/gpu.shared", Sharing: "time-slicing", Registered: true}
	for gpu, replicas := range []int{16, 16, 16, 64, 16} {
		s := n.addGPU("NVIDIA A10", 24, "8.6")
		if gpu == 2 {
			fail(s, "xid_79", "reboot", 3*time.Minute)
		} else {
			n.addReading(s.ID, 0.8, 14, 24, 120, 150, 61)
		}
		for i := range replicas {
			o.IDs = append(o.IDs, s.ID.Replica(i))
			if (gpu+i)%4 > 0 {
				n.allocate(o.Name, s.ID.Replica(i), time.Hour, fmt.Sprintf("lab/notebook-%d-%d/jupyter", gpu, i))
			}
		}
		if s.Healthy {
			o.Healthy += replicas
		}
	}
	n.Resources = []plugin.Resource{o}
	n.addHistory()
	return n
}

// newSharedFixture returns a node with several kinds of replicas.
func newSharedFixture() *pageFixture {
	n := newEmptyFixture()
	addShared := func(resource, sharing string, replicas int) *device.Status {
		s := n.addGPU("Tesla T4", 15, "7.5")
		n.addReading(s.ID, 0.55, 9.3, 15, 52, 70, 58)
		o := plugin.Resource{Name: resource, Sharing: sharing, Registered: true, Healthy: replicas}
		for i := range replicas {
			o.IDs = append(o.IDs, s.ID.Replica(i))
		}
		n.Resources = append(n.Resources, o)
		return s
	}
	s := addShared("nvidia.com/gpu.shared", "time-slicing", 10)
	n.allocate("nvidia.com/gpu.shared", s.ID.Replica(0), time.Hour, "lab/notebook-ada/jupyter")
	n.allocate("nvidia.com/gpu.shared", s.ID.Replica(1), time.Hour, "lab/notebook-grace/jupyter")
	n.allocate("nvidia.com/gpu.shared", s.ID.Replica(4), 2*time.Minute, "lab/notebook-grace/jupyter")
	s = addShared("nvidia.com/gpu", "MPS", 4)
	n.allocate("nvidia.com/gpu", s.ID.Replica(2), 26*time.Hour, "serving/ocr-5c9d/server")
	n.allocate("nvidia.com/gpu", s.ID.Replica(3), 26*time.Hour, "serving/ocr-77fb/server")
	return n
}

// newUnsettledFixture returns a node whose kubelet has just started and listed only some allocations.
func newUnsettledFixture() *pageFixture {
	n := newMIGFixture()
	s := n.addGPU("Tesla T4", 15, "7.5")
	o := plugin.Resource{Name: "nvidia.com/gpu.shared", Sharing: "time-slicing", Registered: true, Healthy: 4}
	for i := range 4 {
		o.IDs = append(o.IDs, s.ID.Replica(i))
	}
	n.Resources = append(n.Resources, o)
	n.allocate(o.Name, s.ID.Replica(1), time.Hour, "lab/notebook-ada/jupyter")
	n.Allocations.Complete = false
	return n
}

// fixtures contains the nodes with a golden file, by name.
var fixtures = map[string]func() *pageFixture{
	"h100": newH100Fixture, "failed": newFailedFixture, "mig": newMIGFixture, "mig_full": newFullMIGFixture,
	"shared": newSharedFixture, "mig_failed": newFailedMIGFixture, "replicas": newReplicasFixture,
	"one": func() *pageFixture {
		n := newEmptyFixture()
		s := n.addGPU("NVIDIA L4", 22.5, "8.9")
		n.addReading(s.ID, 0.33, 7.1, 22.5, 41, 72, 52)
		n.allocate(gpuResource, s.ID.Advertised(), 4*24*time.Hour, "default/whisper/main")
		n.Resources = []plugin.Resource{
			{Name: gpuResource, IDs: []device.AdvertisedID{s.ID.Advertised()}, Registered: true, Healthy: 1},
		}
		return n
	},
	"no_gpu": newEmptyFixture,
	// A GPU was removed, and its replacement has the same index.
	"replaced": func() *pageFixture {
		n := newH100Fixture()
		removed := n.Statuses[1]
		removed.ID, removed.GPU = "GPU-7e57ab1e-0f6d-4c6a-9d4e-8a1f2b3c4d51", "GPU-7e57ab1e-0f6d-4c6a-9d4e-8a1f2b3c4d51"
		fail(&removed, "gone", "", time.Minute)
		removed.Gone = true
		n.Statuses = slices.Insert(n.Statuses, 2, removed)
		return n
	},
	"no_driver": func() *pageFixture {
		n := newEmptyFixture()
		err := errors.New("load libnvidia-ml.so.1: no such file in /usr/lib64, /usr/lib/x86_64-linux-gnu")
		n.Driver = device.Driver{State: device.DriverAbsent, Err: err}
		n.PodsSynced, n.PodsErr = false, errors.New("the kubelet has no Pods API: connect: no such file or directory")
		return n
	},
	"starting": func() *pageFixture { return &pageFixture{} },
	"kubelet_away": func() *pageFixture {
		n := newH100Fixture()
		n.Allocations.At, n.Allocations.Err = beforeNow(4*time.Minute), errors.New("connect: connection refused")
		n.PodsSynced, n.PodsErr = false, errors.New("connect: connection refused")
		n.Resources[0].Registered, n.Resources[0].Err = false, "register nvidia.com/gpu: connection refused"
		n.Readings.At = beforeNow(7 * time.Second)
		return n
	},
	"measuring_only": func() *pageFixture {
		n := newH100Fixture()
		n.Resources, n.IsPlugin = nil, false
		n.Allocations.Complete, n.Allocations.All, n.Allocations.Recent, n.Allocations.At = false, nil, nil, time.Time{}
		return n
	},
	"unsettled": newUnsettledFixture, "hostile": newHostileFixture,
}

// hostileText contains markup, templates and control characters.
const hostileText = "</title></svg>\"'><script>alert(1)</script><img src=x onerror=alert(2)>\u202e{{.}}\x00\x1b[31m " +
	"javascript:alert(3) &lt;b&gt;"

// newHostileFixture returns a node with a hostile text in each name.
func newHostileFixture() *pageFixture {
	n := newEmptyFixture()
	s := n.addGPU(hostileText, 80, hostileText)
	s.Healthy, s.Health, s.Reason, s.Action, s.PCI = false, device.Unhealthy, hostileText, hostileText, hostileText
	for i := range s.InfoLabels {
		s.InfoLabels[i].Value = hostileText
	}
	owner := device.Owner{Namespace: hostileText, Pod: hostileText, Container: hostileText}
	replica := s.ID.Advertised() + "::" + device.AdvertisedID(hostileText)
	n.Allocations.All = []device.Allocation{{Resource: hostileText, DeviceID: replica, Owner: owner}}
	n.Allocations.Err = errors.New(hostileText)
	n.Driver.Err = errors.New(hostileText)
	n.PodsSynced, n.PodsErr = false, errors.New(hostileText)
	n.Resources = []plugin.Resource{
		{Name: hostileText, IDs: []device.AdvertisedID{replica}, Err: hostileText},
	}
	n.Incidents = incident.Snapshot{Err: errors.New(hostileText), Incidents: []incident.Incident{{
		Last: now, Device: s.ID, GPU: s.GPU, Reason: hostileText, Action: hostileText, Profile: hostileText,
		Affected: []incident.AffectedContainer{{
			Owner:       owner,
			Termination: &incident.PodTermination{Phase: hostileText, Reason: hostileText},
		}},
	}}}
	return n
}
