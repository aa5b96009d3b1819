package status_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
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
}

// newest is the state of the node for a page.
func (f *pageFixture) newest(context.Context) status.PageState {
	n := f.PageState
	n.Allocations.All = slices.SortedFunc(slices.Values(n.Allocations.All), allocation.Compare)
	n.Stalled = func(gpu device.GPU) bool { return f.stalled[gpu] }
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
	f.Statuses = []device.Status{} // listed
	f.Allocations = allocation.Snapshot{At: beforeNow(2 * time.Second), Complete: true}
	f.Readings = status.Readings{At: beforeNow(300 * time.Millisecond), Devices: map[device.ID]status.DeviceReading{}}
	return f
}

// addGPU adds a GPU.
func (f *pageFixture) addGPU(model string, memory float64) *device.Status {
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
		owner := ownerOf(o)
		f.Allocations.All = append(f.Allocations.All, allocation.Allocation{Resource: resource, DeviceID: id, Owner: owner})
		record := allocation.Record{Device: id.Device(), Owner: owner, FirstSeen: beforeNow(since), LastSeen: now}
		f.Allocations.Recent = append(f.Allocations.Recent, record)
	}
}

// ownerOf returns the owner "namespace/pod/container".
func ownerOf(text string) allocation.Owner {
	parts := strings.SplitN(text, "/", 3)
	return allocation.Owner{Namespace: parts[0], Pod: parts[1], Container: parts[2]}
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
		s := n.addGPU("NVIDIA H100 80GB HBM3", 80)
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
	add := func(i int, reason, action string, ago time.Duration, count uint64, owner string, ended *incident.PodTermination) *incident.Incident {
		s := &n.Statuses[i]
		all := &n.Incidents.Incidents
		*all = append(*all, incident.Incident{
			ID: uint64(6 - len(*all)), First: beforeNow(ago), Last: beforeNow(ago), Count: count,
			Device: s.ID, GPU: s.GPU, Index: s.Index, Reason: reason, Action: action,
		})
		added := &(*all)[len(*all)-1]
		if owner != "" {
			added.Affected = []incident.AffectedContainer{{Owner: ownerOf(owner), Since: beforeNow(31 * time.Hour), Termination: ended}}
		}
		return added
	}
	n.Incidents.Persisted = true
	add(7, "not_responding", "", 40*time.Second, 1, "", nil).MarkedUnhealthy = true
	failed := &incident.PodTermination{At: now, Phase: "Failed", Reason: "Error", ExitCode: &exit}
	add(2, "xid_79", "reboot", 3*time.Minute, 1, "research/llama-pretrain-0/trainer", failed).MarkedUnhealthy = true
	add(5, "xid_31", "restart_app", 25*time.Minute, 12, "research/notebook-ada/jupyter", nil)
	restarted := &incident.PodTermination{At: now, Phase: "Failed", ExitCode: &exit, Restarts: 2}
	over := add(6, "xid_48", "reset_gpu", time.Hour, 1, "research/finetune-17/main", restarted)
	over.MarkedUnhealthy, over.RecoveredAt = true, &recovered
	partial := add(4, "xid_94", "restart_app", 20*time.Hour, 1, "", nil)
	partial.OwnersIncomplete, partial.Profile = true, "1g.10gb"
	unknown := add(0, "xid_13", "restart_app", 75*time.Hour, 2, "", nil)
	unknown.AffectedUnknown, unknown.MIGDevices = true, make([]incident.AffectedMIGDevice, 2)
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
	whole := n.addGPU("NVIDIA H100 80GB HBM3", 80)
	n.addReading(whole.ID, 0.86, 61.2, 80, 598, 700, 64)
	ids[gpuResource] = append(ids[gpuResource], whole.ID.Advertised())
	n.allocate(gpuResource, whole.ID.Advertised(), 3*time.Hour, "research/finetune-18/main")

	g := n.addGPU("NVIDIA H100 80GB HBM3", 80)
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

	g = n.addGPU("NVIDIA H100 80GB HBM3", 80)
	g.MIGEnabled = true
	n.addReading(g.ID, -1, 52.4, 80, 512, 700, 60)
	for i, c := range []struct {
		profile       string
		gi, ci, start int
		busy          float64
		owner         string
	}{
		{"1c.3g.40gb", 1, 0, 0, 0.44, "lab/small/main"},
		{"2c.3g.40gb", 1, 1, 0, -1, "lab/large/main"},
		{"3g.40gb", 2, 0, 4, 0.81, "research/eval-4/main"},
	} {
		s := n.addMIGDevice(c.profile, c.gi, c.ci, 39.5, device.Placement{Profile: 9, Start: c.start, Size: 4})
		resource := "nvidia.com/mig-" + c.profile
		ids[resource] = append(ids[resource], s.ID.Advertised())
		if c.busy >= 0 {
			n.addEngineReading(s.ID, c.busy, 8+20*c.busy, 39.5)
		}
		n.allocate(resource, s.ID.Advertised(), time.Duration(i+2)*time.Hour, c.owner)
	}
	g = n.addGPU("NVIDIA A30", 24) // has half as many memory slices
	g.MIGEnabled = true
	n.addMIGDevice("1g.6gb", 3, 0, 5.8, device.Placement{Start: 3, Size: 1})
	n.addMIGDevice("2g.12gb", 1, 0, 11.7, device.Placement{Start: 0, Size: 2})
	n.addMIGDevice("1g.6gb", 4, 0, 5.8, device.Placement{Start: -1})
	n.addGPU("NVIDIA A100-SXM4-40GB", 40).MIGEnabled = true
	n.addMIGDevice("1g.10gb", 4, 0, 9.6, device.Placement{Start: 6, Size: 2})
	g = n.addGPU("NVIDIA H100 80GB HBM3", 80)
	g.MIGEnabled = true
	n.addReading(g.ID, -1, 0.6, 80, 71, 700, 34)
	n.ExpectedGPUs = 7
	for _, resource := range slices.Sorted(maps.Keys(ids)) {
		healthy := len(ids[resource])
		if resource == migResource {
			healthy--
		}
		n.Resources = append(n.Resources, plugin.Resource{Name: resource, IDs: ids[resource], Registered: true, Healthy: healthy})
	}
	return n
}

