package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
)

// now is when the pages of the golden files were made.
var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) time.Time { return now.Add(-d) }

// node is what a test has the sources say.
type node struct {
	statuses []device.Status
	held     device.Holders
	driver   device.Driver
	known    incident.Known
	readings Readings
	offers   []Offer
	pods     Feed
	stalled  map[device.GPU]bool
	changed  chan struct{} // of the Board
	reads    int
}

func (n *node) sources() Sources {
	slices.SortFunc(n.held.Held, device.CompareHoldings)
	return Sources{
		Sources: api.Sources{
			Node: "node-a", Look: func() ([]device.Status, <-chan struct{}) { return n.statuses, n.changed },
			Held:   func() (device.Holders, <-chan struct{}) { return n.held, nil },
			Driver: func() device.Driver { return n.driver }, Incidents: func() incident.Known { return n.known },
		},
		Read: func(context.Context) Readings {
			n.reads++
			return n.readings
		},
		Stalled: func(g device.GPU) bool { return n.stalled[g] },
		Offers:  func() []Offer { return n.offers },
		Pods:    func() Feed { return n.pods },
		Version: "1.2.3", Links: []string{"metrics", "api/v1/devices", "api/v1/holders", "api/v1/incidents", "healthz", "readyz"},
	}
}

// empty is a node of which all parts work, without a GPU.
func empty() *node {
	return &node{
		driver: device.Driver{State: device.DriverUp}, pods: Feed{Followed: true}, offers: []Offer{},
		held:     device.Holders{At: before(2 * time.Second), Settled: true},
		readings: Readings{At: before(300 * time.Millisecond)},
	}
}

// add puts a GPU into the node.
func (n *node) add(model string, memory float64, capability string) *device.Status {
	i := len(n.statuses)
	for _, s := range n.statuses {
		if !s.WholeGPU() {
			i--
		}
	}
	id := fmt.Sprintf("GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d%02x", 0x50+i)
	n.statuses = append(n.statuses, device.Status{Healthy: true, Since: before(50 * time.Hour), Device: device.Device{
		ID: device.ID(id), GPU: device.GPU(id), Index: i, Slice: -1, GI: -1, CI: -1, Minor: i, Model: model, PCI: fmt.Sprintf("0000:%02x:00.0", 0x1b+0x10*i),
		NUMANode: i / 4, MemoryBytes: uint64(memory * gib),
		Facts: []device.Label{
			{Name: "serial", Value: fmt.Sprintf("16501230000%02d", i)},
			{Name: "vbios_version", Value: "96.00.89.00.01"},
			{Name: "driver_version", Value: "580.95.05"},
			{Name: "cuda_version", Value: "13.0"},
			{Name: "compute_capability", Value: capability},
		},
	}})
	return &n.statuses[len(n.statuses)-1]
}

// reads says what was read of a device: in shares, GiB, watts and °C. What is negative was not.
func (n *node) read(id device.ID, use, used, total, power, limit, warm float64) {
	r := Reading{Device: id}
	for q, v := range map[Quantity]float64{
		Utilization: use, MemoryUsed: used * gib, MemoryTotal: total * gib, Power: power, PowerLimit: limit, Temperature: warm,
	} {
		if v >= 0 {
			r.Set(q, v)
		}
	}
	n.readings.Of = append(n.readings.Of, r)
}

// hold has containers ("namespace/pod/container") hold an id.
func (n *node) hold(resource string, id device.OfferedID, since time.Duration, owners ...string) {
	for _, o := range owners {
		part := strings.SplitN(o, "/", 3)
		owner := device.Owner{Namespace: part[0], Pod: part[1], Container: part[2]}
		n.held.Held = append(n.held.Held, device.Holding{Resource: resource, Offered: id, Owner: owner})
		n.held.Recent = append(n.held.Recent, device.Seen{Device: id.Device(), Owner: owner, First: before(since), Last: now})
	}
}

