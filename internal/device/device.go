// Package device says what an accelerator is, whether it is healthy, who holds
// it, and who gets told.
//
// It knows no vendor, no kubelet and no Prometheus. A Backend answers for the
// hardware, Readers keep a call that never returns from stopping anything else,
// a Monitor turns events, checks and listings into one verdict per device, and a
// Board publishes that verdict to whoever looks.
package device

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Three identities are never mixed (docs/adr/0001-three-identities.md). Each is
// a type of its own, so that the compiler holds them apart.
type (
	// GPU is a physical GPU, by its UUID ("GPU-…"). Calls to the driver, faults
	// and stalls are per GPU.
	GPU string
	// ID is what a container can hold: a whole GPU or a MIG slice, by its UUID.
	// It is the one key that joins readings, health and holders.
	ID string
	// AdvertisedID is what the kubelet is told: a device's ID, or a replica of it,
	// "<ID>::<n>".
	AdvertisedID string
)

// replicaSeparator stands between a device and the number of its replica, as
// NVIDIA's device plugin writes it.
const replicaSeparator = "::"

// Advertised is the id under which the kubelet is offered the whole device.
func (id ID) Advertised() AdvertisedID { return AdvertisedID(id) }

// Replica is the id under which the kubelet is offered the n-th replica of the
// device, counted from 0.
func (id ID) Replica(n int) AdvertisedID {
	return AdvertisedID(string(id) + replicaSeparator + strconv.Itoa(n))
}

// Device is the device behind an offered id, whichever replica of it is meant.
func (a AdvertisedID) Device() ID {
	id, _, _ := strings.Cut(string(a), replicaSeparator)
	return ID(id)
}

// Device is what does not change while the driver is loaded, but for the way in
// which a GPU is partitioned. A GPU in MIG mode and each of its slices are devices
// of their own, with the same GPU, Index, Minor, Model, PCI and NUMANode.
type Device struct {
	ID    ID
	GPU   GPU
	Index int // the GPU's index in the driver's order
	// MIGEnabled says of a whole GPU that its MIG mode is on. Then nobody can hold it, only
	// its slices, of which there may be none; what is read of it and happens to it
	// concerns them all. It is false on a slice.
	MIGEnabled bool
	// MIGDeviceIndex is a slice's index under its GPU, as the driver counts, GI and CI are its
	// instances, and Profile is what NVIDIA calls its size: "1g.10gb", "1c.3g.40gb",
	// "1g.10gb+me". On a whole GPU, and where unknown, they are -1 and empty.
	MIGDeviceIndex, GI, CI int
	Profile                string
	Placement              Placement
	Minor                  int    // the N of /dev/nvidiaN; -1 when unknown
	Model                  string // as the driver names it: "NVIDIA H100 80GB HBM3"
	PCI                    string // bus address: "0000:1a:00.0"
	NUMANode               int    // -1 when unknown
	MemoryBytes            uint64 // 0 when unknown
	DeviceNodes            []string
	// InfoLabels are further names and values for the device's info series, each
	// label at most once and the same labels for all devices of a Backend.
	InfoLabels []Label
}

// Placement is where a slice's GPU instance lies on its GPU: the number of the
// instance's profile and the memory slices that it takes, as the driver counts both.
// The zero Placement is that of a whole GPU, and of a slice of which it is not known.
type Placement struct {
	Profile     int // 19 is one of seven on an A100 and an H100
	Start, Size int // in memory slices; Size is 0 where nothing is known
}

// Label is a name and a value, as Prometheus understands them.
type Label struct{ Name, Value string }

// WholeGPU tells a device that is a whole GPU from a slice of one.
func (d Device) WholeGPU() bool { return string(d.ID) == string(d.GPU) }

// Compare is the order of devices: by GPU, in the driver's order, and each GPU
// right before its slices.
func (d Device) Compare(o Device) int {
	whole := 0
	if d.WholeGPU() != o.WholeGPU() {
		whole = 1
		if d.WholeGPU() {
			whole = -1
		}
	}
	return cmp.Or(cmp.Compare(d.Index, o.Index), cmp.Compare(d.GPU, o.GPU), whole,
		cmp.Compare(d.MIGDeviceIndex, o.MIGDeviceIndex), cmp.Compare(d.ID, o.ID))
}

