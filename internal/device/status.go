package device

import (
	"reflect"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/pubsub"
)

// Inventory publishes the status of all devices: nil before the devices are known, empty without a device.
type Inventory = pubsub.Value[[]Status]

// Status is a device and its newest health. A published Status is immutable.
type Status struct {
	Device
	Healthy bool // in the kubelet's device list: Health is Healthy or Suspect
	Health  Health
	Flaps   uint64 // turns to unhealthy in this process, alone or with the GPU
	Reason  string // why the device is unhealthy, one word: "xid_79", "lost"; empty if healthy
	Action  string // what the operator should do: "reset_gpu", "reboot"; empty if unknown or done
	Note    string // the operator's reason of a retired device
	// MaskedFault is the newest fault of a retired device, from before the retirement or since.
	MaskedFault MaskedFault
	Since       time.Time   // when Healthy or Reason last changed; of a retired device, the date of the retirement
	Times       HealthTimes // in this process
	Gone        bool        // absent from the newest listing: not read, and its instance ids may be reused
	Xids        []Xid       // the GPU's Xids, by code
	// XidsOverAt is the newest recovery or Trust, or the GPU's first listing in this process: earlier Xids are over.
	XidsOverAt time.Time
}

// Reasons of an unhealthy device that other packages know.
const (
	ReasonRetired = "retired" // taken out of service by an operator
	ReasonGone    = "gone"    // absent from the newest listing; of a MIG device as well
)

// MissingGPUs returns how many of the expected GPUs the newest listing lacks.
func MissingGPUs(statuses []Status, expected int) int {
	for _, s := range statuses {
		if s.WholeGPU() && !s.Gone {
			expected--
		}
	}
	return max(0, expected)
}

// NoMIGDevices is the reason why nothing of a MIG-enabled GPU can be allocated: the GPU has no MIG device.
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

// EqualExceptXids reports whether two statuses differ at most in their Xids.
func (s Status) EqualExceptXids(o Status) bool {
	s.Xids, o.Xids = nil, nil
	return reflect.DeepEqual(s, o)
}

// Health is the health state of a device.
type Health uint8

// The health states.
const (
	Healthy    Health = iota
	Suspect           // a report or a failed check is being verified; the device stays in use
	Unhealthy         // a fault was found
	Recovering        // the fault is over, but too few checks have passed since
)

// AllHealth lists the health states.
var AllHealth = [...]Health{Healthy, Suspect, Unhealthy, Recovering}

// String returns the state's name in metrics, JSON and tables.
func (h Health) String() string {
	return [...]string{Healthy: "healthy", Suspect: "suspect", Unhealthy: "unhealthy", Recovering: "recovering"}[h]
}

// HealthTimes are the times that a device has been in its states in this
// process, in the order of the first one. HealthTimes is immutable.
type HealthTimes []HealthTime

// HealthTime is the time in one health state for one reason.
type HealthTime struct {
	Health Health
	Reason string // as in Status
	total  time.Duration
	since  time.Time // of the current state, by the monotonic clock; zero: not current
}

// Enter returns the times of a device that is in a state for a reason from now on.
func (times HealthTimes) Enter(h Health, reason string, now time.Time) HealthTimes {
	i := slices.IndexFunc(times, func(t HealthTime) bool { return t.Health == h && t.Reason == reason })
	if i >= 0 && !times[i].since.IsZero() {
		return times
	}
	times = slices.Clone(times)
	if i < 0 {
		i, times = len(times), append(times, HealthTime{Health: h, Reason: reason})
	}
	for k, t := range times {
		times[k].total, times[k].since = t.Until(now), time.Time{}
	}
	times[i].since = now
	return times
}

// Until returns the time in the state until now.
func (t HealthTime) Until(now time.Time) time.Duration {
	if t.since.IsZero() {
		return t.total
	}
	return t.total + max(0, now.Sub(t.since))
}

// Xid counts the Xids of one code of a GPU. Times are those of all processes.
type Xid struct {
	Code  uint64    `json:"code"`
	Count uint64    `json:"-"`             // in this process
	Last  time.Time `json:"last,omitzero"` // of the newest counted Xid; zero: none
	// LastHistorical is the time of the newest Xid from before podgauge
	// listened; such Xids are not counted. Zero: none.
	LastHistorical time.Time `json:"last_historical,omitzero"`
	// Nonfatal is set if the Xid at Last was nonfatal. LastFatal then is the time of the newest other one; zero: none.
	Nonfatal  bool      `json:"nonfatal,omitempty"`
	LastFatal time.Time `json:"last_fatal,omitzero"`
}

// LastSevere returns the time of the newest counted Xid, without nonfatal ones; zero: none.
func (x Xid) LastSevere() time.Time {
	if x.Nonfatal {
		return x.LastFatal
	}
	return x.Last
}

// HealthEvent is a driver report about a GPU, or a fault that turned devices unhealthy.
type HealthEvent struct {
	At  time.Time
	GPU GPU
	// Affected are the affected devices as they were: the MIG device of the report, or the GPU and all its MIG devices.
	Affected []Device
	Xid      uint64 // 0 if not an Xid
	Reason   string // "xid_79", "lost", "not_responding", "retired"
	Note     string // the operator's reason of a retirement
	Class    string // as in Event; empty if a check found the fault
	Action   string // as in Status
	// MarkedUnhealthy is set if the event turned the affected devices unhealthy.
	MarkedUnhealthy bool
	// Source and Historical are as in Event.
	Source     string
	Historical bool
}