const (
	wholeGPUs = "nvidia.com/gpu"
	oneG      = "nvidia.com/mig-1g.10gb"
)

// eight is a node of H100s in full use.
func eight() *node {
	n := empty()
	var ids []device.OfferedID
	for i := range 8 {
		s := n.add("NVIDIA H100 80GB HBM3", 80, "9.0")
		use := []float64{0.98, 0.97, 0.99, 0.98, 0.41, 0.07, 0, 0}[i]
		n.read(s.ID, use, []float64{74.2, 74.2, 73.9, 74.1, 31.5, 12.8, 0.6, 0.6}[i], 80, 72+610*use, 700, 33+38*use)
		ids = append(ids, s.ID.Offered())
	}
	for i, id := range ids {
		switch {
		case i < 4:
			n.hold(wholeGPUs, id, 31*time.Hour, "research/llama-pretrain-0/trainer")
		case i == 4:
			n.hold(wholeGPUs, id, 5*time.Hour, "serving/embeddings-6f7c9d5b8-x2x9q/server")
		case i == 5:
			n.hold(wholeGPUs, id, 12*time.Minute, "research/notebook-ada/jupyter")
		}
	}
	n.offers = []Offer{{Resource: wholeGPUs, IDs: ids, Registered: true, Healthy: 8}}
	return n
}

// failed is the same node, with GPUs in all states that there are.
func failed() *node {
	n := eight()
	ill := func(i int, h device.Health, reason, action string, since time.Duration, flaps uint64) {
		s := &n.statuses[i]
		s.Healthy, s.Health, s.Reason, s.Action, s.Since, s.Flaps = h == device.Well || h == device.Suspect, h, reason, action, before(since), flaps
	}
	ill(2, device.Unhealthy, "xid_79", "reboot", 3*time.Minute, 1)
	ill(5, device.Suspect, "", "", 12*time.Hour, 0)
	ill(6, device.Probation, "xid_48", "", time.Hour, 3)
	ill(7, device.Unhealthy, "not_answering", "", 40*time.Second, 1)
	n.readings.Of = append(n.readings.Of[:2], n.readings.Of[3:7]...)
	n.stalled = map[device.GPU]bool{n.statuses[7].GPU: true}
	n.offers[0].Healthy = 5
	exit, healed := int32(139), before(58*time.Minute)
	happened := func(id uint64, i int, reason, action string, ago time.Duration, count uint64, holders ...incident.Holder) incident.Incident {
		s := &n.statuses[i]
		return incident.Incident{
			ID: id, First: before(ago), Last: before(ago), Count: count, Device: s.ID, GPU: s.GPU, Index: s.Index, Reason: reason, Action: action, Holders: holders,
		}
	}
	holder := func(owner string, ended *incident.Ending) incident.Holder {
		part := strings.SplitN(owner, "/", 3)
		return incident.Holder{Namespace: part[0], Pod: part[1], Container: part[2], Since: before(31 * time.Hour), Ended: ended}
	}
	n.known = incident.Known{Kept: true, Incidents: []incident.Incident{
		happened(6, 7, "not_answering", "", 40*time.Second, 1),
		happened(5, 2, "xid_79", "reboot", 3*time.Minute, 1,
			holder("research/llama-pretrain-0/trainer", &incident.Ending{At: now, Phase: "Failed", Reason: "Error", ExitCode: &exit})),
		happened(4, 5, "xid_31", "restart_app", 25*time.Minute, 12, holder("research/notebook-ada/jupyter", nil)),
		happened(3, 6, "xid_48", "reset_gpu", time.Hour, 1,
			holder("research/finetune-17/main", &incident.Ending{At: now, Phase: "Failed", ExitCode: &exit, Restarts: 2})),
		happened(2, 4, "xid_94", "restart_app", 20*time.Hour, 1),
		happened(1, 0, "xid_13", "restart_app", 75*time.Hour, 2),
	}}
	n.known.Incidents[0].Condemned, n.known.Incidents[1].Condemned = true, true
	n.known.Incidents[3].Condemned, n.known.Incidents[3].Healed = true, &healed
	n.known.Incidents[4].Nameless, n.known.Incidents[5].HoldersUnknown = true, true
	return n
}

