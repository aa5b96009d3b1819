package api

import (
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// Devices is the answer at DevicesPath.
type Devices struct {
	At      time.Time `json:"at"` // when it was given
	Node    string    `json:"node,omitempty"`
	Driver  Driver    `json:"driver"`
	Kubelet Kubelet   `json:"kubelet"`
	Devices []Device  `json:"devices"` // each GPU before its slices
}

// Driver is the driver's state.
type Driver struct {
	// State is "starting", "up", "failing", "absent", "not_answering", "replaced" or
	// "released".
	State string `json:"state"`
	Error string `json:"error,omitempty"`
}

// Kubelet says how the kubelet answered when it was last asked who holds what.
type Kubelet struct {
	Up       bool      `json:"up"`
	Answered time.Time `json:"answered,omitzero"` // when it last did; what holders are drawn from
	Error    string    `json:"error,omitempty"`
}

// Device is what can be held, and a GPU whose slices can.
type Device struct {
	ID          device.ID         `json:"device"`
	GPU         device.GPU        `json:"gpu"`
	Index       int               `json:"index"`             // the GPU's
	MIG         bool              `json:"mig"`               // a GPU in MIG mode: its slices are held, and not it
	Profile     string            `json:"profile,omitempty"` // of a slice, as are the next three
	Slice       *int              `json:"slice,omitempty"`
	GI          *int              `json:"gi,omitempty"`
	CI          *int              `json:"ci,omitempty"`
	Model       string            `json:"model,omitempty"`
	PCI         string            `json:"pci_bus_id,omitempty"`
	NUMANode    *int              `json:"numa_node,omitempty"`
	MemoryBytes uint64            `json:"memory_bytes,omitempty"`
	Facts       map[string]string `json:"facts,omitempty"` // as nvidia_gpu_info has them

	Healthy bool      `json:"healthy"` // as the kubelet is told
	Health  string    `json:"health"`  // "well", "suspect", "unhealthy" or "probation"
	Reason  string    `json:"reason,omitempty"`
	Action  string    `json:"action,omitempty"`
	Since   time.Time `json:"since,omitzero"` // when Healthy or Reason last changed
	Flaps   uint64    `json:"flaps"`
	Gone    bool      `json:"gone,omitempty"` // no listing has it any more
	// Unallocatable is why nothing of a GPU that works can be allocated: "no_mig_devices".
	Unallocatable string `json:"unallocatable,omitempty"`
	Xids          []Xid  `json:"xids"` // that were reported of its GPU, as far as is remembered

	// Hold is "idle", "held", "shared", "unnamed" (allocated to a container that the
	// kubelet does not name), "unknown", or "partitioned".
	Hold         string             `json:"hold"`
	Holders      []Holder           `json:"holders"`
	LastHolders  []Holder           `json:"last_holders"` // that hold it no more, newest first
	LastIncident *incident.Incident `json:"last_incident,omitempty"`
}

// Xid is how often the driver reported an error.
type Xid struct {
	Xid   uint64    `json:"xid"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}

var driverStates = [...]string{
	device.DriverStarting: "starting", device.DriverUp: "up", device.DriverFailing: "failing", device.DriverAbsent: "absent",
	device.DriverNotAnswering: "not_answering", device.DriverReplaced: "replaced", device.DriverReleased: "released",
}

var holds = [...]string{
	device.Unknown: "unknown", device.Idle: "idle", device.Held: "held", device.Shared: "shared", device.Unnamed: "unnamed",
}

func (s Sources) devices(q Query, now time.Time) any { return s.answer(q, now) }

// Devices are all of the node's, as the answer has them.
func (s Sources) Devices(now time.Time) Devices { return s.answer(Query{}, now) }

func (s Sources) answer(q Query, now time.Time) Devices {
	statuses, _ := s.Look()
	held, _ := s.Held()
	known, driver := s.remembered(), s.Driver()
	d := Devices{
		At: now.UTC(), Node: s.Node, Driver: Driver{driverStates[driver.State], errText(driver.Err)},
		Kubelet: kubelet(held), Devices: []Device{},
	}
	at := q.place(statuses)
	for _, status := range statuses {
		if at.has(status.ID, status.GPU, status.Index) {
			d.Devices = append(d.Devices, deviceOf(status, statuses, held, known))
		}
	}
	return d
}

func kubelet(h device.Holders) Kubelet {
	return Kubelet{Up: h.Err == nil && !h.At.IsZero(), Answered: h.At.UTC(), Error: errText(h.Err)}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

func deviceOf(s device.Status, all []device.Status, held device.Holders, known incident.Known) Device {
	d := Device{
		ID: s.ID, GPU: s.GPU, Index: s.Index, MIG: s.MIG, Model: s.Model, PCI: s.PCI, NUMANode: unlessNegative(s.NUMANode),
		MemoryBytes: s.MemoryBytes, Healthy: s.Healthy, Health: s.Health.String(), Reason: s.Reason, Action: s.Action,
		Since: s.Since.UTC(), Flaps: s.Flaps, Gone: s.Gone, Unallocatable: s.Unallocatable(all), Xids: make([]Xid, len(s.Xids)),
		Holders: []Holder{}, LastHolders: []Holder{},
	}
	if !s.WholeGPU() {
		d.Profile, d.Slice, d.GI, d.CI = s.Profile, unlessNegative(s.Slice), unlessNegative(s.GI), unlessNegative(s.CI)
	}
	for i, x := range s.Xids {
		d.Xids[i] = Xid{x.Code, x.Count, x.Last.UTC()}
	}
	for _, f := range s.Facts {
		if f.Value == "" { // the driver does not tell it
			continue
		}
		if d.Facts == nil {
			d.Facts = map[string]string{}
		}
		d.Facts[f.Name] = f.Value
	}
	hold, _ := held.Of(s.ID)
	d.Hold = holds[hold]
	if s.MIG && len(held.Rows(s.ID)) == 0 {
		d.Hold = "partitioned"
	}
	for _, h := range holdersOf(s.ID, held) {
		if h.Holds {
			d.Holders = append(d.Holders, h)
		} else {
			d.LastHolders = append(d.LastHolders, h)
		}
	}
	if i := slices.IndexFunc(known.Incidents, func(i incident.Incident) bool { return i.Device == s.ID }); i >= 0 {
		last := inUTC(known.Incidents[i]) // the newest is the first
		d.LastIncident = &last
	}
	return d
}

// unlessNegative is a number, or nothing where it is not known.
func unlessNegative(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}