// Equal tells whether everything is known of both alike.
func (d Device) Equal(o Device) bool {
	return d.ID == o.ID && d.GPU == o.GPU && d.Index == o.Index && d.Minor == o.Minor &&
		d.MIGEnabled == o.MIGEnabled && d.MIGDeviceIndex == o.MIGDeviceIndex && d.GI == o.GI && d.CI == o.CI && d.Profile == o.Profile &&
		d.Placement == o.Placement && d.Model == o.Model && d.PCI == o.PCI && d.NUMANode == o.NUMANode &&
		d.MemoryBytes == o.MemoryBytes &&
		slices.Equal(d.DeviceNodes, o.DeviceNodes) && slices.Equal(d.InfoLabels, o.InfoLabels)
}

// Status is a device and the newest verdict on it. A posted Status is never
// written again.
type Status struct {
	Device
	Healthy bool // as the kubelet is told: Health is Well or Suspect
	Health  Health
	Flaps   uint64    // how often it turned unhealthy, by itself or with its GPU, as far as is remembered
	Reason  string    // why it is not healthy, in one word: "xid_79", "lost"; empty when it is
	Action  string    // what its fault asks for: "reset_gpu", "reboot"; empty if nothing is known, or it was done
	Since   time.Time // when Healthy or Reason last changed
	Gone    bool      // no listing has it any more: it is not read, and its instances' numbers may be another's
	Xids    []Xid     // errors that the driver reported of the GPU, by code
}

// NoMIGDevices is the reason why nothing of a MIG-enabled GPU can be allocated: it has no MIG device.
const NoMIGDevices = "no_mig_devices"

// Unallocatable returns the reason why nothing of a listed GPU can be allocated, in one word; empty if something
// can, or for a MIG device. All are the statuses of the node. It is the one source of this reason.
func (s Status) Unallocatable(all []Status) string {
	ownMIGDevice := func(o Status) bool { return o.GPU == s.GPU && !o.WholeGPU() && !o.Gone }
	if !s.WholeGPU() || !s.MIGEnabled || s.Gone || slices.ContainsFunc(all, ownMIGDevice) {
		return ""
	}
	return NoMIGDevices
}

// Health is where a device stands between all is well and nothing works.
type Health uint8

// In this order they come, and then begin anew.
const (
	Healthy    Health = iota
	Suspect           // something was reported; it is checked, and used as before meanwhile
	Unhealthy         // there is evidence against it
	Recovering        // there is none any more; it has to stand the test of time
)

// AllHealth are all that there are.
var AllHealth = [...]Health{Healthy, Suspect, Unhealthy, Recovering}

// String is the word by which metrics, JSON and tables know it.
func (h Health) String() string {
	if names := [...]string{Healthy: "well", Suspect: "suspect", Unhealthy: "unhealthy", Recovering: "probation"}; int(h) < len(names) {
		return names[h]
	}
	return "unknown"
}

// HealthEvent is something that happened to a GPU: a report of the driver, or evidence
// that had devices condemned.
type HealthEvent struct {
	At  time.Time
	GPU GPU
	// Affected are the devices that are concerned, as they were: the slice that a report names,
	// or the GPU and all its slices.
	Affected []Device
	Xid      uint64 // 0 where it was no Xid
	Reason   string // "xid_79", "lost", "not_answering"
	Class    string // as in Event; empty where a check found it
	Action   string // as in Status
	// MarkedUnhealthy says that those hit have turned unhealthy by it.
	MarkedUnhealthy bool
	// Source and Past are as in Event.
	Source     string
	Historical bool
}

// Xid counts one kind of error report of a GPU, since this process started or an earlier one
// that has handed its counts on (HealthRecord.Xids).
type Xid struct {
	Code  uint64
	Count uint64
	Last  time.Time // when the newest that counts happened; zero: none has
	// LastHistorical is when the newest happened of those from before podgauge listened, which are
	// not counted; zero: none has.
	LastHistorical time.Time
}

func (s Status) equal(o Status) bool {
	return s.EqualExceptXids(o) && slices.Equal(s.Xids, o.Xids)
}

// EqualExceptXids reports whether the two differ in counts of Xids at most.
func (s Status) EqualExceptXids(o Status) bool {
	return s.Equal(o.Device) && s.Healthy == o.Healthy && s.Health == o.Health && s.Flaps == o.Flaps && s.Reason == o.Reason && s.Gone == o.Gone &&
		s.Action == o.Action && s.Since.Equal(o.Since)
}