// slice adds a slice to the GPU that was added last.
func (n *node) slice(profile string, gi, ci int, memory float64, at device.Placement) *device.Status {
	gpu := 0
	for i := range n.statuses {
		if n.statuses[i].WholeGPU() {
			gpu = i
		}
	}
	s := n.statuses[gpu]
	s.Slice = len(n.statuses) - gpu - 1
	s.ID = device.ID(fmt.Sprintf("MIG-6f1d7f52-5b0e-5f0c-8c39-5d1c0e8f%02x%02x", s.Index, s.Slice))
	s.MIG, s.GI, s.CI, s.Profile, s.Placement, s.MemoryBytes, s.Facts = false, gi, ci, profile, at, uint64(memory*gib), nil
	n.statuses = append(n.statuses, s)
	return &n.statuses[len(n.statuses)-1]
}

// engine says how busy a slice is.
func (n *node) engine(id device.ID, active, used, total float64) {
	n.read(id, -1, used, total, -1, -1, -1)
	if active >= 0 {
		n.readings.Of[len(n.readings.Of)-1].Set(EngineActive, active)
	}
}

// cut is a node of GPUs that are whole, cut into like parts, into unlike ones and not yet.
func cut() *node {
	n := empty()
	offered := map[string][]device.OfferedID{}
	whole := n.add("NVIDIA H100 80GB HBM3", 80, "9.0")
	n.read(whole.ID, 0.86, 61.2, 80, 598, 700, 64)
	offered[wholeGPUs] = append(offered[wholeGPUs], whole.ID.Offered())
	n.hold(wholeGPUs, whole.ID.Offered(), 3*time.Hour, "research/finetune-18/main")

	g := n.add("NVIDIA H100 80GB HBM3", 80, "9.0")
	g.MIG = true
	n.read(g.ID, -1, 34.1, 80, 301, 700, 51)
	for i := range 7 {
		s := n.slice("1g.10gb", 7+i, 0, 9.75, device.Placement{Profile: 19, Start: i, Size: 1})
		id, busy := s.ID, []float64{0.92, 0.35, 0, 0.66, 0, 0.12, 0}[i]
		offered[oneG] = append(offered[oneG], id.Offered())
		n.engine(id, busy, 0.1+9*busy, 9.75)
		if busy > 0 {
			n.hold(oneG, id.Offered(), time.Duration(i+1)*19*time.Minute, fmt.Sprintf("serving/reranker-7d5f9c6b4-%d/server", i))
		}
	}
	bad := &n.statuses[len(n.statuses)-2]
	bad.Healthy, bad.Health, bad.Reason, bad.Action, bad.Since = false, device.Unhealthy, "xid_95", "reset_gpu", before(8*time.Minute)

	g = n.add("NVIDIA H100 80GB HBM3", 80, "9.0")
	g.MIG = true
	n.read(g.ID, -1, 52.4, 80, 512, 700, 60)
	for i, c := range []struct {
		profile string
		gi, ci  int
		memory  float64
		at      device.Placement
		busy    float64
		holder  string
	}{
		{"1c.3g.40gb", 1, 0, 39.5, device.Placement{Profile: 9, Start: 0, Size: 4}, 0.44, "lab/small/main"},
		{"2c.3g.40gb", 1, 1, 39.5, device.Placement{Profile: 9, Start: 0, Size: 4}, -1, "lab/large/main"},
		{"3g.40gb", 2, 0, 39.5, device.Placement{Profile: 9, Start: 4, Size: 4}, 0.81, "research/eval-4/main"},
	} {
		s := n.slice(c.profile, c.gi, c.ci, c.memory, c.at)
		resource := "nvidia.com/mig-" + c.profile
		offered[resource] = append(offered[resource], s.ID.Offered())
		if c.busy >= 0 {
			n.engine(s.ID, c.busy, 8+20*c.busy, c.memory)
		}
		n.hold(resource, s.ID.Offered(), time.Duration(i+2)*time.Hour, c.holder)
	}
	g = n.add("NVIDIA H100 80GB HBM3", 80, "9.0")
	g.MIG = true
	n.read(g.ID, -1, 0.6, 80, 71, 700, 34)
	for _, resource := range []string{wholeGPUs, "nvidia.com/mig-1c.3g.40gb", oneG, "nvidia.com/mig-2c.3g.40gb", "nvidia.com/mig-3g.40gb"} {
		healthy := len(offered[resource])
		if resource == oneG {
			healthy--
		}
		n.offers = append(n.offers, Offer{Resource: resource, IDs: offered[resource], Registered: true, Healthy: healthy})
	}
	return n
}