// newFailedMIGFixture returns a node of 56 MIG devices with a failed GPU and a separately failed MIG device.
func newFailedMIGFixture() *pageFixture {
	n := newEmptyFixture()
	r := plugin.Resource{Name: migResource, Registered: true, Healthy: 48}
	for gpu := range 8 {
		g := n.addGPU("NVIDIA A100-SXM4-80GB", 80)
		g.MIGEnabled = true
		n.addReading(g.ID, -1, 40, 80, 210, 400, 48)
		for i := range 7 {
			s := n.addMIGDevice("1g.10gb", 7+i, 0, 9.75, device.Placement{Profile: 19, Start: i, Size: 1})
			r.IDs = append(r.IDs, s.ID.Advertised())
			n.addEngineReading(s.ID, -1, float64(i), 9.75)
			if (gpu+i)%3 > 0 {
				n.allocate(migResource, s.ID.Advertised(), time.Hour, fmt.Sprintf("batch/job-%d-%d/main", gpu, i))
			}
		}
	}
	n.Resources = []plugin.Resource{r}
	n.addHistory()
	for i := range n.Statuses {
		s := &n.Statuses[i]
		switch {
		case s.Index == 3:
			fail(s, "xid_79", "reboot", 3*time.Minute)
		case s.Index == 5 && s.MIGDeviceIndex == 4:
			fail(s, "xid_95", "reset_gpu", 3*time.Minute)
		default:
			continue
		}
		delete(n.Readings.Devices, s.ID)
		failed := incident.Incident{
			ID: uint64(100 - i), First: s.Since, Last: s.Since, Count: 1, Device: s.ID, GPU: s.GPU, Index: s.Index,
			Profile: s.Profile, Reason: s.Reason, Action: s.Action, MarkedUnhealthy: true,
		}
		for _, a := range n.Allocations.ForDevice(s.ID) {
			failed.Affected = append(failed.Affected, incident.AffectedContainer{Owner: a.Owner, Since: beforeNow(time.Hour)})
		}
		n.Incidents.Incidents = append(n.Incidents.Incidents, failed)
	}
	return n
}

// newSharedFixture returns a node with few and many replicas of GPUs, a failed GPU, and a GPU with many owners that was
// not read.
func newSharedFixture() *pageFixture {
	n := newEmptyFixture()
	add := func(resource, sharing string, replicas int, owners map[int]string) *device.Status {
		s := n.addGPU("NVIDIA A10", 24)
		n.addReading(s.ID, 0.55, 9.3, 24, 52, 150, 58)
		r := plugin.Resource{Name: resource, Sharing: sharing, Registered: true, Healthy: replicas}
		for i := range replicas {
			r.IDs = append(r.IDs, s.ID.Replica(i))
			if owners[i] != "" {
				n.allocate(resource, s.ID.Replica(i), time.Hour, owners[i])
			}
		}
		n.Resources = append(n.Resources, r)
		return s
	}
	many := map[int]string{}
	for i := range 64 {
		if i%4 > 0 {
			many[i] = fmt.Sprintf("lab/notebook-%d/jupyter", i)
		}
	}
	add("nvidia.com/gpu.shared", "time-slicing", 10, map[int]string{
		0: "lab/notebook-ada/jupyter", 1: "lab/notebook-grace/jupyter", 4: "lab/notebook-grace/jupyter",
	})
	add(gpuResource, "MPS", 4, map[int]string{2: "serving/ocr-5c9d/server", 3: "serving/ocr-77fb/server"})
	add("nvidia.com/gpu.crowded", "time-slicing", 64, many)
	fail(add("nvidia.com/gpu.failed", "time-slicing", 16, many), "xid_79", "reboot", 3*time.Minute)
	n.Resources[3].Healthy = 0
	last := n.addGPU("NVIDIA A10", 24)
	for i := range 20 {
		n.allocate(gpuResource, last.ID.Advertised(), time.Hour, fmt.Sprintf("lab/pod-%d/main", i))
	}
	return n
}

