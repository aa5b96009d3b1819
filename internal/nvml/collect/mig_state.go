package collect

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// MIGState is the partitioning of a GPU. It is never written.
type MIGState struct {
	Unknown          bool // the mode is, since the first listing
	Capable, Enabled bool
	PendingEnabled   bool // after a reset
	Denials          int  // of the mode, in listings in a row
	MaxDevices       int  // 0: unknown
	Devices          []MIGDevice
}

// MIGDevice is a MIG device of a listing.
type MIGDevice struct {
	MIGIdentity
	Index       int    // on its GPU
	Profile     string // "1c.3g.40gb"
	Placement   device.Placement
	MemoryBytes uint64
	// Handle is that of the newest successful listing. NVML may give it to
	// another MIG device at any time.
	Handle nvml.Device
}

// MIGIdentity distinguishes a MIG device from a later one with the same index,
// instances or even UUID: up to driver 460 UUIDs consist of the instances'
// numbers, and numbers are reused at once.
type MIGIdentity struct {
	ID         device.ID
	GI, CI     int
	Attributes nvml.DeviceAttributes
}

// NoInstanceID replaces the number of a GPU or compute instance in a report
// without instances.
const NoInstanceID = math.MaxUint32

// DeviceID returns the MIG device with these instances, or the only device in
// the GPU instance. Without the numbers, reserved for the privileged, or with
// numbers of no listed device the result is empty: the report concerns the GPU.
func (s *MIGState) DeviceID(gi, ci uint32) device.ID {
	var only device.ID
	inside := 0
	for _, d := range s.Devices {
		if gi == NoInstanceID || uint32(d.GI) != gi {
			continue
		}
		if uint32(d.CI) == ci {
			return d.ID
		}
		only = d.ID
		inside++
	}
	if ci == NoInstanceID && inside == 1 {
		return only
	}
	return ""
}