// full is a node of 56 slices.
func full() *node {
	n := empty()
	var ids []device.OfferedID
	for gpu := range 8 {
		g := n.add("NVIDIA A100-SXM4-80GB", 80, "8.0")
		g.MIG = true
		n.read(g.ID, -1, 40, 80, 210, 400, 48)
		for i := range 7 {
			s := n.slice("1g.10gb", 7+i, 0, 9.75, device.Placement{Profile: 19, Start: i, Size: 1})
			ids = append(ids, s.ID.Offered())
			n.engine(s.ID, -1, float64(i), 9.75)
			if (gpu+i)%3 > 0 {
				n.hold(oneG, s.ID.Offered(), time.Hour, fmt.Sprintf("batch/job-%d-%d/main", gpu, i))
			}
		}
	}
	n.offers = []Offer{{Resource: oneG, IDs: ids, Registered: true, Healthy: 56}}
	return n
}

// shared is a node whose GPUs are offered several times.
func shared() *node {
	n := empty()
	offer := func(resource, sharing string, replicas int) *device.Status {
		s := n.add("Tesla T4", 15, "7.5")
		n.read(s.ID, 0.55, 9.3, 15, 52, 70, 58)
		o := Offer{Resource: resource, Sharing: sharing, Registered: true, Healthy: replicas}
		for i := range replicas {
			o.IDs = append(o.IDs, s.ID.Replica(i))
		}
		n.offers = append(n.offers, o)
		return s
	}
	s := offer("nvidia.com/gpu.shared", "time-slicing", 10)
	n.hold("nvidia.com/gpu.shared", s.ID.Replica(0), time.Hour, "lab/notebook-ada/jupyter")
	n.hold("nvidia.com/gpu.shared", s.ID.Replica(1), time.Hour, "lab/notebook-grace/jupyter")
	n.hold("nvidia.com/gpu.shared", s.ID.Replica(4), 2*time.Minute, "lab/notebook-grace/jupyter")
	s = offer("nvidia.com/gpu", "MPS", 4)
	n.hold("nvidia.com/gpu", s.ID.Replica(2), 26*time.Hour, "serving/ocr-5c9d/server")
	n.hold("nvidia.com/gpu", s.ID.Replica(3), 26*time.Hour, "serving/ocr-77fb/server")
	return n
}

// unsettled is a node that has just started: the kubelet has named some holders, and that it
// names no more says nothing yet.
func unsettled() *node {
	n := cut()
	s := n.add("Tesla T4", 15, "7.5")
	o := Offer{Resource: "nvidia.com/gpu.shared", Sharing: "time-slicing", Registered: true, Healthy: 4}
	for i := range 4 {
		o.IDs = append(o.IDs, s.ID.Replica(i))
	}
	n.offers = append(n.offers, o)
	n.hold(o.Resource, s.ID.Replica(1), time.Hour, "lab/notebook-ada/jupyter")
	n.held.Settled = false
	return n
}