// newUnsettledFixture returns a node whose kubelet has just started and listed only some allocations.
func newUnsettledFixture() *pageFixture {
	n := newMIGFixture()
	s := n.addGPU("Tesla T4", 15)
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
	"h100": newH100Fixture, "failed": newFailedFixture, "mig": newMIGFixture, "mig_failed": newFailedMIGFixture,
	"shared": newSharedFixture, "unsettled": newUnsettledFixture, "hostile": newHostileFixture, "no_gpu": newEmptyFixture,
	"starting": func() *pageFixture { return &pageFixture{} },
	// A GPU was removed, and its replacement has the same index. Another GPU is retired.
	"replaced": func() *pageFixture {
		n := newH100Fixture()
		removed := n.Statuses[1]
		removed.ID, removed.GPU = "GPU-7e57ab1e-0f6d-4c6a-9d4e-8a1f2b3c4d51", "GPU-7e57ab1e-0f6d-4c6a-9d4e-8a1f2b3c4d51"
		fail(&removed, "gone", "", time.Minute)
		removed.Gone = true
		n.Statuses = slices.Insert(n.Statuses, 2, removed)
		retired := &n.Statuses[8]
		fail(retired, "retired", "", time.Hour)
		retired.Note = "fan is <noisy>"
		retired.MaskedFault = device.MaskedFault{Reason: "xid_95", Action: "reset_gpu", Since: retired.Since, Present: true}
		n.Incidents.Incidents = []incident.Incident{{
			ID: 1, First: retired.Since, Last: retired.Since, Count: 1, Device: retired.ID, GPU: retired.GPU, Index: 7,
			Reason: "retired", Action: "replace", MarkedUnhealthy: true, Note: retired.Note,
		}}
		return n
	},
	"no_driver": func() *pageFixture {
		n := newEmptyFixture()
		err := errors.New("load libnvidia-ml.so.1: no such file in /usr/lib64, /usr/lib/x86_64-linux-gnu")
		n.Driver = device.Driver{State: device.DriverAbsent, Err: err}
		n.PodsSynced, n.PodsErr = false, errors.New("the kubelet has no Pods API: connect: no such file or directory")
		return n
	},
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
}

// hostileText contains markup, templates and control characters.
const hostileText = "</title></svg>\"'><script>alert(1)</script><img src=x onerror=alert(2)>\u202e{{.}}\x00\x1b[31m " +
	"javascript:alert(3) &lt;b&gt;"

// newHostileFixture returns a node with a hostile text in each name.
func newHostileFixture() *pageFixture {
	n := newEmptyFixture()
	s := n.addGPU(hostileText, 80)
	s.Healthy, s.Health, s.Reason, s.Action, s.PCI = false, device.Unhealthy, hostileText, hostileText, hostileText
	for i := range s.InfoLabels {
		s.InfoLabels[i].Value = hostileText
	}
	owner := allocation.Owner{Namespace: hostileText, Pod: hostileText, Container: hostileText}
	replica := s.ID.Advertised() + "::" + device.AdvertisedID(hostileText)
	n.Allocations.All = []allocation.Allocation{{Resource: hostileText, DeviceID: replica, Owner: owner}}
	n.Allocations.Err = errors.New(hostileText)
	n.Driver.Err = errors.New(hostileText)
	n.PodsSynced, n.PodsErr = false, errors.New(hostileText)
	n.Resources = []plugin.Resource{{Name: hostileText, IDs: []device.AdvertisedID{replica}, Err: hostileText}}
	n.Incidents = incident.Snapshot{Err: errors.New(hostileText), Incidents: []incident.Incident{{
		Last: now, Device: s.ID, GPU: s.GPU, Reason: hostileText, Action: hostileText, Profile: hostileText,
		Affected: []incident.AffectedContainer{{Owner: owner, Termination: &incident.PodTermination{Phase: hostileText, Reason: hostileText}}},
	}}}
	return n
}