// nodes are all that have a golden file, by its name.
var nodes = map[string]func() *node{
	"h100": eight, "failed": failed, "mig": cut, "mig_full": full, "shared": shared,
	"one": func() *node {
		n := empty()
		s := n.add("NVIDIA L4", 22.5, "8.9")
		n.read(s.ID, 0.33, 7.1, 22.5, 41, 72, 52)
		n.hold(wholeGPUs, s.ID.Offered(), 4*24*time.Hour, "default/whisper/main")
		n.offers = []Offer{{Resource: wholeGPUs, IDs: []device.OfferedID{s.ID.Offered()}, Registered: true, Healthy: 1}}
		return n
	},
	"no_gpu": empty,
	// One GPU is gone, and another has come in its place, with its index.
	"replaced": func() *node {
		n := eight()
		gone := n.statuses[1]
		gone.ID, gone.GPU = "GPU-7e57ab1e-0f6d-4c6a-9d4e-8a1f2b3c4d51", "GPU-7e57ab1e-0f6d-4c6a-9d4e-8a1f2b3c4d51"
		gone.Gone, gone.Healthy, gone.Health, gone.Reason, gone.Since = true, false, device.Unhealthy, "gone", before(time.Minute)
		n.statuses = slices.Insert(n.statuses, 2, gone)
		return n
	},
	"no_driver": func() *node {
		n := empty()
		n.driver = device.Driver{State: device.DriverAbsent, Err: errors.New("load libnvidia-ml.so.1: no such file in /usr/lib64, /usr/lib/x86_64-linux-gnu")}
		n.pods = Feed{Why: "the kubelet has no Pods API: connect: no such file or directory"}
		return n
	},
	"starting": func() *node { return &node{pods: Feed{}} },
	"kubelet_away": func() *node {
		n := eight()
		n.held.At, n.held.Err = before(4*time.Minute), errors.New("connect: connection refused")
		n.pods = Feed{Why: "connect: connection refused"}
		n.offers[0].Registered, n.offers[0].Err = false, "register nvidia.com/gpu: connection refused"
		n.readings.At = before(7 * time.Second)
		return n
	},
	"measuring_only": func() *node {
		n := eight()
		n.offers = nil
		n.held.Settled, n.held.Held, n.held.Recent, n.held.At = false, nil, nil, time.Time{}
		return n
	},
	"unsettled": unsettled, "hostile": hostile,
}

// evil is what might break out of wherever it is put.
const evil = "</title></svg>\"'><script>alert(1)</script><img src=x onerror=alert(2)>\u202e{{.}}\x00\x1b[31m javascript:alert(3) &lt;b&gt;"

// hostile is a node on which every name is evil.
func hostile() *node {
	n := empty()
	s := n.add(evil, 80, evil)
	s.Healthy, s.Health, s.Reason, s.Action, s.PCI = false, device.Unhealthy, evil, evil, evil
	for i := range s.Facts {
		s.Facts[i].Value = evil
	}
	owner := device.Owner{Namespace: evil, Pod: evil, Container: evil}
	n.held.Held = []device.Holding{{Resource: evil, Offered: s.ID.Offered() + "::" + device.OfferedID(evil), Owner: owner}}
	n.held.Err = errors.New(evil)
	n.driver.Err = errors.New(evil)
	n.pods = Feed{Why: evil}
	n.offers = []Offer{{Resource: evil, IDs: []device.OfferedID{n.held.Held[0].Offered}, Err: evil}}
	n.known = incident.Known{Err: errors.New(evil), Incidents: []incident.Incident{{
		Last: now, Device: s.ID, GPU: s.GPU, Reason: evil, Action: evil, Profile: evil,
		Holders: []incident.Holder{{Namespace: evil, Pod: evil, Container: evil, Ended: &incident.Ending{Phase: evil, Reason: evil}}},
	}}}
	return n
}
